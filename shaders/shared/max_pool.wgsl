// ReLU, then the maximum of each 2x2 window.

// (tiles, features, 4 quads) The place that won, a byte a sample: 0 to 3 in row-major order, or NONE where
// ReLU lets no gradient through.
@group(0) @binding(6) var<storage, read_write> winners: array<u32>;

const NONE = 4u;

// The first of equal maxima wins, a NaN wins over everything, as in PyTorch.
fn pool(convolved: Window, index: u32) -> vec4f {
    var value = convolved.a;
    var winner = vec4u(0u);
    let b = beats(convolved.b, value);
    value = select(value, convolved.b, b);
    winner = select(winner, vec4u(1u), b);
    let c = beats(convolved.c, value);
    value = select(value, convolved.c, c);
    winner = select(winner, vec4u(2u), c);
    let d = beats(convolved.d, value);
    value = select(value, convolved.d, d);
    winner = select(winner, vec4u(3u), d);

    winner = select(winner, vec4u(NONE), is_not_positive(value));
    let bytes = winner << vec4u(0u, 8u, 16u, 24u);
    winners[index] = bytes.x | bytes.y | bytes.z | bytes.w;
    return activate(value);
}

fn beats(x: vec4f, best: vec4f) -> vec4<bool> {
    return (x > best) | is_nan(x);
}

// What `unpool` needs to know of a pooled value: for each sample the place that won.
fn read_kept(index: u32) -> vec4u {
    return (vec4u(winners[index]) >> vec4u(0u, 8u, 16u, 24u)) & vec4u(0xffu);
}

// The gradient of the convolution's output at one place of a window, given that of the pooled value.
fn unpool(d_pooled: vec4f, kept: vec4u, place: u32) -> vec4f {
    return select(vec4f(0.0), d_pooled, kept == vec4u(place));
}
