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
/// If the shapes do not agree, or a label is 10 or more.
pub fn loss_head<F: Float>(
    logits: &[F],
    labels: &[u8],
    losses: &mut [F],
    right: &mut [bool],
    d_logits: &mut [F],
) {
    assert_eq!([losses.len(), right.len()], [labels.len(); 2]);
    assert_eq!([logits.len(), d_logits.len()], [labels.len() * CLASSES; 2]);
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

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_gradient, values};
    use super::*;

    /// (losses, right, d_logits).
    fn head<F: Float>(logits: &[F], labels: &[u8]) -> (Vec<F>, Vec<bool>, Vec<F>) {
        let mut losses = vec![F::ZERO; labels.len()];
        let mut right = vec![false; labels.len()];
        let mut d_logits = vec![F::ZERO; logits.len()];
        loss_head(logits, labels, &mut losses, &mut right, &mut d_logits);
        (losses, right, d_logits)
    }

    #[test]
    fn backward_is_the_derivative() {
        let labels = [3, 0, 9];
        let logits: Vec<f64> = values(1, 30).iter().map(|value| 4.0 * value).collect();
        let (_, _, d_logits) = head(&logits, &labels);
        assert_gradient(|logits| head(logits, &labels).0.iter().sum(), &logits, &d_logits);
    }

    #[test]
    fn equal_logits_cost_the_logarithm_of_the_classes_and_answer_the_first() {
        let (losses, right, d_logits) = head(&[7.0f64; 20], &[0, 1]);
        assert_eq!(losses, [10f64.ln(); 2]);
        assert_eq!(right, [true, false]);
        assert_eq!(d_logits[..2], [0.1 - 1.0, 0.1]);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let mut logits = [0.0f32; 10];
        logits[4] = 1e4;
        let (losses, right, d_logits) = head(&logits, &[4]);
        assert_eq!((losses[0], right[0], d_logits[4]), (0.0, true, 0.0));
        let (losses, right, d_logits) = head(&logits, &[5]);
        assert_eq!((losses[0], right[0], d_logits[5]), (1e4, false, -1.0));
    }

    #[test]
    fn logits_that_are_not_finite_cost_nan() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut logits = [0.0f32; 10];
            logits[4] = bad;
            assert!(head(&logits, &[1]).0[0].is_nan());
        }
    }
}
