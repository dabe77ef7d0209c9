//! Whole steps through the engine, of every kernel set.

use std::sync::Arc;

use annulet::config::Kernels;
use annulet::data::dataset::{Dataset, ImageSet, Normalization};
use annulet::gpu::{AdapterChoice, Engine, EngineSettings, GpuError, Sums};
use annulet::model::ModelKind;
use annulet::model::initial::initial_parameters;
use annulet::model::layers::{CLASSES, IMAGE_PIXELS};
use annulet::model::layout::{
    BUCKETS, CONVOLUTION_BUCKET, DENSE_BUCKET, LOSS_SCALE, PARAMETERS, SCALE_COUNT, TENSORS,
};
use annulet::numerics::fixed_point::{FixedPoint, TILE_SAMPLES};
use annulet::protocol::collective::Reduction;
use annulet::reference::engine::ReferenceEngine;
use annulet::reference::images::gather_images;
use annulet::reference::network::Network;

use crate::adapters::on_each_adapter;
use crate::values::{to_f64, words};

const SETS: [Kernels; 2] = [Kernels::Portable, Kernels::Lane];

/// One sample, a short quad, a tile, a tile and one, more tiles, and a share of a batch.
const BATCHES: [usize; 6] = [1, 5, 16, 17, 33, 100];

const TRAIN: usize = 400;
const TEST: usize = 70;

/// How much larger than the reference's own rounding error, in f32 against f64, the shaders' may
/// be: both come from the same operations in another order, so they are of the same size and
/// differ by chance. A value that goes to the wrong place errs by thousands of times as much.
const ERROR_RATIO: f64 = 4.0;

#[test]
fn steps_agree_with_the_reference() {
    on_each_adapter(|adapter| {
        for model in ModelKind::ALL {
            let mut reference = ReferenceEngine::new(model, dataset());
            for kernels in SETS {
                let mut engine = open(adapter, kernels, model, Sums::Exact);
                for samples in BATCHES {
                    let what = format!("{model:?}, {kernels:?} kernels, {samples} samples");
                    let indices = indices(samples);
                    let fixed_point = fixed_point(samples);
                    let got = step(&mut engine, &indices, &fixed_point);
                    reference.begin_step(&parameters(), &indices, &fixed_point);
                    let rounded = read(|bucket, words| reference.finish_bucket(bucket, words));
                    let exact = Exact::new(model, &indices);
                    compare(&what, samples, &fixed_point, &got, &rounded, &exact);
                }
            }
        }
    });
}

/// A step in f64.
struct Exact {
    gradients: Vec<f64>,
    loss: f64,
    right: u32,
}

impl Exact {
    fn new(model: ModelKind, indices: &[u32]) -> Exact {
        let (data, parameters) = (dataset(), to_f64(&parameters()));
        let mut network = Network::new(model);
        let mut images = vec![0.0f32; indices.len() * IMAGE_PIXELS];
        gather_images(&data.train, data.normalization, indices.iter().copied(), &mut images);
        network.begin(indices.len()).copy_from_slice(&to_f64(&images));
        network.forward(&parameters);
        let labels: Vec<u8> = indices.iter().map(|&i| data.train.labels[i as usize]).collect();
        let step = network.backward(&parameters, &labels);
        Exact {
            gradients: step.d_parameters.to_vec(),
            loss: step.losses.iter().sum(),
            right: step.right.iter().filter(|&&right| right).count() as u32,
        }
    }
}

/// Holds the buckets' words of a step against those of the reference in f32, both measured by
/// the step in f64.
fn compare(
    what: &str,
    samples: usize,
    fixed_point: &FixedPoint,
    got: &[Vec<u32>],
    rounded: &[Vec<u32>],
    exact: &Exact,
) {
    for (bucket, (got, rounded)) in BUCKETS.iter().zip(got.iter().zip(rounded)) {
        let first = bucket.parameter_range().start;
        for (i, tensor) in bucket.tensor_specs().iter().enumerate() {
            let k = bucket.first_tensor + i;
            let worst = |words: &[u32]| {
                let errors = tensor.range().map(|p| {
                    fixed_point.dequantize(k, words[p - first] as i32) - exact.gradients[p]
                });
                errors.fold(0.0, |worst: f64, error| worst.max(error.abs()))
            };
            // Each tile is rounded once more.
            let rounding =
                0.5 * fixed_point.dequantize(k, 1) * samples.div_ceil(TILE_SAMPLES) as f64;
            let (error, bound) = (worst(got), ERROR_RATIO * worst(rounded) + rounding);
            assert!(error <= bound, "{what}: {} is off by {error:e} > {bound:e}", tensor.name);

            let [maximum, wanted] = [got, rounded]
                .map(|words| f64::from(f32::from_bits(words[bucket.sum_words() + i])));
            assert!((maximum - wanted).abs() <= bound, "{what}: {} {maximum}", tensor.name);
        }
        if bucket.statistics {
            let at = bucket.parameter_range().len();
            let loss = |words: &[u32]| fixed_point.dequantize(LOSS_SCALE, words[at] as i32);
            let rounding = 0.5 * fixed_point.dequantize(LOSS_SCALE, 1) * samples as f64;
            // A loss is around 2: its rounding in f32 is coarser than that of the fixed point.
            let bound = ERROR_RATIO * (loss(rounded) - exact.loss).abs()
                + rounding
                + exact.loss * f64::from(f32::EPSILON);
            let error = (loss(got) - exact.loss).abs();
            assert!(error <= bound, "{what}: the loss is off by {error:e} > {bound:e}");
            assert_eq!(got[at + 1], exact.right, "{what}: right answers");
            assert_eq!(got[at + 2], samples as u32, "{what}: samples");
        }
    }
}

#[test]
fn logits_agree_with_the_reference() {
    on_each_adapter(|adapter| {
        for model in ModelKind::ALL {
            let mut reference = ReferenceEngine::new(model, dataset());
            let mut want = Vec::new();
            reference.logits(&parameters(), 3..TEST as u32, &mut want);
            for kernels in SETS {
                // Fewer samples are reserved than are asked for.
                let mut engine = open(adapter, kernels, model, Sums::Exact);
                let mut got = vec![f32::NAN];
                engine.logits(&parameters(), 3..TEST as u32, &mut got).unwrap();
                engine.logits(&parameters(), 7..7, &mut got).unwrap();
                assert_eq!(got.len(), 1 + want.len());
                for (got, want) in got[1..].iter().zip(&want) {
                    // Logits are sums of a few hundred terms of size 0.1 behind inputs that are as
                    // long sums: errors of f32 of up to a thousand half units of size 1.
                    assert!((got - want).abs() <= 500.0 * f32::EPSILON, "{got} {want}");
                }
            }
        }
    });
}

#[test]
fn a_step_is_the_sum_of_its_tiles_to_the_bit() {
    on_each_adapter(|adapter| {
        for kernels in SETS {
            for model in ModelKind::ALL {
                let indices = indices(100);
                let fixed_point = fixed_point(100);
                let mut engine = open(adapter, kernels, model, Sums::Exact);
                let whole = step(&mut engine, &indices, &fixed_point);
                // Runs of whole tiles, the later ones first: each tile changes its place.
                let parts = [48..100, 32..48, 0..32].map(|part| &indices[part]);
                let sum = sum_of_steps(&mut engine, &parts, &fixed_point);
                assert!(whole == sum, "{kernels:?} {model:?}");
            }
        }
    });
}

#[test]
fn a_step_beyond_one_submission_is_the_sum_of_its_tiles_to_the_bit() {
    for kernels in SETS {
        let indices = indices(2_100);
        let fixed_point = fixed_point(2_100);
        let mut engine = open(&AdapterChoice::Best, kernels, ModelKind::LeNet5, Sums::Exact);
        let whole = step(&mut engine, &indices, &fixed_point);
        let parts = [&indices[..1_040], &indices[1_040..]];
        assert!(whole == sum_of_steps(&mut engine, &parts, &fixed_point), "{kernels:?}");
    }
}

#[test]
fn without_samples_there_are_zeros() {
    for kernels in SETS {
        let mut engine = open(&AdapterChoice::Best, kernels, ModelKind::LeNet5, Sums::Exact);
        for samples in [0, 20, 0] {
            let got = step(&mut engine, &indices(samples), &fixed_point(20));
            let zero = got.iter().flatten().all(|&word| word == 0);
            assert_eq!(zero, samples == 0, "{kernels:?}");
        }
    }
}

#[test]
fn parameters_that_are_not_finite_show_in_the_maxima() {
    on_each_adapter(|adapter| {
        for kernels in SETS {
            for model in ModelKind::ALL {
                let mut engine = open(adapter, kernels, model, Sums::Exact);
                for tensor in &TENSORS {
                    let mut parameters = parameters();
                    parameters[tensor.offset + tensor.count / 2] = f32::NAN;
                    let fixed_point = fixed_point(20);
                    engine.begin_step(&parameters, &indices(20), &fixed_point).unwrap();
                    let got = read(|b, words| engine.finish_bucket(b, words).unwrap());
                    let mut maxima = BUCKETS.iter().zip(&got).flat_map(|(bucket, words)| {
                        words[bucket.sum_words()..].iter().map(|&bits| f32::from_bits(bits))
                    });
                    assert!(
                        maxima.any(|maximum| !maximum.is_finite()),
                        "{kernels:?} {model:?} {}",
                        tensor.name
                    );
                }
            }
        }
    });
}

#[test]
fn plain_sums_differ_from_exact_ones_by_rounding() {
    for kernels in SETS {
        let [exact, plain] = [Sums::Exact, Sums::Plain].map(|sums| {
            let mut engine = open(&AdapterChoice::Best, kernels, ModelKind::LeNet5, sums);
            step(&mut engine, &indices(100), &fixed_point(100))
        });
        let fixed_point = fixed_point(100);
        for (bucket, (exact, plain)) in BUCKETS.iter().zip(exact.iter().zip(&plain)) {
            let first = bucket.parameter_range().start;
            for (i, tensor) in bucket.tensor_specs().iter().enumerate() {
                let k = bucket.first_tensor + i;
                // Seven tiles: each is rounded to half a unit, and six plain additions to half a
                // unit of a sum that is at most seven times the maximum.
                let maximum = f32::from_bits(exact[bucket.sum_words() + i]);
                let bound = 7.0 * 0.5 * fixed_point.dequantize(k, 1)
                    + 6.0 * 7.0 * f64::from(maximum * 0.5 * f32::EPSILON);
                for p in tensor.range() {
                    let exact = fixed_point.dequantize(k, exact[p - first] as i32);
                    let plain = f64::from(f32::from_bits(plain[p - first]));
                    assert!((exact - plain).abs() <= bound, "{kernels:?} {}", tensor.name);
                }
            }
        }
    }
}

/// Images of four grey values, normalized to multiples of a half.
fn dataset() -> Arc<Dataset> {
    let images = |seed: u32, count: usize| ImageSet {
        pixels: words(seed, count * IMAGE_PIXELS).map(|word| (word >> 30) as u8).collect(),
        labels: words(seed + 1, count).map(|word| (word % CLASSES as u32) as u8).collect(),
    };
    Arc::new(Dataset {
        name: "formula".to_owned(),
        train: images(40, TRAIN),
        test: images(42, TEST),
        normalization: Normalization { scale: 0.5, offset: -0.5 },
        sha256: [0; 32],
    })
}

/// Initial parameters, but those of the convolutions are sixteenths: then every value up to the
/// second pooling is exact in f32, in whatever order it is computed, and no rounding decides which
/// of four is the largest. Equal ones are frequent.
fn parameters() -> Vec<f32> {
    let mut parameters = initial_parameters(3);
    let convolutions = CONVOLUTION_BUCKET.parameter_range();
    let values = words(44, convolutions.len()).map(|word| ((word % 7) as f32 - 3.0) / 16.0);
    parameters[convolutions].iter_mut().zip(values).for_each(|(old, new)| *old = new);
    assert_eq!(parameters.len(), PARAMETERS);
    parameters
}

fn indices(samples: usize) -> Vec<u32> {
    words(45, samples).map(|word| word % TRAIN as u32).collect()
}

fn fixed_point(samples: usize) -> FixedPoint {
    FixedPoint::for_batch(samples, &[8.0; SCALE_COUNT])
}

#[test]
fn a_destroyed_device_is_a_lost_one() {
    let fixed_point = FixedPoint::for_batch(48, &[8.0; SCALE_COUNT]);
    let indices: Vec<u32> = (0..48).collect();
    for kernels in [Kernels::Portable, Kernels::Lane] {
        for in_step in [false, true] {
            let best = AdapterChoice::Best;
            let mut engine = open(&best, kernels, ModelKind::default(), Sums::Exact);
            step(&mut engine, &indices, &fixed_point);
            let mut result = Ok(());
            if in_step {
                result = engine.begin_step(&parameters(), &indices, &fixed_point);
            }
            engine.destroy_device();
            if !in_step {
                result = engine.begin_step(&parameters(), &indices, &fixed_point);
            }
            for (index, bucket) in BUCKETS.iter().enumerate() {
                let mut words = vec![0; bucket.words()];
                result = result.and_then(|()| engine.finish_bucket(index, &mut words));
            }
            let is_lost =
                |result: &Result<(), GpuError>| matches!(result, Err(GpuError::Lost { .. }));
            assert!(is_lost(&result), "{kernels:?}, in a step {in_step}: {result:?}");
            let result = engine.logits(&parameters(), 0..4, &mut Vec::new());
            assert!(is_lost(&result), "{kernels:?}, logits: {result:?}");
        }
    }
}

/// Reserves memory for three tiles: larger steps make it grow.
fn open(adapter: &AdapterChoice, kernels: Kernels, model: ModelKind, sums: Sums) -> Engine {
    let settings = EngineSettings {
        adapter: adapter.clone(),
        kernels,
        model,
        dataset: dataset().into(),
        samples_per_step: 3 * TILE_SAMPLES,
        cores: 2,
        sums,
    };
    let mut last = (0, 0);
    let engine = Engine::open(settings, &mut |done, total| last = (done, total)).unwrap();
    assert!(last.0 == last.1 && last.1 > 0, "progress ends at all of {last:?}");
    engine
}

/// The words of each bucket of a step.
fn step(engine: &mut Engine, indices: &[u32], fixed_point: &FixedPoint) -> Vec<Vec<u32>> {
    engine.begin_step(&parameters(), indices, fixed_point).unwrap();
    read(|bucket, words| engine.finish_bucket(bucket, words).unwrap())
}

fn read(mut finish: impl FnMut(usize, &mut [u32])) -> Vec<Vec<u32>> {
    let buckets = BUCKETS.iter().enumerate().map(|(i, bucket)| {
        let mut words = vec![0xdead_beef; bucket.words()];
        finish(i, &mut words);
        words
    });
    buckets.collect()
}

/// The words of steps over parts of a batch, reduced as workers do.
fn sum_of_steps(engine: &mut Engine, parts: &[&[u32]], fixed_point: &FixedPoint) -> Vec<Vec<u32>> {
    let mut sum: Vec<Vec<u32>> = BUCKETS.iter().map(|bucket| vec![0; bucket.words()]).collect();
    for part in parts {
        let words = step(engine, part, fixed_point);
        for (bucket, (sum, words)) in BUCKETS.iter().zip(sum.iter_mut().zip(&words)) {
            let reduction = Reduction::new(bucket.sum_words(), bucket.max_words());
            reduction.reduce(sum, 0, words);
        }
    }
    assert_eq!(sum[0].len(), DENSE_BUCKET.words());
    sum
}
