// The sizes of a convolution. They are data, not overrides, so that the layers share a pipeline.

struct Layer {
    in_channels: u32,
    // With the padding.
    in_side: u32,
    out_channels: u32,
    out_side: u32,
    // Zeros around d_output: rows above and below, columns before and behind.
    row_margin: u32,
    column_margin: u32,
    // Where the layer begins in the forward kernel's `weights`.
    forward_weight: u32,
    // Where the tensors begin in the flat vector.
    weight: u32,
    bias: u32,
}

@group(0) @binding(10) var<storage, read> layer: Layer;
