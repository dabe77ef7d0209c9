//! What an all-reduce works on, whatever the algorithm: a vector of words and its two operations.

use serde::{Deserialize, Serialize};

/// How a vector of `u32` words is reduced: the first `pair_words` hold two 16-bit integers each, the
/// `sum_words` behind them one of 32 bits, and each integer is added with wrap-around; of the
/// `max_words` behind those the maximum is taken. All of it is exact and order-free.
///
/// The `float_words` behind those are `f32`s that are added as such. The order counts for them:
/// every worker has the same bits only by an algorithm that completes each word in one place, as the
/// ring does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reduction {
    pub pair_words: usize,
    pub sum_words: usize,
    pub max_words: usize,
    pub float_words: usize,
}

impl Reduction {
    /// Sums, and maxima behind them.
    pub const fn new(sum_words: usize, max_words: usize) -> Reduction {
        Reduction { pair_words: 0, sum_words, max_words, float_words: 0 }
    }

    /// Sums alone.
    pub const fn sums(words: usize) -> Reduction {
        Reduction::new(words, 0)
    }

    /// Maxima alone.
    pub const fn maxima(words: usize) -> Reduction {
        Reduction::new(0, words)
    }

    /// `f32`s alone, added as such.
    pub const fn float_sums(words: usize) -> Reduction {
        Reduction { pair_words: 0, sum_words: 0, max_words: 0, float_words: words }
    }

    /// All words of the vector.
    pub const fn words(&self) -> usize {
        self.pair_words + self.sum_words + self.max_words + self.float_words
    }

    /// Reduces `incoming` into `vector[at..]`.
    ///
    /// # Panics
    /// If the piece does not lie within the vector.
    pub fn reduce(&self, vector: &mut [u32], at: usize, incoming: &[u32]) {
        let target = &mut vector[at..at + incoming.len()];
        // What lies before each border, as far as this piece reaches.
        let before = |border: usize| border.saturating_sub(at).min(incoming.len());
        let pairs = before(self.pair_words);
        let sums = before(self.pair_words + self.sum_words);
        let exact = before(self.pair_words + self.sum_words + self.max_words);
        for (word, &other) in target[..pairs].iter_mut().zip(&incoming[..pairs]) {
            *word = add_pairs(*word, other);
        }
        for (word, &other) in target[pairs..sums].iter_mut().zip(&incoming[pairs..sums]) {
            *word = word.wrapping_add(other);
        }
        for (word, &other) in target[sums..exact].iter_mut().zip(&incoming[sums..exact]) {
            *word = (*word).max(other);
        }
        for (word, &other) in target[exact..].iter_mut().zip(&incoming[exact..]) {
            *word = (f32::from_bits(*word) + f32::from_bits(other)).to_bits();
        }
    }
}

/// Adds two pairs of 16-bit integers, each with wrap-around: without the top bits no carry leaves a
/// half, and the top bits are added without carry.
const fn add_pairs(a: u32, b: u32) -> u32 {
    const TOP: u32 = 0x8000_8000;
    ((a & !TOP) + (b & !TOP)) ^ ((a ^ b) & TOP)
}

/// What only a peer that breaks the protocol can cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    #[error("{surplus} words beyond the end of the collective")]
    Surplus { surplus: usize },
    #[error("a result that it cannot know yet, {early} words before this worker's share was sent")]
    Early { early: usize },
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
    /// Nothing of the run: the link is measured.
    Probe,
    /// A program's own buffer; the step is its number.
    Buffer,
    /// The state that a view begins with.
    State,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_word_is_reduced_as_such_wherever_a_piece_begins() {
        let reduction = Reduction { pair_words: 2, sum_words: 2, max_words: 1, float_words: 2 };
        let pair = |high: i16, low: i16| u32::from(high as u16) << 16 | u32::from(low as u16);
        let float = |value: f32| value.to_bits();
        let own = [pair(-3, 7), pair(i16::MAX, -1), u32::MAX, 2, 3, float(0.5), float(1.0)];
        let other = [pair(5, -8), pair(1, -1), 1, 20, 2, float(0.25), float(-2.0)];
        let expected = [pair(2, -1), pair(i16::MIN, -2), 0, 22, 3, float(0.75), float(-1.0)];
        for cut in 0..=own.len() {
            let mut vector = own;
            reduction.reduce(&mut vector, 0, &other[..cut]);
            reduction.reduce(&mut vector, cut, &other[cut..]);
            assert_eq!(vector, expected);
        }
    }
}
