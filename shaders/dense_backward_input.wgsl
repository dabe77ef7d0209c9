// The gradient of a fully connected layer's input, carried on through what made the input.
//
// weights (O, I), d_output (tiles, ROWS, 16) -> what `emit` writes.
//
// An invocation computes four inputs for a quad of samples. Neighbours share four columns of
// weights, which lie in workgroup memory, and read neighbouring quads.

override INPUTS: u32;
override OUTPUTS: u32;
// Outputs as d_output has them: a multiple of 4.
override ROWS: u32;
override WEIGHT: u32;
override LANES: u32;

@group(0) @binding(1) var<storage, read> parameters: array<vec4f>;
@group(0) @binding(2) var<storage, read> d_output: array<vec4f>;

// (O) of four inputs each.
var<workgroup> weights: array<vec4f, OUTPUTS>;

@compute @workgroup_size(LANES)
fn dense_backward_input(
    @builtin(workgroup_id) group: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    for (var i = lane; i < OUTPUTS; i += LANES) {
        weights[i] = parameters[WEIGHT + i * (INPUTS / 4u) + group.y];
    }
    workgroupBarrier();

    let quad = group.x * LANES + lane;
    if quad >= quad_count() {
        return;
    }
    var d0 = vec4f(0.0);
    var d1 = vec4f(0.0);
    var d2 = vec4f(0.0);
    var d3 = vec4f(0.0);
    let first = quad_index(quad, ROWS, 0u);
    for (var i = 0u; i < OUTPUTS; i++) {
        let d = d_output[first + 4u * i];
        let w = weights[i];
        d0 += w.x * d;
        d1 += w.y * d;
        d2 += w.z * d;
        d3 += w.w * d;
    }
    let input = 4u * group.y;
    emit(quad, input, d0);
    emit(quad, input + 1u, d1);
    emit(quad, input + 2u, d2);
    emit(quad, input + 3u, d3);
}
