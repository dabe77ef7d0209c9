// ReLU. A NaN stays a NaN, so that a diverged run is seen.

fn activate(x: vec4f) -> vec4f {
    return select(x, vec4f(0.0), x < vec4f(0.0));
}

// The gradient of the argument, given the activation's value and the gradient of the value.
fn through_activation(value: vec4f, d_value: vec4f) -> vec4f {
    return select(vec4f(0.0), d_value, value > vec4f(0.0));
}
