// The convolutions' weights, sorted by the host for the kernels that read them.
//
// A uniform buffer: all invocations of a workgroup read the same element at the same time, which is
// what GPUs have constant caches for.

// For each kernel a run of (groups of channels, channels, 5, 5) vec4: a vec4 holds the weights of
// a group's channels for one element of the 5x5 kernel. Unused components are 0.
@group(0) @binding(4) var<uniform> weights: array<vec4f, 1450>;
