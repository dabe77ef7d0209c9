//! Each kernel of the portable set against the reference in f64.
//!
//! Bounds come from the number of rounded operations that a term passes through in the kernel, and
//! from the accuracy that WGSL promises of `exp`, `log` and division.

use annulet::data::dataset::{ImageSet, Normalization};
use annulet::gpu::AdapterChoice;
use annulet::gpu::portable::buffers::{BufferId, LOGIT_ROWS};
use annulet::gpu::portable::layout::convolution_weights;
use annulet::gpu::portable::stages::Tuning;
use annulet::gpu::shader::Reads;
use annulet::model::layers::{
    CLASSES, CONV1, CONV2, Convolution, Dense, FC1, FC2, FC3, IMAGE_PIXELS, ModelKind,
};
use annulet::model::layout::{
    BUCKETS, Bucket, CONVOLUTION_BUCKET, DENSE_BUCKET, LOSS_SCALE, PARAMETERS, SCALE_COUNT,
    TENSORS, TensorSpec,
};
use annulet::model::{Activation, Pooling};
use annulet::numerics::fixed_point::{FixedPoint, TILE_SAMPLES};
use annulet::reference::convolution::{
    convolution_backward_input, convolution_backward_weights, convolution_forward,
};
use annulet::reference::dense::{dense_backward_input, dense_backward_weights, dense_forward};
use annulet::reference::images::gather_images;
use annulet::reference::loss::loss_head;
use annulet::reference::sums::quantize;

use crate::adapters::on_each_adapter;
use crate::bench::{Bench, IMAGES, PIXEL_OFFSET, PIXEL_SCALE};
use crate::values::{
    UNIT, assert_close, from_tiles, gamma, magnitudes, to_f64, to_tiles, values, words,
};

/// One sample, a short quad, a tile, a tile and one, more tiles, and a share of a batch.
const BATCHES: [usize; 6] = [1, 5, 16, 17, 33, 100];

/// `(1 - t) / (1 + t)` with `t = exp(-2 |x|)`: WGSL grants exp `3 + 2 |2x|` ULP, which is at most
/// 3.8 * 2^-23 since `t |x|` stays below 0.19; the quotient's slope is at most 2, its division
/// errs by 2.5 ULP and the two sums by half an ULP each.
const TANH_ERROR: f64 = (2.0 * 3.8 + 2.5 + 2.0) * 2.0 * UNIT;

/// exp errs by `3 + 2 |x|` ULP in numerator and, weighted, in denominator; a probability times its
/// `|x|` is at most 1/e. Ten additions and a division of 2.5 ULP come on top.
const SOFTMAX_ERROR: f64 = (2.0 * (3.0 + 2.0 * 0.37) + 5.0 + 2.5) * 2.0 * UNIT;

/// log of a number in [1, 10]: WGSL grants 2^-21 absolute up to 2, 3 ULP above. The relative error
/// of the softmax's denominator is an absolute one of its logarithm.
const LOG_ERROR: f64 = 8.0 * UNIT + (3.0 + 2.0 * 0.37 + 5.0) * 2.0 * UNIT;

fn on_each_bench(test: impl Fn(&Bench, ModelKind)) {
    on_each_adapter(|adapter| {
        for model in ModelKind::ALL {
            test(&Bench::open(adapter, model, Tuning::SOFTWARE), model);
        }
    });
    test(
        &Bench::open(&AdapterChoice::Best, ModelKind::LeNet5, Tuning::HARDWARE),
        ModelKind::LeNet5,
    );
}

fn tensors(layer: &str) -> (&'static TensorSpec, &'static TensorSpec) {
    let named = |suffix: &str| {
        let name = format!("{layer}.{suffix}");
        TENSORS.iter().find(|tensor| tensor.name == name).unwrap()
    };
    (named("weight"), named("bias"))
}

/// Parameters in [-1, 1), and the convolutions' as the kernels want them.
fn parameters(seed: u32) -> (Vec<f32>, Vec<f32>) {
    let parameters = values(seed, PARAMETERS);
    let sources = convolution_weights().into_iter();
    let sorted = sources.map(|source| source.map_or(0.0, |s| parameters[s])).collect();
    (parameters, sorted)
}

/// A representation whose range the values of these tests fill well.
fn fixed_point(samples: usize) -> FixedPoint {
    FixedPoint::for_batch(samples, &[64.0; SCALE_COUNT])
}

#[test]
fn images_are_gathered() {
    let set = ImageSet {
        pixels: words(1, IMAGES * IMAGE_PIXELS).map(|word| word as u8).collect(),
        labels: vec![0; IMAGES],
    };
    let normalization = Normalization { scale: PIXEL_SCALE, offset: PIXEL_OFFSET };
    on_each_bench(|bench, _| {
        for samples in BATCHES {
            let mut indices: Vec<u32> =
                words(2, samples).map(|word| word % IMAGES as u32).collect();
            let mut want = vec![0.0; samples * IMAGE_PIXELS];
            gather_images(&set, normalization, indices.iter().copied(), &mut want);
            indices.resize(samples.next_multiple_of(TILE_SAMPLES), 0);

            let images = bench.run(
                "gather images",
                samples,
                &fixed_point(samples),
                &[
                    (BufferId::Pixels, bytemuck::cast_slice(&set.pixels)),
                    (BufferId::Samples, bytemuck::cast_slice(&indices)),
                ],
                BufferId::Images,
            );
            let (side, padded) = (CONV1.in_side, CONV1.in_side + 2 * CONV1.padding);
            let images = from_tiles(&images, padded * padded, samples);
            for (sample, image) in images.chunks_exact(padded * padded).enumerate() {
                for (place, &value) in image.iter().enumerate() {
                    let inner = |i: usize| i.checked_sub(CONV1.padding).filter(|&i| i < side);
                    let pixel = inner(place / padded).zip(inner(place % padded));
                    let want =
                        pixel.map_or(0.0, |(y, x)| want[sample * IMAGE_PIXELS + y * side + x]);
                    // A product and a sum, which may be fused: they lie below 255 scales.
                    let bound = 2.0 * UNIT * (255.0 * f64::from(PIXEL_SCALE) + 1.0);
                    assert!(f64::from(value - want).abs() <= bound, "{sample} {place}");
                }
            }
        }
    });
}

#[test]
fn convolutions_go_forward() {
    let (parameters, sorted) = parameters(3);
    on_each_bench(|bench, model| {
        for (label, layer, source, output) in [
            ("conv1 forward", CONV1, BufferId::Images, BufferId::Conv1),
            ("conv2 forward", CONV2, BufferId::Conv1, BufferId::Conv2),
        ] {
            let sizes = Sizes::of(&layer);
            let (weight, bias) = tensors(layer.name);
            for samples in BATCHES {
                let input = values(4, samples * sizes.input);
                let forward = |model: ModelKind, weights: &[f64], bias: &[f64], input: &[f64]| {
                    let mut pooled = vec![0.0; samples * sizes.pooled];
                    let mut slopes = vec![0.0; samples * sizes.convolved];
                    convolution_forward(
                        &layer,
                        model,
                        weights,
                        bias,
                        input,
                        &mut pooled,
                        &mut slopes,
                    );
                    pooled
                };
                let [weights, bias] = [weight, bias].map(|t| to_f64(&parameters[t.range()]));
                let want = forward(model, &weights, &bias, &to_f64(&input));
                // The largest sum of magnitudes in each window.
                let terms = forward(
                    ModelKind::LeNet5,
                    &magnitudes(&weights),
                    &magnitudes(&bias),
                    &magnitudes(&to_f64(&input)),
                );

                let padded = pad(&layer, &input);
                let features = padded.len() / samples;
                let got = bench.run(
                    label,
                    samples,
                    &fixed_point(samples),
                    &[
                        (BufferId::Parameters, &parameters),
                        (BufferId::ConvolutionWeights, &sorted),
                        (source, &to_tiles(&padded, features, 9.0)),
                    ],
                    output,
                );
                // A product, an addition for each term and the bias; then the mean of four.
                let operations = gamma(layer.fan_in() + 2);
                let after = match model.activation() {
                    Activation::Relu => 0.0,
                    Activation::Tanh => TANH_ERROR + 4.0 * UNIT,
                };
                assert_close(label, &from_tiles(&got, sizes.pooled, samples), &want, |i| {
                    operations * terms[i] + after
                });
            }
        }
    });
}

#[test]
fn dense_layers_go_forward() {
    let (parameters, _) = parameters(5);
    on_each_bench(|bench, model| {
        for (label, layer, source, output) in [
            ("fc1 forward", FC1, BufferId::Conv2, BufferId::Fc1),
            ("fc2 forward", FC2, BufferId::Fc1, BufferId::Fc2),
        ] {
            for samples in BATCHES {
                let input = values(6, samples * layer.inputs);
                let (want, terms) = dense(&layer, Some(model.activation()), &parameters, &input);
                let got = bench.run(
                    label,
                    samples,
                    &fixed_point(samples),
                    &[
                        (BufferId::Parameters, &parameters),
                        (source, &to_tiles(&input, layer.inputs, 9.0)),
                    ],
                    output,
                );
                let after = match model.activation() {
                    Activation::Relu => 0.0,
                    Activation::Tanh => TANH_ERROR,
                };
                assert_close(label, &from_tiles(&got, layer.outputs, samples), &want, |i| {
                    gamma(dense_operations(&layer)) * terms[i] + after
                });
            }
        }
    });
}

/// Outputs in f64, and the sums of magnitudes.
fn dense(
    layer: &Dense,
    activation: Option<Activation>,
    parameters: &[f32],
    input: &[f32],
) -> (Vec<f64>, Vec<f64>) {
    let (weight, bias) = tensors(layer.name);
    let [weights, bias] = [weight, bias].map(|tensor| to_f64(&parameters[tensor.range()]));
    let input = to_f64(input);
    let mut want = vec![0.0; input.len() / layer.inputs * layer.outputs];
    let mut terms = want.clone();
    dense_forward(layer, activation, &weights, &bias, &input, &mut want);
    let [weights, bias, input] = [weights, bias, input].map(|values| magnitudes(&values));
    dense_forward(layer, None, &weights, &bias, &input, &mut terms);
    (want, terms)
}

/// A product, three additions within a group of four, one for each group, and one for the bias.
fn dense_operations(layer: &Dense) -> usize {
    layer.inputs / 4 + 5
}

#[test]
fn the_loss_head_agrees() {
    let (parameters, _) = parameters(7);
    let labels: Vec<u32> = words(8, IMAGES).map(|word| word % CLASSES as u32).collect();
    on_each_bench(|bench, _| {
        for samples in BATCHES {
            let input = values(9, samples * FC3.inputs);
            let (logits, terms) = dense(&FC3, None, &parameters, &input);
            let mut indices: Vec<u32> =
                words(10, samples).map(|word| word % IMAGES as u32).collect();
            let of_samples: Vec<u8> = indices.iter().map(|&i| labels[i as usize] as u8).collect();
            indices.resize(samples.next_multiple_of(TILE_SAMPLES), 0);
            let mut losses = vec![0.0; samples];
            let mut right = vec![false; samples];
            let mut d_logits = vec![0.0; samples * CLASSES];
            loss_head(&logits, &of_samples, &mut losses, &mut right, &mut d_logits);

            let fixed_point = fixed_point(samples);
            let input = to_tiles(&input, FC3.inputs, 9.0);
            let contents: [(BufferId, &[f32]); 4] = [
                (BufferId::Parameters, &parameters),
                (BufferId::Fc2, &input),
                (BufferId::Labels, bytemuck::cast_slice(&labels)),
                (BufferId::Samples, bytemuck::cast_slice(&indices)),
            ];
            let run = |output| bench.run("loss head", samples, &fixed_point, &contents, output);

            // How far a sample's logits may be off.
            let off: Vec<f64> = terms
                .chunks_exact(CLASSES)
                .map(|terms| {
                    gamma(dense_operations(&FC3)) * terms.iter().fold(0.0f64, |a, &b| a.max(b))
                })
                .collect();
            let got = from_tiles(&run(BufferId::Logits), LOGIT_ROWS, samples);
            assert_close("logits", &classes(&got), &logits, |i| off[i / CLASSES]);

            // A probability moves by less than the logits do.
            let got = run(BufferId::DLogits);
            assert_close(
                "d_logits",
                &classes(&from_tiles(&got, LOGIT_ROWS, samples)),
                &d_logits,
                |i| off[i / CLASSES] + SOFTMAX_ERROR,
            );
            let filled = from_tiles(&got, LOGIT_ROWS, samples.next_multiple_of(4));
            assert!(filled[samples * LOGIT_ROWS..].iter().all(|&d| d == 0.0), "no such samples");

            let words: Vec<u32> = run(BufferId::Words).into_iter().map(f32::to_bits).collect();
            let first = DENSE_BUCKET.parameter_range().len();
            let loss = fixed_point.dequantize(LOSS_SCALE, words[first] as i32);
            let bounds = losses
                .iter()
                .zip(&off)
                .map(|(loss, off)| 2.0 * off + LOG_ERROR + 2.0 * UNIT * loss);
            let rounding = 0.5 * fixed_point.dequantize(LOSS_SCALE, 1);
            let bound: f64 = bounds.clone().map(|bound| bound + rounding).sum();
            assert!((loss - losses.iter().sum::<f64>()).abs() <= bound, "{loss}");
            assert_eq!(words[first + 1], right.iter().filter(|&&right| right).count() as u32);
            assert_eq!(words[first + 2], samples as u32);
            let maximum = f32::from_bits(words[DENSE_BUCKET.words() - 1]);
            let largest = losses.iter().fold(0.0f64, |a, &b| a.max(b));
            let bound = bounds.fold(0.0f64, f64::max);
            assert!((f64::from(maximum) - largest).abs() <= bound, "{maximum} {largest}");
        }
    });
}

/// Without the two rows that belong to no class.
fn classes(rows: &[f32]) -> Vec<f32> {
    rows.chunks_exact(LOGIT_ROWS).flat_map(|row| &row[..CLASSES]).copied().collect()
}

#[test]
fn dense_weight_gradients_are_summed_exactly() {
    on_each_bench(|bench, _| {
        for (label, layer, source, d_source) in [
            ("fc1 d weights", FC1, BufferId::Conv2, BufferId::DFc1),
            ("fc2 d weights", FC2, BufferId::Fc1, BufferId::DFc2),
            ("fc3 d weights", FC3, BufferId::Fc2, BufferId::DLogits),
        ] {
            for samples in BATCHES {
                let input = values(11, samples * layer.inputs);
                let d_output = values(12, samples * layer.outputs);
                let gradients = |tile: std::ops::Range<usize>, of: fn(f64) -> f64| {
                    let part = |values: &[f32], features: usize| -> Vec<f64> {
                        let values = &values[tile.start * features..tile.end * features];
                        values.iter().map(|&v| of(f64::from(v))).collect()
                    };
                    let mut d_weights = vec![0.0; layer.outputs * layer.inputs];
                    let mut d_bias = vec![0.0; layer.outputs];
                    dense_backward_weights(
                        &layer,
                        &part(&input, layer.inputs),
                        &part(&d_output, layer.outputs),
                        &mut d_weights,
                        &mut d_bias,
                    );
                    [d_weights, d_bias]
                };

                let fixed_point = fixed_point(samples);
                let rows = layer.outputs.next_multiple_of(4);
                let got = bench.run(
                    label,
                    samples,
                    &fixed_point,
                    &[
                        (source, &to_tiles(&input, layer.inputs, 9.0)),
                        (d_source, &to_tiles(&pad_rows(&d_output, &layer), rows, 0.0)),
                    ],
                    BufferId::Words,
                );
                let (weight, bias) = tensors(layer.name);
                for (t, tensor) in [weight, bias].into_iter().enumerate() {
                    assert_sums(&fixed_point, tensor, &got, samples, |tile| {
                        // A product, three additions within a quad, four quads.
                        let terms = gradients(tile.clone(), f64::abs)[t]
                            .iter()
                            .map(|terms| gamma(1 + 3 + 4) * terms)
                            .collect();
                        (gradients(tile, |v| v)[t].clone(), terms)
                    });
                }
            }
        }
    });
}

/// From (N, O) to (N, rows), the new ones 0.
fn pad_rows(d_output: &[f32], layer: &Dense) -> Vec<f32> {
    let rows = layer.outputs.next_multiple_of(4);
    let samples = d_output.chunks_exact(layer.outputs);
    let zeros = std::iter::repeat_n(&0.0, rows - layer.outputs);
    samples.flat_map(|sample| sample.iter().chain(zeros.clone())).copied().collect()
}

/// Compares a tensor's sums and maximum among `words` with each tile's partials and their bounds.
fn assert_sums(
    fixed_point: &FixedPoint,
    tensor: &TensorSpec,
    words: &[f32],
    samples: usize,
    partials: impl Fn(std::ops::Range<usize>) -> (Vec<f64>, Vec<f64>),
) {
    let k = TENSORS.iter().position(|t| t == tensor).unwrap();
    let rounding = 0.5 * fixed_point.dequantize(k, 1);
    let mut want = vec![0.0; tensor.count];
    let mut bounds = vec![0.0; tensor.count];
    let (mut largest, mut largest_bound) = (0.0f64, 0.0f64);
    for first in (0..samples).step_by(TILE_SAMPLES) {
        let tile = first..samples.min(first + TILE_SAMPLES);
        let (partial, bound) = partials(tile);
        for i in 0..tensor.count {
            want[i] += partial[i];
            bounds[i] += bound[i] + rounding;
            largest = largest.max(partial[i].abs());
            largest_bound = largest_bound.max(bound[i]);
        }
    }
    let bucket = BUCKETS.iter().find(|b| b.tensor_specs().contains(tensor)).unwrap();
    let first: usize = BUCKETS.iter().take_while(|b| *b != bucket).map(Bucket::words).sum();
    let place = first + tensor.offset - bucket.parameter_range().start;
    for i in 0..tensor.count {
        let got = fixed_point.dequantize(k, words[place + i].to_bits() as i32);
        let error = (got - want[i]).abs();
        assert!(error <= bounds[i], "{}[{i}]: {error:e} > {:e}", tensor.name, bounds[i]);
    }
    let maximum = words[first + bucket.sum_words() + k - bucket.first_tensor];
    let error = (f64::from(maximum) - largest).abs();
    assert!(error <= largest_bound, "{} maximum {maximum}, not {largest}", tensor.name);
}

#[test]
fn dense_gradients_go_backward_through_activations() {
    let (parameters, _) = parameters(13);
    on_each_bench(|bench, model| {
        for (label, layer, d_source, activations, output) in [
            ("fc3 d input", FC3, BufferId::DLogits, BufferId::Fc2, BufferId::DFc2),
            ("fc2 d input", FC2, BufferId::DFc2, BufferId::Fc1, BufferId::DFc1),
        ] {
            for samples in BATCHES {
                let d_output = values(14, samples * layer.outputs);
                let input = values(15, samples * layer.inputs);
                let (want, terms) = dense_backward(
                    &layer,
                    Some(model.activation()),
                    &parameters,
                    &input,
                    &d_output,
                );
                let rows = layer.outputs.next_multiple_of(4);
                let got = bench.run(
                    label,
                    samples,
                    &fixed_point(samples),
                    &[
                        (BufferId::Parameters, &parameters),
                        (d_source, &to_tiles(&pad_rows(&d_output, &layer), rows, 0.0)),
                        (activations, &to_tiles(&input, layer.inputs, 0.5)),
                    ],
                    output,
                );
                // Four operations for each four outputs; then the slope, at most 1, which errs by
                // up to two units, and a product.
                let operations = gamma(rows / 4 + 4) + 3.0 * UNIT;
                assert_close(label, &from_tiles(&got, layer.inputs, samples), &want, |i| {
                    operations * terms[i]
                });
            }
        }
    });
}

/// The input's gradient in f64, and the sums of magnitudes.
fn dense_backward(
    layer: &Dense,
    activation: Option<Activation>,
    parameters: &[f32],
    input: &[f32],
    d_output: &[f32],
) -> (Vec<f64>, Vec<f64>) {
    let weights = to_f64(&parameters[tensors(layer.name).0.range()]);
    let (input, d_output) = (to_f64(input), to_f64(d_output));
    let mut want = vec![0.0; input.len()];
    let mut terms = want.clone();
    dense_backward_input(layer, activation, &weights, &input, &d_output, &mut want);
    let (weights, d_output) = (magnitudes(&weights), magnitudes(&d_output));
    dense_backward_input(layer, None, &weights, &input, &d_output, &mut terms);
    (want, terms)
}

#[test]
fn dense_gradients_go_backward_through_pooling() {
    let (parameters, _) = parameters(16);
    on_each_bench(|bench, model| {
        for samples in BATCHES {
            let d_output = values(17, samples * FC1.outputs);
            let input = vec![0.0; samples * FC1.inputs];
            let (d_pooled, terms) = dense_backward(&FC1, None, &parameters, &input, &d_output);
            let pooling = Kept::new(model, &CONV2, samples);
            let got = bench.run(
                "fc1 d input",
                samples,
                &fixed_point(samples),
                &[
                    (BufferId::Parameters, &parameters),
                    (BufferId::DFc1, &to_tiles(&d_output, FC1.outputs, 0.0)),
                    (BufferId::Conv2Pooling, &pooling.words),
                ],
                BufferId::DConv2,
            );
            let operations = gamma(FC1.outputs / 4 + 4);
            let want = pooling.backward(&CONV2, &d_pooled);
            let bounds = pooling.bounds(&CONV2, &terms, operations);
            let got = without_margins(&CONV2, [1, 4], &got, samples);
            assert_close("fc1 d input", &got, &want, |i| bounds[i]);
        }
    });
}

#[test]
fn convolution_gradients_go_backward() {
    let (parameters, sorted) = parameters(18);
    let weights = to_f64(&parameters[tensors(CONV2.name).0.range()]);
    on_each_bench(|bench, model| {
        for samples in BATCHES {
            let sizes = Sizes::of(&CONV2);
            let d_convolved = values(19, samples * sizes.convolved);
            // Slopes of 1 and one gradient for each place: the kernel takes the product.
            let backward = |weights: &[f64], d_convolved: &[f64]| {
                let mut d_input = vec![0.0; samples * sizes.input];
                let ones = vec![1.0; samples * sizes.pooled];
                convolution_backward_input(&CONV2, weights, d_convolved, &ones, &mut d_input);
                d_input
            };
            let d_input = backward(&weights, &to_f64(&d_convolved));
            let terms = backward(&magnitudes(&weights), &magnitudes(&to_f64(&d_convolved)));

            let pooling = Kept::new(model, &CONV1, samples);
            let (margins, with_margins) = with_margins(&CONV2, [1, 4], &d_convolved);
            let got = bench.run(
                "conv2 d input",
                samples,
                &fixed_point(samples),
                &[
                    (BufferId::ConvolutionWeights, &sorted),
                    (BufferId::DConv2, &to_tiles(&with_margins, margins, 0.0)),
                    (BufferId::Conv1Pooling, &pooling.words),
                ],
                BufferId::DConv1,
            );
            let operations = gamma(1 + CONV2.out_channels * 25);
            let want = pooling.backward(&CONV1, &d_input);
            let bounds = pooling.bounds(&CONV1, &terms, operations);
            let got = without_margins(&CONV1, [0, 0], &got, samples);
            assert_close("conv2 d input", &got, &want, |i| bounds[i]);
        }
    });
}

#[test]
fn convolution_weight_gradients_are_summed_by_tile() {
    on_each_bench(|bench, _| {
        for (label, layer, source, d_source, margins) in [
            ("conv1 d weights", CONV1, BufferId::Images, BufferId::DConv1, [0, 0]),
            ("conv2 d weights", CONV2, BufferId::Conv1, BufferId::DConv2, [1, 4]),
        ] {
            let sizes = Sizes::of(&layer);
            let (weight, bias) = tensors(layer.name);
            for samples in BATCHES {
                let input = values(20, samples * sizes.input);
                let d_convolved = values(21, samples * sizes.convolved);
                let padded = pad(&layer, &input);
                let features = padded.len() / samples;
                let (d_features, with_margins) = with_margins(&layer, margins, &d_convolved);
                let partials = bench.run(
                    label,
                    samples,
                    &fixed_point(samples),
                    &[
                        (source, &to_tiles(&padded, features, 9.0)),
                        (d_source, &to_tiles(&with_margins, d_features, 0.0)),
                    ],
                    BufferId::Partials,
                );

                // A product, three additions within a quad, the rows of an invocation, and the
                // shares of the workgroup.
                let row_lanes = bench.tuning().row_lanes as usize;
                let rows = layer.out_side().div_ceil(row_lanes);
                let operations = gamma(1 + 3 + rows * layer.out_side() + 4 * row_lanes);
                for (tile, partials) in
                    partials.chunks_exact(CONVOLUTION_BUCKET.parameter_range().len()).enumerate()
                {
                    let tile = tile * TILE_SAMPLES..samples.min((tile + 1) * TILE_SAMPLES);
                    let gradients = |of: fn(f64) -> f64| {
                        let part = |values: &[f32], features: usize| -> Vec<f64> {
                            let values = &values[tile.start * features..tile.end * features];
                            values.iter().map(|&v| of(f64::from(v))).collect()
                        };
                        let mut d_weights = vec![0.0; weight.count];
                        let mut d_bias = vec![0.0; bias.count];
                        convolution_backward_weights(
                            &layer,
                            &part(&input, sizes.input),
                            &part(&d_convolved, sizes.convolved),
                            &vec![1.0; tile.len() * sizes.pooled],
                            &mut d_weights,
                            &mut d_bias,
                        );
                        [d_weights, d_bias]
                    };
                    let (want, terms) = (gradients(|v| v), gradients(f64::abs));
                    for (t, tensor) in [weight, bias].into_iter().enumerate() {
                        assert_close(label, &partials[tensor.range()], &want[t], |i| {
                            operations * terms[t][i]
                        });
                    }
                }
            }
        }
    });
}

#[test]
fn partials_become_integers_as_on_the_host() {
    on_each_bench(|bench, _| {
        for samples in BATCHES {
            let count = CONVOLUTION_BUCKET.parameter_range().len();
            let tiles = samples.div_ceil(TILE_SAMPLES);
            let fixed_point = fixed_point(samples);
            let mut partials = values(22, tiles * count);
            // Beyond the range on both sides, and halves, which go to the even neighbour.
            partials[0] = 1e9;
            partials[1] = -1e9;
            for (i, partial) in partials[2..130].iter_mut().enumerate() {
                *partial = (i as f32 - 63.5) / fixed_point.factor(0);
            }
            let got = bench.run(
                "convolution sums",
                samples,
                &fixed_point,
                &[(BufferId::Partials, &partials)],
                BufferId::Words,
            );
            let mut want = vec![0; CONVOLUTION_BUCKET.words()];
            let (sums, maxima) = want.split_at_mut(count);
            for tile in partials.chunks_exact(count) {
                for (k, tensor) in CONVOLUTION_BUCKET.tensor_specs().iter().enumerate() {
                    let place = tensor.range();
                    quantize(
                        &fixed_point,
                        k,
                        &tile[place.clone()],
                        &mut sums[place],
                        &mut maxima[k],
                    );
                }
            }
            let got: Vec<u32> = got[DENSE_BUCKET.words()..].iter().map(|w| w.to_bits()).collect();
            assert_eq!(got, want, "{samples} samples");
        }
    });
}

#[test]
fn infinite_and_undefined_partials_show_in_the_maxima() {
    on_each_bench(|bench, _| {
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let mut partials = values(23, CONVOLUTION_BUCKET.parameter_range().len());
            partials[7] = value;
            let got = bench.run(
                "convolution sums",
                16,
                &fixed_point(16),
                &[(BufferId::Partials, &partials)],
                BufferId::Words,
            );
            let maximum = got[DENSE_BUCKET.words() + CONVOLUTION_BUCKET.sum_words()];
            assert!(!maximum.is_finite(), "{value}: {maximum}");
            assert_eq!(maximum.is_nan(), value.is_nan());
        }
    });
}

#[test]
fn textures_and_buffers_give_the_same_bits() {
    let (parameters, _) = parameters(24);
    let input = values(25, 33 * FC1.inputs);
    let contents = to_tiles(&input, FC1.inputs, 0.0);
    on_each_adapter(|adapter| {
        let [textures, buffers] = [Reads::Textures, Reads::Buffers].map(|reads| {
            let tuning = Tuning { reads, ..Tuning::SOFTWARE };
            let bench = Bench::open(adapter, ModelKind::LeNet5, tuning);
            let output = bench.run(
                "fc1 forward",
                33,
                &fixed_point(33),
                &[(BufferId::Parameters, &parameters), (BufferId::Conv2, &contents)],
                BufferId::Fc1,
            );
            from_tiles(&output, FC1.outputs, 33)
        });
        assert_eq!(textures, buffers);
    });
}

/// Values of a sample.
struct Sizes {
    input: usize,
    convolved: usize,
    pooled: usize,
}

impl Sizes {
    fn of(layer: &Convolution) -> Sizes {
        Sizes {
            input: layer.in_channels * layer.in_side.pow(2),
            convolved: layer.out_channels * layer.out_side().pow(2),
            pooled: layer.out_channels * layer.pooled_side().pow(2),
        }
    }
}

/// From (N, C, S, S) to the same with the layer's padding.
fn pad(layer: &Convolution, input: &[f32]) -> Vec<f32> {
    let (side, padded) = (layer.in_side, layer.in_side + 2 * layer.padding);
    let planes = input.len() / (side * side);
    let mut output = vec![0.0; planes * padded * padded];
    for (i, &value) in input.iter().enumerate() {
        let (plane, y, x) = (i / (side * side), i / side % side, i % side);
        output[(plane * padded + y + layer.padding) * padded + x + layer.padding] = value;
    }
    output
}

/// From (N, D, O, O) to the same with zeros around each plane: rows above and below, columns
/// before and behind; with the number of a sample's values.
fn with_margins(layer: &Convolution, margins: [usize; 2], d: &[f32]) -> (usize, Vec<f32>) {
    let side = layer.out_side();
    let [rows, columns] = margins.map(|margin| side + 2 * margin);
    let planes = d.len() / (side * side);
    let mut output = vec![0.0; planes * rows * columns];
    for (i, &value) in d.iter().enumerate() {
        let (plane, y, x) = (i / (side * side), i / side % side, i % side);
        output[(plane * rows + y + margins[0]) * columns + x + margins[1]] = value;
    }
    (layer.out_channels * rows * columns, output)
}

/// The other way, from tiles; the margins must be 0.
fn without_margins(
    layer: &Convolution,
    margins: [usize; 2],
    tiles: &[f32],
    samples: usize,
) -> Vec<f32> {
    let side = layer.out_side();
    let [rows, columns] = margins.map(|margin| side + 2 * margin);
    let features = layer.out_channels * rows * columns;
    let values = from_tiles(tiles, features, samples);
    let mut output = Vec::with_capacity(samples * layer.out_channels * side * side);
    for (i, &value) in values.iter().enumerate() {
        let inside = |i: usize, margin: usize| (margin..margin + side).contains(&i);
        if inside(i / columns % rows, margins[0]) && inside(i % columns, margins[1]) {
            output.push(value);
        } else {
            assert_eq!(value, 0.0, "margins stay 0");
        }
    }
    output
}

/// What a pooling kept, in the kernels' form, and its slopes.
struct Kept {
    /// (T, D, P, P, 4 quads) of a u32 or of four vec4, as f32 bits.
    words: Vec<f32>,
    /// (N, D, O, O).
    slopes: Vec<f64>,
}

impl Kept {
    fn new(model: ModelKind, layer: &Convolution, samples: usize) -> Kept {
        let sizes = Sizes::of(layer);
        let windows = samples * sizes.pooled;
        let mut slopes = vec![0.0; samples * sizes.convolved];
        let tiles = samples.div_ceil(TILE_SAMPLES);
        let words = match model.pooling() {
            Pooling::Max => {
                let winners: Vec<u8> = words(30, windows).map(|word| (word % 5) as u8).collect();
                for (window, &winner) in winners.iter().enumerate() {
                    if winner < 4 {
                        slopes[place(layer, window, winner.into())] = 1.0;
                    }
                }
                let mut bytes = vec![0u8; tiles * TILE_SAMPLES * sizes.pooled];
                for (window, winner) in winners.into_iter().enumerate() {
                    bytes[place_in_tiles(window, sizes.pooled)] = winner;
                }
                bytemuck::pod_collect_to_vec(&bytes)
            }
            Pooling::Average => {
                let activations = values(31, 4 * windows);
                let mut words = vec![0.0; 4 * tiles * TILE_SAMPLES * sizes.pooled];
                for (i, &value) in activations.iter().enumerate() {
                    let (window, corner) = (i / 4, i % 4);
                    let value64 = f64::from(value);
                    slopes[place(layer, window, corner)] = 0.25 * (1.0 - value64 * value64);
                    // The four vec4 of a quad lie side by side.
                    let at = place_in_tiles(window, sizes.pooled);
                    words[(at / 4 * 4 + corner) * 4 + at % 4] = value;
                }
                words
            }
        };
        Kept { words, slopes }
    }

    /// How far [`Kept::backward`] may be off, given that of `terms` the part `operations` is.
    fn bounds(&self, layer: &Convolution, terms: &[f64], operations: f64) -> Vec<f64> {
        let mut bounds = vec![0.0; self.slopes.len()];
        for (window, term) in terms.iter().enumerate() {
            for corner in 0..4 {
                let place = place(layer, window, corner);
                // A slope of tanh, `1 - v * v`, errs by two units even where it is small; a product
                // and a quarter follow. Selection, the other way, is exact.
                bounds[place] = (operations * self.slopes[place] + UNIT) * term;
            }
        }
        bounds
    }

    /// From the gradient of the pooled values (N, D, P, P) to that of the convolution's (N, D, O, O).
    fn backward(&self, layer: &Convolution, d_pooled: &[f64]) -> Vec<f64> {
        let mut d_convolved = vec![0.0; self.slopes.len()];
        for (window, d) in d_pooled.iter().enumerate() {
            for corner in 0..4 {
                let place = place(layer, window, corner);
                d_convolved[place] = self.slopes[place] * d;
            }
        }
        d_convolved
    }
}

/// Where a corner of a window, counted over (N, D, P, P), lies in (N, D, O, O).
fn place(layer: &Convolution, window: usize, corner: usize) -> usize {
    let (pooled, side) = (layer.pooled_side(), layer.out_side());
    let (plane, y, x) = (window / (pooled * pooled), window / pooled % pooled, window % pooled);
    (plane * side + 2 * y + corner / 2) * side + 2 * x + corner % 2
}

/// Where an element of (N, features) lies in (tiles, features, 16).
fn place_in_tiles(i: usize, features: usize) -> usize {
    let (sample, feature) = (i / features, i % features);
    (sample / TILE_SAMPLES * features + feature) * TILE_SAMPLES + sample % TILE_SAMPLES
}
