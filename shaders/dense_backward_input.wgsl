// The gradient of a fully connected layer's input, carried on through what made the input.
//
// weights (O, I), d_output (tiles, rows, 4 quads) -> what `emit` writes.
//
// An invocation computes four inputs for a quad of samples.

override LANES: u32;

@compute @workgroup_size(LANES)
fn dense_backward_input(
    @builtin(workgroup_id) group: vec3u,
    @builtin(global_invocation_id) id: vec3u,
) {
    let quad = id.x;
    if quad >= quad_count() {
        return;
    }
    let rows = layer.rows;
    let row = layer.inputs / 4u;
    let weight = layer.weight + group.y;
    let o = quad_start(quad, rows);
    var d0 = vec4f(0.0);
    var d1 = vec4f(0.0);
    var d2 = vec4f(0.0);
    var d3 = vec4f(0.0);
    // Rows that are no outputs have a gradient of 0.
    for (var i = 0u; i < rows; i += 4u) {
        let w0 = parameters(weight + i * row);
        let w1 = parameters(weight + (i + 1u) * row);
        let w2 = parameters(weight + (i + 2u) * row);
        let w3 = parameters(weight + (i + 3u) * row);
        let o0 = d_output(o + 4u * i);
        let o1 = d_output(o + 4u * i + 4u);
        let o2 = d_output(o + 4u * i + 8u);
        let o3 = d_output(o + 4u * i + 12u);
        d0 += w0.x * o0 + w1.x * o1 + w2.x * o2 + w3.x * o3;
        d1 += w0.y * o0 + w1.y * o1 + w2.y * o2 + w3.y * o3;
        d2 += w0.z * o0 + w1.z * o1 + w2.z * o2 + w3.z * o3;
        d3 += w0.w * o0 + w1.w * o1 + w2.w * o2 + w3.w * o3;
    }
    // A loop, since a gradient's way through a pooling is long.
    let inputs = 4u * group.y;
    for (var i = 0u; i < min(4u, layer.inputs - inputs); i++) {
        var d = d0;
        if i == 1u { d = d1; }
        if i == 2u { d = d2; }
        if i == 3u { d = d3; }
        emit(quad, inputs + i, d);
    }
}
