//! The stages of a step: in which order the kernels run, over how many workgroups, on what.

use super::kernels::Kernel;
use super::layout::{
    CONV1_MAXIMA, CONV1_UNITS, DENSE_TILES, DENSE1, DENSE2, DENSE3, DenseShape, LANES,
};
use super::resources::{Fixed, Images, Room};
use crate::model::layers::CONV2;

/// A kernel bound to what it reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Conv1Forward,
    Conv2Forward,
    Dense1Forward,
    Dense2Forward,
    Head,
    Dense3BackwardInput,
    Dense2BackwardInput,
    Dense1BackwardInput,
    Dense3BackwardWeights,
    Dense2BackwardWeights,
    Dense1BackwardWeights,
    Conv2BackwardInput,
    Conv2BackwardWeights,
    Conv1BackwardWeights,
    Conv1SumTiles,
}

impl Stage {
    /// In the order in which they run.
    pub const ALL: [Stage; 15] = [
        Stage::Conv1Forward,
        Stage::Conv2Forward,
        Stage::Dense1Forward,
        Stage::Dense2Forward,
        Stage::Head,
        Stage::Dense3BackwardInput,
        Stage::Dense3BackwardWeights,
        Stage::Dense2BackwardInput,
        Stage::Dense2BackwardWeights,
        Stage::Dense1BackwardWeights,
        Stage::Dense1BackwardInput,
        Stage::Conv2BackwardInput,
        Stage::Conv2BackwardWeights,
        Stage::Conv1BackwardWeights,
        Stage::Conv1SumTiles,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Stage::Conv1Forward => "conv1 forward",
            Stage::Conv2Forward => "conv2 forward",
            Stage::Dense1Forward => "fc1 forward",
            Stage::Dense2Forward => "fc2 forward",
            Stage::Head => "fc3 forward, loss",
            Stage::Dense3BackwardInput => "fc3 backward input",
            Stage::Dense2BackwardInput => "fc2 backward input",
            Stage::Dense1BackwardInput => "fc1 backward input",
            Stage::Dense3BackwardWeights => "fc3 backward weights",
            Stage::Dense2BackwardWeights => "fc2 backward weights",
            Stage::Dense1BackwardWeights => "fc1 backward weights",
            Stage::Conv2BackwardInput => "conv2 backward input",
            Stage::Conv2BackwardWeights => "conv2 backward weights",
            Stage::Conv1BackwardWeights => "conv1 backward weights",
            Stage::Conv1SumTiles => "conv1 sums",
        }
    }

    /// The stages of a kernel.
    pub const fn of(kernel: Kernel) -> &'static [Stage] {
        match kernel {
            Kernel::Conv1Forward => &[Stage::Conv1Forward],
            Kernel::Conv2Forward => &[Stage::Conv2Forward],
            Kernel::DenseForward => &[Stage::Dense1Forward, Stage::Dense2Forward],
            Kernel::Head => &[Stage::Head],
            Kernel::DenseBackwardInput => &[
                Stage::Dense1BackwardInput,
                Stage::Dense2BackwardInput,
                Stage::Dense3BackwardInput,
            ],
            Kernel::DenseBackwardWeights => &[
                Stage::Dense1BackwardWeights,
                Stage::Dense2BackwardWeights,
                Stage::Dense3BackwardWeights,
            ],
            Kernel::Conv2BackwardInput => &[Stage::Conv2BackwardInput],
            Kernel::Conv2BackwardWeights => &[Stage::Conv2BackwardWeights],
            Kernel::Conv1BackwardWeights => &[Stage::Conv1BackwardWeights],
            Kernel::SumTiles => &[Stage::Conv1SumTiles],
        }
    }

    /// Workgroups for so many tiles.
    pub fn groups(self, tiles: u32) -> (u32, u32) {
        let dense_tiles = tiles.div_ceil(DENSE_TILES as u32);
        let weights = |shape: &DenseShape| {
            let [inputs, outputs] = shape.weight_groups();
            (inputs as u32, outputs as u32)
        };
        match self {
            Stage::Conv1Forward => (49, tiles),
            Stage::Conv2Forward => (20, tiles),
            Stage::Dense1Forward => (DENSE1.forward_groups() as u32, dense_tiles),
            Stage::Dense2Forward => (DENSE2.forward_groups() as u32, dense_tiles),
            Stage::Head => (tiles, 1),
            Stage::Dense1BackwardInput => (DENSE1.backward_groups() as u32, dense_tiles),
            Stage::Dense2BackwardInput => (DENSE2.backward_groups() as u32, dense_tiles),
            Stage::Dense3BackwardInput => (DENSE3.backward_groups() as u32, dense_tiles),
            Stage::Dense1BackwardWeights => weights(&DENSE1),
            Stage::Dense2BackwardWeights => weights(&DENSE2),
            Stage::Dense3BackwardWeights => weights(&DENSE3),
            Stage::Conv2BackwardInput => (14, tiles),
            Stage::Conv2BackwardWeights => (CONV2.in_channels as u32, 1),
            Stage::Conv1BackwardWeights => (CONV1_UNITS as u32, tiles),
            Stage::Conv1SumTiles => ((CONV1_MAXIMA / LANES) as u32, 1),
        }
    }
}

/// What a stage's kernel reads and writes, in the order of its bindings.
pub fn resources<'a>(
    stage: Stage,
    fixed: &'a Fixed,
    room: &'a Room,
    images: &'a Images,
) -> Vec<wgpu::BindingResource<'a>> {
    let buffer = wgpu::Buffer::as_entire_binding;
    let parameters = wgpu::BindingResource::TextureView(&fixed.parameters_view);
    let pixels = wgpu::BindingResource::TextureView(&images.images);
    let samples = buffer(&room.samples);
    let normalization = buffer(&images.normalization);
    let (scales, tiles) = (buffer(&fixed.scales), buffer(&fixed.tiles));
    let [dense1, dense2, dense3] = fixed.dense.each_ref().map(buffer);
    let (dense_sums, dense_maxima) = (buffer(&fixed.dense_sums), buffer(&fixed.dense_maxima));
    match stage {
        Stage::Conv1Forward => vec![
            samples,
            pixels,
            normalization,
            parameters,
            room.pooled1.written(),
            room.slopes1.written(),
        ],
        Stage::Conv2Forward => {
            vec![parameters, room.pooled1.read(), room.pooled2.written(), room.slopes2.written()]
        }
        Stage::Dense1Forward => {
            vec![parameters, dense1, room.pooled2.read(), room.hidden1.written()]
        }
        Stage::Dense2Forward => {
            vec![parameters, dense2, room.hidden1.read(), room.hidden2.written()]
        }
        Stage::Head => vec![
            samples,
            buffer(&images.labels),
            scales,
            parameters,
            dense3,
            room.hidden2.read(),
            buffer(&room.logits),
            room.d_logits.written(),
            buffer(&room.statistics),
        ],
        Stage::Dense3BackwardInput => vec![
            parameters,
            dense3,
            room.hidden2.read(),
            room.d_logits.read(),
            room.d_hidden2.written(),
        ],
        Stage::Dense2BackwardInput => vec![
            parameters,
            dense2,
            room.hidden1.read(),
            room.d_hidden2.read(),
            room.d_hidden1.written(),
        ],
        Stage::Dense1BackwardInput => vec![
            parameters,
            dense1,
            room.pooled2.read(),
            room.d_hidden1.read(),
            room.d_pooled2.written(),
        ],
        Stage::Dense3BackwardWeights => {
            let (inputs, d_outputs) = (room.hidden2.read(), room.d_logits.read());
            vec![scales, dense3, tiles, inputs, d_outputs, dense_sums, dense_maxima]
        }
        Stage::Dense2BackwardWeights => {
            let (inputs, d_outputs) = (room.hidden1.read(), room.d_hidden2.read());
            vec![scales, dense2, tiles, inputs, d_outputs, dense_sums, dense_maxima]
        }
        Stage::Dense1BackwardWeights => {
            let (inputs, d_outputs) = (room.pooled2.read(), room.d_hidden1.read());
            vec![scales, dense1, tiles, inputs, d_outputs, dense_sums, dense_maxima]
        }
        Stage::Conv2BackwardInput => {
            vec![parameters, room.d_pooled2.read(), room.slopes2.read(), room.d_pooled1.written()]
        }
        Stage::Conv2BackwardWeights => vec![
            scales,
            tiles,
            room.pooled1.read(),
            room.d_pooled2.read(),
            room.slopes2.read(),
            buffer(&fixed.conv2_sums),
            buffer(&fixed.conv2_maxima),
        ],
        Stage::Conv1BackwardWeights => vec![
            samples,
            pixels,
            normalization,
            room.d_pooled1.read(),
            room.slopes1.read(),
            room.partials1.written(),
        ],
        Stage::Conv1SumTiles => vec![
            scales,
            tiles,
            room.partials1.read(),
            buffer(&fixed.conv1_sums),
            buffer(&fixed.conv1_maxima),
        ],
    }
}
