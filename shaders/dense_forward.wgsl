// A fully connected layer and its activation.
//
// input (tiles, I, 16), weights (O, I), bias (O) -> output (tiles, O, 16).
//
// An invocation computes four outputs for a quad of samples. Neighbours share the four rows of
// weights, which lie in workgroup memory, and read neighbouring quads.

override INPUTS: u32;
override OUTPUTS: u32;
// Where the layer's tensors begin in the parameters, in vec4.
override WEIGHT: u32;
override BIAS: u32;
override LANES: u32;

@group(0) @binding(1) var<storage, read> parameters: array<vec4f>;
@group(0) @binding(2) var<storage, read> input: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> output: array<vec4f>;

// (I / 4, 4 outputs) of four inputs each.
var<workgroup> weights: array<vec4f, INPUTS>;

@compute @workgroup_size(LANES)
fn dense_forward(
    @builtin(workgroup_id) group: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let outputs = 4u * group.y;
    for (var i = lane; i < INPUTS; i += LANES) {
        // The inner index runs along a row, so that neighbours read neighbouring weights.
        let row = i / (INPUTS / 4u);
        let inputs = i % (INPUTS / 4u);
        weights[4u * inputs + row] = parameters[WEIGHT + (outputs + row) * (INPUTS / 4u) + inputs];
    }
    workgroupBarrier();

    let quad = group.x * LANES + lane;
    if quad >= quad_count() {
        return;
    }
    let bias = parameters[BIAS + group.y];
    var sum0 = vec4f(bias.x);
    var sum1 = vec4f(bias.y);
    var sum2 = vec4f(bias.z);
    var sum3 = vec4f(bias.w);
    let first = quad_index(quad, INPUTS, 0u);
    for (var i = 0u; i < INPUTS; i += 4u) {
        let x0 = input[first + 4u * i];
        let x1 = input[first + 4u * i + 4u];
        let x2 = input[first + 4u * i + 8u];
        let x3 = input[first + 4u * i + 12u];
        let w0 = weights[i];
        let w1 = weights[i + 1u];
        let w2 = weights[i + 2u];
        let w3 = weights[i + 3u];
        sum0 += w0.x * x0 + w0.y * x1 + w0.z * x2 + w0.w * x3;
        sum1 += w1.x * x0 + w1.y * x1 + w1.z * x2 + w1.w * x3;
        sum2 += w2.x * x0 + w2.y * x1 + w2.z * x2 + w2.w * x3;
        sum3 += w3.x * x0 + w3.y * x1 + w3.z * x2 + w3.w * x3;
    }
    let index = quad_index(quad, OUTPUTS, outputs);
    output[index] = activate(sum0);
    output[index + 4u] = activate(sum1);
    output[index + 8u] = activate(sum2);
    output[index + 12u] = activate(sum3);
}
