//! Where parameters lie in the parameter texture, and how the kernels' sums become words.
//!
//! Features that leave convolution 2 are ordered (position, channel) here and not (channel,
//! position) as in PyTorch, so that a texel holds four channels of one position. This module is
//! the only place that knows both orders.

use crate::model::layers::{CONV1, CONV2, Dense, FC1, FC2, FC3};
use crate::model::layout::{
    CONV1_BIAS, CONV1_WEIGHT, CONV2_BIAS, CONV2_WEIGHT, FC1_BIAS, FC1_WEIGHT, FC2_BIAS, FC2_WEIGHT,
    FC3_BIAS, FC3_WEIGHT, TensorSpec,
};

/// Samples of a tile, hence lanes of a workgroup.
pub(super) const LANES: usize = 16;
/// Places of a convolution's kernel, and the bias behind them.
pub(super) const PLACES: usize = 26;
/// In- and out-channel quads of convolution 2: workgroups of its weight gradient.
pub(super) const CONV2_UNITS: usize = CONV2.in_channels * CONV2.out_channels / 4;
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
/// Vectors of four sums of the convolutions: convolution 2's, then convolution 1's.
pub(super) const CONV_SUMS: usize = CONV1_SUMS_FIRST + CONV1_UNITS * PLACES;
pub(super) const CONV1_SUMS_FIRST: usize = CONV2_UNITS * PLACES;
/// A maximum a lane, whole workgroups.
pub(super) const CONV1_MAXIMA_FIRST: usize = (CONV2_UNITS * PLACES).next_multiple_of(LANES);
pub(super) const CONV_MAXIMA: usize =
    CONV1_MAXIMA_FIRST + (CONV1_UNITS * PLACES).next_multiple_of(LANES);

/// Rows of the parameter texture: fc1, fc2 and fc3 (a row an output, padded to quads), then
/// convolution 1 (one row, 8 texels a channel), then convolution 2 twice.
pub(super) const CONV1_ROW: usize = DENSE3.row + DENSE3.output_quads() * 4;
/// A row for each (out-channel quad, in-channel); a texel is a kernel place of four out-channels.
pub(super) const CONV2_ROW: usize = CONV1_ROW + 1;
/// A row for each (out-channel, in-channel triple); a texel is a kernel place of three in-channels.
pub(super) const CONV2_TRANSPOSED_ROW: usize = CONV2_ROW + CONV2_UNITS;
pub(super) const PARAMETER_ROWS: usize =
    CONV2_TRANSPOSED_ROW + CONV2.out_channels * CONV2.in_channels / 3;
/// Texels of a row: fc1's 100 input quads and its bias, rounded up to 256 bytes.
pub(super) const PARAMETER_COLUMNS: usize = 112;

/// Kernel places of a convolution.
const KERNEL: usize = CONV2.kernel_side * CONV2.kernel_side;
/// Positions after convolution 2.
const POSITIONS: usize = CONV2.pooled_side() * CONV2.pooled_side();

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
                let texels = texels[..shape.input_quads()].as_flattened_mut();
                for (p, texels) in texels.chunks_exact_mut(CONV2.out_channels).enumerate() {
                    for (c, value) in texels.iter_mut().enumerate() {
                        *value = weights[c * POSITIONS + p];
                    }
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
                texels[transposed * PARAMETER_COLUMNS + k][i % 3] = weight;
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
                for (c, words) in words_of_output.chunks_exact_mut(POSITIONS).enumerate() {
                    for (p, word) in words.iter_mut().enumerate() {
                        *word = sums[p * CONV2.out_channels + c];
                    }
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
    let (sums2, sums1) = sums.split_at(CONV1_SUMS_FIRST);
    for (unit, sums) in sums2.chunks_exact(PLACES).enumerate() {
        let (i, first) = (unit / 4, unit % 4 * 4);
        for (k, sums) in sums[..KERNEL].iter().enumerate() {
            for (c, &sum) in sums.iter().enumerate() {
                let weight = ((first + c) * CONV2.in_channels + i) * KERNEL + k;
                words[CONV2_WEIGHT.offset + weight] = sum;
            }
        }
        // Every in-channel's workgroup has the same bias gradient.
        words[CONV2_BIAS.offset + first..][..4].copy_from_slice(&sums[KERNEL]);
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
    let (maxima2, maxima1) = maxima.split_at(CONV1_MAXIMA_FIRST);
    let layers = [(maxima1, CONV1_UNITS), (maxima2, CONV2_UNITS)];
    for ((maxima, units), words) in layers.into_iter().zip(words.chunks_exact_mut(2)) {
        for (i, &maximum) in maxima[..units * PLACES].iter().enumerate() {
            let tensor = usize::from(i % PLACES == KERNEL);
            words[tensor] = words[tensor].max(maximum);
        }
    }
}
