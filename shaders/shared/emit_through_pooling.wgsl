// A gradient goes on through pooling and activation of a convolution.

override PLANE_SIDE: u32;
// Zeros before and after each row: they spare the readers the checks at the border. Nothing is
// ever written there.
override MARGIN: u32;

// (channels, side, side + 2 * margin; quads) The gradient of the convolution's output.
@group(0) @binding(8) var<storage, read_write> d_convolved: array<vec4f>;

// A feature is a pooled place, counted over (channels, side / 2, side / 2).
fn emit(feature: u32, quad: u32, d: vec4f) {
    let d_window = unpool(d, quad_index(feature, quad));
    // Pooled rows are counted over all channels, and so are the plane's.
    let y = 2u * (feature / (PLANE_SIDE / 2u));
    let x = 2u * (feature % (PLANE_SIDE / 2u));
    let stride = PLANE_SIDE + 2u * MARGIN;
    let place = y * stride + MARGIN + x;
    d_convolved[quad_index(place, quad)] = d_window.a;
    d_convolved[quad_index(place + 1u, quad)] = d_window.b;
    d_convolved[quad_index(place + stride, quad)] = d_window.c;
    d_convolved[quad_index(place + stride + 1u, quad)] = d_window.d;
}
