// The gradients of a convolution's weights and bias: a partial sum for each tile.
//
// input (tiles, C, S, S, 16) or pixels, d_output (tiles, D, O, O + 2 * MARGIN, 16)
// -> partials (tiles, tensors of both convolutions).
//
// A workgroup computes one kernel row of one input channel for two output channels and one tile.
// Its invocations share out the quads and rows: each slides along its rows with five inputs in
// registers, one for each kernel column. Then the workgroup adds up, always in the same order.

override IN_CHANNELS: u32;
override OUT_SIDE: u32;
override PADDING: i32;
override MARGIN: u32;
override OUT_CHANNELS: u32;
// Places of weights and bias in a tile's partials, and all of the tile's.
override WEIGHT: u32;
override BIAS: u32;
override PARTIALS: u32;
// Invocations that share the rows of a quad.
override ROW_LANES: u32;

@group(0) @binding(1) var<storage, read> d_output: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> partials: array<f32>;

const KERNEL = 25u;
override SHARES: u32 = 24u * ROW_LANES;

// (5 kernel columns and the bias, lanes) of both output channels.
var<workgroup> shares: array<vec2f, SHARES>;

@compute @workgroup_size(4, ROW_LANES)
fn convolution_backward_weights(
    @builtin(workgroup_id) group: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group.x % 5u;
    let in_channel = (group.x / 5u) % IN_CHANNELS;
    let channel = 2u * (group.x / (5u * IN_CHANNELS));
    let tile = group.y;

    var s0 = vec2f(0.0);
    var s1 = vec2f(0.0);
    var s2 = vec2f(0.0);
    var s3 = vec2f(0.0);
    var s4 = vec2f(0.0);
    var bias = vec2f(0.0);
    if local.x < quads_in_tile(tile) {
        let quad = 4u * tile + local.x;
        let origin = input_origin(quad);
        let stride = OUT_SIDE + 2u * MARGIN;
        let plane = OUT_SIDE * stride;
        for (var y = local.y; y < OUT_SIDE; y += ROW_LANES) {
            let input_y = i32(y + row) - PADDING;
            var x0 = input(origin, in_channel, input_y, -PADDING);
            var x1 = input(origin, in_channel, input_y, 1 - PADDING);
            var x2 = input(origin, in_channel, input_y, 2 - PADDING);
            var x3 = input(origin, in_channel, input_y, 3 - PADDING);
            var even = quad_index(quad, OUT_CHANNELS * plane, channel * plane + y * stride + MARGIN);
            for (var x = 0u; x < OUT_SIDE; x++) {
                let x4 = input(origin, in_channel, input_y, i32(x) + 4 - PADDING);
                let d = d_output[even];
                let e = d_output[even + 4u * plane];
                s0 += vec2f(dot(d, x0), dot(e, x0));
                s1 += vec2f(dot(d, x1), dot(e, x1));
                s2 += vec2f(dot(d, x2), dot(e, x2));
                s3 += vec2f(dot(d, x3), dot(e, x3));
                s4 += vec2f(dot(d, x4), dot(e, x4));
                bias += vec2f(dot(d, vec4f(1.0)), dot(e, vec4f(1.0)));
                x0 = x1;
                x1 = x2;
                x2 = x3;
                x3 = x4;
                even += 4u;
            }
        }
    }
    let lanes = 4u * ROW_LANES;
    shares[lane] = s0;
    shares[lane + lanes] = s1;
    shares[lane + 2u * lanes] = s2;
    shares[lane + 3u * lanes] = s3;
    shares[lane + 4u * lanes] = s4;
    shares[lane + 5u * lanes] = bias;
    workgroupBarrier();

    // Every workgroup finds the bias, the first one of an output channel keeps it.
    if lane > 5u || (lane == 5u && (in_channel > 0u || row > 0u)) {
        return;
    }
    var sum = vec2f(0.0);
    for (var i = 0u; i < lanes; i++) {
        sum += shares[lane * lanes + i];
    }
    let first = tile * PARTIALS;
    if lane == 5u {
        partials[first + BIAS + channel] = sum.x;
        partials[first + BIAS + channel + 1u] = sum.y;
    } else {
        let weight = first + WEIGHT + (channel * IN_CHANNELS + in_channel) * KERNEL + 5u * row + lane;
        partials[weight] = sum.x;
        partials[weight + IN_CHANNELS * KERNEL] = sum.y;
    }
}
