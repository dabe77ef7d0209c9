//! Where the kernels find a layer's weights and where they leave its sums.

use crate::model::layers::{CONV1, CONV2, Convolution, Dense};
use crate::model::layout::{
    BUCKETS, Bucket, CONV1_BIAS, CONV1_WEIGHT, CONV2_BIAS, CONV2_WEIGHT, FC1_BIAS, FC1_WEIGHT,
    FC2_BIAS, FC2_WEIGHT, FC3_BIAS, FC3_WEIGHT, LOSS_SCALE, TENSORS, TensorSpec,
};

/// Output channels of an invocation of the convolutions' forward kernel.
pub const FORWARD_CHANNELS: usize = 4;
/// Input channels of an invocation of conv2's backward kernel.
pub const BACKWARD_CHANNELS: usize = 3;

pub const CONVOLUTION_LAYER_WORDS: usize = 9;

/// The fields of `shaders/shared/convolution_layer.wgsl`.
pub fn convolution_layer(layer: &Convolution) -> [u32; CONVOLUTION_LAYER_WORDS] {
    let (weight, bias) = tensors_of(layer.name);
    let [row_margin, column_margin] = margins(layer);
    [
        layer.in_channels,
        padded_side(layer),
        layer.out_channels,
        layer.out_side(),
        row_margin,
        column_margin,
        forward_weights(layer),
        weight.offset,
        bias.offset,
    ]
    .map(|field| field as u32)
}

pub const DENSE_LAYER_WORDS: usize = 11;

/// The fields of `shaders/shared/dense_layer.wgsl`.
pub fn dense_layer(layer: &Dense) -> [u32; DENSE_LAYER_WORDS] {
    let (weight, bias) = tensors_of(layer.name);
    let (weight_scale, bias_scale) = (scale_of(weight), scale_of(bias));
    [
        layer.inputs as u32,
        layer.outputs as u32,
        layer.outputs.next_multiple_of(4) as u32,
        in_vec4(weight.offset),
        in_vec4(bias.offset),
        sum_word(weight) as u32,
        sum_word(bias) as u32,
        maximum_word(weight_scale) as u32,
        maximum_word(bias_scale) as u32,
        weight_scale as u32,
        bias_scale as u32,
    ]
}

/// Zeros around that gradient, so that its readers need not check borders: rows above and below,
/// columns before and behind. Only conv2's is read beyond its border.
pub fn margins(layer: &Convolution) -> [usize; 2] {
    if *layer == CONV1 { [0, 0] } else { [1, layer.kernel_side - 1] }
}

pub fn padded_side(layer: &Convolution) -> usize {
    layer.in_side + 2 * layer.padding
}

/// The weight and the bias of a layer.
fn tensors_of(layer: &str) -> (&'static TensorSpec, &'static TensorSpec) {
    match layer {
        "conv1" => (&CONV1_WEIGHT, &CONV1_BIAS),
        "conv2" => (&CONV2_WEIGHT, &CONV2_BIAS),
        "fc1" => (&FC1_WEIGHT, &FC1_BIAS),
        "fc2" => (&FC2_WEIGHT, &FC2_BIAS),
        _ => (&FC3_WEIGHT, &FC3_BIAS),
    }
}

/// A place in the parameters for a kernel that reads them as vec4.
pub fn in_vec4(offset: usize) -> u32 {
    debug_assert_eq!(offset % 4, 0);
    offset as u32 / 4
}

/// A tensor's index in `TENSORS`.
pub fn scale_of(tensor: &TensorSpec) -> usize {
    TENSORS.iter().position(|t| t.offset == tensor.offset).expect("one of the model's tensors")
}

/// The bucket that a scale belongs to: that of its tensor, or of the statistics.
fn bucket_of(scale: usize) -> &'static Bucket {
    let holds = |bucket: &&Bucket| match scale {
        LOSS_SCALE => bucket.statistics,
        tensor => (bucket.first_tensor..bucket.first_tensor + bucket.tensors).contains(&tensor),
    };
    BUCKETS.iter().find(holds).expect("every scale has a bucket")
}

/// Where a bucket's words begin in the words of all.
pub fn bucket_words(bucket: &Bucket) -> usize {
    BUCKETS.iter().take_while(|b| *b != bucket).map(Bucket::words).sum()
}

/// The word of the first sum of a tensor.
pub fn sum_word(tensor: &TensorSpec) -> usize {
    let bucket = bucket_of(scale_of(tensor));
    bucket_words(bucket) + tensor.offset - bucket.parameter_range().start
}

/// The word of a scale's maximum.
pub fn maximum_word(scale: usize) -> usize {
    let bucket = bucket_of(scale);
    let place = if scale == LOSS_SCALE { bucket.tensors } else { scale - bucket.first_tensor };
    bucket_words(bucket) + bucket.sum_words() + place
}

/// Elements of a convolution's kernel.
const fn kernel_elements(layer: &Convolution) -> usize {
    layer.kernel_side * layer.kernel_side
}

/// vec4 of a convolution's weights as the forward kernel reads them.
const fn forward_weight_vectors(layer: &Convolution) -> usize {
    layer.out_channels.div_ceil(FORWARD_CHANNELS) * layer.in_channels * kernel_elements(layer)
}

/// Where conv2's weights begin, in vec4, as its backward kernel reads them.
pub const BACKWARD_WEIGHTS: usize = forward_weight_vectors(&CONV1) + forward_weight_vectors(&CONV2);

/// All vec4 of `shaders/shared/convolution_weights.wgsl`.
pub const CONVOLUTION_WEIGHT_VECTORS: usize = BACKWARD_WEIGHTS
    + CONV2.in_channels / BACKWARD_CHANNELS * CONV2.out_channels * kernel_elements(&CONV2);

/// Where a convolution's weights begin, in vec4, as the forward kernel reads them.
fn forward_weights(layer: &Convolution) -> usize {
    if *layer == CONV1 { 0 } else { forward_weight_vectors(&CONV1) }
}

/// The parameter behind each component of `shaders/shared/convolution_weights.wgsl`; `None` is 0.
pub fn convolution_weights() -> Vec<Option<usize>> {
    let mut sources = Vec::with_capacity(4 * CONVOLUTION_WEIGHT_VECTORS);
    let parameter = |layer: &Convolution, out: usize, channel: usize, element: usize| {
        let exists = out < layer.out_channels;
        let kernel = out * layer.in_channels + channel;
        let (weight, _) = tensors_of(layer.name);
        exists.then(|| weight.offset + kernel * kernel_elements(layer) + element)
    };
    for layer in [&CONV1, &CONV2] {
        for first in (0..layer.out_channels).step_by(FORWARD_CHANNELS) {
            for channel in 0..layer.in_channels {
                for element in 0..kernel_elements(layer) {
                    let group = first..first + FORWARD_CHANNELS;
                    sources.extend(group.map(|out| parameter(layer, out, channel, element)));
                }
            }
        }
    }
    for first in (0..CONV2.in_channels).step_by(BACKWARD_CHANNELS) {
        for out in 0..CONV2.out_channels {
            for element in 0..kernel_elements(&CONV2) {
                let group = first..first + BACKWARD_CHANNELS;
                sources.extend(group.map(|channel| parameter(&CONV2, out, channel, element)));
                sources.push(None);
            }
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::layout::{DENSE_BUCKET, PARAMETERS, SCALE_COUNT};

    #[test]
    fn every_word_has_one_place() {
        let mut places: Vec<usize> = TENSORS
            .iter()
            .flat_map(|tensor| sum_word(tensor)..sum_word(tensor) + tensor.count)
            .chain((0..SCALE_COUNT).map(maximum_word))
            .collect();
        let statistics = DENSE_BUCKET.parameter_range().len();
        places.extend(statistics..statistics + 3);
        places.sort_unstable();
        let words = BUCKETS.iter().map(Bucket::words).sum();
        assert_eq!(places, (0..words).collect::<Vec<_>>());
    }

    #[test]
    fn every_convolution_weight_is_read_where_it_is_used() {
        let sources = convolution_weights();
        assert_eq!(sources.len(), 4 * CONVOLUTION_WEIGHT_VECTORS);
        let mut uses = vec![0; PARAMETERS];
        sources.iter().flatten().for_each(|&parameter| uses[parameter] += 1);
        // Forward, and for conv2 backward too.
        assert!(uses[CONV1_WEIGHT.range()].iter().all(|&n| n == 1));
        assert!(uses[CONV2_WEIGHT.range()].iter().all(|&n| n == 2));
        assert_eq!(uses.iter().sum::<i32>(), 150 + 2 * 2_400);
    }
}
