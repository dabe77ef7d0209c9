// A gradient goes on through pooling and activation of a convolution.

override PLANE_SIDE: u32;
// Rows of zeros above and below a plane, and zeros before and after each row: they spare the
// readers checks at the border. Nothing is ever written there.
override ROW_MARGIN: u32;
override COLUMN_MARGIN: u32;

// (channels, side + 2 * row margin, side + 2 * column margin; quads) The gradient of the
// convolution's output.
@group(0) @binding(8) var<storage, read_write> d_convolved: array<vec4f>;

// A feature is a pooled place, counted over (channels, side / 2, side / 2).
fn emit(feature: u32, quad: u32, d: vec4f) {
    let kept = read_kept(quad_index(feature, quad));
    let pooled_side = PLANE_SIDE / 2u;
    let channel = feature / (pooled_side * pooled_side);
    let y = 2u * (feature / pooled_side % pooled_side) + ROW_MARGIN;
    let x = 2u * (feature % pooled_side) + COLUMN_MARGIN;
    let stride = PLANE_SIDE + 2u * COLUMN_MARGIN;
    let first = (channel * (PLANE_SIDE + 2u * ROW_MARGIN) + y) * stride + x;
    for (var place = 0u; place < 4u; place++) {
        let feature = first + (place / 2u) * stride + place % 2u;
        d_convolved[quad_index(feature, quad)] = unpool(d, kept, place);
    }
}
