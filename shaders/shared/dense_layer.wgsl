// The sizes of a fully connected layer. They are data, not overrides, so that the layers share a
// pipeline.

struct Layer {
    inputs: u32,
    outputs: u32,
    // Outputs as d_output has them: padded to a multiple of 4.
    rows: u32,
    // Where the tensors begin in the parameters, in vec4.
    weight: u32,
    bias: u32,
    // Words of the tensors' sums and maxima.
    weight_sum: u32,
    bias_sum: u32,
    weight_maximum: u32,
    bias_maximum: u32,
    // The tensors among the scales.
    weight_scale: u32,
    bias_scale: u32,
}

@group(0) @binding(10) var<storage, read> layer: Layer;
