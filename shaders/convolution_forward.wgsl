// Convolution with a 5x5 kernel, activation and 2x2 pooling.
//
// input (tiles, C, S, S, 16) or pixels, weights (D, C, 5, 5), bias (D)
// -> pooled (tiles, D, P, P, 16) and what the pooling keeps for the backward pass.
//
// An invocation computes one pooled place of two output channels for a quad of samples: a 2x2
// window of the convolution, whose 6x6 inputs it reads once for each input channel. Neighbours
// share the weights, which lie in workgroup memory, and read neighbouring quads.

override IN_CHANNELS: u32;
override OUT_CHANNELS: u32;
override POOLED_SIDE: u32;
override PADDING: i32;
// Where the layer's tensors begin in the parameters.
override WEIGHT: u32;
override BIAS: u32;
override LANES: u32;

@group(0) @binding(1) var<storage, read> parameters: array<f32>;
@group(0) @binding(2) var<storage, read_write> pooled: array<vec4f>;

// Weights of an output channel.
override WEIGHTS: u32 = IN_CHANNELS * 25u;

// (C, 5, 5) weights of both output channels.
var<workgroup> weights: array<vec2f, WEIGHTS>;

@compute @workgroup_size(LANES)
fn convolution_forward(
    @builtin(workgroup_id) group: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let channel = 2u * group.y;
    for (var i = lane; i < WEIGHTS; i += LANES) {
        let first = WEIGHT + channel * WEIGHTS + i;
        weights[i] = vec2f(parameters[first], parameters[first + WEIGHTS]);
    }
    workgroupBarrier();

    let item = group.x * LANES + lane;
    let quad = item % quad_count();
    let place = item / quad_count();
    if place >= POOLED_SIDE * POOLED_SIDE {
        return;
    }
    let origin = input_origin(quad);
    let top = 2 * i32(place / POOLED_SIDE) - PADDING;
    let left = 2 * i32(place % POOLED_SIDE) - PADDING;

    var even = uniform_window(parameters[BIAS + channel]);
    var odd = uniform_window(parameters[BIAS + channel + 1u]);
    for (var c = 0u; c < IN_CHANNELS; c++) {
        // The rows of input under kernel row i of the window's upper and lower outputs; the lower
        // one serves again as the upper one of the next kernel row.
        var upper = read_row(origin, c, top, left);
        for (var i = 0u; i < 5u; i++) {
            let lower = read_row(origin, c, top + i32(i) + 1, left);
            let w = (c * 5u + i) * 5u;
            let w0 = weights[w];
            let w1 = weights[w + 1u];
            let w2 = weights[w + 2u];
            let w3 = weights[w + 3u];
            let w4 = weights[w + 4u];
            even = add_row(even, upper, lower, w0.x, w1.x, w2.x, w3.x, w4.x);
            odd = add_row(odd, upper, lower, w0.y, w1.y, w2.y, w3.y, w4.y);
            upper = lower;
        }
    }

    let plane = POOLED_SIDE * POOLED_SIDE;
    let features = OUT_CHANNELS * plane;
    let index = quad_index(quad, features, channel * plane + place);
    pooled[index] = pool(even, index);
    let next = index + 4u * plane;
    pooled[next] = pool(odd, next);
}

fn uniform_window(value: f32) -> Window {
    return Window(vec4f(value), vec4f(value), vec4f(value), vec4f(value));
}

// Six inputs side by side.
struct Row {
    x0: vec4f,
    x1: vec4f,
    x2: vec4f,
    x3: vec4f,
    x4: vec4f,
    x5: vec4f,
}

fn read_row(origin: vec4u, channel: u32, y: i32, x: i32) -> Row {
    return Row(
        input(origin, channel, y, x),
        input(origin, channel, y, x + 1),
        input(origin, channel, y, x + 2),
        input(origin, channel, y, x + 3),
        input(origin, channel, y, x + 4),
        input(origin, channel, y, x + 5),
    );
}

// One kernel row on the two input rows of a window.
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
