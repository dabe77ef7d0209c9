// ReLU. A NaN stays a NaN.

fn activate(x: vec4f) -> vec4f {
    return select(x, vec4f(0.0), is_not_positive(x));
}

// The gradient of the argument, given the activation's value and the gradient of the value.
fn through_activation(value: vec4f, d_value: vec4f) -> vec4f {
    return select(d_value, vec4f(0.0), is_not_positive(value));
}
