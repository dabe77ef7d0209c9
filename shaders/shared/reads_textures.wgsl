// What a kernel reads most, from textures: the way for software adapters, see README.md.

// The flat vector of parameters in rows of 256 texels.
@group(0) @binding(1) var parameters_source: texture_2d<f32>;
// x: quad, y: feature.
@group(0) @binding(2) var input_source: texture_2d<f32>;
@group(0) @binding(3) var d_output_source: texture_2d<f32>;

// Four parameters, from 4 * index.
fn parameters(index: u32) -> vec4f {
    return textureLoad(parameters_source, vec2u(index % 256u, index / 256u), 0);
}

fn input(feature: u32, quad: u32) -> vec4f {
    return textureLoad(input_source, vec2u(quad, feature), 0);
}

fn d_output(feature: u32, quad: u32) -> vec4f {
    return textureLoad(d_output_source, vec2u(quad, feature), 0);
}
