// A 2x2 window of places, and how a row of a 5x5 kernel adds to it.

// The four places in row-major order, each over the samples of a quad.
struct Window {
    a: vec4f,
    b: vec4f,
    c: vec4f,
    d: vec4f,
}

fn empty_window() -> Window {
    return Window(vec4f(0.0), vec4f(0.0), vec4f(0.0), vec4f(0.0));
}

// Six values side by side: what a kernel row meets below the window's two columns.
struct Row {
    x0: vec4f,
    x1: vec4f,
    x2: vec4f,
    x3: vec4f,
    x4: vec4f,
    x5: vec4f,
}

// Adds a kernel row, which meets `upper` in the window's first row and `lower` in its second.
fn add_row(
    sum: Window,
    upper: Row,
    lower: Row,
    w0: f32,
    w1: f32,
    w2: f32,
    w3: f32,
    w4: f32,
) -> Window {
    return Window(
        sum.a + w0 * upper.x0 + w1 * upper.x1 + w2 * upper.x2 + w3 * upper.x3 + w4 * upper.x4,
        sum.b + w0 * upper.x1 + w1 * upper.x2 + w2 * upper.x3 + w3 * upper.x4 + w4 * upper.x5,
        sum.c + w0 * lower.x0 + w1 * lower.x1 + w2 * lower.x2 + w3 * lower.x3 + w4 * lower.x4,
        sum.d + w0 * lower.x1 + w1 * lower.x2 + w2 * lower.x3 + w3 * lower.x4 + w4 * lower.x5,
    );
}
