//! The reference as an engine: `--kernels reference`, and the yardstick of the other engines.

use std::ops::Range;
use std::sync::Arc;

use super::images::gather_images;
use super::network::{Gradients, Network};
use super::sums::quantize;
use crate::data::dataset::Dataset;
use crate::model::ModelKind;
use crate::model::layout::{BUCKETS, Bucket, LOSS_SCALE, TENSORS};
use crate::numerics::fixed_point::{FixedPoint, TILE_SAMPLES};

/// Computes on the calling thread, tile by tile, without allocating after the first step.
///
/// The methods are those of the trainer's `GradientEngine`, which it implements, and are called in
/// the same order. All work is done in [`begin_step`](ReferenceEngine::begin_step).
#[derive(Debug)]
pub struct ReferenceEngine {
    dataset: Arc<Dataset>,
    network: Network<f32>,
    /// The labels of the tile under way.
    labels: Vec<u8>,
    /// Each bucket's words of the step, in the form documented at [`Bucket`].
    words: [Vec<u32>; BUCKETS.len()],
}

impl ReferenceEngine {
    pub fn new(model: ModelKind, dataset: Arc<Dataset>) -> ReferenceEngine {
        ReferenceEngine {
            dataset,
            network: Network::new(model),
            labels: Vec::with_capacity(TILE_SAMPLES),
            words: BUCKETS.map(|bucket| vec![0; bucket.words()]),
        }
    }

    /// Forward and backward over these training samples; each 16 consecutive ones are a tile.
    ///
    /// # Panics
    /// If a sample is not in the training set.
    pub fn begin_step(&mut self, parameters: &[f32], samples: &[u32], fixed_point: &FixedPoint) {
        let train = &self.dataset.train;
        for words in &mut self.words {
            words.fill(0);
        }
        for tile in samples.chunks(TILE_SAMPLES) {
            self.labels.clear();
            self.labels.extend(tile.iter().map(|&sample| train.labels[sample as usize]));
            let images = self.network.begin(tile.len());
            gather_images(train, self.dataset.normalization, tile.iter().copied(), images);
            self.network.forward(parameters);
            let gradients = self.network.backward(parameters, &self.labels);
            for (bucket, words) in BUCKETS.iter().zip(&mut self.words) {
                add_tile(bucket, fixed_point, &gradients, words);
            }
        }
    }

    /// Writes the words of a bucket of the step.
    ///
    /// # Panics
    /// If there is no such bucket, or `words` is not as long as its vector.
    pub fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) {
        words.copy_from_slice(&self.words[bucket]);
    }

    /// Appends the logits (N, 10) of a run of test samples to `logits`.
    ///
    /// # Panics
    /// If a sample is not in the test set.
    pub fn logits(&mut self, parameters: &[f32], samples: Range<u32>, logits: &mut Vec<f32>) {
        let Dataset { test, normalization, .. } = &*self.dataset;
        for first in samples.clone().step_by(TILE_SAMPLES) {
            let tile = first..samples.end.min(first + TILE_SAMPLES as u32);
            let images = self.network.begin(tile.len());
            gather_images(test, *normalization, tile, images);
            logits.extend_from_slice(self.network.forward(parameters));
        }
    }
}

/// Adds a tile's gradients, and its statistics where the bucket carries them, to a bucket's words.
fn add_tile(
    bucket: &Bucket,
    fixed_point: &FixedPoint,
    gradients: &Gradients<'_, f32>,
    words: &mut [u32],
) {
    let range = bucket.parameter_range();
    let (sums, maxima) = words.split_at_mut(bucket.sum_words());
    let (sums, statistics) = sums.split_at_mut(range.len());
    for (i, maximum) in maxima[..bucket.tensors].iter_mut().enumerate() {
        let k = bucket.first_tensor + i;
        let tensor = TENSORS[k].range();
        let place = tensor.start - range.start..tensor.end - range.start;
        quantize(fixed_point, k, &gradients.d_parameters[tensor], &mut sums[place], maximum);
    }
    if let ([loss_sum, right, samples], [loss_maximum]) =
        (statistics, &mut maxima[bucket.tensors..])
    {
        for loss in gradients.losses {
            let loss = std::slice::from_ref(loss);
            quantize(fixed_point, LOSS_SCALE, loss, std::slice::from_mut(loss_sum), loss_maximum);
        }
        *right += gradients.right.iter().filter(|&&right| right).count() as u32;
        *samples += gradients.losses.len() as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::dataset::{ImageSet, Normalization};
    use crate::model::initial::initial_parameters;
    use crate::model::layers::{CLASSES, IMAGE_PIXELS};
    use crate::model::layout::{CONVOLUTION_BUCKET, DENSE_BUCKET, SCALE_COUNT};
    use crate::protocol::collective::Reduction;
    use crate::reference::testing::values;

    const SAMPLES: usize = 40;

    fn dataset() -> Arc<Dataset> {
        let set = ImageSet {
            pixels: values(1, SAMPLES * IMAGE_PIXELS).iter().map(|v| (v * 300.0) as u8).collect(),
            labels: (0..SAMPLES).map(|i| (i % CLASSES) as u8).collect(),
        };
        Arc::new(Dataset {
            name: "test".to_owned(),
            train: set.clone(),
            test: set,
            normalization: Normalization { scale: 0.01, offset: -0.6 },
            sha256: [0; 32],
        })
    }

    /// The words of all buckets of a step.
    fn step(engine: &mut ReferenceEngine, samples: &[u32]) -> Vec<Vec<u32>> {
        let fixed_point = FixedPoint::for_batch(200, &[8.0; SCALE_COUNT]);
        engine.begin_step(&initial_parameters(3), samples, &fixed_point);
        let mut words = BUCKETS.map(|bucket| vec![u32::MAX; bucket.words()]);
        for (bucket, words) in words.iter_mut().enumerate() {
            engine.finish_bucket(bucket, words);
        }
        words.into()
    }

    fn reduce(total: &mut [Vec<u32>], part: &[Vec<u32>]) {
        for ((bucket, total), part) in BUCKETS.iter().zip(total).zip(part) {
            let reduction =
                Reduction { sum_words: bucket.sum_words(), max_words: bucket.max_words() };
            reduction.reduce(total, 0, part);
        }
    }

    #[test]
    fn without_samples_all_words_are_zero() {
        let mut engine = ReferenceEngine::new(ModelKind::LeNet5, dataset());
        step(&mut engine, &[1, 2, 3]);
        assert!(step(&mut engine, &[]).iter().flatten().all(|&word| word == 0));
    }

    #[test]
    fn statistics_are_those_of_the_samples() {
        let dataset = dataset();
        let mut engine = ReferenceEngine::new(ModelKind::LeNet5Classic, dataset.clone());
        let samples: Vec<u32> = (3..37).collect();
        let words = step(&mut engine, &samples);
        let mut logits = Vec::new();
        engine.logits(&initial_parameters(3), 3..37, &mut logits);

        let fixed_point = FixedPoint::for_batch(200, &[8.0; SCALE_COUNT]);
        let (mut loss_sum, mut right, mut largest) = (0, 0, 0.0f32);
        for (logits, &sample) in logits.as_chunks::<CLASSES>().0.iter().zip(&samples) {
            let label = dataset.train.labels[sample as usize];
            let (mut loss, mut is_right) = ([0.0], [false]);
            let d_logits = &mut [0.0; CLASSES];
            super::super::loss::loss_head(logits, &[label], &mut loss, &mut is_right, d_logits);
            loss_sum += fixed_point.quantize(LOSS_SCALE, loss[0]);
            right += u32::from(is_right[0]);
            largest = largest.max(loss[0]);
        }
        assert!(right > 0, "the case tells right from wrong");
        let dense = &words[0];
        let statistics = DENSE_BUCKET.parameter_range().len();
        assert_eq!(dense[statistics..][..3], [loss_sum as u32, right, 34]);
        assert_eq!(dense[DENSE_BUCKET.words() - 1], largest.to_bits());
        assert_eq!(words[1].len(), CONVOLUTION_BUCKET.words());
    }

    #[test]
    fn gradients_are_rounded_once_a_tile() {
        let dataset = dataset();
        let fixed_point = FixedPoint::for_batch(200, &[8.0; SCALE_COUNT]);
        let parameters = initial_parameters(3);
        let mut network = Network::new(ModelKind::LeNet5);
        let mut engine = ReferenceEngine::new(ModelKind::LeNet5, dataset.clone());
        let words = step(&mut engine, &(0..20).collect::<Vec<u32>>());

        let mut expected = BUCKETS.map(|bucket| vec![0; bucket.words()]);
        for tile in [0..16, 16..20] {
            let images = network.begin(tile.len());
            gather_images(&dataset.train, dataset.normalization, tile.clone(), images);
            network.forward(&parameters);
            let labels = &dataset.train.labels[tile.start as usize..tile.end as usize];
            let partials = network.backward(&parameters, labels).d_parameters;
            for (bucket, expected) in BUCKETS.iter().zip(&mut expected) {
                for (i, tensor) in bucket.tensor_specs().iter().enumerate() {
                    for index in tensor.range() {
                        let q = fixed_point.quantize(bucket.first_tensor + i, partials[index]);
                        let sum: &mut u32 = &mut expected[index - bucket.parameter_range().start];
                        *sum = sum.wrapping_add(q as u32);
                    }
                    let largest =
                        partials[tensor.range()].iter().fold(0.0f32, |m, p| m.max(p.abs()));
                    let maximum = &mut expected[bucket.sum_words() + i];
                    *maximum = largest.max(f32::from_bits(*maximum)).to_bits();
                }
            }
        }
        for (bucket, (words, expected)) in BUCKETS.iter().zip(words.iter().zip(&expected)) {
            let (gradients, maxima) = (bucket.parameter_range().len(), bucket.sum_words());
            assert!(words[..gradients] == expected[..gradients]);
            assert_eq!(words[maxima..][..bucket.tensors], expected[maxima..][..bucket.tensors]);
        }
    }

    #[test]
    fn a_parameter_that_is_not_finite_shows_in_the_loss_maximum() {
        let fixed_point = FixedPoint::for_batch(16, &[8.0; SCALE_COUNT]);
        for model in ModelKind::ALL {
            let mut engine = ReferenceEngine::new(model, dataset());
            let mut parameters = initial_parameters(3);
            parameters[7] = f32::NAN;
            engine.begin_step(&parameters, &[0, 1], &fixed_point);
            let mut words = vec![0; DENSE_BUCKET.words()];
            engine.finish_bucket(0, &mut words);
            assert!(f32::from_bits(words[DENSE_BUCKET.words() - 1]).is_nan());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        /// The promise that makes one run one result: a tile's words depend neither on its place
        /// nor on the tiles around it, so any split among workers, in any order, gives the sums.
        #[test]
        fn any_split_in_runs_of_tiles_gives_the_same_sums(
            samples in prop::collection::vec(0..SAMPLES as u32, 1..100),
            cuts in prop::collection::vec(0..7usize, 0..4),
            classic: bool,
        ) {
            let model = ModelKind::ALL[usize::from(classic)];
            let mut engine = ReferenceEngine::new(model, dataset());
            let whole = step(&mut engine, &samples);

            let mut ends: Vec<usize> =
                cuts.iter().map(|cut| (cut * TILE_SAMPLES).min(samples.len())).collect();
            ends.extend([0, samples.len()]);
            ends.sort_unstable();
            let mut total: Vec<Vec<u32>> =
                BUCKETS.iter().map(|bucket| vec![0; bucket.words()]).collect();
            for ends in ends.windows(2).rev() {
                let part = step(&mut engine, &samples[ends[0]..ends[1]]);
                reduce(&mut total, &part);
            }
            prop_assert!(total == whole);
        }
    }
}
