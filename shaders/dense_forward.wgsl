// A fully connected layer and its activation.
//
// input (tiles, I, 4 quads), weights (O, I), bias (O) -> output (tiles, O, 4 quads).
//
// An invocation computes four outputs for a quad of samples.

override LANES: u32;

@group(0) @binding(7) var<storage, read_write> output: array<vec4f>;

@compute @workgroup_size(LANES)
fn dense_forward(
    @builtin(workgroup_id) group: vec3u,
    @builtin(global_invocation_id) id: vec3u,
) {
    let quad = id.x;
    if quad >= quad_count() {
        return;
    }
    let bias = parameters(layer.bias + group.y);
    var sum0 = vec4f(bias.x);
    var sum1 = vec4f(bias.y);
    var sum2 = vec4f(bias.z);
    var sum3 = vec4f(bias.w);
    let row = layer.inputs / 4u;
    let weight = layer.weight + 4u * group.y * row;
    let x = quad_start(quad, layer.inputs);
    for (var i = 0u; i < row; i++) {
        let x0 = input(x + 16u * i);
        let x1 = input(x + 16u * i + 4u);
        let x2 = input(x + 16u * i + 8u);
        let x3 = input(x + 16u * i + 12u);
        let w0 = parameters(weight + i);
        let w1 = parameters(weight + i + row);
        let w2 = parameters(weight + i + 2u * row);
        let w3 = parameters(weight + i + 3u * row);
        sum0 += w0.x * x0 + w0.y * x1 + w0.z * x2 + w0.w * x3;
        sum1 += w1.x * x0 + w1.y * x1 + w1.z * x2 + w1.w * x3;
        sum2 += w2.x * x0 + w2.y * x1 + w2.z * x2 + w2.w * x3;
        sum3 += w3.x * x0 + w3.y * x1 + w3.z * x2 + w3.w * x3;
    }
    let index = quad_start(quad, layer.outputs) + 16u * group.y;
    output[index] = activate(sum0);
    output[index + 4u] = activate(sum1);
    output[index + 8u] = activate(sum2);
    output[index + 12u] = activate(sum3);
}
