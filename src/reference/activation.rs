//! The activations and their derivatives.

use super::float::Float;
use crate::model::Activation;

/// The activation of `x`. A NaN stays a NaN, so that a diverged run is seen.
pub fn activate<F: Float>(activation: Activation, x: F) -> F {
    match activation {
        Activation::Relu => {
            if x <= F::ZERO {
                F::ZERO
            } else {
                x
            }
        }
        Activation::Tanh => x.tanh(),
    }
}

/// The activation's derivative, from its value `y` rather than from its argument; that of ReLU at
/// 0 is 0, as in PyTorch.
pub fn activation_slope<F: Float>(activation: Activation, y: F) -> F {
    match activation {
        Activation::Relu => {
            if y > F::ZERO {
                F::ONE
            } else {
                F::ZERO
            }
        }
        Activation::Tanh => F::ONE - y * y,
    }
}
