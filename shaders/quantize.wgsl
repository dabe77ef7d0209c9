// The convolutions' partial sums into exact sums.
//
// partials (tiles, tensors of both convolutions) -> words.
//
// An invocation adds up one parameter. Tiles are dealt out along z.

// Where the tensors begin in a tile's partials, and all of the tile's.
override CONV1_BIAS: u32;
override CONV2_WEIGHT: u32;
override CONV2_BIAS: u32;
override PARTIALS: u32;
// Words of the sums and of the first tensor's maximum.
override SUM: u32;
override MAXIMUM: u32;
override LANES: u32;

@group(0) @binding(1) var<storage, read> partials: array<f32>;

@compute @workgroup_size(LANES)
fn quantize_partials(
    @builtin(global_invocation_id) id: vec3u,
    @builtin(num_workgroups) groups: vec3u,
) {
    let parameter = id.x;
    if parameter >= PARTIALS {
        return;
    }
    // The convolutions' tensors are the first of the scales.
    let tensor = u32(parameter >= CONV1_BIAS) + u32(parameter >= CONV2_WEIGHT)
        + u32(parameter >= CONV2_BIAS);
    let range = range_of(tensor);
    var sum = vec4u(0u);
    var largest = 0u;
    for (var tile = id.z; tile < tile_count(); tile += groups.z) {
        let partial = vec4f(partials[tile * PARTIALS + parameter]);
        sum = add_partial(sum, partial, range);
        largest = max(largest, magnitude(partial).x);
    }
    add_to_word(SUM + parameter, sum.x);
    raise_word(MAXIMUM + tensor, largest);
}
