//! The kernels' texts: templates whose loops are written out for one adapter and one model.

use minijinja::{Environment, context};

use super::layout::{
    CONV1_MAXIMA_FIRST, CONV1_ROW, CONV1_SUMS_FIRST, CONV1_UNITS, CONV2_ROW, CONV2_TRANSPOSED_ROW,
    CONV2_UNITS, DENSE1, DENSE2, DENSE3, DenseShape,
};
use crate::gpu::engine::Sums;
use crate::model::layers::ModelKind;

/// Tiles of a workgroup of the fully connected layers' forward and input gradient: each weight
/// that is read serves so many samples' sums.
pub(super) const DENSE_TILES: u32 = 2;

/// Everything the texts depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub model: ModelKind,
    pub sums: Sums,
    /// Lanes that share a weight by a broadcast; 0 to do without subgroup operations.
    pub subgroup_size: u32,
    /// Images side by side in the image texture.
    pub images_per_row: u32,
}

/// A kernel of the set; the order is that of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    Conv1Forward,
    Conv2Forward,
    Dense1Forward,
    Dense2Forward,
    Head,
    Dense3BackwardInput,
    Dense2BackwardInput,
    Dense3BackwardWeights,
    Dense2BackwardWeights,
    Dense1BackwardWeights,
    Dense1BackwardInput,
    Conv2BackwardInput,
    Conv2BackwardWeights,
    Conv1BackwardWeights,
    Conv2SumTiles,
    Conv1SumTiles,
}

impl Kernel {
    pub const ALL: [Kernel; 16] = [
        Kernel::Conv1Forward,
        Kernel::Conv2Forward,
        Kernel::Dense1Forward,
        Kernel::Dense2Forward,
        Kernel::Head,
        Kernel::Dense3BackwardInput,
        Kernel::Dense2BackwardInput,
        Kernel::Dense3BackwardWeights,
        Kernel::Dense2BackwardWeights,
        Kernel::Dense1BackwardWeights,
        Kernel::Dense1BackwardInput,
        Kernel::Conv2BackwardInput,
        Kernel::Conv2BackwardWeights,
        Kernel::Conv1BackwardWeights,
        Kernel::Conv2SumTiles,
        Kernel::Conv1SumTiles,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Kernel::Conv1Forward => "conv1_forward",
            Kernel::Conv2Forward => "conv2_forward",
            Kernel::Dense1Forward => "dense1_forward",
            Kernel::Dense2Forward => "dense2_forward",
            Kernel::Head => "head",
            Kernel::Dense3BackwardInput => "dense3_backward_input",
            Kernel::Dense2BackwardInput => "dense2_backward_input",
            Kernel::Dense3BackwardWeights => "dense3_backward_weights",
            Kernel::Dense2BackwardWeights => "dense2_backward_weights",
            Kernel::Dense1BackwardWeights => "dense1_backward_weights",
            Kernel::Dense1BackwardInput => "dense1_backward_input",
            Kernel::Conv2BackwardInput => "conv2_backward_input",
            Kernel::Conv2BackwardWeights => "conv2_backward_weights",
            Kernel::Conv1BackwardWeights => "conv1_backward_weights",
            Kernel::Conv2SumTiles => "conv2_sum_tiles",
            Kernel::Conv1SumTiles => "conv1_sum_tiles",
        }
    }

    const fn template(self) -> &'static str {
        match self {
            Kernel::Conv1Forward => "conv1_forward.wgsl.j2",
            Kernel::Conv2Forward => "conv2_forward.wgsl.j2",
            Kernel::Dense1Forward | Kernel::Dense2Forward => "dense_forward.wgsl.j2",
            Kernel::Head => "head.wgsl.j2",
            Kernel::Dense3BackwardInput
            | Kernel::Dense2BackwardInput
            | Kernel::Dense1BackwardInput => "dense_backward_input.wgsl.j2",
            Kernel::Dense3BackwardWeights
            | Kernel::Dense2BackwardWeights
            | Kernel::Dense1BackwardWeights => "dense_backward_weights.wgsl.j2",
            Kernel::Conv2BackwardInput => "conv2_backward_input.wgsl.j2",
            Kernel::Conv2BackwardWeights => "conv2_backward_weights.wgsl.j2",
            Kernel::Conv1BackwardWeights => "conv1_backward_weights.wgsl.j2",
            Kernel::Conv2SumTiles | Kernel::Conv1SumTiles => "sum_tiles.wgsl.j2",
        }
    }

    /// What the template calls `layer`.
    fn layer(self) -> minijinja::Value {
        match self {
            Kernel::Dense1Forward | Kernel::Dense1BackwardInput | Kernel::Dense1BackwardWeights => {
                dense_layer(&DENSE1, 4, false)
            }
            Kernel::Dense2Forward | Kernel::Dense2BackwardInput | Kernel::Dense2BackwardWeights => {
                dense_layer(&DENSE2, 6, true)
            }
            Kernel::Head | Kernel::Dense3BackwardInput | Kernel::Dense3BackwardWeights => {
                dense_layer(&DENSE3, 8, true)
            }
            Kernel::Conv2SumTiles => context! {
                units => CONV2_UNITS, weight_scale => 2, sums_first => 0, maxima_first => 0,
            },
            Kernel::Conv1SumTiles => context! {
                units => CONV1_UNITS, weight_scale => 0,
                sums_first => CONV1_SUMS_FIRST, maxima_first => CONV1_MAXIMA_FIRST,
            },
            _ => minijinja::Value::UNDEFINED,
        }
    }
}

fn dense_layer(shape: &DenseShape, weight_scale: usize, activated_input: bool) -> minijinja::Value {
    context! {
        inputs => shape.layer.inputs,
        outputs => shape.layer.outputs,
        input_quads => shape.input_quads(),
        output_quads => shape.output_quads(),
        row => shape.row,
        tiles => DENSE_TILES,
        forward_outputs => shape.forward_outputs,
        backward_quads => shape.backward_quads,
        weight_quads => shape.weight_quads,
        weight_groups => shape.weight_groups(),
        sums_first => shape.sums_first,
        maxima_first => shape.maxima_first,
        weight_scale => weight_scale,
        activated_input => activated_input,
    }
}

/// Template name and text: the kernels and the pieces that they import.
const TEMPLATES: [(&str, &str); 15] = [
    ("shared.wgsl.j2", include_str!("../../../shaders/lane/shared.wgsl.j2")),
    ("images.wgsl.j2", include_str!("../../../shaders/lane/images.wgsl.j2")),
    ("pooling.wgsl.j2", include_str!("../../../shaders/lane/pooling.wgsl.j2")),
    ("windows.wgsl.j2", include_str!("../../../shaders/lane/windows.wgsl.j2")),
    ("dense.wgsl.j2", include_str!("../../../shaders/lane/dense.wgsl.j2")),
    ("conv1_forward.wgsl.j2", include_str!("../../../shaders/lane/conv1_forward.wgsl.j2")),
    ("conv2_forward.wgsl.j2", include_str!("../../../shaders/lane/conv2_forward.wgsl.j2")),
    ("dense_forward.wgsl.j2", include_str!("../../../shaders/lane/dense_forward.wgsl.j2")),
    ("head.wgsl.j2", include_str!("../../../shaders/lane/head.wgsl.j2")),
    (
        "dense_backward_input.wgsl.j2",
        include_str!("../../../shaders/lane/dense_backward_input.wgsl.j2"),
    ),
    (
        "dense_backward_weights.wgsl.j2",
        include_str!("../../../shaders/lane/dense_backward_weights.wgsl.j2"),
    ),
    (
        "conv2_backward_input.wgsl.j2",
        include_str!("../../../shaders/lane/conv2_backward_input.wgsl.j2"),
    ),
    (
        "conv2_backward_weights.wgsl.j2",
        include_str!("../../../shaders/lane/conv2_backward_weights.wgsl.j2"),
    ),
    (
        "conv1_backward_weights.wgsl.j2",
        include_str!("../../../shaders/lane/conv1_backward_weights.wgsl.j2"),
    ),
    ("sum_tiles.wgsl.j2", include_str!("../../../shaders/lane/sum_tiles.wgsl.j2")),
];

/// The templates, ready to be written out for a variant.
pub(super) struct Sources {
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
        Sources { environment }
    }

    /// The kernel's WGSL.
    pub fn wgsl(&self, kernel: Kernel) -> String {
        self.environment
            .get_template(kernel.template())
            .and_then(|template| template.render(context! { layer => kernel.layer() }))
            .expect("the crate's own templates render")
    }
}
