//! The kernels of a step in their order, each with its buffers and its workgroups.

use super::buffers::{BufferId, QUAD_SAMPLES};
use super::layout::{
    BACKWARD_CHANNELS, BACKWARD_WEIGHTS, FORWARD_CHANNELS, bucket_words, in_vec4, margins,
    maximum_word, scale_of, sum_word,
};
use crate::gpu::engine::Sums;
use crate::gpu::shader::{self, Kernel, Reads, Source};
use crate::model::layers::{
    CONV1, CONV2, Convolution, Dense, FC1, FC2, FC3, IMAGE_PIXELS, ModelKind,
};
use crate::model::layout::{
    CONV1_BIAS, CONV1_WEIGHT, CONV2_BIAS, CONV2_WEIGHT, CONVOLUTION_BUCKET, DENSE_BUCKET, FC3_BIAS,
    FC3_WEIGHT, LOSS_SCALE,
};
use crate::model::{Activation, Pooling};
use crate::numerics::fixed_point::TILE_SAMPLES;

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

fn layer_buffer(layer: &str) -> BufferId {
    match layer {
        "conv1" => BufferId::Conv1Layer,
        "conv2" => BufferId::Conv2Layer,
        "fc1" => BufferId::Fc1Layer,
        "fc2" => BufferId::Fc2Layer,
        _ => BufferId::Fc3Layer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
