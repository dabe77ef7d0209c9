// The gradient of a fully connected layer's input, carried on through what made the input.
//
// weights (O, I), d_output (O; quads) -> what `emit` writes.
//
// An invocation computes four inputs for a quad of samples.

override INPUTS: u32;
override OUTPUTS: u32;
// Where the weights begin in the parameters, in vec4.
override WEIGHT: u32;
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
    var d0 = vec4f(0.0);
    var d1 = vec4f(0.0);
    var d2 = vec4f(0.0);
    var d3 = vec4f(0.0);
    for (var i = 0u; i < OUTPUTS; i++) {
        let d = d_output(i, quad);
        let w = parameters(WEIGHT + i * (INPUTS / 4u) + group.y);
        d0 += w.x * d;
        d1 += w.y * d;
        d2 += w.z * d;
        d3 += w.w * d;
    }
    emit(4u * group.y, quad, d0);
    emit(4u * group.y + 1u, quad, d1);
    emit(4u * group.y + 2u, quad, d2);
    emit(4u * group.y + 3u, quad, d3);
}
