//! The lane kernel set against the reference, and what makes its bits independent of the split.

use std::sync::Arc;

use annulet::config::Kernels;
use annulet::data::dataset::{Dataset, ImageSet, Normalization};
use annulet::gpu::{AdapterChoice, Engine, EngineSettings, Sums};
use annulet::model::ModelKind;
use annulet::model::initial::initial_parameters;
use annulet::model::layers::IMAGE_PIXELS;
use annulet::model::layout::{BUCKETS, LOSS_SCALE, SCALE_COUNT, TENSORS};
use annulet::numerics::fixed_point::{FixedPoint, INITIAL_MAXIMUM, Maxima};
use annulet::reference::engine::ReferenceEngine;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const TRAIN_SAMPLES: usize = 200;
const TEST_SAMPLES: usize = 70;

/// Random images, half of whose pixels are background as in real ones.
fn image_set(samples: usize, random: &mut ChaCha8Rng) -> ImageSet {
    let pixel = |bits: u32| if bits & 0x100 == 0 { 0 } else { bits as u8 };
    ImageSet {
        pixels: (0..samples * IMAGE_PIXELS).map(|_| pixel(random.next_u32())).collect(),
        labels: (0..samples).map(|_| (random.next_u32() % 10) as u8).collect(),
    }
}

fn dataset() -> Arc<Dataset> {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    Arc::new(Dataset {
        name: "random".to_owned(),
        train: image_set(TRAIN_SAMPLES, &mut random),
        test: image_set(TEST_SAMPLES, &mut random),
        normalization: Normalization { scale: 0.011, offset: -0.8 },
        sha256: [0; 32],
    })
}

fn engine(model: ModelKind, dataset: &Arc<Dataset>, cores: usize, samples: usize) -> Engine {
    let settings = EngineSettings {
        adapter: AdapterChoice::Best,
        kernels: Kernels::Lane,
        model,
        dataset: dataset.clone().into(),
        samples_per_step: samples,
        cores,
        sums: Sums::Exact,
    };
    Engine::open(settings, &mut |_, _| {}).expect("an adapter; install mesa-vulkan-drivers")
}

type Words = Vec<Vec<u32>>;

fn step(engine: &mut Engine, parameters: &[f32], samples: &[u32], fixed: &FixedPoint) -> Words {
    engine.begin_step(parameters, samples, fixed).unwrap();
    finish(engine)
}

fn finish(engine: &mut Engine) -> Words {
    BUCKETS
        .iter()
        .enumerate()
        .map(|(b, bucket)| {
            let mut words = vec![0; bucket.words()];
            engine.finish_bucket(b, &mut words).unwrap();
            words
        })
        .collect()
}

fn reference_step(
    reference: &mut ReferenceEngine,
    parameters: &[f32],
    samples: &[u32],
    fixed: &FixedPoint,
) -> Words {
    reference.begin_step(parameters, samples, fixed);
    BUCKETS
        .iter()
        .enumerate()
        .map(|(b, bucket)| {
            let mut words = vec![0; bucket.words()];
            reference.finish_bucket(b, &mut words);
            words
        })
        .collect()
}

/// The maxima of a step's words, by scale.
fn maxima(words: &Words) -> Maxima {
    let mut maxima = [0.0; SCALE_COUNT];
    for (bucket, words) in BUCKETS.iter().zip(words) {
        let bits = &words[bucket.sum_words()..];
        for (i, &bits) in bits.iter().enumerate() {
            let k = if i < bucket.tensors { bucket.first_tensor + i } else { LOSS_SCALE };
            maxima[k] = f32::from_bits(bits);
        }
    }
    maxima
}

fn samples(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i * 37 + 5) % TRAIN_SAMPLES as u32).collect()
}

/// Compares the values of two steps' words.
///
/// A tile's longest sums, those of the first convolution's bias, have 784 x 16 = 12,544 terms. In
/// two orders of the terms rounding walks `sqrt(12544) = 112` units of 2^-24 apart, relative to
/// the largest partial of the tensor, and as much again in each tile; a fixed-point sum may differ
/// by a unit a tile besides.
fn assert_close(got: &Words, want: &Words, fixed: &FixedPoint, tiles: usize, context: &str) {
    const UNITS: f64 = 112.0 / (1 << 24) as f64;
    let tiles = tiles as f64;
    for (bucket, (got, want)) in BUCKETS.iter().zip(got.iter().zip(want)) {
        let origin = bucket.parameter_range().start;
        for (i, tensor) in bucket.tensor_specs().iter().enumerate() {
            let k = bucket.first_tensor + i;
            let value = |words: &[u32], j: usize| fixed.dequantize(k, words[j - origin] as i32);
            let largest = |words: &[u32]| f64::from(f32::from_bits(words[bucket.sum_words() + i]));
            let tolerance = tiles * (UNITS * largest(want) + fixed.dequantize(k, 1));
            for j in tensor.range() {
                let (got, want) = (value(got, j), value(want, j));
                assert!(
                    (got - want).abs() <= tolerance,
                    "{context}: {}[{}] is {got}, not {want} (tolerance {tolerance:e})",
                    tensor.name,
                    j - tensor.offset
                );
            }
            let (got, want) = (largest(got), largest(want));
            assert!((got - want).abs() <= UNITS * want, "{context}: maximum of {}", tensor.name);
        }
        if bucket.statistics {
            let first = bucket.parameter_range().len();
            let loss = |words: &[u32]| fixed.dequantize(LOSS_SCALE, words[first] as i32);
            // A loss is rounded once a sample.
            let tolerance = UNITS * loss(want) + 16.0 * tiles * fixed.dequantize(LOSS_SCALE, 1);
            assert!((loss(got) - loss(want)).abs() <= tolerance, "{context}: loss");
            assert_eq!(got[first + 1..first + 3], want[first + 1..first + 3], "{context}: counts");
        }
    }
}

#[test]
fn a_step_is_the_reference_s_for_every_number_of_samples() {
    let dataset = dataset();
    let parameters = initial_parameters(3);
    for model in ModelKind::ALL {
        let mut engine = engine(model, &dataset, 2, 64);
        let mut reference = ReferenceEngine::new(model, dataset.clone());
        // 100 samples are more than there is room for.
        for count in [1, 5, 15, 16, 17, 33, 64, 100] {
            let samples = samples(count);
            // As a run does: the first step's maxima give the second step's scales.
            let mut fixed = FixedPoint::for_batch(count, &[INITIAL_MAXIMUM; SCALE_COUNT]);
            for _ in 0..2 {
                let got = step(&mut engine, &parameters, &samples, &fixed);
                let want = reference_step(&mut reference, &parameters, &samples, &fixed);
                let context = format!("{} with {count} samples", model.name());
                assert_close(&got, &want, &fixed, count.div_ceil(16), &context);
                fixed = FixedPoint::for_batch(count, &maxima(&want));
            }
        }
    }
}

#[test]
fn the_words_do_not_depend_on_devices_room_or_place() {
    let dataset = dataset();
    let parameters = initial_parameters(4);
    let samples = samples(100);
    let fixed = FixedPoint::for_batch(samples.len(), &[INITIAL_MAXIMUM; SCALE_COUNT]);
    let model = ModelKind::LeNet5;
    let mut one = engine(model, &dataset, 1, 128);
    let expected = step(&mut one, &parameters, &samples, &fixed);

    for (cores, room) in [(2, 128), (3, 100), (2, 16)] {
        let mut other = engine(model, &dataset, cores, room);
        let got = step(&mut other, &parameters, &samples, &fixed);
        assert!(got == expected, "{cores} devices, room for {room} samples");
    }

    // Two workers' shares, added as the collective adds them.
    let parts = [&samples[..32], &samples[32..]].map(|s| step(&mut one, &parameters, s, &fixed));
    for (b, bucket) in BUCKETS.iter().enumerate() {
        for (i, &want) in expected[b].iter().enumerate() {
            let [first, second] = [parts[0][b][i], parts[1][b][i]];
            let got =
                if i < bucket.sum_words() { first.wrapping_add(second) } else { first.max(second) };
            assert_eq!(got, want, "bucket {b}, word {i}");
        }
    }
}

#[test]
fn logits_are_the_reference_s_in_order() {
    let dataset = dataset();
    let parameters = initial_parameters(5);
    for model in ModelKind::ALL {
        let mut engine = engine(model, &dataset, 2, 32);
        let mut reference = ReferenceEngine::new(model, dataset.clone());
        // The last is more than there is room for.
        for range in [0..1, 3..20, 0..TEST_SAMPLES as u32] {
            let (mut got, mut want) = (vec![0.25], vec![0.25]);
            engine.logits(&parameters, range.clone(), &mut got).unwrap();
            reference.logits(&parameters, range, &mut want);
            assert_eq!(got.len(), want.len());
            let largest = want.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            // Rounding along the forward pass only; see assert_close.
            let tolerance = largest * 40.0 / (1 << 24) as f32;
            assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= tolerance));
        }
    }
}

#[test]
fn not_a_number_reaches_the_maxima_from_every_tensor() {
    let dataset = dataset();
    for model in ModelKind::ALL {
        let mut engine = engine(model, &dataset, 1, 16);
        let fixed = FixedPoint::for_batch(16, &[INITIAL_MAXIMUM; SCALE_COUNT]);
        for tensor in &TENSORS {
            let mut parameters = initial_parameters(6);
            parameters[tensor.offset] = f32::NAN;
            let words = step(&mut engine, &parameters, &samples(16), &fixed);
            assert!(!maxima(&words)[LOSS_SCALE].is_finite(), "{} in {}", tensor.name, model.name());
        }
    }
}

#[test]
fn an_abandoned_step_leaves_nothing_behind() {
    let dataset = dataset();
    let parameters = initial_parameters(7);
    let fixed = FixedPoint::for_batch(40, &[INITIAL_MAXIMUM; SCALE_COUNT]);
    let mut engine = engine(ModelKind::LeNet5, &dataset, 2, 64);
    let expected = step(&mut engine, &parameters, &samples(40), &fixed);
    engine.begin_step(&parameters, &samples(64), &fixed).unwrap();
    engine.begin_step(&parameters, &samples(40), &fixed).unwrap();
    assert!(finish(&mut engine) == expected);
    engine.begin_step(&parameters, &samples(64), &fixed).unwrap();
    engine.logits(&parameters, 0..20, &mut Vec::new()).unwrap();
    assert!(step(&mut engine, &parameters, &samples(40), &fixed) == expected);
}
