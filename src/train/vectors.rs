//! The vectors of a step by all-reduce: a bucket's words, behind them the workers' control words,
//! and the form in which they travel.

use std::ops::Range;

use crate::config::Wire;
use crate::model::layout::{BUCKETS, Bucket, LOSS_SCALE, SCALE_COUNT, STATISTIC_WORDS};
use crate::numerics::fixed_point::Maxima;
use crate::numerics::pairs;
use crate::protocol::collective::Reduction;

/// A vector a bucket, for so many workers.
pub(super) fn empty_vectors(world: usize) -> Vec<Vec<u32>> {
    BUCKETS.iter().map(|bucket| vec![0; bucket.words() + control_words(world)]).collect()
}

/// Makes what travels of a bucket's words and its control words, and tells how it is reduced. Sums of
/// 32 bits travel as they are: the vector itself is handed over.
pub(super) fn pack(
    wire: Wire,
    bucket: &Bucket,
    vector: &mut Vec<u32>,
    packed: &mut Vec<u32>,
) -> Reduction {
    let maxima = vector.len() - bucket.sum_words();
    match wire {
        Wire::I32 => {
            std::mem::swap(vector, packed);
            Reduction::new(bucket.sum_words(), maxima)
        }
        Wire::I16 => {
            let (sums, rest) = vector.split_at(bucket.parameter_range().len());
            let pair_words = pairs::pair_words(sums.len());
            packed.resize(pair_words + rest.len(), 0);
            pairs::pack(sums, &mut packed[..pair_words]);
            packed[pair_words..].copy_from_slice(rest);
            let sum_words = rest.len() - maxima;
            Reduction { pair_words, ..Reduction::new(sum_words, maxima) }
        }
    }
}

/// The reverse of [`pack`].
pub(super) fn unpack(wire: Wire, bucket: &Bucket, packed: &mut Vec<u32>, vector: &mut Vec<u32>) {
    match wire {
        Wire::I32 => std::mem::swap(vector, packed),
        Wire::I16 => {
            let (sums, rest) = vector.split_at_mut(bucket.parameter_range().len());
            let (pairs, statistics) = packed.split_at(pairs::pair_words(sums.len()));
            pairs::unpack(pairs, sums);
            rest.copy_from_slice(statistics);
        }
    }
}

/// Makes one vector of what travels of all buckets, their words kind by kind as a reduction has them,
/// and tells how it is reduced.
pub(super) fn join(
    parts: &[Vec<u32>],
    reductions: &[Reduction],
    joined: &mut Vec<u32>,
) -> Reduction {
    joined.clear();
    for kind in 0..KINDS {
        for (part, reduction) in parts.iter().zip(reductions) {
            joined.extend_from_slice(&part[words_of_kind(reduction, kind)]);
        }
    }
    let sum = |words: fn(&Reduction) -> usize| reductions.iter().map(words).sum();
    Reduction {
        pair_words: sum(|reduction| reduction.pair_words),
        sum_words: sum(|reduction| reduction.sum_words),
        max_words: sum(|reduction| reduction.max_words),
        float_words: sum(|reduction| reduction.float_words),
    }
}

/// The reverse of [`join`].
pub(super) fn separate(mut joined: &[u32], reductions: &[Reduction], parts: &mut [Vec<u32>]) {
    for kind in 0..KINDS {
        for (part, reduction) in parts.iter_mut().zip(reductions) {
            let words = words_of_kind(reduction, kind);
            let (piece, rest) = joined.split_at(words.len());
            part[words].copy_from_slice(piece);
            joined = rest;
        }
    }
}

/// Kinds of words in a vector: see [`Reduction`].
const KINDS: usize = 4;

fn words_of_kind(reduction: &Reduction, kind: usize) -> Range<usize> {
    let Reduction { pair_words, sum_words, max_words, float_words } = *reduction;
    let words: [usize; KINDS] = [pair_words, sum_words, max_words, float_words];
    let before: usize = words[..kind].iter().sum();
    before..before + words[kind]
}

/// The sums and maxima of one step over the global batch.
pub(super) struct Reduced {
    pub(super) maxima: Maxima,
    /// Loss in fixed point.
    pub(super) loss: i32,
    pub(super) samples: u32,
    /// A worker wants the run to end.
    pub(super) stop: bool,
}

impl Reduced {
    /// Reads maxima and statistics out of the reduced vectors.
    pub(super) fn read(vectors: &[Vec<u32>]) -> Reduced {
        let mut reduced = Reduced { maxima: [0.0; SCALE_COUNT], loss: 0, samples: 0, stop: false };
        for (bucket, vector) in BUCKETS.iter().zip(vectors) {
            let maxima = &vector[bucket.sum_words()..bucket.words()];
            for (tensor, &bits) in maxima[..bucket.tensors].iter().enumerate() {
                reduced.maxima[bucket.first_tensor + tensor] = f32::from_bits(bits);
            }
            if bucket.statistics {
                reduced.maxima[LOSS_SCALE] = f32::from_bits(maxima[bucket.tensors]);
                let statistics = &vector[bucket.sum_words() - STATISTIC_WORDS..];
                reduced.loss = statistics[0] as i32;
                reduced.samples = statistics[2];
            }
            reduced.stop |= vector[bucket.words()] != 0;
        }
        reduced
    }
}

/// For how many microseconds each worker has computed, by rank: those of the last bucket count.
pub(super) fn computed_us(reduced: &[Vec<u32>]) -> &[u32] {
    let (Some(bucket), Some(vector)) = (BUCKETS.last(), reduced.last()) else { return &[] };
    &vector[bucket.words() + 1..]
}

/// Words behind a bucket's maxima, of which the maximum is taken too: whether a worker wants to stop,
/// and for how many microseconds each worker has computed so far.
const fn control_words(world: usize) -> usize {
    1 + world
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_vectors_are_reduced_as_the_separate_ones_are() {
        let reductions = [
            Reduction { pair_words: 2, sum_words: 3, max_words: 1, float_words: 0 },
            Reduction { pair_words: 0, sum_words: 1, max_words: 4, float_words: 2 },
        ];
        let vectors = |seed: u32| -> Vec<Vec<u32>> {
            let word = |i: usize| (i as u32 + 1).wrapping_mul(seed) >> 2;
            reductions.iter().map(|reduction| (0..reduction.words()).map(word).collect()).collect()
        };
        let (mut own, others) = (vectors(0x9E37_79B9), vectors(0x85EB_CA6B));
        let (mut joined, mut theirs) = (Vec::new(), vec![9; 3]);
        let reduction = join(&own, &reductions, &mut joined);
        assert_eq!(join(&others, &reductions, &mut theirs), reduction);
        assert_eq!(reduction.words(), joined.len());
        reduction.reduce(&mut joined, 0, &theirs);
        let mut expected = own.clone();
        for ((vector, other), reduction) in expected.iter_mut().zip(&others).zip(&reductions) {
            reduction.reduce(vector, 0, other);
        }
        separate(&joined, &reductions, &mut own);
        assert_eq!(own, expected);
    }
}
