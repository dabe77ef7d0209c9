//! A fully connected layer, forward and backward.
//!
//! In the shapes N is samples, I and O are the layer's inputs and outputs. Gradients arriving at
//! and leaving a layer are those of its linear output: the activation between two layers is the
//! business of the layer behind it, which has its value at hand.

use super::activation::{activate, activation_slope};
use super::float::Float;
use super::vector::{add_scaled, dot};
use crate::model::Activation;
use crate::model::layers::Dense;

/// `output = activation(input * weights^T + bias)`.
///
/// `weights` is (O, I), `bias` (O), `input` (N, I); out goes `output` (N, O). Without an
/// activation the output is linear: the logits.
pub fn dense_forward<F: Float>(
    layer: &Dense,
    activation: Option<Activation>,
    weights: &[F],
    bias: &[F],
    input: &[F],
    output: &mut [F],
) {
    let samples = input.chunks_exact(layer.inputs).zip(output.chunks_exact_mut(layer.outputs));
    for (input, output) in samples {
        let rows = weights.chunks_exact(layer.inputs).zip(bias);
        for (output, (weights, &bias)) in output.iter_mut().zip(rows) {
            let linear = bias + dot(weights, input);
            *output = match activation {
                Some(activation) => activate(activation, linear),
                None => linear,
            };
        }
    }
}

/// The gradient of the layer's input, or, where `activation` made the input, of what the
/// activation was applied to.
///
/// `weights` is (O, I), `input` (N, I), `d_output` (N, O); out goes `d_input` (N, I).
pub fn dense_backward_input<F: Float>(
    layer: &Dense,
    activation: Option<Activation>,
    weights: &[F],
    input: &[F],
    d_output: &[F],
    d_input: &mut [F],
) {
    d_input.fill(F::ZERO);
    let samples = input
        .chunks_exact(layer.inputs)
        .zip(d_output.chunks_exact(layer.outputs))
        .zip(d_input.chunks_exact_mut(layer.inputs));
    for ((input, d_output), d_input) in samples {
        for (&d, weights) in d_output.iter().zip(weights.chunks_exact(layer.inputs)) {
            add_scaled(d_input, d, weights);
        }
        if let Some(activation) = activation {
            for (d, &value) in d_input.iter_mut().zip(input) {
                *d = *d * activation_slope(activation, value);
            }
        }
    }
}

/// The gradients of weights and bias, summed over the N samples.
///
/// `input` is (N, I), `d_output` (N, O); out go `d_weights` (O, I) and `d_bias` (O).
pub fn dense_backward_weights<F: Float>(
    layer: &Dense,
    input: &[F],
    d_output: &[F],
    d_weights: &mut [F],
    d_bias: &mut [F],
) {
    d_weights.fill(F::ZERO);
    d_bias.fill(F::ZERO);
    let samples = input.chunks_exact(layer.inputs).zip(d_output.chunks_exact(layer.outputs));
    for (input, d_output) in samples {
        let rows = d_weights.chunks_exact_mut(layer.inputs).zip(d_bias.iter_mut());
        for ((d_weights, d_bias), &d) in rows.zip(d_output) {
            add_scaled(d_weights, d, input);
            *d_bias += d;
        }
    }
}
