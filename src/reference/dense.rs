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
///
/// # Panics
/// If the shapes do not agree.
pub fn dense_forward<F: Float>(
    layer: &Dense,
    activation: Option<Activation>,
    weights: &[F],
    bias: &[F],
    input: &[F],
    output: &mut [F],
) {
    assert_agree(layer, weights, input, output);
    assert_eq!(bias.len(), layer.outputs);
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
///
/// # Panics
/// If the shapes do not agree.
pub fn dense_backward_input<F: Float>(
    layer: &Dense,
    activation: Option<Activation>,
    weights: &[F],
    input: &[F],
    d_output: &[F],
    d_input: &mut [F],
) {
    assert_agree(layer, weights, input, d_output);
    assert_eq!(d_input.len(), input.len());
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
///
/// # Panics
/// If the shapes do not agree.
pub fn dense_backward_weights<F: Float>(
    layer: &Dense,
    input: &[F],
    d_output: &[F],
    d_weights: &mut [F],
    d_bias: &mut [F],
) {
    assert_agree(layer, d_weights, input, d_output);
    assert_eq!(d_bias.len(), layer.outputs);
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

/// The weights are the layer's; inputs and outputs, or their gradients, are those of the same
/// samples.
fn assert_agree<F>(layer: &Dense, weights: &[F], input: &[F], output: &[F]) {
    assert_eq!(weights.len(), layer.outputs * layer.inputs);
    let samples = input.len() / layer.inputs;
    let lengths = [input.len(), output.len()];
    assert_eq!(lengths, [layer.inputs, layer.outputs].map(|n| samples * n), "{samples} samples");
}

#[cfg(test)]
mod tests {
    use super::super::testing::{H, assert_gradient, inner, values};
    use super::*;

    /// More inputs than lanes of a dot product, and not a multiple of them.
    const LAYER: Dense = Dense { name: "small", inputs: 19, outputs: 5 };
    const SAMPLES: usize = 3;

    #[test]
    fn backward_is_the_derivative() {
        let weights = values(1, LAYER.outputs * LAYER.inputs);
        let bias = values(2, LAYER.outputs);
        let before = values(3, SAMPLES * LAYER.inputs);
        let d_output = values(4, SAMPLES * LAYER.outputs);
        assert!(before.iter().all(|value| value.abs() > H), "no kink of ReLU within a difference");

        for activation in [None, Some(Activation::Relu), Some(Activation::Tanh)] {
            let activated = |before: &[f64]| -> Vec<f64> {
                let activate = |&value| activation.map_or(value, |a| activate(a, value));
                before.iter().map(activate).collect()
            };
            // The layer's linear outputs, weighted with d_output.
            let f = |weights: &[f64], bias: &[f64], before: &[f64]| {
                let mut output = vec![f64::NAN; d_output.len()];
                dense_forward(&LAYER, None, weights, bias, &activated(before), &mut output);
                inner(&output, &d_output)
            };

            let input = activated(&before);
            let mut d_weights = vec![f64::NAN; weights.len()];
            let mut d_bias = vec![f64::NAN; bias.len()];
            dense_backward_weights(&LAYER, &input, &d_output, &mut d_weights, &mut d_bias);
            assert_gradient(|weights| f(weights, &bias, &before), &weights, &d_weights);
            assert_gradient(|bias| f(&weights, bias, &before), &bias, &d_bias);

            let mut d_before = vec![f64::NAN; before.len()];
            dense_backward_input(&LAYER, activation, &weights, &input, &d_output, &mut d_before);
            assert_gradient(|before| f(&weights, &bias, before), &before, &d_before);
        }
    }

    #[test]
    fn forward_applies_bias_and_activation() {
        const LAYER: Dense = Dense { name: "tiny", inputs: 2, outputs: 2 };
        let (weights, bias, input) = ([1.0f32, 2.0, -3.0, 0.5], [0.5, -0.25], [4.0, -1.0]);
        let mut output = [0.0; 2];
        dense_forward(&LAYER, None, &weights, &bias, &input, &mut output);
        assert_eq!(output, [2.5, -12.75]);
        dense_forward(&LAYER, Some(Activation::Relu), &weights, &bias, &input, &mut output);
        assert_eq!(output, [2.5, 0.0]);
        dense_forward(&LAYER, Some(Activation::Tanh), &weights, &bias, &input, &mut output);
        assert_eq!(output, [libm::tanhf(2.5), -1.0]);
    }
}
