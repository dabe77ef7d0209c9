//! The buffers between the kernels of a step: shapes, sizes, and what is in them from the start.

use super::layout::{
    CONVOLUTION_LAYER_WORDS, CONVOLUTION_WEIGHT_VECTORS, DENSE_LAYER_WORDS, convolution_layer,
    dense_layer, margins, padded_side,
};
use crate::model::Pooling;
use crate::model::layers::{
    CLASSES, CONV1, CONV2, Convolution, FC1, FC2, FC3, IMAGE_PIXELS, ModelKind,
};
use crate::model::layout::{BUCKETS, Bucket, CONVOLUTION_BUCKET, PARAMETERS, SCALE_COUNT};
use crate::numerics::fixed_point::{FixedPoint, TILE_SAMPLES};

/// Tiles of one submission. 2,048 samples keep a large GPU busy, stay below a second on a software
/// adapter, and keep every buffer far below 128 MiB.
pub const TILES_PER_SUBMISSION_MAX: usize = 128;

/// Samples of a quad: what a vec4 holds.
pub const QUAD_SAMPLES: usize = 4;

/// Logits of a sample as the kernels store them: a multiple of 4.
pub const LOGIT_ROWS: usize = CLASSES.next_multiple_of(4);

/// Texels of a row of a texture, as `shaders/shared/reads_textures.wgsl` has them.
pub const TEXTURE_ROW: usize = 1_024;

/// The buffers of the set. In the shapes T is the tiles of a submission; the last dimension, 16, is
/// a tile's samples, which the kernels see as four quads of a vec4 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferId {
    /// A [`Submission`].
    Submission,
    /// The flat vector, padded to whole rows of its texture.
    Parameters,
    /// The convolutions' weights as [`convolution_weights`](super::layout::convolution_weights) sorts them.
    ConvolutionWeights,
    /// As `shaders/shared/convolution_layer.wgsl` declares it.
    Conv1Layer,
    Conv2Layer,
    /// As `shaders/shared/dense_layer.wgsl` declares it.
    Fc1Layer,
    Fc2Layer,
    Fc3Layer,
    /// (training and test images, 28, 28) bytes.
    Pixels,
    /// (training and test images) u32.
    Labels,
    /// (T, 16) u32: indices of images.
    Samples,
    /// (T, 32, 32, 16): normalized, with two zeros on each side.
    Images,
    /// (T, 6, 14, 14, 16).
    Conv1,
    /// What its pooling keeps: (T, 6, 14, 14, 4 quads) of a u32 or of four vec4.
    Conv1Pooling,
    /// (T, 16, 5, 5, 16).
    Conv2,
    /// What its pooling keeps: (T, 16, 5, 5, 4 quads) of a u32 or of four vec4.
    Conv2Pooling,
    /// (T, 120, 16).
    Fc1,
    /// (T, 84, 16).
    Fc2,
    /// (T, 12, 16).
    Logits,
    /// (T, 12, 16).
    DLogits,
    /// (T, 84, 16), of the linear output.
    DFc2,
    /// (T, 120, 16), of the linear output.
    DFc1,
    /// (T, 16, 12, 18, 16), of the convolution's output, with its margins.
    DConv2,
    /// (T, 6, 28, 28, 16), of the convolution's output.
    DConv1,
    /// (T, 2572): each tile's gradients of the convolutions' parameters.
    Partials,
    /// The buckets' words, one bucket behind the other.
    Words,
}

impl BufferId {
    pub const ALL: [BufferId; 26] = [
        BufferId::Submission,
        BufferId::Parameters,
        BufferId::ConvolutionWeights,
        BufferId::Conv1Layer,
        BufferId::Conv2Layer,
        BufferId::Fc1Layer,
        BufferId::Fc2Layer,
        BufferId::Fc3Layer,
        BufferId::Pixels,
        BufferId::Labels,
        BufferId::Samples,
        BufferId::Images,
        BufferId::Conv1,
        BufferId::Conv1Pooling,
        BufferId::Conv2,
        BufferId::Conv2Pooling,
        BufferId::Fc1,
        BufferId::Fc2,
        BufferId::Logits,
        BufferId::DLogits,
        BufferId::DFc2,
        BufferId::DFc1,
        BufferId::DConv2,
        BufferId::DConv1,
        BufferId::Partials,
        BufferId::Words,
    ];

    /// Words of the buffer for submissions of `tiles` tiles, over a data set of `images` images.
    pub fn words(self, model: ModelKind, images: usize, tiles: usize) -> usize {
        let kept = match model.pooling() {
            Pooling::Max => 1,
            Pooling::Average => 4 * QUAD_SAMPLES,
        };
        let quads = tiles * TILE_SAMPLES / QUAD_SAMPLES;
        match self {
            BufferId::Submission => size_of::<Submission>() / 4,
            BufferId::ConvolutionWeights => 4 * CONVOLUTION_WEIGHT_VECTORS,
            BufferId::Conv1Layer | BufferId::Conv2Layer => CONVOLUTION_LAYER_WORDS,
            BufferId::Fc1Layer | BufferId::Fc2Layer | BufferId::Fc3Layer => DENSE_LAYER_WORDS,
            BufferId::Pixels => images * IMAGE_PIXELS / 4,
            BufferId::Labels => images,
            BufferId::Samples => tiles * TILE_SAMPLES,
            BufferId::Conv1Pooling => quads * kept * pooled_values(&CONV1),
            BufferId::Conv2Pooling => quads * kept * pooled_values(&CONV2),
            BufferId::Partials => tiles * CONVOLUTION_BUCKET.parameter_range().len(),
            BufferId::Words => BUCKETS.iter().map(Bucket::words).sum(),
            _ => 4 * TEXTURE_ROW * self.texture_rows(tiles).expect("the others are vec4 alone"),
        }
    }

    /// Rows of [`TEXTURE_ROW`] texels that the buffer fills as a texture of vec4; `None` for buffers
    /// of something else.
    pub fn texture_rows(self, tiles: usize) -> Option<usize> {
        let features = match self {
            BufferId::Parameters => return Some(PARAMETERS.div_ceil(4 * TEXTURE_ROW)),
            BufferId::Images => padded_side(&CONV1).pow(2),
            BufferId::Conv1 => pooled_values(&CONV1),
            BufferId::Conv2 => pooled_values(&CONV2),
            BufferId::Fc1 | BufferId::DFc1 => FC1.outputs,
            BufferId::Fc2 | BufferId::DFc2 => FC2.outputs,
            BufferId::Logits | BufferId::DLogits => LOGIT_ROWS,
            BufferId::DConv2 => {
                let [rows, columns] = margins(&CONV2).map(|margin| CONV2.out_side() + 2 * margin);
                CONV2.out_channels * rows * columns
            }
            BufferId::DConv1 => CONV1.out_channels * CONV1.out_side().pow(2),
            _ => return None,
        };
        Some((tiles * features * TILE_SAMPLES / QUAD_SAMPLES).div_ceil(TEXTURE_ROW))
    }

    /// Whether the buffer's size depends on the submission's.
    pub fn grows(self, model: ModelKind) -> bool {
        self.words(model, 0, 64) != self.words(model, 0, 1)
    }

    /// The words of a buffer that never changes.
    pub fn constant(self) -> Option<Vec<u32>> {
        match self {
            BufferId::Conv1Layer => Some(convolution_layer(&CONV1).to_vec()),
            BufferId::Conv2Layer => Some(convolution_layer(&CONV2).to_vec()),
            BufferId::Fc1Layer => Some(dense_layer(&FC1).to_vec()),
            BufferId::Fc2Layer => Some(dense_layer(&FC2).to_vec()),
            BufferId::Fc3Layer => Some(dense_layer(&FC3).to_vec()),
            _ => None,
        }
    }
}

/// As `shaders/shared/submission.wgsl` declares it.
#[repr(C)]
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Submission {
    pub samples: u32,
    pub pixel_scale: f32,
    pub pixel_offset: f32,
    pub factors: [f32; SCALE_COUNT],
    pub limits: [f32; SCALE_COUNT],
}

impl Submission {
    /// Takes over how partials become integers.
    pub fn set_fixed_point(&mut self, fixed_point: &FixedPoint) {
        self.factors = std::array::from_fn(|k| fixed_point.factor(k));
        self.limits = fixed_point.limits;
    }
}

/// Values of a sample behind a convolution and its pooling.
fn pooled_values(layer: &Convolution) -> usize {
    layer.out_channels * layer.pooled_side().pow(2)
}
