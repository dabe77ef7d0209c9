//! Where each parameter lies in the flat vector, and how the vector is cut into buckets.
//!
//! The flat vector is PyTorch's `state_dict` order, each tensor row-major: `conv1.weight`,
//! `conv1.bias`, ..., `fc3.bias`. A **bucket** is a run of tensors reduced together; buckets are
//! listed in the order in which the backward pass finishes them.

use super::layers::{CONV1, CONV2, Convolution, Dense, FC1, FC2, FC3};

/// A tensor of the model: its PyTorch name, shape and place in the flat vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: &'static str,
    /// Row-major shape; unused dimensions are absent.
    pub shape: &'static [usize],
    /// Index of the first element in the flat vector.
    pub offset: usize,
    /// Number of elements.
    pub count: usize,
    /// Inputs that feed one output of the layer: PyTorch's bound of the initial values is
    /// `1 / sqrt(fan_in)` for weights and biases alike.
    pub fan_in: usize,
}

impl TensorSpec {
    /// The tensor's elements in the flat vector.
    pub const fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.count
    }
}

const fn product(shape: &[usize]) -> usize {
    let mut count = 1;
    let mut i = 0;
    while i < shape.len() {
        count *= shape[i];
        i += 1;
    }
    count
}

const fn tensor(
    name: &'static str,
    shape: &'static [usize],
    fan_in: usize,
    offset: usize,
) -> TensorSpec {
    TensorSpec { name, shape, offset, count: product(shape), fan_in }
}

const fn end(t: &TensorSpec) -> usize {
    t.offset + t.count
}

const fn conv_shape(c: &Convolution) -> [usize; 4] {
    [c.out_channels, c.in_channels, c.kernel_side, c.kernel_side]
}

const fn dense_shape(d: &Dense) -> [usize; 2] {
    [d.outputs, d.inputs]
}

const CONV1_SHAPE: [usize; 4] = conv_shape(&CONV1);
const CONV2_SHAPE: [usize; 4] = conv_shape(&CONV2);
const FC1_SHAPE: [usize; 2] = dense_shape(&FC1);
const FC2_SHAPE: [usize; 2] = dense_shape(&FC2);
const FC3_SHAPE: [usize; 2] = dense_shape(&FC3);

pub const CONV1_WEIGHT: TensorSpec = tensor("conv1.weight", &CONV1_SHAPE, CONV1.fan_in(), 0);
pub const CONV1_BIAS: TensorSpec =
    tensor("conv1.bias", &[CONV1.out_channels], CONV1.fan_in(), end(&CONV1_WEIGHT));
pub const CONV2_WEIGHT: TensorSpec =
    tensor("conv2.weight", &CONV2_SHAPE, CONV2.fan_in(), end(&CONV1_BIAS));
pub const CONV2_BIAS: TensorSpec =
    tensor("conv2.bias", &[CONV2.out_channels], CONV2.fan_in(), end(&CONV2_WEIGHT));
pub const FC1_WEIGHT: TensorSpec = tensor("fc1.weight", &FC1_SHAPE, FC1.inputs, end(&CONV2_BIAS));
pub const FC1_BIAS: TensorSpec = tensor("fc1.bias", &[FC1.outputs], FC1.inputs, end(&FC1_WEIGHT));
pub const FC2_WEIGHT: TensorSpec = tensor("fc2.weight", &FC2_SHAPE, FC2.inputs, end(&FC1_BIAS));
pub const FC2_BIAS: TensorSpec = tensor("fc2.bias", &[FC2.outputs], FC2.inputs, end(&FC2_WEIGHT));
pub const FC3_WEIGHT: TensorSpec = tensor("fc3.weight", &FC3_SHAPE, FC3.inputs, end(&FC2_BIAS));
pub const FC3_BIAS: TensorSpec = tensor("fc3.bias", &[FC3.outputs], FC3.inputs, end(&FC3_WEIGHT));

/// Tensors of the model.
pub const TENSOR_COUNT: usize = 10;

/// The tensors in the order of the flat vector.
pub const TENSORS: [TensorSpec; TENSOR_COUNT] = [
    CONV1_WEIGHT,
    CONV1_BIAS,
    CONV2_WEIGHT,
    CONV2_BIAS,
    FC1_WEIGHT,
    FC1_BIAS,
    FC2_WEIGHT,
    FC2_BIAS,
    FC3_WEIGHT,
    FC3_BIAS,
];

/// Elements of the flat vector.
pub const PARAMETERS: usize = end(&FC3_BIAS);

/// Values whose range is tracked by an exact maximum: each tensor's gradient, then the loss.
pub const SCALE_COUNT: usize = TENSOR_COUNT + 1;
/// Index of the loss among the scales.
pub const LOSS_SCALE: usize = TENSOR_COUNT;

/// Words of step statistics that follow the gradient sums of the bucket that carries them.
pub const STATISTIC_WORDS: usize = 3;

/// A run of consecutive tensors reduced together.
///
/// A bucket's vector is `u32` words: first [`Bucket::sum_words`], to be added with wrap-around
/// (the gradients' fixed-point sums as `i32` bits, then, where [`Bucket::statistics`], the loss in
/// fixed point, the right answers, the samples), then [`Bucket::max_words`], of which the maximum
/// is taken (the bits of max |partial| of each tensor, then, where `statistics`, of the loss).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Index of the first tensor in [`TENSORS`].
    pub first_tensor: usize,
    pub tensors: usize,
    /// Whether the bucket carries the step's loss, right answers and samples.
    pub statistics: bool,
}

/// The fully connected layers, finished first by the backward pass: 96 % of the parameters.
pub const DENSE_BUCKET: Bucket = Bucket { first_tensor: 4, tensors: 6, statistics: true };
/// The convolutions.
pub const CONVOLUTION_BUCKET: Bucket = Bucket { first_tensor: 0, tensors: 4, statistics: false };

/// All buckets in the order in which the backward pass finishes them.
pub const BUCKETS: [Bucket; 2] = [DENSE_BUCKET, CONVOLUTION_BUCKET];

impl Bucket {
    /// The bucket's tensors.
    pub fn tensor_specs(&self) -> &'static [TensorSpec] {
        &TENSORS[self.first_tensor..self.first_tensor + self.tensors]
    }

    /// The bucket's elements in the flat vector.
    pub const fn parameter_range(&self) -> std::ops::Range<usize> {
        let first = &TENSORS[self.first_tensor];
        let last = &TENSORS[self.first_tensor + self.tensors - 1];
        first.offset..end(last)
    }

    /// Words that are added.
    pub const fn sum_words(&self) -> usize {
        let range = self.parameter_range();
        range.end - range.start + if self.statistics { STATISTIC_WORDS } else { 0 }
    }

    /// Words of which the maximum is taken.
    pub const fn max_words(&self) -> usize {
        self.tensors + if self.statistics { 1 } else { 0 }
    }

    /// All words of the bucket's vector.
    pub const fn words(&self) -> usize {
        self.sum_words() + self.max_words()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_of_lenet5() {
        assert_eq!(PARAMETERS, 61_706);
        for pair in TENSORS.windows(2) {
            assert_eq!(pair[0].range().end, pair[1].offset);
        }
    }

    #[test]
    fn buckets_cover_every_parameter_once() {
        let covered: usize = BUCKETS.iter().map(|b| b.parameter_range().len()).sum();
        assert_eq!(covered, PARAMETERS);
        assert_eq!(CONVOLUTION_BUCKET.parameter_range(), 0..2_572);
        assert_eq!(DENSE_BUCKET.parameter_range(), 2_572..PARAMETERS);
        assert_eq!(BUCKETS.iter().filter(|b| b.statistics).count(), 1);
        assert_eq!(BUCKETS.iter().map(Bucket::max_words).sum::<usize>(), SCALE_COUNT);
    }
}
