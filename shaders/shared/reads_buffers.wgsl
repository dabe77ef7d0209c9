// What a kernel reads most, from storage buffers.

// The flat vector of parameters.
@group(0) @binding(1) var<storage, read> parameters_source: array<vec4f>;
// (tiles, features, 4 quads)
@group(0) @binding(2) var<storage, read> input_source: array<vec4f>;
@group(0) @binding(3) var<storage, read> d_output_source: array<vec4f>;

fn parameters(index: u32) -> vec4f {
    return parameters_source[index];
}

fn input(index: u32) -> vec4f {
    return input_source[index];
}

fn d_output(index: u32) -> vec4f {
    return d_output_source[index];
}
