//! The kernels' texts: templates whose loops are written out for one adapter and one model.

use minijinja::{Environment, context};

use super::layout::{
    BACKWARD_QUADS, CONV1_ROW, CONV2_ROW, CONV2_TRANSPOSED_ROW, DENSE_TILES, FORWARD_OUTPUTS,
    WEIGHT_QUADS,
};
use crate::gpu::engine::Sums;
use crate::model::layers::ModelKind;

/// Everything the texts depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    pub model: ModelKind,
    pub sums: Sums,
    /// Lanes that share a weight by a broadcast; 0 to do without subgroup operations.
    pub subgroup_size: u32,
    /// Images side by side in the image texture.
    pub images_per_row: u32,
}

/// A kernel of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    Conv1Forward,
    Conv2Forward,
    DenseForward,
    Head,
    DenseBackwardInput,
    DenseBackwardWeights,
    Conv2BackwardInput,
    Conv2BackwardWeights,
    Conv1BackwardWeights,
    SumTiles,
}

impl Kernel {
    pub const ALL: [Kernel; 10] = [
        Kernel::Conv1Forward,
        Kernel::Conv2Forward,
        Kernel::DenseForward,
        Kernel::Head,
        Kernel::DenseBackwardInput,
        Kernel::DenseBackwardWeights,
        Kernel::Conv2BackwardInput,
        Kernel::Conv2BackwardWeights,
        Kernel::Conv1BackwardWeights,
        Kernel::SumTiles,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Kernel::Conv1Forward => "conv1_forward",
            Kernel::Conv2Forward => "conv2_forward",
            Kernel::DenseForward => "dense_forward",
            Kernel::Head => "head",
            Kernel::DenseBackwardInput => "dense_backward_input",
            Kernel::DenseBackwardWeights => "dense_backward_weights",
            Kernel::Conv2BackwardInput => "conv2_backward_input",
            Kernel::Conv2BackwardWeights => "conv2_backward_weights",
            Kernel::Conv1BackwardWeights => "conv1_backward_weights",
            Kernel::SumTiles => "sum_tiles",
        }
    }

    const fn template(self) -> &'static str {
        match self {
            Kernel::Conv1Forward => "conv1_forward.wgsl.j2",
            Kernel::Conv2Forward => "conv2_forward.wgsl.j2",
            Kernel::DenseForward => "dense_forward.wgsl.j2",
            Kernel::Head => "head.wgsl.j2",
            Kernel::DenseBackwardInput => "dense_backward_input.wgsl.j2",
            Kernel::DenseBackwardWeights => "dense_backward_weights.wgsl.j2",
            Kernel::Conv2BackwardInput => "conv2_backward_input.wgsl.j2",
            Kernel::Conv2BackwardWeights => "conv2_backward_weights.wgsl.j2",
            Kernel::Conv1BackwardWeights => "conv1_backward_weights.wgsl.j2",
            Kernel::SumTiles => "sum_tiles.wgsl.j2",
        }
    }
}

macro_rules! templates {
    ($($name:literal),* $(,)?) => {
        [$((
            concat!($name, ".wgsl.j2"),
            include_str!(concat!("../../../shaders/lane/", $name, ".wgsl.j2")),
        )),*]
    };
}

/// Name and text: the pieces that kernels import, then the kernels.
const TEMPLATES: [(&str, &str); 15] = templates![
    "shared",
    "images",
    "pooling",
    "windows",
    "dense",
    "conv1_forward",
    "conv2_forward",
    "dense_forward",
    "head",
    "dense_backward_input",
    "dense_backward_weights",
    "conv2_backward_input",
    "conv2_backward_weights",
    "conv1_backward_weights",
    "sum_tiles",
];

/// The templates, ready to be written out for a variant.
pub struct Sources {
    environment: Environment<'static>,
}

impl Sources {
    pub fn new(variant: Variant) -> Sources {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        for (name, text) in TEMPLATES {
            environment.add_template(name, text).expect("the crate's own templates parse");
        }
        // Globals and not arguments, since imported macros see nothing else.
        environment.add_global("model", variant.model.name());
        environment.add_global("exact", variant.sums == Sums::Exact);
        environment.add_global("subgroup_size", variant.subgroup_size);
        environment.add_global(
            "layout",
            context! {
                images_per_row => variant.images_per_row,
                conv1_row => CONV1_ROW,
                conv2_row => CONV2_ROW,
                conv2_transposed_row => CONV2_TRANSPOSED_ROW,
            },
        );
        environment.add_global(
            "dense",
            context! {
                tiles => DENSE_TILES,
                forward_outputs => FORWARD_OUTPUTS,
                backward_quads => BACKWARD_QUADS,
                weight_quads => WEIGHT_QUADS,
            },
        );
        Sources { environment }
    }

    /// The kernel's WGSL.
    pub fn wgsl(&self, kernel: Kernel) -> String {
        self.environment
            .get_template(kernel.template())
            .and_then(|template| template.render(context! {}))
            .expect("the crate's own templates render")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn only_the_subgroup_variants_use_subgroups() {
        for subgroup_size in [0, 4, 8, 16] {
            let variant = Variant {
                model: ModelKind::LeNet5,
                sums: Sums::Exact,
                subgroup_size,
                images_per_row: 128,
            };
            let sources = Sources::new(variant);
            let uses = Kernel::ALL.iter().any(|&kernel| sources.wgsl(kernel).contains("subgroup"));
            assert_eq!(uses, subgroup_size != 0);
        }
    }
}
