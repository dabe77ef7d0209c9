// A convolution's input from the layer before it.

override INPUT_SIDE: u32;
override INPUT_CHANNELS: u32;

// (tiles, channels, side, side, 16).
@group(0) @binding(6) var<storage, read> planes: array<vec4f>;

// In the first component, the quad's first value.
fn input_origin(quad: u32) -> vec4u {
    return vec4u(quad_index(quad, INPUT_CHANNELS * INPUT_SIDE * INPUT_SIDE, 0u), 0u, 0u, 0u);
}

// Without padding no place lies outside.
fn input(origin: vec4u, channel: u32, y: i32, x: i32) -> vec4f {
    let place = (channel * INPUT_SIDE + u32(y)) * INPUT_SIDE + u32(x);
    return planes[origin.x + 4u * place];
}
