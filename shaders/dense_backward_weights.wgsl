// The gradients of a fully connected layer's weights and bias, in exact sums.
//
// input (tiles, I, 4 quads), d_output (tiles, rows, 4 quads) -> words.
//
// An invocation computes four outputs by four inputs: for each tile a partial sum over its
// samples, rounded to fixed point and added to a running integer sum. One more column of
// invocations has an input of 1 and gives the bias. Tiles are dealt out along z; the sums are
// exact, so the number of workgroups along z does not show.

override LANES: u32;

@compute @workgroup_size(LANES)
fn dense_backward_weights(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(global_invocation_id) id: vec3u,
) {
    let columns = layer.inputs;
    let rows = layer.rows;
    let inputs = 4u * id.x;
    if inputs > columns {
        return;
    }
    let is_bias = inputs == columns;
    let range = range_of(select(layer.weight_scale, layer.bias_scale, is_bias));
    let outputs = 4u * group.y;

    // Variable: output, component: input.
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
        for (var quad = 4u * tile; quad < quads_end(tile); quad++) {
            // The bias column reads some input all the same: a branch costs more.
            let x = quad_start(quad, columns) + 4u * min(inputs, columns - 4u);
            let x0 = select(input(x), vec4f(1.0), is_bias);
            let x1 = input(x + 4u);
            let x2 = input(x + 8u);
            let x3 = input(x + 12u);
            let d = quad_start(quad, rows) + 4u * outputs;
            let d0 = d_output(d);
            let d1 = d_output(d + 4u);
            let d2 = d_output(d + 8u);
            let d3 = d_output(d + 12u);
            p0 += vec4f(dot(d0, x0), dot(d0, x1), dot(d0, x2), dot(d0, x3));
            p1 += vec4f(dot(d1, x0), dot(d1, x1), dot(d1, x2), dot(d1, x3));
            p2 += vec4f(dot(d2, x0), dot(d2, x1), dot(d2, x2), dot(d2, x3));
            p3 += vec4f(dot(d3, x0), dot(d3, x1), dot(d3, x2), dot(d3, x3));
        }
        sum0 = add_partial(sum0, p0, range);
        sum1 = add_partial(sum1, p1, range);
        sum2 = add_partial(sum2, p2, range);
        sum3 = add_partial(sum3, p3, range);
        largest = max(largest, max(magnitude(p0), magnitude(p1)));
        largest = max(largest, max(magnitude(p2), magnitude(p3)));
    }

    if is_bias {
        // The other three inputs of the bias column do not exist.
        raise_word(layer.bias_maximum, largest.x);
    } else {
        let most = max(max(largest.x, largest.y), max(largest.z, largest.w));
        raise_word(layer.weight_maximum, most);
    }
    // The last group may have fewer outputs.
    for (var i = 0u; i < min(4u, layer.outputs - outputs); i++) {
        var sum = sum0;
        if i == 1u { sum = sum1; }
        if i == 2u { sum = sum2; }
        if i == 3u { sum = sum3; }
        if is_bias {
            add_to_word(layer.bias_sum + outputs + i, sum.x);
        } else {
            let first = layer.weight_sum + (outputs + i) * columns + inputs;
            add_to_word(first, sum.x);
            add_to_word(first + 1u, sum.y);
            add_to_word(first + 2u, sum.z);
            add_to_word(first + 3u, sum.w);
        }
    }
}
