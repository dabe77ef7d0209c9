// The gradients of a convolution's weights and bias: a partial sum for each tile.
//
// input (tiles, C, S, S, 4 quads) with its padding, d_output (tiles, D, O, O, 4 quads) with its
// margins
// -> partials (tiles, tensors of both convolutions).
//
// A workgroup computes the 5x5 kernel of one input channel and four output channels for one tile.
// Its invocations share out the tile's quads, the output's rows and the kernel's rows: each slides
// along its rows with five inputs in registers, one for each kernel column. Then the workgroup
// adds up, always in the same order.

// Elements of a tile's partials.
override PARTIALS: u32;
// Invocations that share the output's rows.
override ROW_LANES: u32;

@group(0) @binding(7) var<storage, read_write> partials: array<f32>;

// Invocations that work on the same kernel row.
override SHARES: u32 = 4u * ROW_LANES;
override SLOTS: u32 = 30u * SHARES;

// (5 kernel rows; 5 kernel columns and the bias; shares) of four output channels.
var<workgroup> shares: array<vec4f, SLOTS>;

@compute @workgroup_size(4, ROW_LANES, 5)
fn convolution_backward_weights(
    @builtin(workgroup_id) group: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let in_channels = layer.in_channels;
    let in_side = layer.in_side;
    let out_channels = layer.out_channels;
    let out_side = layer.out_side;
    let in_channel = group.x % in_channels;
    let channel = 4u * (group.x / in_channels);
    let tile = group.y;
    let quad = 4u * tile + local.x;
    let row = local.z;

    var s0 = vec4f(0.0);
    var s1 = vec4f(0.0);
    var s2 = vec4f(0.0);
    var s3 = vec4f(0.0);
    var s4 = vec4f(0.0);
    var bias = vec4f(0.0);
    if quad < quad_count() {
        // From one row of d_output to the next, and from one channel to the next.
        let stride = 4u * (out_side + 2u * layer.column_margin);
        let plane = stride * (out_side + 2u * layer.row_margin);
        let x_first = quad_start(quad, in_channels * in_side * in_side)
            + 4u * (in_channel * in_side + row) * in_side;
        let d_first = quad_start(quad, out_channels * plane / 4u) + channel * plane
            + layer.row_margin * stride + 4u * layer.column_margin;
        for (var y = local.y; y < out_side; y += ROW_LANES) {
            var x = x_first + 4u * y * in_side;
            var d = d_first + y * stride;
            var x0 = input(x);
            var x1 = input(x + 4u);
            var x2 = input(x + 8u);
            var x3 = input(x + 12u);
            for (var i = 0u; i < out_side; i++) {
                let x4 = input(x + 16u);
                let d0 = d_output(d);
                let d1 = d_output(d + plane);
                let d2 = d_output(d + 2u * plane);
                let d3 = d_output(d + 3u * plane);
                s0 += vec4f(dot(d0, x0), dot(d1, x0), dot(d2, x0), dot(d3, x0));
                s1 += vec4f(dot(d0, x1), dot(d1, x1), dot(d2, x1), dot(d3, x1));
                s2 += vec4f(dot(d0, x2), dot(d1, x2), dot(d2, x2), dot(d3, x2));
                s3 += vec4f(dot(d0, x3), dot(d1, x3), dot(d2, x3), dot(d3, x3));
                s4 += vec4f(dot(d0, x4), dot(d1, x4), dot(d2, x4), dot(d3, x4));
                let one = vec4f(1.0);
                bias += vec4f(dot(d0, one), dot(d1, one), dot(d2, one), dot(d3, one));
                x0 = x1;
                x1 = x2;
                x2 = x3;
                x3 = x4;
                x += 4u;
                d += 4u;
            }
        }
    }
    let slot = row * 6u * SHARES + local.y * 4u + local.x;
    shares[slot] = s0;
    shares[slot + SHARES] = s1;
    shares[slot + 2u * SHARES] = s2;
    shares[slot + 3u * SHARES] = s3;
    shares[slot + 4u * SHARES] = s4;
    shares[slot + 5u * SHARES] = bias;
    workgroupBarrier();

    // An invocation for each kernel element, and one for the bias, which is the same in every
    // kernel row and input channel.
    if lane > 25u || (lane == 25u && in_channel > 0u) {
        return;
    }
    let is_bias = lane == 25u;
    let first = select((lane / 5u) * 6u + lane % 5u, 5u, is_bias) * SHARES;
    var sum = vec4f(0.0);
    for (var i = 0u; i < SHARES; i++) {
        sum += shares[first + i];
    }
    // From one output channel to the next.
    let step = select(in_channels * 25u, 1u, is_bias);
    let weight = layer.weight + (channel * in_channels + in_channel) * 25u + lane;
    let place = tile * PARTIALS + select(weight, layer.bias + channel, is_bias);
    partials[place] = sum.x;
    partials[place + step] = sum.y;
    // The last group of channels may have two.
    if channel + 2u < out_channels {
        partials[place + 2u * step] = sum.z;
        partials[place + 3u * step] = sum.w;
    }
}
