//! A convolution with the activation and the pooling behind it, forward and backward.
//!
//! Besides the pooled values the forward pass leaves the **slopes**: the derivative of a pooled
//! value with respect to each of the four convolution outputs it was made of. With max pooling all
//! but the winner's are 0; with average pooling each is a quarter of the activation's derivative.
//! The backward kernels read nothing else of activation and pooling:
//! `d_convolved = slope * d_pooled`.
//!
//! In the shapes N is samples, C and D are the layer's input and output channels, S, O and P the
//! heights and widths of input, convolution output and pooled output, K the kernel's.
//!
//! Inside, an output plane is held in **wide** rows, as long as those of the padded input:
//! (y, x) lies at `y * W + x` with `W = S + 2 * padding`. Then the input under kernel element
//! (i, j) lies at the constant distance `i * W + j`, and a whole plane is one long loop for each
//! kernel element. The K - 1 values at the end of each wide row belong to no output.

use super::activation::{activate, activation_slope};
use super::float::Float;
use super::vector::{add_scaled, dot};
use crate::model::layers::{CONVOLUTIONS, Convolution};
use crate::model::{ModelKind, Pooling};

/// Convolution, activation and 2x2 pooling.
///
/// `input` is (N, C, S, S), `weights` (D, C, K, K), `bias` (D); out go `pooled` (N, D, P, P) and
/// `slopes` (N, D, O, O).
///
/// # Panics
/// If the shapes do not agree, or the layer is larger than the model's convolutions.
pub fn convolution_forward<F: Float>(
    layer: &Convolution,
    model: ModelKind,
    weights: &[F],
    bias: &[F],
    input: &[F],
    pooled: &mut [F],
    slopes: &mut [F],
) {
    let sizes = Sizes::of(layer);
    let mut padded = [F::ZERO; PADDED_MAX];
    let mut convolved = [F::ZERO; WIDE_MAX];
    let convolved = &mut convolved[..sizes.wide];

    sizes.assert_agree(input, slopes, pooled);
    assert_eq!((weights.len(), bias.len()), (sizes.weights, layer.out_channels));
    let samples = input
        .chunks_exact(sizes.input)
        .zip(pooled.chunks_exact_mut(sizes.pooled))
        .zip(slopes.chunks_exact_mut(sizes.slopes));
    for ((input, pooled), slopes) in samples {
        pad(layer, input, &mut padded);
        let channels = weights
            .chunks_exact(layer.fan_in())
            .zip(bias)
            .zip(pooled.chunks_exact_mut(sizes.pooled_plane))
            .zip(slopes.chunks_exact_mut(sizes.slopes_plane));
        for (((weights, &bias), pooled), slopes) in channels {
            convolved.fill(bias);
            for (&weight, distance) in weights.iter().zip(distances(layer)) {
                add_scaled(convolved, weight, &padded[distance..][..sizes.wide]);
            }
            activate_and_pool(layer, model, convolved, pooled, slopes);
        }
    }
}

/// The gradient of the layer's input.
///
/// `weights` is (D, C, K, K), `slopes` (N, D, O, O), `d_pooled` (N, D, P, P); out goes `d_input`
/// (N, C, S, S).
///
/// # Panics
/// If the shapes do not agree, or the layer is larger than the model's convolutions.
pub fn convolution_backward_input<F: Float>(
    layer: &Convolution,
    weights: &[F],
    slopes: &[F],
    d_pooled: &[F],
    d_input: &mut [F],
) {
    let sizes = Sizes::of(layer);
    let mut d_padded = [F::ZERO; PADDED_MAX];
    let mut d_convolved = [F::ZERO; WIDE_MAX];
    let d_convolved = &mut d_convolved[..sizes.wide];

    sizes.assert_agree(d_input, slopes, d_pooled);
    assert_eq!(weights.len(), sizes.weights);
    let samples = slopes
        .chunks_exact(sizes.slopes)
        .zip(d_pooled.chunks_exact(sizes.pooled))
        .zip(d_input.chunks_exact_mut(sizes.input));
    for ((slopes, d_pooled), d_input) in samples {
        d_padded.fill(F::ZERO);
        let channels = weights
            .chunks_exact(layer.fan_in())
            .zip(slopes.chunks_exact(sizes.slopes_plane))
            .zip(d_pooled.chunks_exact(sizes.pooled_plane));
        for ((weights, slopes), d_pooled) in channels {
            pooling_backward(layer, slopes, d_pooled, d_convolved);
            for (&weight, distance) in weights.iter().zip(distances(layer)) {
                add_scaled(&mut d_padded[distance..][..sizes.wide], weight, d_convolved);
            }
        }
        crop(layer, &d_padded, d_input);
    }
}

/// The gradients of weights and bias, summed over the N samples.
///
/// `input` is (N, C, S, S), `slopes` (N, D, O, O), `d_pooled` (N, D, P, P); out go `d_weights`
/// (D, C, K, K) and `d_bias` (D).
///
/// # Panics
/// If the shapes do not agree, or the layer is larger than the model's convolutions.
pub fn convolution_backward_weights<F: Float>(
    layer: &Convolution,
    input: &[F],
    slopes: &[F],
    d_pooled: &[F],
    d_weights: &mut [F],
    d_bias: &mut [F],
) {
    let sizes = Sizes::of(layer);
    let mut padded = [F::ZERO; PADDED_MAX];
    let mut d_convolved = [F::ZERO; WIDE_MAX];
    let d_convolved = &mut d_convolved[..sizes.wide];

    sizes.assert_agree(input, slopes, d_pooled);
    assert_eq!((d_weights.len(), d_bias.len()), (sizes.weights, layer.out_channels));
    d_weights.fill(F::ZERO);
    d_bias.fill(F::ZERO);
    let samples = input
        .chunks_exact(sizes.input)
        .zip(slopes.chunks_exact(sizes.slopes))
        .zip(d_pooled.chunks_exact(sizes.pooled));
    for ((input, slopes), d_pooled) in samples {
        pad(layer, input, &mut padded);
        let channels = d_weights
            .chunks_exact_mut(layer.fan_in())
            .zip(d_bias.iter_mut())
            .zip(slopes.chunks_exact(sizes.slopes_plane))
            .zip(d_pooled.chunks_exact(sizes.pooled_plane));
        for (((d_weights, d_bias), slopes), d_pooled) in channels {
            pooling_backward(layer, slopes, d_pooled, d_convolved);
            for &d in &*d_convolved {
                *d_bias += d;
            }
            for (d_weight, distance) in d_weights.iter_mut().zip(distances(layer)) {
                *d_weight += dot(d_convolved, &padded[distance..][..sizes.wide]);
            }
        }
    }
}

/// Numbers of elements.
struct Sizes {
    weights: usize,
    /// One sample's input.
    input: usize,
    /// One sample's slopes, and one channel of them.
    slopes: usize,
    slopes_plane: usize,
    /// One sample's pooled values, and one channel of them.
    pooled: usize,
    pooled_plane: usize,
    /// One channel of the output in wide rows, without the unused end of the last.
    wide: usize,
}

impl Sizes {
    const fn of(layer: &Convolution) -> Sizes {
        let slopes_plane = layer.out_side() * layer.out_side();
        let pooled_plane = layer.pooled_side() * layer.pooled_side();
        Sizes {
            weights: layer.out_channels * layer.fan_in(),
            input: layer.in_channels * layer.in_side * layer.in_side,
            slopes: layer.out_channels * slopes_plane,
            slopes_plane,
            pooled: layer.out_channels * pooled_plane,
            pooled_plane,
            wide: layer.out_side() * padded_side(layer) + 1 - layer.kernel_side,
        }
    }

    /// Input, slopes and pooled values, or their gradients, are those of the same samples.
    fn assert_agree<F>(&self, input: &[F], slopes: &[F], pooled: &[F]) {
        let samples = input.len() / self.input;
        let sizes = [self.input, self.slopes, self.pooled];
        let lengths = [input.len(), slopes.len(), pooled.len()];
        assert_eq!(lengths, sizes.map(|size| samples * size), "{samples} samples");
    }
}

const fn padded_side(layer: &Convolution) -> usize {
    layer.in_side + 2 * layer.padding
}

/// Room for the padded input of any of the model's convolutions, and for an output plane in wide
/// rows: small enough for the stack, so that no kernel allocates.
const PADDED_MAX: usize = {
    let [a, b] = CONVOLUTIONS;
    max(
        a.in_channels * padded_side(&a) * padded_side(&a),
        b.in_channels * padded_side(&b) * padded_side(&b),
    )
};
const WIDE_MAX: usize = {
    let [a, b] = CONVOLUTIONS;
    max(Sizes::of(&a).wide, Sizes::of(&b).wide)
};

const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

/// For each element (c, i, j) of a kernel, how far its input lies behind the output in the padded
/// input.
fn distances(layer: &Convolution) -> impl Iterator<Item = usize> {
    let (side, kernel) = (padded_side(layer), layer.kernel_side);
    (0..layer.in_channels).flat_map(move |c| {
        (0..kernel).flat_map(move |i| (0..kernel).map(move |j| (c * side + i) * side + j))
    })
}

/// Copies `input` (C, S, S) into the middle of `padded` (C, W, W), whose border is 0.
fn pad<F: Float>(layer: &Convolution, input: &[F], padded: &mut [F]) {
    for (row, values) in input.chunks_exact(layer.in_side).enumerate() {
        padded[padded_row(layer, row)..][..layer.in_side].copy_from_slice(values);
    }
}

/// Copies the middle of `padded` (C, W, W) to `output` (C, S, S).
fn crop<F: Float>(layer: &Convolution, padded: &[F], output: &mut [F]) {
    for (row, values) in output.chunks_exact_mut(layer.in_side).enumerate() {
        values.copy_from_slice(&padded[padded_row(layer, row)..][..layer.in_side]);
    }
}

/// Where a row of (C, S, S), counted over all channels, begins in (C, W, W).
fn padded_row(layer: &Convolution, row: usize) -> usize {
    let (channel, y) = (row / layer.in_side, row % layer.in_side);
    let side = padded_side(layer);
    (channel * side + y + layer.padding) * side + layer.padding
}

/// One channel: `convolved` in wide rows becomes `pooled` (P, P) and `slopes` (O, O).
fn activate_and_pool<F: Float>(
    layer: &Convolution,
    model: ModelKind,
    convolved: &[F],
    pooled: &mut [F],
    slopes: &mut [F],
) {
    let (wide, side) = (padded_side(layer), layer.out_side());
    let (activation, pooling) = (model.activation(), model.pooling());
    for (py, pooled) in pooled.chunks_exact_mut(layer.pooled_side()).enumerate() {
        let top = &convolved[2 * py * wide..][..side];
        let bottom = &convolved[(2 * py + 1) * wide..][..side];
        let (top_slopes, bottom_slopes) = slopes[2 * py * side..][..2 * side].split_at_mut(side);
        for (px, pooled) in pooled.iter_mut().enumerate() {
            let x = 2 * px;
            let window = [top[x], top[x + 1], bottom[x], bottom[x + 1]];
            let active = window.map(|value| activate(activation, value));
            let derivatives = active.map(|value| activation_slope(activation, value));
            let slopes = match pooling {
                Pooling::Max => {
                    let winner = first_maximum(&active);
                    *pooled = active[winner];
                    let mut slopes = [F::ZERO; 4];
                    slopes[winner] = derivatives[winner];
                    slopes
                }
                Pooling::Average => {
                    *pooled = (active[0] + active[1] + active[2] + active[3]) * F::QUARTER;
                    derivatives.map(|derivative| derivative * F::QUARTER)
                }
            };
            top_slopes[x..x + 2].copy_from_slice(&slopes[..2]);
            bottom_slopes[x..x + 2].copy_from_slice(&slopes[2..]);
        }
    }
}

/// The index of the first maximum; a NaN counts as larger than everything, as in PyTorch.
fn first_maximum<F: Float>(values: &[F; 4]) -> usize {
    let mut winner = 0;
    for (i, &value) in values.iter().enumerate().skip(1) {
        let is_nan = value.partial_cmp(&value).is_none();
        if value > values[winner] || is_nan {
            winner = i;
        }
    }
    winner
}

/// One channel: the gradient of the convolution's output in wide rows, `slope * d_pooled`; 0 at
/// the end of each row.
fn pooling_backward<F: Float>(
    layer: &Convolution,
    slopes: &[F],
    d_pooled: &[F],
    d_convolved: &mut [F],
) {
    let (wide, side, pooled_side) = (padded_side(layer), layer.out_side(), layer.pooled_side());
    for (y, slopes) in slopes.chunks_exact(side).enumerate() {
        let d_pooled = &d_pooled[y / 2 * pooled_side..][..pooled_side];
        let row = &mut d_convolved[y * wide..][..side];
        let pairs = row.as_chunks_mut::<2>().0.iter_mut().zip(slopes.as_chunks::<2>().0);
        for ((d, slopes), &d_pooled) in pairs.zip(d_pooled) {
            *d = slopes.map(|slope| slope * d_pooled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_gradient, inner, values};
    use super::*;
    use crate::model::layers::{CONV1, CONV2};

    /// Small enough to move every element, with padding, several channels and an odd kernel.
    const SMALL: Convolution = Convolution {
        name: "small",
        in_channels: 2,
        out_channels: 3,
        kernel_side: 3,
        padding: 1,
        in_side: 6,
    };
    const SAMPLES: usize = 2;

    /// Random arguments of a layer and room for its results.
    struct Case {
        layer: Convolution,
        weights: Vec<f64>,
        bias: Vec<f64>,
        input: Vec<f64>,
        d_pooled: Vec<f64>,
    }

    impl Case {
        fn new(layer: Convolution) -> Case {
            let sizes = Sizes::of(&layer);
            Case {
                layer,
                weights: values(1, sizes.weights),
                bias: values(2, layer.out_channels),
                input: values(3, SAMPLES * sizes.input),
                d_pooled: values(4, SAMPLES * sizes.pooled),
            }
        }

        /// (pooled, slopes).
        fn forward(
            &self,
            model: ModelKind,
            weights: &[f64],
            bias: &[f64],
            input: &[f64],
        ) -> (Vec<f64>, Vec<f64>) {
            let layer = &self.layer;
            let mut pooled = vec![f64::NAN; self.d_pooled.len()];
            let mut slopes = vec![f64::NAN; SAMPLES * Sizes::of(layer).slopes];
            convolution_forward(layer, model, weights, bias, input, &mut pooled, &mut slopes);
            (pooled, slopes)
        }
    }

    /// The definition, without the wide rows: pooled values.
    fn by_definition(case: &Case, model: ModelKind) -> Vec<f64> {
        let layer = &case.layer;
        let (side, kernel, pad) = (layer.in_side as isize, layer.kernel_side, layer.padding);
        let convolved = |n: usize, d: usize, y: usize, x: usize| {
            let mut sum = case.bias[d];
            for c in 0..layer.in_channels {
                for i in 0..kernel {
                    for j in 0..kernel {
                        let row = (y + i) as isize - pad as isize;
                        let column = (x + j) as isize - pad as isize;
                        if (0..side).contains(&row) && (0..side).contains(&column) {
                            let plane = (n * layer.in_channels + c) as isize;
                            let value = case.input[((plane * side + row) * side + column) as usize];
                            let weight = ((d * layer.in_channels + c) * kernel + i) * kernel + j;
                            sum += value * case.weights[weight];
                        }
                    }
                }
            }
            activate(model.activation(), sum)
        };
        let mut pooled = Vec::new();
        for n in 0..SAMPLES {
            for d in 0..layer.out_channels {
                for y in (0..layer.out_side()).step_by(2) {
                    for x in (0..layer.out_side()).step_by(2) {
                        let window = [(y, x), (y, x + 1), (y + 1, x), (y + 1, x + 1)]
                            .map(|(y, x)| convolved(n, d, y, x));
                        pooled.push(match model.pooling() {
                            Pooling::Max => window.into_iter().fold(f64::NEG_INFINITY, f64::max),
                            Pooling::Average => window.iter().sum::<f64>() / 4.0,
                        });
                    }
                }
            }
        }
        pooled
    }

    #[test]
    fn forward_follows_the_definition() {
        for layer in [SMALL, CONV1, CONV2] {
            let case = Case::new(layer);
            // Values lie in [-1, 1), so each of two orders of the sum errs by this much at most.
            let terms = layer.fan_in() as f64 + 1.0;
            let tolerance = 2.0 * terms * terms * f64::EPSILON;
            for model in ModelKind::ALL {
                let (pooled, _) = case.forward(model, &case.weights, &case.bias, &case.input);
                for (value, expected) in pooled.iter().zip(by_definition(&case, model)) {
                    assert!((value - expected).abs() <= tolerance, "{value} {expected}");
                }
            }
        }
    }

    #[test]
    fn backward_is_the_derivative() {
        let case = Case::new(SMALL);
        let Case { layer, weights, bias, input, d_pooled } = &case;
        for model in ModelKind::ALL {
            let (_, slopes) = case.forward(model, weights, bias, input);
            // The pooled values, weighted with d_pooled: their gradient is what backward computes.
            let f = |weights: &[f64], bias: &[f64], input: &[f64]| {
                let (pooled, moved_slopes) = case.forward(model, weights, bias, input);
                if model.pooling() == Pooling::Max {
                    assert_eq!(moved_slopes, slopes, "no kink may lie within the difference");
                }
                inner(&pooled, d_pooled)
            };

            let mut d_weights = vec![f64::NAN; weights.len()];
            let mut d_bias = vec![f64::NAN; bias.len()];
            convolution_backward_weights(
                layer,
                input,
                &slopes,
                d_pooled,
                &mut d_weights,
                &mut d_bias,
            );
            assert_gradient(|weights| f(weights, bias, input), weights, &d_weights);
            assert_gradient(|bias| f(weights, bias, input), bias, &d_bias);

            let mut d_input = vec![f64::NAN; input.len()];
            convolution_backward_input(layer, weights, &slopes, d_pooled, &mut d_input);
            assert_gradient(|input| f(weights, bias, input), input, &d_input);
        }
    }

    /// One window through a convolution that changes nothing: (pooled, slopes).
    fn pool(model: ModelKind, window: [f32; 4]) -> (f32, [f32; 4]) {
        const IDENTITY: Convolution = Convolution {
            name: "identity",
            in_channels: 1,
            out_channels: 1,
            kernel_side: 1,
            padding: 0,
            in_side: 2,
        };
        let (mut pooled, mut slopes) = ([0.0], [f32::NAN; 4]);
        let (weights, bias) = (&[1.0], &[0.0]);
        convolution_forward(&IDENTITY, model, weights, bias, &window, &mut pooled, &mut slopes);
        (pooled[0], slopes)
    }

    #[test]
    fn the_first_of_equal_maxima_takes_the_gradient() {
        let max = ModelKind::LeNet5;
        assert_eq!(pool(max, [3.0, 3.0, 3.0, 3.0]), (3.0, [1.0, 0.0, 0.0, 0.0]));
        assert_eq!(pool(max, [1.0, 3.0, 3.0, 2.0]), (3.0, [0.0, 1.0, 0.0, 0.0]));
        assert_eq!(pool(max, [1.0, 2.0, 3.0, 3.0]), (3.0, [0.0, 0.0, 1.0, 0.0]));
        assert_eq!(pool(max, [0.0, -2.0, -1.0, 0.0]), (0.0, [0.0; 4]));
        let (pooled, slopes) = pool(ModelKind::LeNet5Classic, [0.0; 4]);
        assert_eq!((pooled, slopes), (0.0, [0.25; 4]));
    }

    #[test]
    fn a_nan_is_not_hidden() {
        for model in ModelKind::ALL {
            for place in 0..4 {
                let mut window = [1.0, 5.0, 2.0, -1.0];
                window[place] = f32::NAN;
                assert!(pool(model, window).0.is_nan());
            }
        }
    }
}
