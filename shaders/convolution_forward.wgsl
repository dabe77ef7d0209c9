// Convolution with a 5x5 kernel, activation and 2x2 pooling.
//
// input (tiles, C, S, S, 4 quads) with its padding, weights, bias (D)
// -> pooled (tiles, D, P, P, 4 quads) and what the pooling keeps for the backward pass.
//
// An invocation computes one pooled place of four output channels for a quad of samples: a 2x2
// window of the convolution, whose 6x6 inputs it reads once for each input channel.

override LANES: u32;

@group(0) @binding(5) var<storage, read> bias: array<f32>;
@group(0) @binding(7) var<storage, read_write> pooled: array<vec4f>;

@compute @workgroup_size(LANES)
fn convolution_forward(
    @builtin(workgroup_id) group: vec3u,
    @builtin(global_invocation_id) id: vec3u,
) {
    let in_channels = layer.in_channels;
    let in_side = layer.in_side;
    let out_channels = layer.out_channels;
    let pooled_side = layer.out_side / 2u;
    let item = item_of(id.x, pooled_side * pooled_side);
    let quad = item.quad;
    let place = item.place;
    if quad >= quad_count() {
        return;
    }

    let top = 2u * (place / pooled_side);
    let left = 2u * (place % pooled_side);
    var upper_row = quad_start(quad, in_channels * in_side * in_side) + 4u * (top * in_side + left);
    var w = layer.forward_weight + group.y * in_channels * 25u;
    var sum0 = empty_window();
    var sum1 = empty_window();
    var sum2 = empty_window();
    var sum3 = empty_window();
    for (var c = 0u; c < in_channels; c++) {
        // The rows of input under kernel row i of the window's upper and lower outputs; the lower
        // one serves again as the upper one of the next kernel row.
        var upper = read_row(upper_row);
        for (var i = 1u; i <= 5u; i++) {
            let lower = read_row(upper_row + 4u * i * in_side);
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
            w += 5u;
        }
        upper_row += 4u * in_side * in_side;
    }

    // A loop, since activation and pooling are long. The last group may have fewer channels.
    let channel = 4u * group.y;
    let plane = pooled_side * pooled_side;
    let first = quad_start(quad, out_channels * plane) + 4u * (channel * plane + place);
    for (var i = 0u; i < min(4u, out_channels - channel); i++) {
        var sum = sum0;
        if i == 1u { sum = sum1; }
        if i == 2u { sum = sum2; }
        if i == 3u { sum = sum3; }
        let b = bias[layer.bias + channel + i];
        let index = first + 4u * i * plane;
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
