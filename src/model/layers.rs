//! The layer list of LeNet-5 (LeCun et al. 1998, in the fully connected-channel form of today's
//! textbooks) for images of shape (1, 28, 28).

use serde::{Deserialize, Serialize};

/// Height and width of an input image.
pub const IMAGE_SIDE: usize = 28;
/// Pixels of an input image.
pub const IMAGE_PIXELS: usize = IMAGE_SIDE * IMAGE_SIDE;
/// Classes, hence logits, of an image.
pub const CLASSES: usize = 10;

/// A convolution with stride 1, followed by the activation and a 2x2 pooling with stride 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// PyTorch's module name.
    pub name: &'static str,
    pub in_channels: usize,
    pub out_channels: usize,
    /// Height and width of the square kernel.
    pub kernel_side: usize,
    /// Zeros added on each side.
    pub padding: usize,
    /// Height and width of the square input.
    pub in_side: usize,
}

impl Convolution {
    /// Height and width of the convolution's output, before pooling.
    pub const fn out_side(&self) -> usize {
        self.in_side + 2 * self.padding - self.kernel_side + 1
    }

    /// Height and width after pooling.
    pub const fn pooled_side(&self) -> usize {
        self.out_side() / 2
    }

    /// Inputs that feed one output value.
    pub const fn fan_in(&self) -> usize {
        self.in_channels * self.kernel_side * self.kernel_side
    }
}

/// A fully connected layer; the activation follows it unless it is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dense {
    /// PyTorch's module name.
    pub name: &'static str,
    pub inputs: usize,
    pub outputs: usize,
}

/// (N, 1, 28, 28) -> (N, 6, 28, 28) -> pooled (N, 6, 14, 14).
pub const CONV1: Convolution = Convolution {
    name: "conv1",
    in_channels: 1,
    out_channels: 6,
    kernel_side: 5,
    padding: 2,
    in_side: IMAGE_SIDE,
};
/// (N, 6, 14, 14) -> (N, 16, 10, 10) -> pooled (N, 16, 5, 5), flattened to (N, 400).
pub const CONV2: Convolution = Convolution {
    name: "conv2",
    in_channels: CONV1.out_channels,
    out_channels: 16,
    kernel_side: 5,
    padding: 0,
    in_side: CONV1.pooled_side(),
};
/// (N, 400) -> (N, 120).
pub const FC1: Dense = Dense {
    name: "fc1",
    inputs: CONV2.out_channels * CONV2.pooled_side() * CONV2.pooled_side(),
    outputs: 120,
};
/// (N, 120) -> (N, 84).
pub const FC2: Dense = Dense { name: "fc2", inputs: FC1.outputs, outputs: 84 };
/// (N, 84) -> logits (N, 10).
pub const FC3: Dense = Dense { name: "fc3", inputs: FC2.outputs, outputs: CLASSES };

/// The convolutions in forward order.
pub const CONVOLUTIONS: [Convolution; 2] = [CONV1, CONV2];
/// The fully connected layers in forward order.
pub const DENSE: [Dense; 3] = [FC1, FC2, FC3];

/// What follows each convolution and each fully connected layer but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Relu,
    Tanh,
}

/// How 2x2 values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The first of equal maxima, in row-major order, takes the gradient, as in PyTorch.
    Max,
    Average,
}

/// The two variants; they share the layers above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    /// ReLU and max pooling.
    #[default]
    #[serde(rename = "lenet5")]
    LeNet5,
    /// Tanh and average pooling.
    #[serde(rename = "lenet5-classic")]
    LeNet5Classic,
}

impl ModelKind {
    pub const ALL: [ModelKind; 2] = [ModelKind::LeNet5, ModelKind::LeNet5Classic];

    pub const fn activation(self) -> Activation {
        match self {
            ModelKind::LeNet5 => Activation::Relu,
            ModelKind::LeNet5Classic => Activation::Tanh,
        }
    }

    pub const fn pooling(self) -> Pooling {
        match self {
            ModelKind::LeNet5 => Pooling::Max,
            ModelKind::LeNet5Classic => Pooling::Average,
        }
    }

    /// The name on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            ModelKind::LeNet5 => "lenet5",
            ModelKind::LeNet5Classic => "lenet5-classic",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_chain() {
        assert_eq!(CONV1.out_side(), 28);
        assert_eq!(CONV1.pooled_side(), CONV2.in_side);
        assert_eq!(CONV2.out_side(), 10);
        assert_eq!(FC1.inputs, 400);
        assert_eq!(FC1.outputs, FC2.inputs);
        assert_eq!(FC2.outputs, FC3.inputs);
    }
}
