//! Softmax cross-entropy and its gradient.

use super::float::Float;
use crate::model::layers::CLASSES;

/// Softmax cross-entropy of each sample, whether the answer was right, and the gradient of the
/// sum of the losses: `softmax(logits) - onehot(label)`, not divided by the number of samples.
///
/// `logits` is (N, 10), `labels` (N); out go `losses` (N), `right` (N) and `d_logits` (N, 10). The
/// answer is the first of the largest logits.
///
/// # Panics
/// If a label is 10 or more.
pub fn loss_head<F: Float>(
    logits: &[F],
    labels: &[u8],
    losses: &mut [F],
    right: &mut [bool],
    d_logits: &mut [F],
) {
    let samples = logits.as_chunks::<CLASSES>().0.iter().zip(labels);
    let out = losses.iter_mut().zip(right).zip(d_logits.as_chunks_mut::<CLASSES>().0);
    for ((logits, &label), ((loss, right), d_logits)) in samples.zip(out) {
        let label = usize::from(label);
        let answer = answer(logits);
        // The largest logit becomes 0, so that no exponential overflows.
        let shifted = logits.map(|logit| logit - logits[answer]);
        let exponentials = shifted.map(F::exp);
        let mut sum = F::ZERO;
        for exponential in exponentials {
            sum += exponential;
        }
        *loss = sum.ln() - shifted[label];
        *right = answer == label;
        *d_logits = exponentials.map(|exponential| exponential / sum);
        d_logits[label] = d_logits[label] - F::ONE;
    }
}

/// The first class with the largest logit.
pub fn answer<F: Float>(logits: &[F; CLASSES]) -> usize {
    let mut answer = 0;
    for (class, &logit) in logits.iter().enumerate() {
        if logit > logits[answer] {
            answer = class;
        }
    }
    answer
}
