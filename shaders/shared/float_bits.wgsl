// Questions about floats that are answered by their bits.
//
// Compilers take `x < 0 ? 0 : x` for `max(x, 0)`, and `max` may drop a NaN; integers keep them from
// it. A NaN must go through, so that a diverged run is seen.

fn is_nan(x: vec4f) -> vec4<bool> {
    return (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) > vec4u(0x7f800000u);
}

// Whether x is a number (or infinity) of 0 or below.
fn is_not_positive(x: vec4f) -> vec4<bool> {
    let bits = bitcast<vec4u>(x);
    // From -0 to -infinity, as a distance from -0.
    return (bits - vec4u(0x80000000u) <= vec4u(0x7f800000u)) | (bits == vec4u(0u));
}
