// An activation, then the mean of each 2x2 window.

// (features, quads) The activations that were averaged.
@group(0) @binding(6) var<storage, read_write> windows: array<Window>;

// The four places of a window in row-major order, each over the samples of a quad.
struct Window {
    a: vec4f,
    b: vec4f,
    c: vec4f,
    d: vec4f,
}

fn pool(convolved: Window, index: u32) -> vec4f {
    let values = Window(
        activate(convolved.a),
        activate(convolved.b),
        activate(convolved.c),
        activate(convolved.d),
    );
    windows[index] = values;
    return 0.25 * (values.a + values.b + values.c + values.d);
}

// The gradient of the convolution's output, given that of a pooled value.
fn unpool(d_pooled: vec4f, index: u32) -> Window {
    let values = windows[index];
    let d = 0.25 * d_pooled;
    return Window(
        through_activation(values.a, d),
        through_activation(values.b, d),
        through_activation(values.c, d),
        through_activation(values.d, d),
    );
}
