//! The order of the samples: a permutation for each epoch, cut into batches, cut into shares.
//!
//! Nothing but (seed, epoch) decides the permutation, so every worker knows the whole order, and
//! who computes what never changes which samples a step is made of.

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::numerics::fixed_point::TILE_SAMPLES;

/// Gives the global batch of each step.
///
/// Epoch `e` is the steps `[e * s, (e + 1) * s)` with `s` = [`steps_per_epoch`]; it takes every
/// sample once. Steps may be asked for in any order; each change of the epoch costs a shuffle.
/// Memory is taken once, at the start.
///
/// [`steps_per_epoch`]: Sampler::steps_per_epoch
#[derive(Clone, Debug)]
pub struct Sampler {
    seed: u64,
    batch: usize,
    /// The epoch whose order `permutation` holds.
    epoch: u64,
    permutation: Vec<u32>,
}

impl Sampler {
    /// For a training set of `samples` and a global batch of `batch`.
    ///
    /// # Panics
    /// If there are no samples or more than `u32::MAX`, or if the batch is 0: data sets and the
    /// configuration exclude them.
    pub fn new(seed: u64, samples: usize, batch: usize) -> Sampler {
        assert!(samples > 0 && u32::try_from(samples).is_ok(), "a set has samples");
        assert!(batch > 0, "a batch has samples");
        let mut permutation = vec![0; samples];
        shuffle(seed, 0, &mut permutation);
        Sampler { seed, batch, epoch: 0, permutation }
    }

    /// Steps that take every sample once; the last may be short.
    pub fn steps_per_epoch(&self) -> u64 {
        self.permutation.len().div_ceil(self.batch) as u64
    }

    /// The sample indices of the global batch of a step, counted from the start of the run.
    pub fn batch(&mut self, step: u64) -> &[u32] {
        let steps = self.steps_per_epoch();
        let epoch = step / steps;
        if epoch != self.epoch {
            shuffle(self.seed, epoch, &mut self.permutation);
            self.epoch = epoch;
        }
        // Below steps_per_epoch, hence within the permutation's length.
        let start = (step % steps) as usize * self.batch;
        let end = start.saturating_add(self.batch).min(self.permutation.len());
        &self.permutation[start..end]
    }
}

/// The part of a global batch that a worker computes, as positions in the batch: a run of whole
/// tiles (the batch's last tile may be short), as equal among the workers as tiles allow. The first
/// workers have the larger shares, workers without a tile an empty one.
///
/// # Panics
/// If `rank` is not below `world_size`.
pub fn share(batch_len: usize, world_size: usize, rank: usize) -> Range<usize> {
    assert!(rank < world_size, "a rank is below the world size");
    let tiles = batch_len.div_ceil(TILE_SAMPLES);
    let (each, larger) = (tiles / world_size, tiles % world_size);
    let position = |rank: usize| {
        let tile = rank * each + rank.min(larger);
        (tile * TILE_SAMPLES).min(batch_len)
    };
    position(rank)..position(rank + 1)
}

/// The tiles of a batch; the last may be short.
pub fn tiles(batch_len: usize) -> u32 {
    u32::try_from(batch_len.div_ceil(TILE_SAMPLES)).expect("a batch is far below 2^32 tiles")
}

/// The samples of a run of tiles, as positions in the batch.
pub fn samples(tiles: Range<u32>, batch_len: usize) -> Range<usize> {
    let position = |tile: u32| (tile as usize * TILE_SAMPLES).min(batch_len);
    position(tiles.start)..position(tiles.end)
}

/// Writes the permutation of (seed, epoch): Durstenfeld's form of the Fisher-Yates shuffle (1964),
/// each of the n! orders equally likely as far as the generator goes. It is spelled out here,
/// since a library's shuffle may change with its version and the trained bits with it.
fn shuffle(seed: u64, epoch: u64, permutation: &mut [u32]) {
    for (i, index) in permutation.iter_mut().enumerate() {
        *index = i as u32;
    }
    let mut random = generator(seed, epoch);
    for last in (1..permutation.len()).rev() {
        let chosen = below(&mut random, last as u32 + 1);
        permutation.swap(last, chosen as usize);
    }
}

/// A key of its own for each (seed, epoch): no two orders have a generator in common.
fn generator(seed: u64, epoch: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..16].copy_from_slice(b"annulet sampler\0");
    key[16..24].copy_from_slice(&seed.to_le_bytes());
    key[24..].copy_from_slice(&epoch.to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

/// Uniform in `[0, bound)` without bias, mostly without a division (Lemire 2019).
fn below(random: &mut impl Rng, bound: u32) -> u32 {
    let mut product = u64::from(random.next_u32()) * u64::from(bound);
    if (product as u32) < bound {
        // 2^32 mod bound: the low words below it would be hit once too often.
        let threshold = bound.wrapping_neg() % bound;
        while (product as u32) < threshold {
            product = u64::from(random.next_u32()) * u64::from(bound);
        }
    }
    (product >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All batches of an epoch, one after the other.
    fn epoch(sampler: &mut Sampler, epoch: u64) -> Vec<u32> {
        let steps = sampler.steps_per_epoch();
        (epoch * steps..(epoch + 1) * steps).flat_map(|step| sampler.batch(step).to_vec()).collect()
    }

    #[test]
    fn every_epoch_takes_every_sample_once() {
        for (samples, batch) in [(1, 1), (5, 128), (100, 7), (128, 128), (129, 128), (1_000, 1)] {
            let mut sampler = Sampler::new(3, samples, batch);
            for e in 0..3 {
                let mut taken = epoch(&mut sampler, e);
                taken.sort_unstable();
                assert!(taken.into_iter().eq(0..samples as u32), "{samples} by {batch}");
            }
        }
    }

    #[test]
    fn the_last_batch_is_short() {
        let mut sampler = Sampler::new(0, 300, 128);
        let lengths: Vec<usize> = (0..6).map(|step| sampler.batch(step).len()).collect();
        assert_eq!(lengths, [128, 128, 44, 128, 128, 44]);
    }

    #[test]
    fn the_order_depends_on_seed_and_epoch_alone() {
        let mut sampler = Sampler::new(1, 1_000, 128);
        let first = epoch(&mut sampler, 0);
        let second = epoch(&mut sampler, 1);
        assert_ne!(first, second);
        // Going back, another batch, starting in the middle: all the same order.
        assert_eq!(epoch(&mut sampler, 0), first);
        assert_eq!(epoch(&mut Sampler::new(1, 1_000, 33), 1), second);
        let resumed = Sampler::new(1, 1_000, 128).batch(9).to_vec();
        assert_eq!(resumed, second[128..256]);
        assert_ne!(epoch(&mut Sampler::new(2, 1_000, 128), 0), first);
    }

    #[test]
    fn the_order_is_this_one() {
        // Computed apart, by a ChaCha8 and a shuffle written in Python after this file's text: a
        // change would train other bits under the same configuration.
        assert_eq!(Sampler::new(0, 10, 10).batch(0), [4, 1, 2, 3, 5, 7, 0, 9, 6, 8]);
        assert_eq!(Sampler::new(7, 10, 10).batch(3), [8, 2, 4, 9, 3, 0, 1, 6, 7, 5]);
        assert_eq!(Sampler::new(u64::MAX, 10, 10).batch(5), [7, 4, 8, 1, 5, 9, 0, 3, 2, 6]);
    }

    #[test]
    fn a_step_takes_no_memory() {
        let mut sampler = Sampler::new(0, 1_000, 10);
        let (address, capacity) = (sampler.permutation.as_ptr(), sampler.permutation.capacity());
        for step in 0..500 {
            sampler.batch(step);
        }
        assert_eq!(sampler.permutation.as_ptr(), address);
        assert_eq!(sampler.permutation.capacity(), capacity);
    }

    #[test]
    fn orders_are_equally_frequent() {
        // 6 orders of 3 samples over 60,000 epochs: each about 10,000 times, with a standard
        // deviation of sqrt(60,000 * 1/6 * 5/6) = 91.3. The seed is fixed, so the test cannot
        // flicker; five deviations would be a 1 in 300,000 accident of a fair shuffle.
        let mut counts = std::collections::BTreeMap::new();
        let mut sampler = Sampler::new(0, 3, 3);
        for step in 0..60_000 {
            *counts.entry(sampler.batch(step).to_vec()).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|count| count.abs_diff(10_000) < 457), "{counts:?}");
    }

    #[test]
    fn bounded_draws_reject_what_would_be_too_frequent() {
        /// Gives the words of a list.
        struct Words(std::vec::IntoIter<u32>);
        impl rand_chacha::rand_core::TryRng for Words {
            type Error = std::convert::Infallible;
            fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
                Ok(self.0.next().expect("no more draws than words"))
            }
            fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
                unreachable!("draws are of 32 bits")
            }
            fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Self::Error> {
                unreachable!("draws are of 32 bits")
            }
        }
        let draw = |words: Vec<u32>, bound| {
            let mut words = Words(words.into_iter());
            let drawn = below(&mut words, bound);
            (drawn, words.0.len())
        };
        // 2^32 = 3 * 1,431,655,765 + 1: of a bound of 3 only the low word 0 is one too many.
        assert_eq!(draw(vec![0, u32::MAX], 3), (2, 0));
        assert_eq!(draw(vec![1, 0], 3), (0, 1));
        assert_eq!(draw(vec![u32::MAX], 1), (0, 0));
    }

    #[test]
    fn shares_of_small_batches() {
        let shares = |batch, world| (0..world).map(|r| share(batch, world, r)).collect::<Vec<_>>();
        assert_eq!(shares(5, 4), [0..5, 5..5, 5..5, 5..5]);
        assert_eq!(shares(128, 3), [0..48, 48..96, 96..128]);
        assert_eq!(shares(100, 2), [0..64, 64..100]);
        assert_eq!(shares(0, 2), [0..0, 0..0]);
    }

    #[test]
    fn runs_of_tiles_are_runs_of_samples() {
        assert_eq!([0, 1, 16, 17, 100].map(tiles), [0, 1, 1, 2, 7]);
        assert_eq!(samples(0..3, 100), 0..48);
        assert_eq!(samples(3..7, 100), 48..100);
        assert_eq!(samples(7..7, 100), 100..100);
    }

    #[test]
    fn shares_make_up_the_batch() {
        for (world, batch) in (1..=16).flat_map(|world| (1..=1_000).map(move |b| (world, b))) {
            let case = format!("{batch} samples among {world}");
            let (mut next, mut fewest, mut most) = (0, usize::MAX, 0);
            for share in (0..world).map(|rank| share(batch, world, rank)) {
                assert_eq!(share.start, next, "{case}");
                assert!(share.is_empty() || share.start % TILE_SAMPLES == 0, "{case}");
                next = share.end;
                let tiles = share.len().div_ceil(TILE_SAMPLES);
                (fewest, most) = (fewest.min(tiles), most.max(tiles));
            }
            assert_eq!(next, batch, "{case}");
            assert!(most - fewest <= 1, "{case}");
        }
    }
}
