// The gradient of a convolution's input, carried on through pooling and activation of the layer
// below.
//
// weights, d_output (tiles, D, O + 2, O + 8, 4 quads) with its margins -> what `emit` writes.
//
// An invocation computes a 2x2 window of three input channels for a quad of samples: as in the
// forward kernel, but the 5x5 kernel is turned around, and the kernel rows that meet nothing but
// zeros are left out.

override IN_CHANNELS: u32;
override IN_SIDE: u32;
override OUT_CHANNELS: u32;
override OUT_SIDE: u32;
// Where the layer begins in `weights`.
override WEIGHT: u32;
override LANES: u32;

@compute @workgroup_size(LANES)
fn convolution_backward_input(
    @builtin(workgroup_id) group: vec3u,
    @builtin(global_invocation_id) id: vec3u,
) {
    let windows = IN_SIDE / 2u;
    let item = item_of(id.x, windows * windows);
    let quad = item.quad;
    if quad >= quad_count() {
        return;
    }
    let top = 2u * (item.place / windows);
    let left = 2u * (item.place % windows);
    // Kernel row i brings row top - i of d_output to the window's upper row and the next one to its
    // lower row. The margins, a row above and four columns before, make both coordinates positive.
    let first_row = max(top + 1u, OUT_SIDE) - OUT_SIDE;
    let last_row = min(top + 1u, 4u);

    let stride = OUT_SIDE + 8u;
    let plane = (OUT_SIDE + 2u) * stride;
    let origin = quad_start(quad, OUT_CHANNELS * plane) + 4u * ((top + 1u) * stride + left);
    var sum0 = empty_window();
    var sum1 = empty_window();
    var sum2 = empty_window();
    for (var c = 0u; c < OUT_CHANNELS; c++) {
        let first = origin + 4u * c * plane;
        var lower = read_row(first + 4u * stride - 4u * first_row * stride);
        for (var i = first_row; i <= last_row; i++) {
            let upper = read_row(first - 4u * i * stride);
            let w = WEIGHT + ((group.y * OUT_CHANNELS + c) * 5u + i) * 5u;
            let w0 = weights[w];
            let w1 = weights[w + 1u];
            let w2 = weights[w + 2u];
            let w3 = weights[w + 3u];
            let w4 = weights[w + 4u];
            sum0 = add_row(sum0, upper, lower, w4.x, w3.x, w2.x, w1.x, w0.x);
            sum1 = add_row(sum1, upper, lower, w4.y, w3.y, w2.y, w1.y, w0.y);
            sum2 = add_row(sum2, upper, lower, w4.z, w3.z, w2.z, w1.z, w0.z);
            lower = upper;
        }
    }

    // A loop, since a gradient's way through the pooling is long.
    let channel = 3u * group.y;
    for (var i = 0u; i < min(3u, IN_CHANNELS - channel); i++) {
        var sum = sum0;
        if i == 1u { sum = sum1; }
        if i == 2u { sum = sum2; }
        let feature = ((channel + i) * IN_SIDE + top) * IN_SIDE + left;
        emit(quad, feature, sum.a);
        emit(quad, feature + 1u, sum.b);
        emit(quad, feature + IN_SIDE, sum.c);
        emit(quad, feature + IN_SIDE + 1u, sum.d);
    }
}

fn read_row(first: u32) -> Row {
    return Row(
        d_output(first),
        d_output(first + 4u),
        d_output(first + 8u),
        d_output(first + 12u),
        d_output(first + 16u),
        d_output(first + 20u),
    );
}
