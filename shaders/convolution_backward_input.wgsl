// The gradient of a convolution's input, carried on through pooling and activation of the layer
// below.
//
// weights (D, C, 5, 5), d_output (tiles, D, O, O + 8, 16) with four zeros before and after each row
// -> what `emit` writes.
//
// An invocation computes a 2x2 block of two input channels for a quad of samples: for each output
// channel it reads the block's 6x6 surroundings, less the rows outside. Neighbours share the
// weights, which lie in workgroup memory, and read neighbouring quads.

override IN_CHANNELS: u32;
override OUT_CHANNELS: u32;
override IN_SIDE: u32;
override OUT_SIDE: u32;
override WEIGHT: u32;
override LANES: u32;

@group(0) @binding(1) var<storage, read> parameters: array<f32>;
@group(0) @binding(2) var<storage, read> d_output: array<vec4f>;

const KERNEL = 25u;
// Weights of an input channel.
override WEIGHTS: u32 = OUT_CHANNELS * KERNEL;

// (D, 5, 5) weights of both input channels.
var<workgroup> weights: array<vec2f, WEIGHTS>;

@compute @workgroup_size(LANES)
fn convolution_backward_input(
    @builtin(workgroup_id) group: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let channel = 2u * group.y;
    for (var i = lane; i < WEIGHTS; i += LANES) {
        let first = WEIGHT + ((i / KERNEL) * IN_CHANNELS + channel) * KERNEL + i % KERNEL;
        weights[i] = vec2f(parameters[first], parameters[first + KERNEL]);
    }
    workgroupBarrier();

    let blocks = IN_SIDE / 2u;
    let item = group.x * LANES + lane;
    let quad = item % quad_count();
    let block = item / quad_count();
    if block >= blocks * blocks {
        return;
    }
    let stride = OUT_SIDE + 8u;
    let top = 2u * (block / blocks);
    let left = 2u * (block % blocks);
    // Row r of d_output reaches the block's upper row by kernel row top - r, its lower row by the
    // next one.
    let first_row = max(top, 4u) - 4u;
    let last_row = min(top + 1u, OUT_SIDE - 1u);

    var even = Block(vec4f(0.0), vec4f(0.0), vec4f(0.0), vec4f(0.0));
    var odd = even;
    for (var c = 0u; c < OUT_CHANNELS; c++) {
        for (var row = first_row; row <= last_row; row++) {
            // With the row's margin of four, the block's left column and kernel column 4 meet at
            // the row's place `left`.
            let d = quad_index(quad, OUT_CHANNELS * OUT_SIDE * stride, (c * OUT_SIDE + row) * stride + left);
            let d0 = d_output[d];
            let d1 = d_output[d + 4u];
            let d2 = d_output[d + 8u];
            let d3 = d_output[d + 12u];
            let d4 = d_output[d + 16u];
            let d5 = d_output[d + 20u];
            if row <= top {
                let w = c * KERNEL + 5u * (top - row);
                let w0 = weights[w];
                let w1 = weights[w + 1u];
                let w2 = weights[w + 2u];
                let w3 = weights[w + 3u];
                let w4 = weights[w + 4u];
                even.a += w4.x * d0 + w3.x * d1 + w2.x * d2 + w1.x * d3 + w0.x * d4;
                even.b += w4.x * d1 + w3.x * d2 + w2.x * d3 + w1.x * d4 + w0.x * d5;
                odd.a += w4.y * d0 + w3.y * d1 + w2.y * d2 + w1.y * d3 + w0.y * d4;
                odd.b += w4.y * d1 + w3.y * d2 + w2.y * d3 + w1.y * d4 + w0.y * d5;
            }
            if row + 4u > top {
                let w = c * KERNEL + 5u * (top + 1u - row);
                let w0 = weights[w];
                let w1 = weights[w + 1u];
                let w2 = weights[w + 2u];
                let w3 = weights[w + 3u];
                let w4 = weights[w + 4u];
                even.c += w4.x * d0 + w3.x * d1 + w2.x * d2 + w1.x * d3 + w0.x * d4;
                even.d += w4.x * d1 + w3.x * d2 + w2.x * d3 + w1.x * d4 + w0.x * d5;
                odd.c += w4.y * d0 + w3.y * d1 + w2.y * d2 + w1.y * d3 + w0.y * d4;
                odd.d += w4.y * d1 + w3.y * d2 + w2.y * d3 + w1.y * d4 + w0.y * d5;
            }
        }
    }

    let feature = (channel * IN_SIDE + top) * IN_SIDE + left;
    emit_block(quad, feature, even);
    emit_block(quad, feature + IN_SIDE * IN_SIDE, odd);
}

// Four places of the input in row-major order, each over the samples of a quad.
struct Block {
    a: vec4f,
    b: vec4f,
    c: vec4f,
    d: vec4f,
}

fn emit_block(quad: u32, feature: u32, block: Block) {
    emit(quad, feature, block.a);
    emit(quad, feature + 1u, block.b);
    emit(quad, feature + IN_SIDE, block.c);
    emit(quad, feature + IN_SIDE + 1u, block.d);
}
