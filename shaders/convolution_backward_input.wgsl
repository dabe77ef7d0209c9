// The gradient of a convolution's input, carried on through pooling and activation of the layer
// below.
//
// weights, d_output (D, O, O + 8; quads) with four zeros before and after each row
// -> what `emit` writes.
//
// An invocation computes a 2x2 block of three input channels for a quad of samples: for each
// output channel it reads the block's 6x6 surroundings, less the rows outside.

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
    let quad = id.x % quad_count();
    let block = id.x / quad_count();
    let blocks = IN_SIDE / 2u;
    if block >= blocks * blocks {
        return;
    }
    let top = 2u * (block / blocks);
    let left = 2u * (block % blocks);
    // Row r of d_output reaches the block's upper row by kernel row top - r, its lower row by the
    // next one.
    let first_row = max(top, 4u) - 4u;
    let last_row = min(top + 1u, OUT_SIDE - 1u);

    var sum0 = Block(vec4f(0.0), vec4f(0.0), vec4f(0.0), vec4f(0.0));
    var sum1 = sum0;
    var sum2 = sum0;
    for (var c = 0u; c < OUT_CHANNELS; c++) {
        let w = WEIGHT + (group.y * OUT_CHANNELS + c) * 25u;
        for (var y = first_row; y <= last_row; y++) {
            // With the margin of four, the block's left column and kernel column 4 meet at the
            // row's place `left`.
            let first = (c * OUT_SIDE + y) * (OUT_SIDE + 8u) + left;
            let row = Row(
                d_output(first, quad),
                d_output(first + 1u, quad),
                d_output(first + 2u, quad),
                d_output(first + 3u, quad),
                d_output(first + 4u, quad),
                d_output(first + 5u, quad),
            );
            if y <= top {
                let k = w + 5u * (top - y);
                let w0 = weights[k];
                let w1 = weights[k + 1u];
                let w2 = weights[k + 2u];
                let w3 = weights[k + 3u];
                let w4 = weights[k + 4u];
                sum0.a += left_of(row, w0.x, w1.x, w2.x, w3.x, w4.x);
                sum0.b += right_of(row, w0.x, w1.x, w2.x, w3.x, w4.x);
                sum1.a += left_of(row, w0.y, w1.y, w2.y, w3.y, w4.y);
                sum1.b += right_of(row, w0.y, w1.y, w2.y, w3.y, w4.y);
                sum2.a += left_of(row, w0.z, w1.z, w2.z, w3.z, w4.z);
                sum2.b += right_of(row, w0.z, w1.z, w2.z, w3.z, w4.z);
            }
            if y + 4u > top {
                let k = w + 5u * (top + 1u - y);
                let w0 = weights[k];
                let w1 = weights[k + 1u];
                let w2 = weights[k + 2u];
                let w3 = weights[k + 3u];
                let w4 = weights[k + 4u];
                sum0.c += left_of(row, w0.x, w1.x, w2.x, w3.x, w4.x);
                sum0.d += right_of(row, w0.x, w1.x, w2.x, w3.x, w4.x);
                sum1.c += left_of(row, w0.y, w1.y, w2.y, w3.y, w4.y);
                sum1.d += right_of(row, w0.y, w1.y, w2.y, w3.y, w4.y);
                sum2.c += left_of(row, w0.z, w1.z, w2.z, w3.z, w4.z);
                sum2.d += right_of(row, w0.z, w1.z, w2.z, w3.z, w4.z);
            }
        }
    }

    let plane = IN_SIDE * IN_SIDE;
    let feature = 3u * group.y * plane + top * IN_SIDE + left;
    emit_block(feature, quad, sum0);
    emit_block(feature + plane, quad, sum1);
    emit_block(feature + 2u * plane, quad, sum2);
}

// Six gradients side by side.
struct Row {
    d0: vec4f,
    d1: vec4f,
    d2: vec4f,
    d3: vec4f,
    d4: vec4f,
    d5: vec4f,
}

// What a row gives the block's left and right column: the kernel row runs backwards.
fn left_of(row: Row, w0: f32, w1: f32, w2: f32, w3: f32, w4: f32) -> vec4f {
    return w4 * row.d0 + w3 * row.d1 + w2 * row.d2 + w1 * row.d3 + w0 * row.d4;
}

fn right_of(row: Row, w0: f32, w1: f32, w2: f32, w3: f32, w4: f32) -> vec4f {
    return w4 * row.d1 + w3 * row.d2 + w2 * row.d3 + w1 * row.d4 + w0 * row.d5;
}

// Four places of the input in row-major order, each over the samples of a quad.
struct Block {
    a: vec4f,
    b: vec4f,
    c: vec4f,
    d: vec4f,
}

fn emit_block(feature: u32, quad: u32, block: Block) {
    emit(feature, quad, block.a);
    emit(feature + 1u, quad, block.b);
    emit(feature + IN_SIDE, quad, block.c);
    emit(feature + IN_SIDE + 1u, quad, block.d);
}
