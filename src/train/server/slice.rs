//! A server's numbers: its slice of the parameters, and what becomes of gradients.

use std::ops::Range;

use crate::config::RunConfig;
use crate::model::layout::{BUCKETS, LOSS_SCALE, SCALE_COUNT, STATISTIC_WORDS};
use crate::numerics::fixed_point::{FixedPoint, Maxima};
use crate::numerics::optimizer::Optimizer;
use crate::numerics::schedule::learning_rate;
use crate::protocol::collective::Reduction;
use crate::train::trainer::{TrainError, TrainingState};

use super::layout::{reduction, tensor_parts, unpack};

/// The words of one push, or the sums of several: one vector a bucket, in the form of
/// [`reduction`].
pub(super) type Words = Vec<Vec<u32>>;

/// A slice of the parameters with the optimizer's state and the gradients that are on their way in.
pub(super) struct Slice {
    config: RunConfig,
    /// Training samples of the data set.
    samples: usize,
    total_steps: u64,
    pub(super) range: Range<usize>,
    pub(super) parameters: Vec<f32>,
    pub(super) optimizer: Optimizer,
    /// The last maxima, from which the next exponents follow.
    pub(super) maxima: Maxima,
    reductions: Vec<Reduction>,
    /// Exact sums of the current step.
    sums: Words,
    /// Sums of gradients with exponents of their own, and what came with them.
    own: OwnSums,
    gradients: Vec<f32>,
}

/// Gradients whose exponents differ are summed as `f64`.
struct OwnSums {
    gradients: Vec<f64>,
    loss: f64,
    samples: u32,
    maxima: Maxima,
}

/// What was applied.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Applied {
    pub(super) loss_sum: f64,
    pub(super) samples: u32,
    pub(super) lr: f32,
}

/// What became of a step's exact sums.
pub(super) enum Outcome {
    Applied(Applied),
    /// They did not fit; the exponents now do.
    Redo,
}

impl Slice {
    pub(super) fn new(
        config: RunConfig,
        samples: usize,
        range: Range<usize>,
        state: &TrainingState,
    ) -> Slice {
        let reductions: Vec<_> = BUCKETS.iter().map(|bucket| reduction(&range, bucket)).collect();
        Slice {
            total_steps: config.total_steps(samples),
            config,
            samples,
            parameters: state.parameters[range.clone()].to_vec(),
            optimizer: state.optimizer.part(range.clone()),
            maxima: state.maxima,
            sums: reductions.iter().map(|reduction| vec![0; reduction.words()]).collect(),
            reductions,
            own: OwnSums::new(range.len()),
            gradients: vec![0.0; range.len()],
            range,
        }
    }

    /// A bucket's part in a push, as it came; none if it is not one.
    pub(super) fn unpack(&self, bucket: usize, words: Vec<u32>) -> Option<Vec<u32>> {
        unpack(self.config.wire, &self.range, BUCKETS.get(bucket)?, words)
    }

    /// The parameters as they travel.
    pub(super) fn words(&self) -> Vec<u32> {
        self.parameters.iter().map(|value| value.to_bits()).collect()
    }

    /// Adds gradients whose exponents follow from [`maxima`](Slice::maxima).
    pub(super) fn add(&mut self, words: &Words) {
        for ((reduction, sums), words) in self.reductions.iter().zip(&mut self.sums).zip(words) {
            reduction.reduce(sums, 0, words);
        }
    }

    /// Applies the step's exact sums, or finds that they did not fit: the same decision as every
    /// other server's, and the same update as by an all-reduce.
    pub(super) fn apply_sums(&mut self, step: u64, attempt: u32) -> Result<Outcome, TrainError> {
        let fixed_point = self.fixed_point(step, &self.maxima);
        let (maxima, loss, samples) = self.tail(&self.sums);
        if maxima.iter().any(|m| !m.is_finite()) {
            return Err(self.diverged(step));
        }
        let fits = fixed_point.exceeded(&maxima).next().is_none();
        self.maxima = maxima;
        if fits {
            for (tensor, places, bucket, words) in tensor_parts(&self.range) {
                let sums = &self.sums[bucket][words];
                fixed_point.mean(tensor, sums, samples, &mut self.gradients[places]);
            }
        }
        self.sums.iter_mut().for_each(|sums| sums.fill(0));
        if !fits {
            // The exponents follow from exact maxima, so this cannot happen twice.
            if attempt > 0 {
                return Err(TrainError::NotReproducible { step: step + 1 });
            }
            return Ok(Outcome::Redo);
        }
        let loss_sum = fixed_point.dequantize(LOSS_SCALE, loss);
        let lr = learning_rate(&self.config, step, self.total_steps);
        self.update(step, lr)?;
        Ok(Outcome::Applied(Applied { loss_sum, samples, lr }))
    }

    /// Adds gradients whose exponents follow from `scale`.
    pub(super) fn add_own(
        &mut self,
        step: u64,
        scale: &Maxima,
        words: &Words,
    ) -> Result<(), TrainError> {
        let fixed_point = self.fixed_point(step, scale);
        let (maxima, loss, samples) = self.tail(words);
        if maxima.iter().any(|m| !m.is_finite()) {
            return Err(self.diverged(step));
        }
        for (tensor, places, bucket, range) in tensor_parts(&self.range) {
            let sums = &words[bucket][range];
            for (value, &sum) in self.own.gradients[places].iter_mut().zip(sums) {
                *value += fixed_point.dequantize(tensor, sum as i32);
            }
        }
        self.own.loss += fixed_point.dequantize(LOSS_SCALE, loss);
        self.own.samples += samples;
        for (largest, maximum) in self.own.maxima.iter_mut().zip(maxima) {
            *largest = largest.max(maximum);
        }
        Ok(())
    }

    /// Applies what was added by [`add_own`](Slice::add_own) since the last time, as the mean over
    /// its samples. `weigh` turns the step's learning rate and the share of its samples that are
    /// there, 0 to 1, into this update's learning rate.
    pub(super) fn apply_own(
        &mut self,
        step: u64,
        weigh: impl FnOnce(f64, f64) -> f64,
    ) -> Result<Applied, TrainError> {
        let OwnSums { gradients, loss, samples, maxima } =
            std::mem::replace(&mut self.own, OwnSums::new(0));
        let share = f64::from(samples) / self.config.batch_of(step, self.samples) as f64;
        let lr = f64::from(learning_rate(&self.config, step, self.total_steps));
        let lr = weigh(lr, share) as f32;
        if samples > 0 {
            for (gradient, sum) in self.gradients.iter_mut().zip(&gradients) {
                *gradient = (sum / f64::from(samples)) as f32;
            }
            self.maxima = maxima;
            self.update(step, lr)?;
        }
        self.own = OwnSums { gradients, ..OwnSums::new(0) };
        self.own.gradients.fill(0.0);
        Ok(Applied { loss_sum: loss, samples, lr })
    }

    fn update(&mut self, step: u64, lr: f32) -> Result<(), TrainError> {
        let updated = self.optimizer.step(&mut self.parameters, &self.gradients, lr);
        updated.map_err(|_| self.diverged(step))
    }

    fn fixed_point(&self, step: u64, maxima: &Maxima) -> FixedPoint {
        FixedPoint::for_wire(self.config.wire, self.config.batch_of(step, self.samples), maxima)
    }

    /// The maxima, the loss and the samples in words.
    fn tail(&self, words: &Words) -> (Maxima, i32, u32) {
        let mut maxima = [0.0; SCALE_COUNT];
        let (mut loss, mut samples) = (0, 0);
        for ((bucket, reduction), words) in BUCKETS.iter().zip(&self.reductions).zip(words) {
            let (sums, bits) = words.split_at(reduction.sum_words);
            for (k, &bits) in bits[..bucket.tensors].iter().enumerate() {
                maxima[bucket.first_tensor + k] = f32::from_bits(bits);
            }
            if bucket.statistics {
                maxima[LOSS_SCALE] = f32::from_bits(bits[bucket.tensors]);
                let statistics = &sums[sums.len() - STATISTIC_WORDS..];
                (loss, samples) = (statistics[0] as i32, statistics[2]);
            }
        }
        (maxima, loss, samples)
    }

    fn diverged(&self, step: u64) -> TrainError {
        let lr = learning_rate(&self.config, step, self.total_steps);
        TrainError::Diverged { step: step + 1, lr }
    }
}

impl OwnSums {
    fn new(elements: usize) -> OwnSums {
        OwnSums {
            gradients: vec![0.0; elements],
            loss: 0.0,
            samples: 0,
            maxima: [0.0; SCALE_COUNT],
        }
    }
}
