// The hyperbolic tangent, from exp: the built-in function of some drivers turns a NaN into 1, or
// overflows to a NaN above 44. A NaN stays a NaN.

fn activate(x: vec4f) -> vec4f {
    let decay = exp(-2.0 * abs(x));
    let value = sign(x) * ((1.0 - decay) / (1.0 + decay));
    // Neither exp nor sign is bound to keep a NaN.
    return select(value, x, is_nan(x));
}

// The gradient of the argument, given the activation's value and the gradient of the value.
fn through_activation(value: vec4f, d_value: vec4f) -> vec4f {
    let d = d_value * (1.0 - value * value);
    // Always true of a tangent, but compilers do not know: see README.md, stores.
    return select(vec4f(0.0), d, abs(value) <= vec4f(1.0));
}
