//! One whole step, and several steps of each optimizer, against values computed with PyTorch.
//!
//! `tests/fixtures/pytorch_step.py` made the values, in double precision; its formulas for
//! parameters, images and gradients are repeated here.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use annulet::config::OptimizerConfig;
use annulet::data::dataset::{Dataset, ImageSet, Normalization};
use annulet::model::layers::IMAGE_PIXELS;
use annulet::model::layout::{BUCKETS, LOSS_SCALE, SCALE_COUNT};
use annulet::model::{ModelKind, PARAMETERS, TENSORS};
use annulet::numerics::fixed_point::FixedPoint;
use annulet::numerics::optimizer::Optimizer;
use annulet::reference::engine::ReferenceEngine;
use annulet::reference::images::gather_images;
use annulet::reference::network::Network;
use safetensors::SafeTensors;

const SAMPLES: usize = 21;
const SELECTED: usize = 128;
const LR: f32 = 0.05;
const MOMENTUM: OptimizerConfig =
    OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
const ADAMW: OptimizerConfig =
    OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };

/// Half the distance between neighbours around 1: the relative error of one rounding.
const UNIT_F32: f64 = 1.0 / (1u64 << 24) as f64;
const UNIT_F64: f64 = 1.0 / (1u64 << 53) as f64;

/// Additions, one behind the other, from a pixel through the five layers to the loss (26, 151, 59,
/// 24 and 22) and back to a weight of conv1 (10, 84, 120, 400 and, over positions and samples,
/// 136). Each is rounded, so a value is known to this many units of the sum of its terms'
/// magnitudes. The tensor's largest gradient stands for that sum here: errors that partly cancel
/// make up for terms that partly cancel.
const ROUNDINGS: f64 = 1_032.0;

type Fixture = HashMap<String, Vec<f64>>;

fn fixture(name: &str) -> Fixture {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let doubles = |bytes: &[u8]| {
        bytes.as_chunks::<8>().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect()
    };
    tensors.iter().map(|(name, tensor)| (name.to_owned(), doubles(tensor.data()))).collect()
}

fn step_fixture(model: ModelKind) -> Fixture {
    fixture(match model {
        ModelKind::LeNet5 => "pytorch_step_lenet5.safetensors",
        ModelKind::LeNet5Classic => "pytorch_step_lenet5_classic.safetensors",
    })
}

/// `count` values in [-1, 1), different for each seed.
fn values(seed: u32, count: usize) -> Vec<f32> {
    let hash = |i: u32| {
        let mut x = i.wrapping_add(seed.wrapping_mul(0x9e37_79b9));
        for multiplier in [0x85eb_ca6b, 0xc2b2_ae35] {
            x = (x ^ (x >> 16)).wrapping_mul(multiplier);
        }
        x ^ (x >> 15)
    };
    (0..count as u32).map(|i| (hash(i) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn parameters() -> Vec<f32> {
    let mut parameters = Vec::with_capacity(PARAMETERS);
    for (k, tensor) in TENSORS.iter().enumerate() {
        let bound = (1.0 / (tensor.fan_in as f64).sqrt()) as f32;
        parameters.extend(values(k as u32, tensor.count).iter().map(|value| value * bound));
    }
    parameters
}

fn dataset() -> Dataset {
    let noise = values(50, SAMPLES * IMAGE_PIXELS);
    let pixel = |(i, value): (usize, &f32)| {
        let (n, y, x) = (i / IMAGE_PIXELS, i % IMAGE_PIXELS / 28, i % 28);
        let noisy = (n + y / 7 + x / 7).is_multiple_of(2);
        if noisy { ((value + 1.0) * 128.0) as u8 } else { 0 }
    };
    let train = ImageSet {
        pixels: noise.iter().enumerate().map(pixel).collect(),
        labels: (0..SAMPLES).map(|i| ((7 * i + 3) % 10) as u8).collect(),
    };
    Dataset {
        name: "formula".to_owned(),
        test: train.clone(),
        train,
        normalization: Normalization { scale: 0.0111, offset: -0.81 },
        sha256: [0; 32],
    }
}

/// The elements of a tensor that the fixture holds.
fn selected<T: Copy>(tensor: &[T]) -> Vec<T> {
    tensor.iter().step_by(tensor.len().div_ceil(SELECTED)).copied().collect()
}

fn assert_close(what: &str, values: impl IntoIterator<Item = f64>, expected: &[f64], within: f64) {
    let values: Vec<f64> = values.into_iter().collect();
    assert_eq!(values.len(), expected.len(), "{what}");
    for (i, (value, expected)) in values.iter().zip(expected).enumerate() {
        let error = (value - expected).abs();
        assert!(error <= within, "{what} [{i}]: {value}, PyTorch {expected}, allowed {within:e}");
    }
}

/// Compares the mean gradients with the fixture's, each tensor within `ROUNDINGS * unit` of its
/// largest element.
fn assert_gradients(fixture: &Fixture, gradients: &[f64], unit: f64) {
    for (k, tensor) in TENSORS.iter().enumerate() {
        let name = format!("gradient.{}", tensor.name);
        let gradient = &gradients[tensor.range()];
        let within = ROUNDINGS * unit * fixture[&format!("{name}.maximum")][0];
        assert_close(&name, selected(gradient), &fixture[&name], within);

        // Every element takes part in the weighted sum; their errors are as good as independent.
        let weights = values(100 + k as u32, tensor.count);
        let sum = weights.iter().zip(gradient).map(|(&w, g)| f64::from(w) * g).sum();
        let name = format!("{name}.weighted_sum");
        assert_close(&name, [sum], &fixture[&name], within * (tensor.count as f64).sqrt());
    }
}

#[test]
fn a_step_in_double_precision_is_pytorchs() {
    let dataset = dataset();
    let mut images = vec![0.0; SAMPLES * IMAGE_PIXELS];
    gather_images(&dataset.train, dataset.normalization, 0..SAMPLES as u32, &mut images);
    let parameters: Vec<f64> = parameters().into_iter().map(f64::from).collect();
    for model in ModelKind::ALL {
        let fixture = step_fixture(model);
        let mut network = Network::<f64>::new(model);
        for (value, &image) in network.begin(SAMPLES).iter_mut().zip(&images) {
            *value = f64::from(image);
        }
        let logits = network.forward(&parameters).to_vec();
        let found = network.backward(&parameters, &dataset.train.labels);

        assert_close("logits", logits, &fixture["logits"], ROUNDINGS * UNIT_F64);
        let mean = 1.0 / SAMPLES as f64;
        let loss = found.losses.iter().sum::<f64>() * mean;
        assert_close("loss", [loss], &fixture["loss"], ROUNDINGS * UNIT_F64 * loss);
        let right = found.right.iter().filter(|&&right| right).count();
        assert_eq!(right as f64, fixture["right"][0]);
        let gradients: Vec<f64> = found.d_parameters.iter().map(|d| d * mean).collect();
        assert_gradients(&fixture, &gradients, UNIT_F64);
    }
}

/// What the trainer does in a step: the engine's words become mean gradients, those an update.
#[test]
fn a_step_of_the_engine_is_pytorchs() {
    let samples: Vec<u32> = (0..SAMPLES as u32).collect();
    let fixed_point = FixedPoint::for_batch(SAMPLES, &[8.0; SCALE_COUNT]);
    for model in ModelKind::ALL {
        let fixture = step_fixture(model);
        let mut engine = ReferenceEngine::new(model, Arc::new(dataset()));
        let before = parameters();
        engine.begin_step(&before, &samples, &fixed_point);

        let mut gradients = vec![0.0; PARAMETERS];
        for (i, bucket) in BUCKETS.iter().enumerate() {
            let mut words = vec![0; bucket.words()];
            engine.finish_bucket(i, &mut words);
            let offset = bucket.parameter_range().start;
            for (k, tensor) in bucket.tensor_specs().iter().enumerate() {
                let sums = &words[tensor.offset - offset..][..tensor.count];
                let out = &mut gradients[tensor.range()];
                fixed_point.mean(bucket.first_tensor + k, sums, SAMPLES as u32, out);
            }
            if bucket.statistics {
                let [loss, right, count] = words[bucket.parameter_range().len()..][..3] else {
                    unreachable!("three words were asked for")
                };
                let loss = fixed_point.dequantize(LOSS_SCALE, loss as i32) / SAMPLES as f64;
                assert_close("loss", [loss], &fixture["loss"], ROUNDINGS * UNIT_F32 * loss);
                assert_eq!(f64::from(right), fixture["right"][0]);
                assert_eq!(count as usize, SAMPLES);
            }
        }
        let as_f64: Vec<f64> = gradients.iter().map(|&g| f64::from(g)).collect();
        assert_gradients(&fixture, &as_f64, UNIT_F32);

        let mut logits = Vec::new();
        engine.logits(&before, 0..SAMPLES as u32, &mut logits);
        let logits = logits.into_iter().map(f64::from);
        assert_close("logits", logits, &fixture["logits"], ROUNDINGS * UNIT_F32);

        assert_updates(&fixture, "momentum", &MOMENTUM, &before, &gradients);
        assert_updates(&fixture, "adamw", &ADAMW, &before, &gradients);
    }
}

/// Compares the parameters after the first update. An update is monotone in its gradient, so the
/// gradient's tolerance is carried through the rule itself: PyTorch's value lies between those of
/// the gradient's two ends, give or take the rounding of parameters below 1.
fn assert_updates(
    fixture: &Fixture,
    rule: &str,
    config: &OptimizerConfig,
    before: &[f32],
    gradients: &[f32],
) {
    let updated = |direction: f64| {
        let mut gradients = gradients.to_vec();
        for tensor in &TENSORS {
            let maximum = fixture[&format!("gradient.{}.maximum", tensor.name)][0];
            let error = (direction * ROUNDINGS * UNIT_F32 * maximum) as f32;
            gradients[tensor.range()].iter_mut().for_each(|g| *g += error);
        }
        let mut parameters = before.to_vec();
        Optimizer::new(config).step(&mut parameters, &gradients, LR).unwrap();
        parameters
    };
    let (low, high) = (updated(1.0), updated(-1.0));
    for tensor in &TENSORS {
        let expected = &fixture[&format!("{rule}.{}", tensor.name)];
        let bounds =
            selected(&low[tensor.range()]).into_iter().zip(selected(&high[tensor.range()]));
        for (i, ((low, high), &expected)) in bounds.zip(expected).enumerate() {
            let rounding = 2.0 * UNIT_F32;
            let range = f64::from(low) - rounding..=f64::from(high) + rounding;
            assert!(
                range.contains(&expected),
                "{rule} {} [{i}]: {range:?} {expected}",
                tensor.name
            );
        }
    }
}

#[test]
fn the_optimizers_are_pytorchs() {
    let fixture = fixture("pytorch_optimizer.safetensors");
    let sgd = |momentum, nesterov, weight_decay| OptimizerConfig::Sgd {
        momentum,
        nesterov,
        weight_decay,
    };
    let rules = [
        ("plain", sgd(0.0, false, 0.0)),
        ("decay", sgd(0.0, false, 0.01)),
        ("momentum", sgd(0.9, false, 0.0)),
        ("nesterov", sgd(0.9, true, 0.01)),
        ("adamw", ADAMW),
    ];
    assert_eq!(fixture.len(), rules.len());
    for (rule, config) in rules {
        let expected = &fixture[rule];
        let row = PARAMETERS.div_ceil(PARAMETERS.div_ceil(SELECTED));
        let mut optimizer = Optimizer::new(&config);
        let mut parameters = values(200, PARAMETERS);
        for (t, expected) in expected.chunks_exact(row).enumerate() {
            let gradients = values(300 + t as u32, PARAMETERS);
            let lr = LR / (1 << t) as f32;
            optimizer.step(&mut parameters, &gradients, lr).unwrap();

            // Parameters stay below 2 and updates below 0.1. A step rounds a parameter once (one
            // unit of 2 at most) and makes an update of fewer than 16 roundings.
            let within = (t + 1) as f64 * (2.0 + 16.0 * 0.1) * UNIT_F32;
            let found = selected(&parameters).into_iter().map(f64::from);
            assert_close(&format!("{rule}, step {t}"), found, expected, within);
        }
    }
}
