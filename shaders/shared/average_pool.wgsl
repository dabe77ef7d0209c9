// An activation, then the mean of each 2x2 window.

// (tiles, features, 4 quads, 4) The activations that were averaged.
@group(0) @binding(6) var<storage, read_write> windows: array<vec4f>;

fn pool(convolved: Window, index: u32) -> vec4f {
    let values = Window(
        activate(convolved.a),
        activate(convolved.b),
        activate(convolved.c),
        activate(convolved.d),
    );
    windows[4u * index] = values.a;
    windows[4u * index + 1u] = values.b;
    windows[4u * index + 2u] = values.c;
    windows[4u * index + 3u] = values.d;
    return 0.25 * (values.a + values.b + values.c + values.d);
}

// What `unpool` needs to know of a pooled value: where its activations lie.
fn read_kept(index: u32) -> vec4u {
    return vec4u(4u * index);
}

// The gradient of the convolution's output at one place of a window, given that of the pooled value.
fn unpool(d_pooled: vec4f, kept: vec4u, place: u32) -> vec4f {
    return through_activation(windows[kept.x + place], 0.25 * d_pooled);
}
