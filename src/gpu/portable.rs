//! The portable kernel set: looped, workgroup-tiled shaders within WebGPU's default limits.
//!
//! `shaders/README.md` tells how the kernels divide the work. Here are the kernels of a step in
//! their order, the buffers between them, and the submissions.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::Zeroable;

use super::GpuError;
use super::device::{AdapterKind, AdapterReport, Gpu};
use super::engine::{EngineSettings, KernelSet, Sums};
use super::shader::{self, Kernel, Source};
use crate::data::dataset::{Dataset, Normalization};
use crate::model::layers::{
    CLASSES, CONV1, CONV2, Convolution, Dense, FC1, FC2, FC3, IMAGE_PIXELS, ModelKind,
};
use crate::model::layout::{
    BUCKETS, Bucket, CONV1_BIAS, CONV1_WEIGHT, CONV2_BIAS, CONV2_WEIGHT, CONVOLUTION_BUCKET,
    DENSE_BUCKET, FC1_BIAS, FC1_WEIGHT, FC2_BIAS, FC2_WEIGHT, FC3_BIAS, FC3_WEIGHT, LOSS_SCALE,
    PARAMETERS, SCALE_COUNT, TENSORS, TensorSpec,
};
use crate::model::{Activation, Pooling};
use crate::numerics::fixed_point::{FixedPoint, TILE_SAMPLES};

/// Tiles of one submission. 2,048 samples keep a large GPU busy, stay well below a second on a
/// software adapter, and keep every buffer far below 128 MiB.
const TILES_PER_SUBMISSION_MAX: usize = 128;

/// Logits of a sample as the kernels store them: a multiple of 4.
const LOGIT_ROWS: usize = CLASSES.next_multiple_of(4);

/// Zeros beside each row of conv2's output gradient, so that its readers need not check borders.
const CONV2_MARGIN: usize = CONV2.kernel_side - 1;

/// Invocations of a workgroup whose invocations differ by quad and place.
const PLACE_LANES: u32 = 64;
/// Invocations of a workgroup whose invocations differ by quad alone: a batch of 128 has 32 quads.
const QUAD_LANES: u32 = 32;
/// Invocations of a workgroup whose invocations differ by parameter.
const PARAMETER_LANES: u32 = 64;
/// Invocations that share the rows of a convolution's output in the weight gradients.
const CONV1_ROW_LANES: u32 = 14;
const CONV2_ROW_LANES: u32 = 10;

/// A kernel with the buffers it works on and the number of its workgroups.
#[derive(Clone, Debug)]
pub struct Stage {
    pub kernel: Kernel,
    /// The buffer of each of the kernel's variables.
    pub buffers: Vec<(&'static str, BufferId)>,
    pub grid: Grid,
}

/// The buffers of the set. In the shapes T is the tiles of a submission; the last dimension, 16, is
/// a tile's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferId {
    /// What changes with each submission, as `shaders/shared/submission.wgsl` declares it.
    Submission,
    /// The flat vector, padded to a multiple of 4.
    Parameters,
    /// (training and test images, 28, 28) bytes.
    Pixels,
    /// (training and test images) u32.
    Labels,
    /// (T, 16) u32: indices of images.
    Samples,
    /// (T, 6, 14, 14, 16).
    Conv1,
    /// What its pooling keeps: (T, 6, 14, 14, 4 quads), a u32 or four vec4.
    Conv1Pooling,
    /// (T, 16, 5, 5, 16).
    Conv2,
    /// What its pooling keeps: (T, 16, 5, 5, 4 quads), a u32 or four vec4.
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
    /// (T, 16, 10, 18, 16), of the convolution's output, with a margin of 4 zeros.
    DConv2,
    /// (T, 6, 28, 28, 16), of the convolution's output.
    DConv1,
    /// (T, 2572): each tile's gradients of the convolutions' parameters.
    Partials,
    /// The buckets' words, one bucket behind the other.
    Words,
}

impl BufferId {
    const ALL: [BufferId; 19] = [
        BufferId::Submission,
        BufferId::Parameters,
        BufferId::Pixels,
        BufferId::Labels,
        BufferId::Samples,
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
        let pooled = |layer: &Convolution| layer.out_channels * layer.pooled_side().pow(2);
        let values = |features: usize| tiles * features * TILE_SAMPLES;
        let pooling = |layer: &Convolution| match model.pooling() {
            Pooling::Max => values(pooled(layer)) / 4,
            Pooling::Average => values(pooled(layer)) * 4,
        };
        match self {
            BufferId::Submission => size_of::<Submission>() / 4,
            BufferId::Parameters => PARAMETERS.next_multiple_of(4),
            BufferId::Pixels => images * IMAGE_PIXELS / 4,
            BufferId::Labels => images,
            BufferId::Samples => tiles * TILE_SAMPLES,
            BufferId::Conv1 => values(pooled(&CONV1)),
            BufferId::Conv1Pooling => pooling(&CONV1),
            BufferId::Conv2 => values(pooled(&CONV2)),
            BufferId::Conv2Pooling => pooling(&CONV2),
            BufferId::Fc1 | BufferId::DFc1 => values(FC1.outputs),
            BufferId::Fc2 | BufferId::DFc2 => values(FC2.outputs),
            BufferId::Logits | BufferId::DLogits => values(LOGIT_ROWS),
            BufferId::DConv2 => {
                let side = CONV2.out_side();
                values(CONV2.out_channels * side * (side + 2 * CONV2_MARGIN))
            }
            BufferId::DConv1 => values(CONV1.out_channels * CONV1.out_side().pow(2)),
            BufferId::Partials => tiles * CONVOLUTION_BUCKET.parameter_range().len(),
            BufferId::Words => BUCKETS.iter().map(Bucket::words).sum(),
        }
    }

    /// Whether the buffer's size depends on the submission's.
    fn grows(self) -> bool {
        !matches!(
            self,
            BufferId::Submission
                | BufferId::Parameters
                | BufferId::Pixels
                | BufferId::Labels
                | BufferId::Words
        )
    }
}

/// How many workgroups a kernel needs.
#[derive(Clone, Copy, Debug)]
pub enum Grid {
    /// x: an invocation for each place and quad; y: as given.
    Places { lanes: u32, places: u32, y: u32 },
    /// x: an invocation for each sample.
    Samples { lanes: u32 },
    /// x: an invocation for each column; y: as given; z: shares of the tiles.
    Parameters { lanes: u32, columns: u32, y: u32 },
    /// x: as given; y: tiles.
    Tiles { x: u32 },
}

impl Grid {
    /// Workgroups for `samples` samples, whose tiles are dealt out in `tile_shares` shares.
    pub fn workgroups(self, samples: u32, tile_shares: u32) -> [u32; 3] {
        let quads = samples.div_ceil(4);
        match self {
            Grid::Places { lanes, places, y } => [(quads * places).div_ceil(lanes), y, 1],
            Grid::Samples { lanes } => [(4 * quads).div_ceil(lanes), 1, 1],
            Grid::Parameters { lanes, columns, y } => [columns.div_ceil(lanes), y, tile_shares],
            Grid::Tiles { x } => [x, samples.div_ceil(TILE_SAMPLES as u32), 1],
        }
    }
}

/// Stages of the forward pass, up to the logits.
pub const FORWARD_STAGES: usize = 5;

/// The stages of a step in their order; the first [`FORWARD_STAGES`] give the logits.
pub fn stages(model: ModelKind, sums: Sums) -> Vec<Stage> {
    let activation = match model.activation() {
        Activation::Relu => &shader::RELU,
        Activation::Tanh => &shader::TANH,
    };
    let pooling = match model.pooling() {
        Pooling::Max => &shader::MAX_POOL,
        Pooling::Average => &shader::AVERAGE_POOL,
    };
    let kept = match model.pooling() {
        Pooling::Max => "winners",
        Pooling::Average => "windows",
    };
    let table =
        Table { activation, pooling, kept, exact: f64::from(u8::from(sums == Sums::Exact)) };
    vec![
        table.convolution_forward("conv1 forward", &CONV1, None, BufferId::Conv1),
        table.convolution_forward("conv2 forward", &CONV2, Some(BufferId::Conv1), BufferId::Conv2),
        table.dense_forward("fc1 forward", &FC1, BufferId::Conv2, BufferId::Fc1),
        table.dense_forward("fc2 forward", &FC2, BufferId::Fc1, BufferId::Fc2),
        table.loss_head(),
        table.dense_backward_weights("fc3 d weights", &FC3, BufferId::Fc2, BufferId::DLogits),
        table.dense_backward_input("fc3 d input", &FC3, BufferId::DLogits, Some(BufferId::Fc2)),
        table.dense_backward_weights("fc2 d weights", &FC2, BufferId::Fc1, BufferId::DFc2),
        table.dense_backward_input("fc2 d input", &FC2, BufferId::DFc2, Some(BufferId::Fc1)),
        table.dense_backward_weights("fc1 d weights", &FC1, BufferId::Conv2, BufferId::DFc1),
        table.dense_backward_input("fc1 d input", &FC1, BufferId::DFc1, None),
        table.convolution_backward_weights("conv2 d weights", &CONV2, Some(BufferId::Conv1)),
        table.convolution_backward_input(),
        table.convolution_backward_weights("conv1 d weights", &CONV1, None),
        table.quantize(),
    ]
}

/// What the rows of the table of stages share.
struct Table {
    activation: &'static Source,
    pooling: &'static Source,
    /// The variable of what the pooling keeps.
    kept: &'static str,
    exact: f64,
}

impl Table {
    fn convolution_forward(
        &self,
        label: &'static str,
        layer: &Convolution,
        input: Option<BufferId>,
        output: BufferId,
    ) -> Stage {
        let (weight, bias) = tensors_of(layer.name);
        let mut constants = vec![
            ("IN_CHANNELS", layer.in_channels as f64),
            ("OUT_CHANNELS", layer.out_channels as f64),
            ("POOLED_SIDE", layer.pooled_side() as f64),
            ("PADDING", layer.padding as f64),
            ("WEIGHT", weight.offset as f64),
            ("BIAS", bias.offset as f64),
            ("LANES", f64::from(PLACE_LANES)),
        ];
        let mut buffers = vec![
            ("submission", BufferId::Submission),
            ("parameters", BufferId::Parameters),
            ("pooled", output),
            (self.kept, pooling_of(output)),
        ];
        let input = convolution_input(layer, input, &mut constants, &mut buffers);
        Stage {
            kernel: Kernel {
                label,
                source: &shader::CONVOLUTION_FORWARD,
                shared: vec![&shader::SUBMISSION, input, self.pooling, self.activation],
                constants,
            },
            buffers,
            grid: Grid::Places {
                lanes: PLACE_LANES,
                places: layer.pooled_side().pow(2) as u32,
                y: layer.out_channels as u32 / 2,
            },
        }
    }

    fn dense_forward(
        &self,
        label: &'static str,
        layer: &Dense,
        input: BufferId,
        output: BufferId,
    ) -> Stage {
        let (weight, bias) = tensors_of(layer.name);
        Stage {
            kernel: Kernel {
                label,
                source: &shader::DENSE_FORWARD,
                shared: vec![&shader::SUBMISSION, self.activation],
                constants: vec![
                    ("INPUTS", layer.inputs as f64),
                    ("OUTPUTS", layer.outputs as f64),
                    ("WEIGHT", in_vec4(weight.offset)),
                    ("BIAS", in_vec4(bias.offset)),
                    ("LANES", f64::from(QUAD_LANES)),
                ],
            },
            buffers: vec![
                ("submission", BufferId::Submission),
                ("parameters", BufferId::Parameters),
                ("input", input),
                ("output", output),
            ],
            grid: Grid::Places { lanes: QUAD_LANES, places: 1, y: layer.outputs as u32 / 4 },
        }
    }

    fn loss_head(&self) -> Stage {
        let statistics = bucket_words(&DENSE_BUCKET) + DENSE_BUCKET.parameter_range().len();
        Stage {
            kernel: Kernel {
                label: "loss head",
                source: &shader::LOSS_HEAD,
                shared: vec![&shader::SUBMISSION, &shader::SUMS],
                constants: vec![
                    ("INPUTS", FC3.inputs as f64),
                    ("WEIGHT", FC3_WEIGHT.offset as f64),
                    ("BIAS", FC3_BIAS.offset as f64),
                    ("LOSS", statistics as f64),
                    ("RIGHT", (statistics + 1) as f64),
                    ("SAMPLES", (statistics + 2) as f64),
                    ("LOSS_MAXIMUM", maximum_word(LOSS_SCALE) as f64),
                    ("LANES", f64::from(QUAD_LANES)),
                    ("EXACT", self.exact),
                ],
            },
            buffers: vec![
                ("submission", BufferId::Submission),
                ("parameters", BufferId::Parameters),
                ("input", BufferId::Fc2),
                ("labels", BufferId::Labels),
                ("logits", BufferId::Logits),
                ("d_logits", BufferId::DLogits),
                ("samples", BufferId::Samples),
                ("words", BufferId::Words),
            ],
            grid: Grid::Samples { lanes: QUAD_LANES },
        }
    }

    fn dense_backward_weights(
        &self,
        label: &'static str,
        layer: &Dense,
        input: BufferId,
        d_output: BufferId,
    ) -> Stage {
        let (weight, bias) = tensors_of(layer.name);
        let rows = layer.outputs.next_multiple_of(4);
        Stage {
            kernel: Kernel {
                label,
                source: &shader::DENSE_BACKWARD_WEIGHTS,
                shared: vec![&shader::SUBMISSION, &shader::SUMS],
                constants: vec![
                    ("INPUTS", layer.inputs as f64),
                    ("OUTPUTS", layer.outputs as f64),
                    ("ROWS", rows as f64),
                    ("WEIGHT_SUM", sum_word(weight) as f64),
                    ("BIAS_SUM", sum_word(bias) as f64),
                    ("WEIGHT_MAXIMUM", maximum_word(scale_of(weight)) as f64),
                    ("BIAS_MAXIMUM", maximum_word(scale_of(bias)) as f64),
                    ("WEIGHT_SCALE", scale_of(weight) as f64),
                    ("BIAS_SCALE", scale_of(bias) as f64),
                    ("LANES", f64::from(PARAMETER_LANES)),
                    ("EXACT", self.exact),
                ],
            },
            buffers: vec![
                ("submission", BufferId::Submission),
                ("input", input),
                ("d_output", d_output),
                ("words", BufferId::Words),
            ],
            grid: Grid::Parameters {
                lanes: PARAMETER_LANES,
                // One more column for the bias.
                columns: layer.inputs as u32 / 4 + 1,
                y: rows as u32 / 4,
            },
        }
    }

    /// Without `activations` the input is conv2's.
    fn dense_backward_input(
        &self,
        label: &'static str,
        layer: &Dense,
        d_output: BufferId,
        activations: Option<BufferId>,
    ) -> Stage {
        let (weight, _) = tensors_of(layer.name);
        let mut constants = vec![
            ("INPUTS", layer.inputs as f64),
            ("OUTPUTS", layer.outputs as f64),
            ("ROWS", layer.outputs.next_multiple_of(4) as f64),
            ("WEIGHT", in_vec4(weight.offset)),
            ("LANES", f64::from(QUAD_LANES)),
        ];
        let mut buffers = vec![
            ("submission", BufferId::Submission),
            ("parameters", BufferId::Parameters),
            ("d_output", d_output),
        ];
        let mut shared = vec![&shader::SUBMISSION, self.activation];
        if let Some(activations) = activations {
            shared.push(&shader::EMIT_THROUGH_ACTIVATION);
            constants.push(("FEATURES", layer.inputs as f64));
            buffers.push(("activations", activations));
            let d_linear =
                if activations == BufferId::Fc2 { BufferId::DFc2 } else { BufferId::DFc1 };
            buffers.push(("d_linear", d_linear));
        } else {
            self.emit_through_pooling(&CONV2, &mut shared, &mut constants, &mut buffers);
        }
        Stage {
            kernel: Kernel { label, source: &shader::DENSE_BACKWARD_INPUT, shared, constants },
            buffers,
            grid: Grid::Places { lanes: QUAD_LANES, places: 1, y: layer.inputs as u32 / 4 },
        }
    }

    fn convolution_backward_input(&self) -> Stage {
        let layer = &CONV2;
        let mut constants = vec![
            ("IN_CHANNELS", layer.in_channels as f64),
            ("OUT_CHANNELS", layer.out_channels as f64),
            ("IN_SIDE", layer.in_side as f64),
            ("OUT_SIDE", layer.out_side() as f64),
            ("WEIGHT", CONV2_WEIGHT.offset as f64),
            ("LANES", f64::from(PLACE_LANES)),
        ];
        let mut buffers = vec![
            ("submission", BufferId::Submission),
            ("parameters", BufferId::Parameters),
            ("d_output", BufferId::DConv2),
        ];
        let mut shared = vec![&shader::SUBMISSION, self.activation];
        self.emit_through_pooling(&CONV1, &mut shared, &mut constants, &mut buffers);
        Stage {
            kernel: Kernel {
                label: "conv2 d input",
                source: &shader::CONVOLUTION_BACKWARD_INPUT,
                shared,
                constants,
            },
            buffers,
            grid: Grid::Places {
                lanes: PLACE_LANES,
                places: (layer.in_side / 2).pow(2) as u32,
                y: layer.in_channels as u32 / 2,
            },
        }
    }

    fn convolution_backward_weights(
        &self,
        label: &'static str,
        layer: &Convolution,
        input: Option<BufferId>,
    ) -> Stage {
        let (weight, bias) = tensors_of(layer.name);
        let (d_output, margin, row_lanes) = match input {
            Some(_) => (BufferId::DConv2, CONV2_MARGIN, CONV2_ROW_LANES),
            None => (BufferId::DConv1, 0, CONV1_ROW_LANES),
        };
        let mut constants = vec![
            ("IN_CHANNELS", layer.in_channels as f64),
            ("OUT_CHANNELS", layer.out_channels as f64),
            ("OUT_SIDE", layer.out_side() as f64),
            ("PADDING", layer.padding as f64),
            ("MARGIN", margin as f64),
            ("WEIGHT", weight.offset as f64),
            ("BIAS", bias.offset as f64),
            ("PARTIALS", CONVOLUTION_BUCKET.parameter_range().len() as f64),
            ("ROW_LANES", f64::from(row_lanes)),
        ];
        let mut buffers = vec![
            ("submission", BufferId::Submission),
            ("d_output", d_output),
            ("partials", BufferId::Partials),
        ];
        let input = convolution_input(layer, input, &mut constants, &mut buffers);
        Stage {
            kernel: Kernel {
                label,
                source: &shader::CONVOLUTION_BACKWARD_WEIGHTS,
                shared: vec![&shader::SUBMISSION, input],
                constants,
            },
            buffers,
            grid: Grid::Tiles {
                x: (layer.kernel_side * layer.in_channels * layer.out_channels / 2) as u32,
            },
        }
    }

    fn quantize(&self) -> Stage {
        let partials = CONVOLUTION_BUCKET.parameter_range().len();
        Stage {
            kernel: Kernel {
                label: "convolution sums",
                source: &shader::QUANTIZE,
                shared: vec![&shader::SUBMISSION, &shader::SUMS],
                constants: vec![
                    ("CONV1_BIAS", CONV1_BIAS.offset as f64),
                    ("CONV2_WEIGHT", CONV2_WEIGHT.offset as f64),
                    ("CONV2_BIAS", CONV2_BIAS.offset as f64),
                    ("PARTIALS", partials as f64),
                    ("SUM", sum_word(&CONV1_WEIGHT) as f64),
                    ("MAXIMUM", maximum_word(scale_of(&CONV1_WEIGHT)) as f64),
                    ("LANES", f64::from(PARAMETER_LANES)),
                    ("EXACT", self.exact),
                ],
            },
            buffers: vec![
                ("submission", BufferId::Submission),
                ("partials", BufferId::Partials),
                ("words", BufferId::Words),
            ],
            grid: Grid::Parameters { lanes: PARAMETER_LANES, columns: partials as u32, y: 1 },
        }
    }

    /// Appends what carries a gradient through the pooling of `layer`.
    fn emit_through_pooling(
        &self,
        layer: &Convolution,
        shared: &mut Vec<&'static Source>,
        constants: &mut Vec<(&'static str, f64)>,
        buffers: &mut Vec<(&'static str, BufferId)>,
    ) {
        let (pooling, d_convolved, margin) = if *layer == CONV1 {
            (BufferId::Conv1Pooling, BufferId::DConv1, 0)
        } else {
            (BufferId::Conv2Pooling, BufferId::DConv2, CONV2_MARGIN)
        };
        shared.extend([self.pooling, &shader::EMIT_THROUGH_POOLING]);
        constants.extend([
            ("CHANNELS", layer.out_channels as f64),
            ("PLANE_SIDE", layer.out_side() as f64),
            ("MARGIN", margin as f64),
        ]);
        buffers.extend([(self.kept, pooling), ("d_convolved", d_convolved)]);
    }
}

/// The piece that reads a convolution's input: the layer below, or the data set.
fn convolution_input(
    layer: &Convolution,
    input: Option<BufferId>,
    constants: &mut Vec<(&'static str, f64)>,
    buffers: &mut Vec<(&'static str, BufferId)>,
) -> &'static Source {
    match input {
        Some(planes) => {
            constants.push(("INPUT_SIDE", layer.in_side as f64));
            constants.push(("INPUT_CHANNELS", layer.in_channels as f64));
            buffers.push(("planes", planes));
            &shader::INPUT_PLANES
        }
        None => {
            buffers.extend([("pixels", BufferId::Pixels), ("samples", BufferId::Samples)]);
            &shader::INPUT_PIXELS
        }
    }
}

fn pooling_of(output: BufferId) -> BufferId {
    if output == BufferId::Conv1 { BufferId::Conv1Pooling } else { BufferId::Conv2Pooling }
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
fn in_vec4(offset: usize) -> f64 {
    debug_assert_eq!(offset % 4, 0);
    (offset / 4) as f64
}

/// A tensor's index in `TENSORS`.
fn scale_of(tensor: &TensorSpec) -> usize {
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
fn bucket_words(bucket: &Bucket) -> usize {
    BUCKETS.iter().take_while(|b| *b != bucket).map(Bucket::words).sum()
}

/// The word of the first sum of a tensor.
fn sum_word(tensor: &TensorSpec) -> usize {
    let bucket = bucket_of(scale_of(tensor));
    bucket_words(bucket) + tensor.offset - bucket.parameter_range().start
}

/// The word of a scale's maximum.
fn maximum_word(scale: usize) -> usize {
    let bucket = bucket_of(scale);
    let place = if scale == LOSS_SCALE { bucket.tensors } else { scale - bucket.first_tensor };
    bucket_words(bucket) + bucket.sum_words() + place
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
    pub fn new(
        samples: usize,
        normalization: Normalization,
        fixed_point: &FixedPoint,
    ) -> Submission {
        Submission {
            samples: samples as u32,
            pixel_scale: normalization.scale,
            pixel_offset: normalization.offset,
            factors: std::array::from_fn(|k| fixed_point.factor(k)),
            limits: fixed_point.limits,
        }
    }
}

/// The set on one device.
pub(super) struct PortableSet {
    gpu: Gpu,
    model: ModelKind,
    normalization: Normalization,
    train_samples: u32,
    images: usize,
    sums: Sums,
    stages: Vec<Stage>,
    pipelines: Vec<wgpu::ComputePipeline>,
    /// In the order of [`BufferId::ALL`].
    buffers: Vec<wgpu::Buffer>,
    bind_groups: Vec<wgpu::BindGroup>,
    /// Tiles that the buffers have room for.
    tiles: usize,
    /// A submission's samples, padded to whole tiles.
    padded_samples: Vec<u32>,
    words: Readback,
    logits: Readback,
}

impl PortableSet {
    pub(super) fn open(
        settings: &EngineSettings,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<PortableSet, GpuError> {
        let gpu = Gpu::open(&settings.adapter, wgpu::Features::empty())?;
        let dataset = &*settings.dataset;
        let images = dataset.train.labels.len() + dataset.test.labels.len();
        check_dataset_size(&gpu, dataset, images)?;

        let model = settings.model;
        let tiles =
            settings.samples_per_step.div_ceil(TILE_SAMPLES).clamp(1, TILES_PER_SUBMISSION_MAX);
        let buffers = BufferId::ALL
            .map(|id| create_buffer(&gpu, id, id.words(model, images, tiles)))
            .into_iter()
            .collect();
        let words = Readback::new(&gpu, BufferId::Words.words(model, images, tiles));
        let logits =
            Readback::new(&gpu, BufferId::Logits.words(model, images, TILES_PER_SUBMISSION_MAX));
        let mut set = PortableSet {
            model,
            normalization: dataset.normalization,
            train_samples: dataset.train.labels.len() as u32,
            images,
            sums: settings.sums,
            stages: stages(model, settings.sums),
            pipelines: Vec::new(),
            buffers,
            bind_groups: Vec::new(),
            tiles,
            padded_samples: Vec::with_capacity(TILES_PER_SUBMISSION_MAX * TILE_SAMPLES),
            words,
            logits,
            gpu,
        };
        set.upload_dataset(dataset);
        set.gpu.check()?;
        set.make_pipelines(progress)?;
        Ok(set)
    }

    fn buffer(&self, id: BufferId) -> &wgpu::Buffer {
        &self.buffers[id as usize]
    }

    fn upload_dataset(&self, dataset: &Dataset) {
        let queue = &self.gpu.queue;
        let pixels = self.buffer(BufferId::Pixels);
        queue.write_buffer(pixels, 0, &dataset.train.pixels);
        queue.write_buffer(pixels, dataset.train.pixels.len() as u64, &dataset.test.pixels);
        let labels = dataset.train.labels.iter().chain(&dataset.test.labels);
        let labels: Vec<u32> = labels.map(|&label| u32::from(label)).collect();
        queue.write_buffer(self.buffer(BufferId::Labels), 0, bytemuck::cast_slice(&labels));
    }

    /// Makes every pipeline and runs it once over no samples: some drivers compile at the first
    /// dispatch. They do so while the next pipeline is translated here.
    fn make_pipelines(&mut self, progress: &mut dyn FnMut(usize, usize)) -> Result<(), GpuError> {
        let total = self.stages.len();
        let nothing = Submission::zeroed();
        let submission = self.buffer(BufferId::Submission);
        self.gpu.queue.write_buffer(submission, 0, bytemuck::bytes_of(&nothing));
        let mut submitted = Vec::with_capacity(total);
        progress(0, total);
        for stage in 0..total {
            let pipeline = self.stages[stage].kernel.pipeline(&self.gpu.device);
            // A pipeline that was refused can be given to nothing.
            self.gpu.check()?;
            self.pipelines.push(pipeline);
            self.bind_groups.push(self.bind_group(stage));
            let mut encoder = self.encoder();
            self.encode(&mut encoder, stage..stage + 1, |_| [1, 1, 1]);
            submitted.push(self.gpu.queue.submit([encoder.finish()]));
        }
        for (done, index) in submitted.into_iter().enumerate() {
            self.gpu.wait(Some(index))?;
            progress(done + 1, total);
        }
        Ok(())
    }

    fn bind_group(&self, stage: usize) -> wgpu::BindGroup {
        let Stage { kernel, buffers, .. } = &self.stages[stage];
        kernel.bind_group(&self.gpu.device, &self.pipelines[stage], |name| {
            let found = buffers.iter().find(|(variable, _)| *variable == name);
            let (_, id) = found.expect("the table gives every variable its buffer");
            self.buffer(*id)
        })
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    fn encode(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        stages: Range<usize>,
        workgroups: impl Fn(&Grid) -> [u32; 3],
    ) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        for stage in stages {
            pass.set_pipeline(&self.pipelines[stage]);
            pass.set_bind_group(0, &self.bind_groups[stage], &[]);
            let [x, y, z] = workgroups(&self.stages[stage].grid);
            pass.dispatch_workgroups(x, y, z);
        }
    }

    /// Grows the buffers to the tiles of a step, as far as one submission goes.
    fn reserve(&mut self, samples: usize) -> Result<(), GpuError> {
        let tiles = samples.div_ceil(TILE_SAMPLES).min(TILES_PER_SUBMISSION_MAX);
        if tiles <= self.tiles {
            return Ok(());
        }
        self.tiles = tiles;
        for id in BufferId::ALL.into_iter().filter(|id| id.grows()) {
            let words = id.words(self.model, self.images, tiles);
            self.buffers[id as usize] = create_buffer(&self.gpu, id, words);
        }
        self.bind_groups = (0..self.stages.len()).map(|stage| self.bind_group(stage)).collect();
        self.gpu.check()
    }

    /// Writes what the next submission works on.
    fn upload_submission(
        &mut self,
        samples: impl Iterator<Item = u32>,
        fixed_point: Option<&FixedPoint>,
    ) {
        self.padded_samples.clear();
        self.padded_samples.extend(samples);
        let submission = Submission {
            samples: self.padded_samples.len() as u32,
            pixel_scale: self.normalization.scale,
            pixel_offset: self.normalization.offset,
            ..fixed_point.map_or_else(Submission::zeroed, |fixed_point| {
                Submission::new(0, self.normalization, fixed_point)
            })
        };
        // The samples that fill the last quad are computed too and then left out of the sums.
        let padded = self.padded_samples.len().next_multiple_of(TILE_SAMPLES);
        self.padded_samples.resize(padded, self.padded_samples[0]);
        let queue = &self.gpu.queue;
        queue.write_buffer(self.buffer(BufferId::Submission), 0, bytemuck::bytes_of(&submission));
        queue.write_buffer(
            self.buffer(BufferId::Samples),
            0,
            bytemuck::cast_slice(&self.padded_samples),
        );
    }

    /// Into how many shares the tiles are dealt for the sums over them.
    fn tile_shares(&self, samples: usize) -> u32 {
        // A software adapter has few cores to fill, and plain sums need a single writer.
        if self.gpu.report().kind == AdapterKind::Software || self.sums == Sums::Plain {
            return 1;
        }
        samples.div_ceil(TILE_SAMPLES).min(16) as u32
    }
}

impl KernelSet for PortableSet {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn report(&self) -> &AdapterReport {
        self.gpu.report()
    }

    fn begin_step(
        &mut self,
        parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), GpuError> {
        self.words.release();
        self.reserve(samples.len())?;
        let parameters = bytemuck::cast_slice(parameters);
        self.gpu.queue.write_buffer(self.buffer(BufferId::Parameters), 0, parameters);

        // Bounded submissions, so that no driver takes a large batch for a hang. They add to the
        // same words: exact sums do not mind being cut.
        let mut chunks = samples.chunks(self.tiles * TILE_SAMPLES).peekable();
        let mut first = true;
        while let Some(chunk) = chunks.next() {
            self.upload_submission(chunk.iter().copied(), Some(fixed_point));
            let mut encoder = self.encoder();
            if first {
                encoder.clear_buffer(self.buffer(BufferId::Words), 0, None);
                first = false;
            }
            let shares = self.tile_shares(chunk.len());
            self.encode(&mut encoder, 0..self.stages.len(), |grid| {
                grid.workgroups(chunk.len() as u32, shares)
            });
            let last = chunks.peek().is_none();
            if last {
                self.words.encode(&mut encoder, self.buffer(BufferId::Words));
            }
            let submission = self.gpu.queue.submit([encoder.finish()]);
            if last {
                self.words.request(submission);
            }
        }
        self.gpu.check()
    }

    fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) -> Result<(), GpuError> {
        let first = bucket_words(&BUCKETS[bucket]);
        self.words.read(&self.gpu, first..first + words.len(), |bytes| {
            words.copy_from_slice(bytemuck::cast_slice(bytes));
        })
    }

    fn logits(
        &mut self,
        parameters: &[f32],
        samples: Range<u32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), GpuError> {
        self.reserve(samples.len())?;
        let parameters = bytemuck::cast_slice(parameters);
        self.gpu.queue.write_buffer(self.buffer(BufferId::Parameters), 0, parameters);
        let step = self.tiles * TILE_SAMPLES;
        for first in samples.clone().step_by(step) {
            let chunk = first..samples.end.min(first + step as u32);
            let test_images = self.train_samples + chunk.start..self.train_samples + chunk.end;
            self.upload_submission(test_images, None);
            let mut encoder = self.encoder();
            let count = chunk.len();
            self.encode(&mut encoder, 0..FORWARD_STAGES, |grid| grid.workgroups(count as u32, 1));
            self.logits.encode(&mut encoder, self.buffer(BufferId::Logits));
            self.logits.request(self.gpu.queue.submit([encoder.finish()]));
            let words = count.div_ceil(TILE_SAMPLES) * LOGIT_ROWS * TILE_SAMPLES;
            self.logits.read(&self.gpu, 0..words, |bytes| {
                append_logits(bytemuck::cast_slice(bytes), count, logits);
            })?;
            self.logits.release();
        }
        Ok(())
    }
}

/// From (T, 12, 16) to (N, 10).
fn append_logits(tiles: &[f32], samples: usize, logits: &mut Vec<f32>) {
    for sample in 0..samples {
        let tile = &tiles[sample / TILE_SAMPLES * LOGIT_ROWS * TILE_SAMPLES..];
        let classes = (0..CLASSES).map(|class| tile[class * TILE_SAMPLES + sample % TILE_SAMPLES]);
        logits.extend(classes);
    }
}

fn create_buffer(gpu: &Gpu, id: BufferId, words: usize) -> wgpu::Buffer {
    gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 4 * words.max(1) as u64,
        usage: wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_DST
            | match id {
                BufferId::Words | BufferId::Logits => wgpu::BufferUsages::COPY_SRC,
                _ => wgpu::BufferUsages::empty(),
            },
        mapped_at_creation: false,
    })
}

fn check_dataset_size(gpu: &Gpu, dataset: &Dataset, images: usize) -> Result<(), GpuError> {
    let limits = gpu.report().limits;
    let available = limits.storage_binding_bytes.min(limits.buffer_bytes);
    let needed = (images * IMAGE_PIXELS) as u64;
    if needed <= available {
        return Ok(());
    }
    let room = available / IMAGE_PIXELS as u64;
    Err(GpuError::DatasetTooLarge {
        adapter: gpu.report().label(),
        needed,
        available,
        samples: room.saturating_sub(dataset.test.labels.len() as u64),
    })
}

/// A buffer that the host reads, reused from step to step.
struct Readback {
    buffer: wgpu::Buffer,
    state: ReadbackState,
    /// Set by the map's callback if the map failed.
    failed: Arc<AtomicBool>,
}

enum ReadbackState {
    Idle,
    Requested(wgpu::SubmissionIndex),
    Mapped,
}

impl Readback {
    fn new(gpu: &Gpu, words: usize) -> Readback {
        Readback {
            buffer: gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("readback"),
                size: 4 * words as u64,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            }),
            state: ReadbackState::Idle,
            failed: Arc::default(),
        }
    }

    /// Copies the beginning of `source`, as far as there is room and content.
    fn encode(&self, encoder: &mut wgpu::CommandEncoder, source: &wgpu::Buffer) {
        let size = self.buffer.size().min(source.size());
        encoder.copy_buffer_to_buffer(source, 0, &self.buffer, 0, size);
    }

    /// Asks for the map of what `submission` writes.
    fn request(&mut self, submission: wgpu::SubmissionIndex) {
        let failed = self.failed.clone();
        failed.store(false, Ordering::Relaxed);
        self.buffer.map_async(wgpu::MapMode::Read, .., move |result| {
            failed.store(result.is_err(), Ordering::Relaxed);
        });
        self.state = ReadbackState::Requested(submission);
    }

    /// Waits for the map if need be, then shows a range of words as bytes.
    fn read(
        &mut self,
        gpu: &Gpu,
        words: Range<usize>,
        show: impl FnOnce(&[u8]),
    ) -> Result<(), GpuError> {
        if let ReadbackState::Requested(submission) = &self.state {
            gpu.wait(Some(submission.clone()))?;
            if self.failed.load(Ordering::Relaxed) {
                return Err(gpu.refused("a result could not be mapped"));
            }
            self.state = ReadbackState::Mapped;
        }
        let view = self.buffer.get_mapped_range(..).map_err(|error| gpu.refused(error))?;
        show(&view[4 * words.start..4 * words.end]);
        Ok(())
    }

    /// Gives the buffer back to the GPU.
    fn release(&mut self) {
        if !matches!(self.state, ReadbackState::Idle) {
            self.buffer.unmap();
            self.state = ReadbackState::Idle;
        }
    }
}
