//! Accuracy and loss over the test set, shared among the workers and equal for any number of them.

use crate::data::dataset::ImageSet;
use crate::model::layers::CLASSES;
use crate::protocol::collective::{CollectiveId, Content, Reduction};

use super::collective::Collective;
use super::engine::GradientEngine;
use super::trainer::TrainError;

/// Test samples of one engine call: enough to keep a GPU busy, little enough to stay in buffers.
const EVALUATION_SAMPLES: usize = 1_024;

/// Bits behind the binary point of a loss in fixed point.
const LOSS_FRACTION_BITS: i32 = 32;
/// Words that carry a 64-bit loss sum, 16 bits each: they add up without carry in 65,536 workers.
const LOSS_LIMBS: usize = 4;
const LIMB_BITS: usize = 16;

/// How well the model does on the test set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    pub correct: u64,
    pub samples: u64,
    /// Mean cross-entropy.
    pub loss: f64,
}

impl Evaluation {
    /// What the added words of all parts say.
    pub fn from_words(words: &[u32; EVALUATION_WORDS]) -> Evaluation {
        let loss: u128 =
            (0..LOSS_LIMBS).map(|limb| u128::from(words[2 + limb]) << (LIMB_BITS * limb)).sum();
        let samples = u64::from(words[1]);
        Evaluation {
            correct: u64::from(words[0]),
            samples,
            loss: libm::ldexp(loss as f64, -LOSS_FRACTION_BITS) / samples.max(1) as f64,
        }
    }

    /// Share of right answers, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { self.correct as f64 / self.samples as f64 }
    }
}

/// Evaluates this worker's part of the test set and adds up all workers' parts exactly.
pub fn evaluate(
    engine: &mut dyn GradientEngine,
    collective: &mut dyn Collective,
    test: &ImageSet,
    parameters: &[f32],
    generation: u32,
    step: u64,
) -> Result<Evaluation, TrainError> {
    let (rank, world) = (collective.rank(), collective.world_size());
    let words = evaluate_part(engine, test, parameters, rank, world)?;
    let reduction = Reduction::sums(words.len());
    let id = CollectiveId { generation, step, attempt: 0, content: Content::Evaluation };
    collective.start(id, reduction, words.to_vec())?;
    let words = collective.finish()?;
    Ok(Evaluation::from_words(words.first_chunk().expect("as many as were handed over")))
}

/// Words that carry one part of an evaluation; parts are added up word by word.
pub const EVALUATION_WORDS: usize = 2 + LOSS_LIMBS;

/// Evaluates one of so many equal parts of the test set.
pub fn evaluate_part(
    engine: &mut dyn GradientEngine,
    test: &ImageSet,
    parameters: &[f32],
    part: usize,
    parts: usize,
) -> Result<[u32; EVALUATION_WORDS], TrainError> {
    let samples = test.labels.len();
    let mine = samples * part / parts..samples * (part + 1) / parts;
    let mut correct = 0u32;
    let mut loss = 0u64;
    for_each_answer(engine, parameters, mine.clone(), |sample, logits| {
        let label = test.labels[sample];
        correct += u32::from(predicted_class(logits) == label);
        loss += loss_in_fixed_point(cross_entropy(logits, label));
    })?;
    let mut words = [correct, mine.len() as u32, 0, 0, 0, 0];
    for (limb, word) in words[2..].iter_mut().enumerate() {
        *word = (loss >> (LIMB_BITS * limb)) as u16 as u32;
    }
    Ok(words)
}

/// Calls `answer` with each test sample's index and logits (10).
pub fn for_each_answer(
    engine: &mut dyn GradientEngine,
    parameters: &[f32],
    samples: std::ops::Range<usize>,
    mut answer: impl FnMut(usize, &[f32]),
) -> Result<(), TrainError> {
    let mut logits = Vec::with_capacity(EVALUATION_SAMPLES * CLASSES);
    for first in samples.clone().step_by(EVALUATION_SAMPLES) {
        let end = samples.end.min(first + EVALUATION_SAMPLES);
        logits.clear();
        engine.logits(parameters, first as u32..end as u32, &mut logits)?;
        for (sample, logits) in (first..end).zip(logits.chunks_exact(CLASSES)) {
            answer(sample, logits);
        }
    }
    Ok(())
}

/// The class with the largest logit; the first of equal ones.
pub fn predicted_class(logits: &[f32]) -> u8 {
    let mut best = 0;
    for (class, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = class;
        }
    }
    best as u8
}

/// The classes' probabilities (10), by a softmax in `f64`.
pub fn probabilities(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f64> =
        logits.iter().map(|&l| libm::exp(f64::from(l) - f64::from(largest))).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|e| e / sum).collect()
}

fn cross_entropy(logits: &[f32], label: u8) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&l| libm::exp(f64::from(l) - largest)).sum();
    libm::log(sum) + largest - f64::from(logits[usize::from(label)])
}

/// The largest loss that is counted for a sample: the sum over as many as a data set may have,
/// 2^20, stays within 64 bits.
const LOSS_MAX: f64 = 2_048.0;

/// A loss that is not a number counts as the largest.
fn loss_in_fixed_point(loss: f64) -> u64 {
    let loss = if loss.is_nan() { LOSS_MAX } else { loss.clamp(0.0, LOSS_MAX) };
    libm::ldexp(loss, LOSS_FRACTION_BITS) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_and_follow_the_logits() {
        let p = probabilities(&[1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1_000.0]);
        assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert!(p[9] > 0.999);
    }

    #[test]
    fn cross_entropy_of_equal_logits_is_ln_10() {
        assert!((cross_entropy(&[0.5; 10], 3) - 10f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn the_first_of_equal_logits_wins() {
        assert_eq!(predicted_class(&[0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), 1);
    }

    #[test]
    fn a_loss_that_is_not_a_number_counts_as_the_largest() {
        assert_eq!(loss_in_fixed_point(f64::NAN), 1 << 43);
        assert_eq!(loss_in_fixed_point(f64::INFINITY), 1 << 43);
        assert_eq!(loss_in_fixed_point(1.0), 1 << 32);
        assert_eq!(loss_in_fixed_point(-1e-9), 0);
    }
}
