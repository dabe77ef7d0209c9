// A gradient goes on through pooling and activation of a convolution.

override CHANNELS: u32;
override PLANE_SIDE: u32;
// Rows of zeros above and below a plane, and zeros before and after each row: they spare the
// readers checks at the border. Nothing is ever written there.
override ROW_MARGIN: u32;
override COLUMN_MARGIN: u32;

// (tiles, channels, side + 2 * row margin, side + 2 * column margin, 4 quads) The gradient of the
// convolution's output.
@group(0) @binding(8) var<storage, read_write> d_convolved: array<vec4f>;

// A feature is a pooled place, counted over (channels, side / 2, side / 2).
fn emit(quad: u32, feature: u32, d: vec4f) {
    let pooled_side = PLANE_SIDE / 2u;
    let pooled = pooled_side * pooled_side;
    let kept = read_kept(quad_start(quad, CHANNELS * pooled) + 4u * feature);

    let stride = PLANE_SIDE + 2u * COLUMN_MARGIN;
    let plane = (PLANE_SIDE + 2u * ROW_MARGIN) * stride;
    let channel = feature / pooled;
    let y = 2u * (feature / pooled_side % pooled_side) + ROW_MARGIN;
    let x = 2u * (feature % pooled_side) + COLUMN_MARGIN;
    let first = quad_start(quad, CHANNELS * plane) + 4u * (channel * plane + y * stride + x);
    for (var place = 0u; place < 4u; place++) {
        let index = first + 4u * ((place / 2u) * stride + place % 2u);
        d_convolved[index] = unpool(d, kept, place);
    }
}
