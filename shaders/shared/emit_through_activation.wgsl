// A gradient goes on through the activation of a fully connected layer.

// (features, quads) The layer's output.
@group(0) @binding(7) var<storage, read> activations: array<vec4f>;
// (features, quads) The gradient of what the activation was applied to.
@group(0) @binding(8) var<storage, read_write> d_linear: array<vec4f>;

fn emit(feature: u32, quad: u32, d: vec4f) {
    let index = quad_index(feature, quad);
    d_linear[index] = through_activation(activations[index], d);
}
