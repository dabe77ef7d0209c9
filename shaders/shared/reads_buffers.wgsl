// What a kernel reads most, from storage buffers.

// The flat vector of parameters.
@group(0) @binding(1) var<storage, read> parameters_source: array<vec4f>;
// (features, quads)
@group(0) @binding(2) var<storage, read> input_source: array<vec4f>;
@group(0) @binding(3) var<storage, read> d_output_source: array<vec4f>;

// Four parameters, from 4 * index.
fn parameters(index: u32) -> vec4f {
    return parameters_source[index];
}

fn input(feature: u32, quad: u32) -> vec4f {
    return input_source[quad_index(feature, quad)];
}

fn d_output(feature: u32, quad: u32) -> vec4f {
    return d_output_source[quad_index(feature, quad)];
}
