// A gradient goes on through the activation of the fully connected layer before `layer`.

// (tiles, features, 4 quads) That layer's output.
@group(0) @binding(7) var<storage, read> activations: array<vec4f>;
// (tiles, features, 4 quads) The gradient of what the activation was applied to.
@group(0) @binding(8) var<storage, read_write> d_linear: array<vec4f>;

fn emit(quad: u32, feature: u32, d: vec4f) {
    let index = quad_start(quad, layer.inputs) + 4u * feature;
    d_linear[index] = through_activation(activations[index], d);
}
