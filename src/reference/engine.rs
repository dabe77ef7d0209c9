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
/// The methods are those of [`GradientEngine`](crate::train::engine::GradientEngine) and are
/// called in the same order. All work is done in [`begin_step`](ReferenceEngine::begin_step).
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
