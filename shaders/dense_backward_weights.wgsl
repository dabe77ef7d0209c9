// The gradients of a fully connected layer's weights and bias, in exact sums.
//
// input (tiles, I, 16), d_output (tiles, ROWS, 16) -> words.
//
// An invocation computes four outputs by four inputs: for each tile a partial sum over its
// samples, rounded to fixed point and added to a running integer sum. One more column of
// invocations has an input of 1 and gives the bias. Tiles are dealt out along z; the sums are
// exact, so the number of workgroups along z does not show.

override INPUTS: u32;
override OUTPUTS: u32;
// Outputs as d_output has them: a multiple of 4.
override ROWS: u32;
// Words of the sums and of the maxima; indices among the scales.
override WEIGHT_SUM: u32;
override BIAS_SUM: u32;
override WEIGHT_MAXIMUM: u32;
override BIAS_MAXIMUM: u32;
override WEIGHT_SCALE: u32;
override BIAS_SCALE: u32;
override LANES: u32;

@group(0) @binding(1) var<storage, read> input: array<vec4f>;
@group(0) @binding(2) var<storage, read> d_output: array<vec4f>;

@compute @workgroup_size(LANES)
fn dense_backward_weights(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let inputs = 4u * (group.x * LANES + lane);
    let is_bias = inputs == INPUTS;
    if inputs > INPUTS {
        return;
    }
    let outputs = 4u * group.y;
    let scale = select(WEIGHT_SCALE, BIAS_SCALE, is_bias);

    // Row: output, component: input.
    var sum0 = vec4u(0u);
    var sum1 = vec4u(0u);
    var sum2 = vec4u(0u);
    var sum3 = vec4u(0u);
    var largest = vec4u(0u);
    for (var tile = group.z; tile < tile_count(); tile += groups.z) {
        var p0 = vec4f(0.0);
        var p1 = vec4f(0.0);
        var p2 = vec4f(0.0);
        var p3 = vec4f(0.0);
        let x_first = (tile * INPUTS + min(inputs, INPUTS - 4u)) * 4u;
        let d_first = (tile * ROWS + outputs) * 4u;
        for (var q = 0u; q < quads_in_tile(tile); q++) {
            let x0 = select(input[x_first + q], vec4f(1.0), is_bias);
            let x1 = input[x_first + q + 4u];
            let x2 = input[x_first + q + 8u];
            let x3 = input[x_first + q + 12u];
            let d0 = d_output[d_first + q];
            let d1 = d_output[d_first + q + 4u];
            let d2 = d_output[d_first + q + 8u];
            let d3 = d_output[d_first + q + 12u];
            p0 += vec4f(dot(d0, x0), dot(d0, x1), dot(d0, x2), dot(d0, x3));
            p1 += vec4f(dot(d1, x0), dot(d1, x1), dot(d1, x2), dot(d1, x3));
            p2 += vec4f(dot(d2, x0), dot(d2, x1), dot(d2, x2), dot(d2, x3));
            p3 += vec4f(dot(d3, x0), dot(d3, x1), dot(d3, x2), dot(d3, x3));
        }
        sum0 = add_partial(sum0, p0, scale);
        sum1 = add_partial(sum1, p1, scale);
        sum2 = add_partial(sum2, p2, scale);
        sum3 = add_partial(sum3, p3, scale);
        largest = max(largest, max(max(magnitude(p0), magnitude(p1)), max(magnitude(p2), magnitude(p3))));
    }

    if is_bias {
        // The other three inputs of the bias column do not exist.
        raise_word(BIAS_MAXIMUM, largest.x);
        add_bias(outputs, sum0.x);
        add_bias(outputs + 1u, sum1.x);
        add_bias(outputs + 2u, sum2.x);
        add_bias(outputs + 3u, sum3.x);
    } else {
        raise_word(WEIGHT_MAXIMUM, max(max(largest.x, largest.y), max(largest.z, largest.w)));
        add_weights(outputs, inputs, sum0);
        add_weights(outputs + 1u, inputs, sum1);
        add_weights(outputs + 2u, inputs, sum2);
        add_weights(outputs + 3u, inputs, sum3);
    }
}

fn add_bias(output: u32, sum: u32) {
    if output < OUTPUTS {
        add_to_word(BIAS_SUM + output, sum);
    }
}

fn add_weights(output: u32, inputs: u32, sum: vec4u) {
    if output < OUTPUTS {
        let first = WEIGHT_SUM + output * INPUTS + inputs;
        add_to_word(first, sum.x);
        add_to_word(first + 1u, sum.y);
        add_to_word(first + 2u, sum.z);
        add_to_word(first + 3u, sum.w);
    }
}
