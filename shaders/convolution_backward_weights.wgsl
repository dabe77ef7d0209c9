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

override IN_CHANNELS: u32;
override IN_SIDE: u32;
override OUT_CHANNELS: u32;
override OUT_SIDE: u32;
override ROW_MARGIN: u32;
override COLUMN_MARGIN: u32;
// Places of weights and bias in a tile's partials, and all of the tile's.
override WEIGHT: u32;
override BIAS: u32;
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
    let in_channel = group.x % IN_CHANNELS;
    let channel = 4u * (group.x / IN_CHANNELS);
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
        let stride = OUT_SIDE + 2u * COLUMN_MARGIN;
        let plane = (OUT_SIDE + 2u * ROW_MARGIN) * stride;
        let x_origin = quad_start(quad, IN_CHANNELS * IN_SIDE * IN_SIDE);
        let d_origin = quad_start(quad, OUT_CHANNELS * plane);
        for (var y = local.y; y < OUT_SIDE; y += ROW_LANES) {
            let x_first = x_origin + 4u * (in_channel * IN_SIDE + y + row) * IN_SIDE;
            let d_place = channel * plane + (y + ROW_MARGIN) * stride + COLUMN_MARGIN;
            let d_first = d_origin + 4u * d_place;
            var x0 = input(x_first);
            var x1 = input(x_first + 4u);
            var x2 = input(x_first + 8u);
            var x3 = input(x_first + 12u);
            for (var x = 0u; x < OUT_SIDE; x++) {
                let x4 = input(x_first + 4u * x + 16u);
                let d0 = d_output(d_first + 4u * x);
                let d1 = d_output(d_first + 4u * (x + plane));
                let d2 = d_output(d_first + 4u * (x + 2u * plane));
                let d3 = d_output(d_first + 4u * (x + 3u * plane));
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
    let step = select(IN_CHANNELS * 25u, 1u, is_bias);
    let weight = WEIGHT + (channel * IN_CHANNELS + in_channel) * 25u + lane;
    let place = tile * PARTIALS + select(weight, BIAS + channel, is_bias);
    partials[place] = sum.x;
    partials[place + step] = sum.y;
    // The last group of channels may have two.
    if channel + 2u < OUT_CHANNELS {
        partials[place + 2u * step] = sum.z;
        partials[place + 3u * step] = sum.w;
    }
}
