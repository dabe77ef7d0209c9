// What a kernel reads most, from textures: the way for software adapters, see README.md.
//
// Each is a buffer of vec4 cut into rows.

// The flat vector of parameters.
@group(0) @binding(1) var parameters_source: texture_storage_2d<rgba32float, read>;
// (tiles, features, 4 quads)
@group(0) @binding(2) var input_source: texture_storage_2d<rgba32float, read>;
@group(0) @binding(3) var d_output_source: texture_storage_2d<rgba32float, read>;

const ROW = 1024u;

fn parameters(index: u32) -> vec4f {
    return textureLoad(parameters_source, vec2u(index % ROW, index / ROW));
}

fn input(index: u32) -> vec4f {
    return textureLoad(input_source, vec2u(index % ROW, index / ROW));
}

fn d_output(index: u32) -> vec4f {
    return textureLoad(d_output_source, vec2u(index % ROW, index / ROW));
}
