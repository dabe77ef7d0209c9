//! What an all-reduce works on, whatever the algorithm: a vector of words and its two operations.

use serde::{Deserialize, Serialize};

/// How a vector of `u32` words is reduced: the first `sum_words` are added with wrap-around, of
/// the `max_words` behind them the maximum is taken. Both are exact and order-free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reduction {
    pub sum_words: usize,
    pub max_words: usize,
}

impl Reduction {
    /// All words of the vector.
    pub fn words(&self) -> usize {
        self.sum_words + self.max_words
    }

    /// Reduces `incoming` into `vector[at..]`.
    ///
    /// # Panics
    /// If the piece does not lie within the vector.
    pub fn reduce(&self, vector: &mut [u32], at: usize, incoming: &[u32]) {
        let target = &mut vector[at..at + incoming.len()];
        let sums = self.sum_words.saturating_sub(at).min(incoming.len());
        let (target_sums, target_maxima) = target.split_at_mut(sums);
        let (incoming_sums, incoming_maxima) = incoming.split_at(sums);
        for (word, &other) in target_sums.iter_mut().zip(incoming_sums) {
            *word = word.wrapping_add(other);
        }
        for (word, &other) in target_maxima.iter_mut().zip(incoming_maxima) {
            *word = (*word).max(other);
        }
    }
}

/// Which collective a vector belongs to. Every vector message carries it, so that workers out of
/// step are found at once and by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveId {
    /// The view's generation.
    pub generation: u32,
    /// Steps completed before it.
    pub step: u64,
    /// 0, or how often this step has been redone.
    pub attempt: u32,
    /// What is reduced.
    pub content: Content,
}

/// What a collective reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// A bucket of gradients: its index in the model's list.
    Gradients(u32),
    /// Right answers and loss over the test set.
    Evaluation,
    /// The digest of the parameters, to see that all replicas agree.
    Digest,
}
