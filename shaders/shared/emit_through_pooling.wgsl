// A gradient goes on through pooling and activation of a convolution.

override CHANNELS: u32;
override PLANE_SIDE: u32;
// Zeros before and after each row: they spare the readers the checks at the border. Nothing is
// ever written there.
override MARGIN: u32;

// (tiles, channels, side, side + 2 * margin, 16) The gradient of the convolution's output.
@group(0) @binding(7) var<storage, read_write> d_convolved: array<vec4f>;

// A feature is a pooled place, counted over (channels, side / 2, side / 2).
fn emit(quad: u32, feature: u32, d: vec4f) {
    let pooled_side = PLANE_SIDE / 2u;
    let d_window = unpool(d, quad_index(quad, CHANNELS * pooled_side * pooled_side, feature));
    let stride = PLANE_SIDE + 2u * MARGIN;
    // Pooled rows are counted over all channels, and so are the plane's.
    let y = 2u * (feature / pooled_side);
    let x = 2u * (feature % pooled_side);
    let index = quad_index(quad, CHANNELS * PLANE_SIDE * stride, y * stride + MARGIN + x);
    d_convolved[index] = d_window.a;
    d_convolved[index + 4u] = d_window.b;
    d_convolved[index + 4u * stride] = d_window.c;
    d_convolved[index + 4u * stride + 4u] = d_window.d;
}
