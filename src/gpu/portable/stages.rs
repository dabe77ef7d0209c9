//! The kernels of a step in their order, and the buffers between them.

use crate::gpu::engine::Sums;
use crate::gpu::shader::{self, Kernel, Reads, Source};
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

/// Tiles of one submission. 2,048 samples keep a large GPU busy, stay below a second on a software
/// adapter, and keep every buffer far below 128 MiB.
pub const TILES_PER_SUBMISSION_MAX: usize = 128;

/// Samples of a quad: what a vec4 holds.
const QUAD_SAMPLES: usize = 4;

/// Logits of a sample as the kernels store them: a multiple of 4.
pub const LOGIT_ROWS: usize = CLASSES.next_multiple_of(4);

/// Output channels of an invocation of the convolutions' forward kernel.
const FORWARD_CHANNELS: usize = 4;
/// Input channels of an invocation of conv2's backward kernel.
const BACKWARD_CHANNELS: usize = 3;

/// Invocations of a workgroup whose invocations differ by quad and place.
const PLACE_LANES: u32 = 64;
/// Invocations of a workgroup whose invocations differ by quad alone: a batch of 128 has 32 quads.
const QUAD_LANES: u32 = 32;
/// Quads of a workgroup of the loss head: four times ten classes are 40 invocations.
const HEAD_QUADS: u32 = 4;
/// Invocations of a workgroup whose invocations differ by parameter.
const PARAMETER_LANES: u32 = 64;
/// How the kernels are cut to suit an adapter. The results of two tunings differ by rounding where
/// `row_lanes` differs, and not at all otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    pub reads: Reads,
    /// Invocations that share the rows of a convolution's output in the weight gradients. What they
    /// found is added up in workgroup memory, which is slow on a CPU; a GPU wants the invocations.
    pub row_lanes: u32,
    /// Shares that the tiles are dealt out in for the sums over them. A CPU has few cores to fill;
    /// a GPU wants the narrowest of those kernels to have a few thousand invocations.
    pub tile_shares_max: u32,
}

impl Tuning {
    pub const SOFTWARE: Tuning =
        Tuning { reads: Reads::Textures, row_lanes: 2, tile_shares_max: 1 };
    pub const HARDWARE: Tuning =
        Tuning { reads: Reads::Buffers, row_lanes: 7, tile_shares_max: 16 };
}

/// Texels of a row of a texture, as `shaders/shared/reads_textures.wgsl` has them.
pub const TEXTURE_ROW: usize = 1_024;

/// A kernel with the buffers it works on and the number of its workgroups.
#[derive(Clone, Debug)]
pub struct Stage {
    /// For people: `conv1 forward`.
    pub label: &'static str,
    pub kernel: Kernel,
    /// The buffer of each of the kernel's variables.
    pub buffers: Vec<(&'static str, BufferId)>,
    pub grid: Grid,
}

impl Stage {
    /// The buffer of a variable.
    ///
    /// # Panics
    /// If the kernel has no such variable.
    pub fn buffer(&self, variable: &str) -> BufferId {
        let found = self.buffers.iter().find(|(name, _)| *name == variable);
        found.expect("the table gives every variable its buffer").1
    }
}

/// The buffers of the set. In the shapes T is the tiles of a submission; the last dimension, 16, is
/// a tile's samples, which the kernels see as four quads of a vec4 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferId {
    /// A [`Submission`].
    Submission,
    /// The flat vector, padded to whole rows of its texture.
    Parameters,
    /// The convolutions' weights as [`convolution_weights`] sorts them.
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

/// Values of a sample behind a convolution and its pooling.
fn pooled_values(layer: &Convolution) -> usize {
    layer.out_channels * layer.pooled_side().pow(2)
}

/// How many workgroups a kernel needs.
#[derive(Clone, Copy, Debug)]
pub enum Grid {
    /// x: an invocation for each place and quad; y: as given.
    Places { lanes: u32, places: u32, y: u32 },
    /// x: an invocation for each column; y: as given; z: shares of the tiles.
    Parameters { lanes: u32, columns: u32, y: u32 },
    /// x: as given; y: tiles.
    Tiles { x: u32 },
}

impl Grid {
    /// Workgroups for `samples` samples, whose tiles are dealt out in `tile_shares` shares.
    pub fn workgroups(self, samples: u32, tile_shares: u32) -> [u32; 3] {
        match self {
            Grid::Places { lanes, places, y } => {
                let tiles = samples.div_ceil(TILE_SAMPLES as u32);
                let quads = tiles * (TILE_SAMPLES / QUAD_SAMPLES) as u32;
                [(quads * places).div_ceil(lanes), y, 1]
            }
            Grid::Parameters { lanes, columns, y } => [columns.div_ceil(lanes), y, tile_shares],
            Grid::Tiles { x } => [x, samples.div_ceil(TILE_SAMPLES as u32), 1],
        }
    }
}

/// Stages of the forward pass, up to the logits.
pub const FORWARD_STAGES: usize = 6;

/// Stages up to the last that writes words of the fully connected layers' bucket.
pub const DENSE_STAGES: usize = 11;

/// The stages of a step in their order; the first [`FORWARD_STAGES`] give the logits, the first
/// [`DENSE_STAGES`] the fully connected layers' gradients.
pub fn stages(model: ModelKind, sums: Sums, tuning: Tuning) -> Vec<Stage> {
    use BufferId::{Conv1, Conv2, DFc1, DFc2, DLogits, Fc1, Fc2, Images};
    let table = Table::new(model, sums, tuning);
    vec![
        table.gather_images(),
        table.convolution_forward("conv1 forward", &CONV1, Images, Conv1),
        table.convolution_forward("conv2 forward", &CONV2, Conv1, Conv2),
        table.dense_forward("fc1 forward", &FC1, Conv2, Fc1),
        table.dense_forward("fc2 forward", &FC2, Fc1, Fc2),
        table.loss_head(),
        table.dense_backward_weights("fc3 d weights", &FC3, Fc2, DLogits),
        table.dense_backward_input("fc3 d input", &FC3, DLogits, Fc2),
        table.dense_backward_weights("fc2 d weights", &FC2, Fc1, DFc2),
        table.dense_backward_input("fc2 d input", &FC2, DFc2, Fc1),
        table.dense_backward_weights("fc1 d weights", &FC1, Conv2, DFc1),
        table.dense_backward_input("fc1 d input", &FC1, DFc1, Conv2),
        table.convolution_backward_weights("conv2 d weights", &CONV2, Conv1),
        table.convolution_backward_input(),
        table.convolution_backward_weights("conv1 d weights", &CONV1, Images),
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
    tuning: Tuning,
}

impl Table {
    fn new(model: ModelKind, sums: Sums, tuning: Tuning) -> Table {
        let (pooling, kept) = match model.pooling() {
            Pooling::Max => (&shader::MAX_POOL, "winners"),
            Pooling::Average => (&shader::AVERAGE_POOL, "windows"),
        };
        Table {
            activation: match model.activation() {
                Activation::Relu => &shader::RELU,
                Activation::Tanh => &shader::TANH,
            },
            pooling,
            kept,
            exact: f64::from(u8::from(sums == Sums::Exact)),
            tuning,
        }
    }

    fn gather_images(&self) -> Stage {
        Stage {
            label: "gather images",
            kernel: self.kernel(
                &shader::GATHER_IMAGES,
                &[],
                vec![("LANES", f64::from(PLACE_LANES))],
            ),
            buffers: vec![
                ("submission", BufferId::Submission),
                ("pixels", BufferId::Pixels),
                ("samples", BufferId::Samples),
                ("images", BufferId::Images),
            ],
            grid: Grid::Places { lanes: PLACE_LANES, places: IMAGE_PIXELS as u32 / 4, y: 1 },
        }
    }

    fn convolution_forward(
        &self,
        label: &'static str,
        layer: &Convolution,
        input: BufferId,
        output: BufferId,
    ) -> Stage {
        let shared = [
            &shader::CONVOLUTION_LAYER,
            &shader::CONVOLUTION_WEIGHTS,
            &shader::WINDOW,
            self.pooling,
            self.activation,
            &shader::FLOAT_BITS,
        ];
        Stage {
            label,
            kernel: self.kernel(
                &shader::CONVOLUTION_FORWARD,
                &shared,
                vec![("LANES", f64::from(PLACE_LANES))],
            ),
            buffers: vec![
                ("submission", BufferId::Submission),
                ("layer", layer_buffer(layer.name)),
                ("weights", BufferId::ConvolutionWeights),
                ("bias", BufferId::Parameters),
                ("input_source", input),
                ("pooled", output),
                (self.kept, pooling_of(layer)),
            ],
            grid: Grid::Places {
                lanes: PLACE_LANES,
                places: layer.pooled_side().pow(2) as u32,
                y: layer.out_channels.div_ceil(FORWARD_CHANNELS) as u32,
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
        Stage {
            label,
            kernel: self.kernel(
                &shader::DENSE_FORWARD,
                &[&shader::DENSE_LAYER, self.activation, &shader::FLOAT_BITS],
                vec![("LANES", f64::from(QUAD_LANES))],
            ),
            buffers: vec![
                ("submission", BufferId::Submission),
                ("layer", layer_buffer(layer.name)),
                ("parameters_source", BufferId::Parameters),
                ("input_source", input),
                ("output", output),
            ],
            grid: Grid::Places { lanes: QUAD_LANES, places: 1, y: layer.outputs as u32 / 4 },
        }
    }

    fn loss_head(&self) -> Stage {
        let statistics = bucket_words(&DENSE_BUCKET) + DENSE_BUCKET.parameter_range().len();
        Stage {
            label: "loss head",
            kernel: self.kernel(
                &shader::LOSS_HEAD,
                &[&shader::SUMS],
                vec![
                    ("INPUTS", FC3.inputs as f64),
                    ("WEIGHT", f64::from(in_vec4(FC3_WEIGHT.offset))),
                    ("BIAS", f64::from(in_vec4(FC3_BIAS.offset))),
                    ("LOSS", statistics as f64),
                    ("RIGHT", (statistics + 1) as f64),
                    ("SAMPLES", (statistics + 2) as f64),
                    ("LOSS_MAXIMUM", maximum_word(LOSS_SCALE) as f64),
                    ("QUADS", f64::from(HEAD_QUADS)),
                    ("EXACT", self.exact),
                ],
            ),
            buffers: vec![
                ("submission", BufferId::Submission),
                ("parameters_source", BufferId::Parameters),
                ("input_source", BufferId::Fc2),
                ("labels", BufferId::Labels),
                ("samples", BufferId::Samples),
                ("logits", BufferId::Logits),
                ("d_logits", BufferId::DLogits),
                ("words", BufferId::Words),
            ],
            grid: Grid::Places { lanes: HEAD_QUADS, places: 1, y: 1 },
        }
    }

    fn dense_backward_weights(
        &self,
        label: &'static str,
        layer: &Dense,
        input: BufferId,
        d_output: BufferId,
    ) -> Stage {
        Stage {
            label,
            kernel: self.kernel(
                &shader::DENSE_BACKWARD_WEIGHTS,
                &[&shader::DENSE_LAYER, &shader::SUMS],
                vec![("LANES", f64::from(PARAMETER_LANES)), ("EXACT", self.exact)],
            ),
            buffers: vec![
                ("submission", BufferId::Submission),
                ("layer", layer_buffer(layer.name)),
                ("input_source", input),
                ("d_output_source", d_output),
                ("words", BufferId::Words),
            ],
            grid: Grid::Parameters {
                lanes: PARAMETER_LANES,
                // One more column for the bias.
                columns: layer.inputs as u32 / 4 + 1,
                y: layer.outputs.div_ceil(4) as u32,
            },
        }
    }

    fn dense_backward_input(
        &self,
        label: &'static str,
        layer: &Dense,
        d_output: BufferId,
        input: BufferId,
    ) -> Stage {
        let mut shared = vec![&shader::DENSE_LAYER, self.activation, &shader::FLOAT_BITS];
        let mut constants = vec![("LANES", f64::from(QUAD_LANES))];
        let mut buffers = vec![
            ("submission", BufferId::Submission),
            ("layer", layer_buffer(layer.name)),
            ("parameters_source", BufferId::Parameters),
            ("d_output_source", d_output),
        ];
        match input {
            BufferId::Conv2 => {
                self.emit_through_pooling(&CONV2, &mut shared, &mut constants, &mut buffers);
            }
            activations => {
                let d_linear =
                    if activations == BufferId::Fc2 { BufferId::DFc2 } else { BufferId::DFc1 };
                shared.push(&shader::EMIT_THROUGH_ACTIVATION);
                buffers.extend([("activations", activations), ("d_linear", d_linear)]);
            }
        }
        Stage {
            label,
            kernel: self.kernel(&shader::DENSE_BACKWARD_INPUT, &shared, constants),
            buffers,
            grid: Grid::Places { lanes: QUAD_LANES, places: 1, y: layer.inputs as u32 / 4 },
        }
    }

    fn convolution_backward_input(&self) -> Stage {
        let layer = &CONV2;
        let mut shared = vec![&shader::CONVOLUTION_WEIGHTS, self.activation, &shader::FLOAT_BITS];
        let mut constants = vec![
            ("IN_CHANNELS", layer.in_channels as f64),
            ("IN_SIDE", layer.in_side as f64),
            ("OUT_CHANNELS", layer.out_channels as f64),
            ("OUT_SIDE", layer.out_side() as f64),
            ("WEIGHT", BACKWARD_WEIGHTS as f64),
            ("LANES", f64::from(PLACE_LANES)),
        ];
        let mut buffers = vec![
            ("submission", BufferId::Submission),
            ("weights", BufferId::ConvolutionWeights),
            ("d_output_source", BufferId::DConv2),
        ];
        self.emit_through_pooling(&CONV1, &mut shared, &mut constants, &mut buffers);
        Stage {
            label: "conv2 d input",
            kernel: self.kernel(&shader::CONVOLUTION_BACKWARD_INPUT, &shared, constants),
            buffers,
            grid: Grid::Places {
                lanes: PLACE_LANES,
                places: (layer.in_side / 2).pow(2) as u32,
                y: (layer.in_channels / BACKWARD_CHANNELS) as u32,
            },
        }
    }

    fn convolution_backward_weights(
        &self,
        label: &'static str,
        layer: &Convolution,
        input: BufferId,
    ) -> Stage {
        let channel_groups = layer.out_channels.div_ceil(FORWARD_CHANNELS);
        Stage {
            label,
            kernel: self.kernel(
                &shader::CONVOLUTION_BACKWARD_WEIGHTS,
                &[&shader::CONVOLUTION_LAYER],
                vec![
                    ("PARTIALS", CONVOLUTION_BUCKET.parameter_range().len() as f64),
                    ("ROW_LANES", f64::from(self.tuning.row_lanes)),
                ],
            ),
            buffers: vec![
                ("submission", BufferId::Submission),
                ("layer", layer_buffer(layer.name)),
                ("input_source", input),
                ("d_output_source", d_convolved(layer)),
                ("partials", BufferId::Partials),
            ],
            grid: Grid::Tiles { x: (layer.in_channels * channel_groups) as u32 },
        }
    }

    fn quantize(&self) -> Stage {
        let partials = CONVOLUTION_BUCKET.parameter_range().len();
        Stage {
            label: "convolution sums",
            kernel: self.kernel(
                &shader::QUANTIZE,
                &[&shader::SUMS],
                vec![
                    ("CONV1_BIAS", CONV1_BIAS.offset as f64),
                    ("CONV2_WEIGHT", CONV2_WEIGHT.offset as f64),
                    ("CONV2_BIAS", CONV2_BIAS.offset as f64),
                    ("PARTIALS", partials as f64),
                    ("SUM", sum_word(&CONV1_WEIGHT) as f64),
                    ("MAXIMUM", maximum_word(scale_of(&CONV1_WEIGHT)) as f64),
                    ("LANES", f64::from(PARAMETER_LANES)),
                    ("EXACT", self.exact),
                ],
            ),
            buffers: vec![
                ("submission", BufferId::Submission),
                ("partials", BufferId::Partials),
                ("words", BufferId::Words),
            ],
            grid: Grid::Parameters { lanes: PARAMETER_LANES, columns: partials as u32, y: 1 },
        }
    }

    fn kernel(
        &self,
        source: &'static Source,
        shared: &[&'static Source],
        constants: Vec<(&'static str, f64)>,
    ) -> Kernel {
        Kernel { source, shared: shared.to_vec(), constants, reads: self.tuning.reads }
    }

    /// Appends what carries a gradient through the pooling of `layer`.
    fn emit_through_pooling(
        &self,
        layer: &Convolution,
        shared: &mut Vec<&'static Source>,
        constants: &mut Vec<(&'static str, f64)>,
        buffers: &mut Vec<(&'static str, BufferId)>,
    ) {
        let [rows, columns] = margins(layer);
        shared.extend([&shader::WINDOW, self.pooling, &shader::EMIT_THROUGH_POOLING]);
        constants.extend([
            ("CHANNELS", layer.out_channels as f64),
            ("PLANE_SIDE", layer.out_side() as f64),
            ("ROW_MARGIN", rows as f64),
            ("COLUMN_MARGIN", columns as f64),
        ]);
        buffers.extend([(self.kept, pooling_of(layer)), ("d_convolved", d_convolved(layer))]);
    }
}

fn pooling_of(layer: &Convolution) -> BufferId {
    if *layer == CONV1 { BufferId::Conv1Pooling } else { BufferId::Conv2Pooling }
}

/// The gradient of a convolution's output.
fn d_convolved(layer: &Convolution) -> BufferId {
    if *layer == CONV1 { BufferId::DConv1 } else { BufferId::DConv2 }
}

/// Zeros around that gradient, so that its readers need not check borders: rows above and below,
/// columns before and behind. Only conv2's is read beyond its border.
fn margins(layer: &Convolution) -> [usize; 2] {
    if *layer == CONV1 { [0, 0] } else { [1, layer.kernel_side - 1] }
}

fn layer_buffer(layer: &str) -> BufferId {
    match layer {
        "conv1" => BufferId::Conv1Layer,
        "conv2" => BufferId::Conv2Layer,
        "fc1" => BufferId::Fc1Layer,
        "fc2" => BufferId::Fc2Layer,
        _ => BufferId::Fc3Layer,
    }
}

const CONVOLUTION_LAYER_WORDS: usize = 9;

/// The fields of `shaders/shared/convolution_layer.wgsl`.
fn convolution_layer(layer: &Convolution) -> [u32; CONVOLUTION_LAYER_WORDS] {
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

const DENSE_LAYER_WORDS: usize = 11;

/// The fields of `shaders/shared/dense_layer.wgsl`.
fn dense_layer(layer: &Dense) -> [u32; DENSE_LAYER_WORDS] {
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

fn padded_side(layer: &Convolution) -> usize {
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
fn in_vec4(offset: usize) -> u32 {
    debug_assert_eq!(offset % 4, 0);
    offset as u32 / 4
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
pub fn bucket_words(bucket: &Bucket) -> usize {
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

/// Elements of a convolution's kernel.
const fn kernel_elements(layer: &Convolution) -> usize {
    layer.kernel_side * layer.kernel_side
}

/// vec4 of a convolution's weights as the forward kernel reads them.
const fn forward_weight_vectors(layer: &Convolution) -> usize {
    layer.out_channels.div_ceil(FORWARD_CHANNELS) * layer.in_channels * kernel_elements(layer)
}

/// Where conv2's weights begin, in vec4, as its backward kernel reads them.
const BACKWARD_WEIGHTS: usize = forward_weight_vectors(&CONV1) + forward_weight_vectors(&CONV2);

/// All vec4 of `shaders/shared/convolution_weights.wgsl`.
const CONVOLUTION_WEIGHT_VECTORS: usize = BACKWARD_WEIGHTS
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_first_bucket_is_complete_before_the_convolutions_begin() {
        for model in ModelKind::ALL {
            let stages = stages(model, Sums::Exact, Tuning::HARDWARE);
            let write_words: Vec<usize> = (0..stages.len())
                .filter(|&stage| stages[stage].buffers.iter().any(|b| b.1 == BufferId::Words))
                .collect();
            let (dense, convolutions): (Vec<usize>, Vec<usize>) =
                write_words.iter().partition(|&&stage| stage < DENSE_STAGES);
            // The loss head and a stage for each of the three layers; then the convolutions' sums.
            assert_eq!(dense.len(), 4);
            assert_eq!(dense.last(), Some(&(DENSE_STAGES - 1)));
            assert_eq!(convolutions, [stages.len() - 1]);
        }
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
