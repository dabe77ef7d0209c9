//! Where parameters lie in the parameter texture, and how the kernels' sums become words.
//!
//! Features that leave convolution 2 are ordered here by pooled rows, and not by channels as in
//! PyTorch: four positions of each channel, then the fifth of each. So a texel holds what one lane
//! needs, be it a sample or a channel. This module is the only place that knows both orders.

use crate::model::layers::{CONV1, CONV2, Dense, FC1, FC2, FC3};
use crate::model::layout::{
    CONV1_BIAS, CONV1_WEIGHT, CONV2_BIAS, CONV2_WEIGHT, FC1_BIAS, FC1_WEIGHT, FC2_BIAS, FC2_WEIGHT,
    FC3_BIAS, FC3_WEIGHT, TensorSpec,
};

/// Samples of a tile, hence lanes of a workgroup.
pub(super) const LANES: usize = 16;
/// Places of a convolution's kernel, and the bias behind them.
pub(super) const PLACES: usize = 26;
/// Vectors of four that hold them.
const PLACE_QUADS: usize = PLACES.div_ceil(4);
/// Channel triples of convolution 1: workgroups of its weight gradient.
pub(super) const CONV1_UNITS: usize = CONV1.out_channels / 3;

/// Tiles of a workgroup of the fully connected layers' forward and input gradient: a weight that
/// is read once serves so many samples' sums.
pub(super) const DENSE_TILES: usize = 2;
/// Outputs of a workgroup of the forward kernel.
pub(super) const FORWARD_OUTPUTS: usize = 24;
/// Input quads of a workgroup of the input's gradient.
pub(super) const BACKWARD_QUADS: usize = 8;
/// Output quads of a workgroup of the weights' gradient.
pub(super) const WEIGHT_QUADS: usize = 5;

/// A fully connected layer as the kernels see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DenseShape {
    pub layer: Dense,
    pub weight: TensorSpec,
    pub bias: TensorSpec,
    /// First row of its weights in the parameter texture.
    pub row: usize,
    /// Whether its inputs went through the activation function.
    pub activated: bool,
    /// Place of its first sum among the sums, in vectors of four.
    pub sums_first: usize,
    /// Place of its first maximum among the maxima.
    pub maxima_first: usize,
    /// Index of the weight's scale; the bias's follows.
    pub scales_first: usize,
}

impl DenseShape {
    pub const fn input_quads(&self) -> usize {
        self.layer.inputs / 4
    }

    pub const fn output_quads(&self) -> usize {
        self.layer.outputs.div_ceil(4)
    }

    /// Workgroups of the forward kernel along the outputs.
    pub const fn forward_groups(&self) -> usize {
        self.layer.outputs.div_ceil(FORWARD_OUTPUTS)
    }

    /// Workgroups of the input's gradient along the inputs.
    pub const fn backward_groups(&self) -> usize {
        self.input_quads().div_ceil(BACKWARD_QUADS)
    }

    /// Workgroups of the weights' gradient along inputs and outputs; the bias is one input quad.
    pub const fn weight_groups(&self) -> [usize; 2] {
        [(self.input_quads() + 1).div_ceil(LANES), self.output_quads().div_ceil(WEIGHT_QUADS)]
    }

    /// What the kernels read as `Layer`.
    pub fn words(&self) -> [u32; 7] {
        [
            self.input_quads(),
            self.output_quads(),
            self.row,
            usize::from(self.activated),
            self.sums_first,
            self.maxima_first,
            self.scales_first,
        ]
        .map(|word| word as u32)
    }

    const fn sums_end(&self) -> usize {
        self.sums_first + self.output_quads() * 4 * (self.input_quads() + 1)
    }

    const fn maxima_end(&self) -> usize {
        let [inputs, outputs] = self.weight_groups();
        self.maxima_first + inputs * outputs * LANES
    }
}

pub(super) const DENSE1: DenseShape = DenseShape {
    layer: FC1,
    weight: FC1_WEIGHT,
    bias: FC1_BIAS,
    row: 0,
    activated: false,
    sums_first: 0,
    maxima_first: 0,
    scales_first: 4,
};
pub(super) const DENSE2: DenseShape = DenseShape {
    layer: FC2,
    weight: FC2_WEIGHT,
    bias: FC2_BIAS,
    row: DENSE1.row + DENSE1.layer.outputs,
    activated: true,
    sums_first: DENSE1.sums_end(),
    maxima_first: DENSE1.maxima_end(),
    scales_first: 6,
};
pub(super) const DENSE3: DenseShape = DenseShape {
    layer: FC3,
    weight: FC3_WEIGHT,
    bias: FC3_BIAS,
    row: DENSE2.row + DENSE2.layer.outputs,
    activated: true,
    sums_first: DENSE2.sums_end(),
    maxima_first: DENSE2.maxima_end(),
    scales_first: 8,
};
const DENSE: [DenseShape; 3] = [DENSE1, DENSE2, DENSE3];

/// Vectors of four sums of the fully connected layers.
pub(super) const DENSE_SUMS: usize = DENSE3.sums_end();
pub(super) const DENSE_MAXIMA: usize = DENSE3.maxima_end();
/// Vectors of four sums of convolution 2 (in-channel, out-channel, place) and of convolution 1
/// (channel triple, place, channel).
pub(super) const CONV2_SUMS: usize = CONV2.in_channels * CONV2.out_channels * PLACE_QUADS;
pub(super) const CONV1_SUMS: usize = CONV1_UNITS * PLACES;
pub(super) const CONV_SUMS: usize = CONV2_SUMS + CONV1_SUMS;
/// A maximum of the weights and one of the bias a lane.
pub(super) const CONV2_MAXIMA: usize = CONV2.in_channels * CONV2.out_channels * 2;
/// A maximum a lane, whole workgroups.
pub(super) const CONV1_MAXIMA: usize = CONV1_SUMS.next_multiple_of(LANES);
pub(super) const CONV_MAXIMA: usize = CONV2_MAXIMA + CONV1_MAXIMA;

/// Rows of the parameter texture: fc1, fc2 and fc3 (a row an output, padded to quads), then
/// convolution 1 (one row, 8 texels a channel), then convolution 2 twice.
pub(super) const CONV1_ROW: usize = DENSE3.row + DENSE3.output_quads() * 4;
/// A row for each (out-channel quad, in-channel); a texel is a kernel place of four out-channels.
pub(super) const CONV2_ROW: usize = CONV1_ROW + 1;
/// A row for each (out-channel, in-channel triple); a texel is a kernel place of three in-channels.
/// A kernel row of zeros, never written, lies before and after the others.
pub(super) const CONV2_TRANSPOSED_ROW: usize =
    CONV2_ROW + CONV2.in_channels * CONV2.out_channels / 4;
pub(super) const PARAMETER_ROWS: usize =
    CONV2_TRANSPOSED_ROW + CONV2.out_channels * CONV2.in_channels / 3;
/// Texels of a row: fc1's 100 input quads and its bias, rounded up to 256 bytes.
pub(super) const PARAMETER_COLUMNS: usize = 112;

/// Kernel places of a convolution.
const KERNEL: usize = CONV2.kernel_side * CONV2.kernel_side;
/// PyTorch's place of each feature that leaves convolution 2.
const FEATURES: [usize; FC1.inputs] = features();

const fn features() -> [usize; FC1.inputs] {
    let (side, channels) = (CONV2.pooled_side(), CONV2.out_channels);
    let mut features = [0; FC1.inputs];
    let mut n = 0;
    while n < FC1.inputs {
        let (row, rest) = (n / (side * channels), n % (side * channels));
        let (channel, column) =
            if rest < 4 * channels { (rest / 4, rest % 4) } else { (rest - 4 * channels, 4) };
        features[n] = (channel * side + row) * side + column;
        n += 1;
    }
    features
}

/// Lays the flat parameter vector out as texels; cells that hold no parameter are not written.
pub(super) fn pack_parameters(parameters: &[f32], texels: &mut [[f32; 4]]) {
    assert_eq!(texels.len(), PARAMETER_ROWS * PARAMETER_COLUMNS);
    let row = |row: usize| row * PARAMETER_COLUMNS..(row + 1) * PARAMETER_COLUMNS;

    for shape in &DENSE {
        let weights = parameters[shape.weight.range()].chunks_exact(shape.layer.inputs);
        let biases = &parameters[shape.bias.range()];
        for (o, (weights, &bias)) in weights.zip(biases).enumerate() {
            let texels = &mut texels[row(shape.row + o)];
            if shape.weight == FC1_WEIGHT {
                let values = texels[..shape.input_quads()].as_flattened_mut();
                for (value, &feature) in values.iter_mut().zip(&FEATURES) {
                    *value = weights[feature];
                }
            } else {
                texels[..shape.input_quads()].as_flattened_mut().copy_from_slice(weights);
            }
            texels[shape.input_quads()][0] = bias;
        }
    }

    let weights = parameters[CONV1_WEIGHT.range()].chunks_exact(KERNEL);
    let texels1 = texels[row(CONV1_ROW)].as_flattened_mut();
    for (c, (weights, &bias)) in weights.zip(&parameters[CONV1_BIAS.range()]).enumerate() {
        texels1[32 * c..32 * c + KERNEL].copy_from_slice(weights);
        texels1[32 * c + KERNEL] = bias;
    }

    let weights = &parameters[CONV2_WEIGHT.range()];
    let biases = &parameters[CONV2_BIAS.range()];
    for (o, weights) in weights.chunks_exact(CONV2.in_channels * KERNEL).enumerate() {
        for (i, weights) in weights.chunks_exact(KERNEL).enumerate() {
            let forward = CONV2_ROW + o / 4 * CONV2.in_channels + i;
            let transposed = CONV2_TRANSPOSED_ROW + 2 * o + i / 3;
            for (k, &weight) in weights.iter().enumerate() {
                texels[forward * PARAMETER_COLUMNS + k][o % 4] = weight;
                texels[transposed * PARAMETER_COLUMNS + CONV2.kernel_side + k][i % 3] = weight;
            }
            texels[forward * PARAMETER_COLUMNS + KERNEL][o % 4] = biases[o];
        }
    }
}

/// Puts the fully connected layers' sums, [`DENSE_SUMS`] vectors, in the flat vector's order;
/// `words` is the part of the bucket that holds the gradients.
pub(super) fn unpack_dense_sums(sums: &[[u32; 4]], words: &mut [u32]) {
    let origin = FC1_WEIGHT.offset;
    for shape in &DENSE {
        let columns = shape.input_quads() + 1;
        let inputs = shape.layer.inputs;
        for o in 0..shape.layer.outputs {
            let first = shape.sums_first + o * columns;
            let sums = sums[first..first + columns].as_flattened();
            let place = shape.weight.offset - origin + o * inputs;
            let words_of_output = &mut words[place..place + inputs];
            if shape.weight == FC1_WEIGHT {
                for (&sum, &feature) in sums.iter().zip(&FEATURES) {
                    words_of_output[feature] = sum;
                }
            } else {
                words_of_output.copy_from_slice(&sums[..inputs]);
            }
            words[shape.bias.offset - origin + o] = sums[inputs];
        }
    }
}

/// The largest of the fully connected layers' maxima by tensor: weight and bias of each layer.
pub(super) fn unpack_dense_maxima(maxima: &[u32], words: &mut [u32]) {
    for (shape, words) in DENSE.iter().zip(words.chunks_exact_mut(2)) {
        for (i, &maximum) in maxima[shape.maxima_first..shape.maxima_end()].iter().enumerate() {
            let quad = i % (shape.weight_groups()[0] * LANES);
            match quad.cmp(&shape.input_quads()) {
                std::cmp::Ordering::Less => words[0] = words[0].max(maximum),
                std::cmp::Ordering::Equal => words[1] = words[1].max(maximum),
                std::cmp::Ordering::Greater => {}
            }
        }
    }
}

/// Puts the convolutions' sums, [`CONV_SUMS`] vectors, in the flat vector's order.
pub(super) fn unpack_conv_sums(sums: &[[u32; 4]], words: &mut [u32]) {
    let (sums2, sums1) = sums.split_at(CONV2_SUMS);
    for (unit, sums) in sums2.chunks_exact(PLACE_QUADS).enumerate() {
        let (i, o) = (unit / CONV2.out_channels, unit % CONV2.out_channels);
        let sums = sums.as_flattened();
        let weight = CONV2_WEIGHT.offset + (o * CONV2.in_channels + i) * KERNEL;
        words[weight..weight + KERNEL].copy_from_slice(&sums[..KERNEL]);
        // Every in-channel's workgroup has the same bias gradient.
        words[CONV2_BIAS.offset + o] = sums[KERNEL];
    }
    for (unit, sums) in sums1.chunks_exact(PLACES).enumerate() {
        for (k, sums) in sums.iter().enumerate() {
            for (c, &sum) in sums[..3].iter().enumerate() {
                let channel = unit * 3 + c;
                if k < KERNEL {
                    words[CONV1_WEIGHT.offset + channel * KERNEL + k] = sum;
                } else {
                    words[CONV1_BIAS.offset + channel] = sum;
                }
            }
        }
    }
}

/// The largest of the convolutions' maxima by tensor: weight and bias of convolution 1, then 2.
pub(super) fn unpack_conv_maxima(maxima: &[u32], words: &mut [u32]) {
    let (maxima2, maxima1) = maxima.split_at(CONV2_MAXIMA);
    for (i, &maximum) in maxima1[..CONV1_SUMS].iter().enumerate() {
        let tensor = usize::from(i % PLACES == KERNEL);
        words[tensor] = words[tensor].max(maximum);
    }
    for (i, &maximum) in maxima2.iter().enumerate() {
        words[2 + i % 2] = words[2 + i % 2].max(maximum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::layout::{CONVOLUTION_BUCKET, DENSE_BUCKET, PARAMETERS};

    /// The texels of a vector whose values are their own indices, exact in f32.
    fn packed_indices() -> Vec<[f32; 4]> {
        let parameters: Vec<f32> = (0..PARAMETERS).map(|i| i as f32).collect();
        let mut texels = vec![[0.0; 4]; PARAMETER_ROWS * PARAMETER_COLUMNS];
        pack_parameters(&parameters, &mut texels);
        texels
    }

    fn texel(texels: &[[f32; 4]], row: usize, column: usize) -> [u32; 4] {
        texels[row * PARAMETER_COLUMNS + column].map(|value| value as u32)
    }

    #[test]
    fn dense_sums_come_back_to_where_their_weights_are() {
        let texels = packed_indices();
        let mut sums = vec![[0; 4]; DENSE_SUMS];
        for shape in &DENSE {
            let columns = shape.input_quads() + 1;
            for o in 0..shape.layer.outputs {
                for c in 0..columns {
                    sums[shape.sums_first + o * columns + c] = texel(&texels, shape.row + o, c);
                }
            }
        }
        let range = DENSE_BUCKET.parameter_range();
        let mut words = vec![0; range.len()];
        unpack_dense_sums(&sums, &mut words);
        assert!(words.iter().zip(range).all(|(&word, i)| word as usize == i));
    }

    #[test]
    fn convolution_sums_come_back_to_where_their_weights_are() {
        let texels = packed_indices();
        let mut sums = vec![[0; 4]; CONV_SUMS];
        for unit in 0..CONV2.in_channels * CONV2.out_channels {
            let (i, o) = (unit / CONV2.out_channels, unit % CONV2.out_channels);
            for k in 0..PLACES {
                let row = CONV2_ROW + o / 4 * CONV2.in_channels + i;
                let sums = sums[unit * PLACE_QUADS..][..PLACE_QUADS].as_flattened_mut();
                sums[k] = texel(&texels, row, k)[o % 4];
            }
        }
        for channel in 0..CONV1.out_channels {
            for k in 0..PLACES {
                let value = texel(&texels, CONV1_ROW, channel * 8 + k / 4)[k % 4];
                sums[CONV2_SUMS + channel / 3 * PLACES + k][channel % 3] = value;
            }
        }
        let range = CONVOLUTION_BUCKET.parameter_range();
        let mut words = vec![0; range.len()];
        unpack_conv_sums(&sums, &mut words);
        assert!(words.iter().zip(range).all(|(&word, i)| word as usize == i));
    }

    #[test]
    fn the_transposed_kernel_lies_between_rows_of_zeros() {
        let texels = packed_indices();
        for o in 0..CONV2.out_channels {
            for i in 0..CONV2.in_channels {
                let row = CONV2_TRANSPOSED_ROW + 2 * o + i / 3;
                for k in 0..KERNEL {
                    let index = CONV2_WEIGHT.offset + (o * CONV2.in_channels + i) * KERNEL + k;
                    assert_eq!(texel(&texels, row, 5 + k)[i % 3] as usize, index);
                }
                for k in (0..5).chain(30..35) {
                    assert_eq!(texel(&texels, row, k), [0; 4]);
                }
            }
        }
    }

    #[test]
    fn maxima_go_to_their_tensors() {
        let mut maxima = vec![0; DENSE_MAXIMA];
        // fc2's weight in the last lane before the bias, its bias, and a lane that holds neither.
        maxima[DENSE2.maxima_first + DENSE2.input_quads() - 1] = 7;
        maxima[DENSE2.maxima_first + DENSE2.input_quads()] = 8;
        maxima[DENSE2.maxima_first + DENSE2.input_quads() + 1] = 9;
        let mut words = [0; 6];
        unpack_dense_maxima(&maxima, &mut words);
        assert_eq!(words, [0, 0, 7, 8, 0, 0]);

        let mut maxima = vec![0; CONV_MAXIMA];
        maxima[CONV2_MAXIMA] = 1;
        maxima[CONV2_MAXIMA + KERNEL] = 2;
        maxima[2] = 3;
        maxima[3] = 4;
        let mut words = [0; 4];
        unpack_conv_maxima(&maxima, &mut words);
        assert_eq!(words, [1, 2, 3, 4]);
    }
}
