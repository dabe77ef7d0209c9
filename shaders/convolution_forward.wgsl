// Convolution with a 5x5 kernel, activation and 2x2 pooling.
//
// input (tiles, C, S, S, 4 quads) with its padding, weights, bias (D)
// -> pooled (tiles, D, P, P, 4 quads) and what the pooling keeps for the backward pass.
//
// An invocation computes one pooled place of four output channels for a quad of samples: a 2x2
// window of the convolution, whose 6x6 inputs it reads once for each input channel.

override IN_CHANNELS: u32;
override IN_SIDE: u32;
override OUT_CHANNELS: u32;
override POOLED_SIDE: u32;
// Where the layer begins in `weights`; the bias in the parameters.
override WEIGHT: u32;
override BIAS: u32;
override LANES: u32;

@group(0) @binding(5) var<storage, read> bias: array<f32>;
@group(0) @binding(7) var<storage, read_write> pooled: array<vec4f>;

@compute @workgroup_size(LANES)
fn convolution_forward(
    @builtin(workgroup_id) group: vec3u,
    @builtin(global_invocation_id) id: vec3u,
) {
    let quad = id.x % quad_count();
    let place = id.x / quad_count();
    if place >= POOLED_SIDE * POOLED_SIDE {
        return;
    }
    let top = 2u * (place / POOLED_SIDE);
    let left = 2u * (place % POOLED_SIDE);
    let origin = quad_start(quad, IN_CHANNELS * IN_SIDE * IN_SIDE) + 4u * (top * IN_SIDE + left);

    var sum0 = empty_window();
    var sum1 = empty_window();
    var sum2 = empty_window();
    var sum3 = empty_window();
    for (var c = 0u; c < IN_CHANNELS; c++) {
        // The rows of input under kernel row i of the window's upper and lower outputs; the lower
        // one serves again as the upper one of the next kernel row.
        let first = origin + 4u * c * IN_SIDE * IN_SIDE;
        var upper = read_row(first);
        for (var i = 0u; i < 5u; i++) {
            let lower = read_row(first + 4u * (i + 1u) * IN_SIDE);
            let w = WEIGHT + ((group.y * IN_CHANNELS + c) * 5u + i) * 5u;
            let w0 = weights[w];
            let w1 = weights[w + 1u];
            let w2 = weights[w + 2u];
            let w3 = weights[w + 3u];
            let w4 = weights[w + 4u];
            sum0 = add_row(sum0, upper, lower, w0.x, w1.x, w2.x, w3.x, w4.x);
            sum1 = add_row(sum1, upper, lower, w0.y, w1.y, w2.y, w3.y, w4.y);
            sum2 = add_row(sum2, upper, lower, w0.z, w1.z, w2.z, w3.z, w4.z);
            sum3 = add_row(sum3, upper, lower, w0.w, w1.w, w2.w, w3.w, w4.w);
            upper = lower;
        }
    }

    // A loop, since activation and pooling are long. The last group may have fewer channels.
    let channel = 4u * group.y;
    let pooled_start = quad_start(quad, OUT_CHANNELS * POOLED_SIDE * POOLED_SIDE);
    for (var i = 0u; i < min(4u, OUT_CHANNELS - channel); i++) {
        let b = bias[BIAS + channel + i];
        var sum = sum0;
        if i == 1u { sum = sum1; }
        if i == 2u { sum = sum2; }
        if i == 3u { sum = sum3; }
        let index = pooled_start + 4u * ((channel + i) * POOLED_SIDE * POOLED_SIDE + place);
        pooled[index] = pool(Window(sum.a + b, sum.b + b, sum.c + b, sum.d + b), index);
    }
}

fn read_row(first: u32) -> Row {
    return Row(
        input(first),
        input(first + 4u),
        input(first + 8u),
        input(first + 12u),
        input(first + 16u),
        input(first + 20u),
    );
}
