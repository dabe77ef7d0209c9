//! What an all-reduce costs, and which algorithm is the fastest: the model of Hockney (1994), in
//! which a message of `m` bytes takes `alpha + beta m`.
//!
//! `alpha` is split as in LogP (Culler et al. 1993): a message needs `latency` on its way, and
//! keeps its sender and its receiver busy for `overhead`. Messages that go out one after another
//! wait for each other's overhead, not for each other's latency.
//!
//! | algorithm | latencies | messages | bytes |
//! |---|---|---|---|
//! | ring | `2(n - 1)` | `2(n - 1)` | `2(n - 1) / n m` |
//! | halving-doubling, `p` the power of two up to `n` | `2 log2 p`, and 2 if `n > p` | the same | `2(p - 1) / p m`, and `2 m` if `n > p` |
//! | direct | 1 | `n - 1` | `(n - 1) m` |
//!
//! Everything is computed in integers, so that workers with the same link choose alike.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::exchange::Algorithm;
use super::halving_doubling::Fold;

/// A link between two workers, as all workers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Link {
    /// From one worker to another, for a message without words.
    pub latency_ns: u32,
    /// For which a message keeps its sender busy.
    pub overhead_ns: u32,
    /// The inverse of the bandwidth: 8,000 are 1 Gbit/s.
    pub picoseconds_per_byte: u32,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes_per_s = 1e6 / f64::from(self.picoseconds_per_byte.max(1));
        write!(
            f,
            "latency {:.1} us, overhead {:.1} us, {megabytes_per_s:.0} MB/s",
            f64::from(self.latency_ns) / 1e3,
            f64::from(self.overhead_ns) / 1e3,
        )
    }
}

/// What one worker's all-reduce consists of, one thing after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    pub latencies: u64,
    pub messages: u64,
    /// Sent by the worker that sends most.
    pub bytes: u64,
}

impl Cost {
    /// Of an all-reduce of `bytes` among `world` workers.
    ///
    /// # Panics
    /// If there is no worker.
    pub fn of(algorithm: Algorithm, world: usize, bytes: u64) -> Cost {
        assert!(world > 0, "a world is not empty");
        let n = world as u64;
        match algorithm {
            Algorithm::Ring => Cost {
                latencies: 2 * (n - 1),
                messages: 2 * (n - 1),
                bytes: share(bytes, 2 * (n - 1), n),
            },
            Algorithm::HalvingDoubling => {
                let fold = Fold::of(world);
                let p = fold.members() as u64;
                let (extra_steps, extra_bytes) =
                    if fold.has_surplus() { (2, bytes.saturating_mul(2)) } else { (0, 0) };
                let steps = 2 * u64::from(fold.halvings()) + extra_steps;
                Cost {
                    latencies: steps,
                    messages: steps,
                    bytes: share(bytes, 2 * (p - 1), p).saturating_add(extra_bytes),
                }
            }
            Algorithm::Direct => Cost {
                latencies: u64::from(n > 1),
                messages: n - 1,
                bytes: bytes.saturating_mul(n - 1),
            },
        }
    }

    /// The time it takes on a link.
    pub fn predict(&self, link: &Link) -> Duration {
        let picoseconds = u128::from(self.bytes) * u128::from(link.picoseconds_per_byte);
        let nanoseconds = u128::from(self.latencies) * u128::from(link.latency_ns)
            + u128::from(self.messages) * u128::from(link.overhead_ns)
            + picoseconds / 1_000;
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// `bytes * numerator / denominator`, rounded up.
fn share(bytes: u64, numerator: u64, denominator: u64) -> u64 {
    let exact = (u128::from(bytes) * u128::from(numerator)).div_ceil(u128::from(denominator));
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// Above this, a connection between each two workers costs more than a direct exchange saves.
pub const DIRECT_WORLD_MAX: usize = 16;

/// Above this, copying the vector and adding up `n - 1` others, which the model does not count, are
/// no longer small beside a step.
pub const DIRECT_BYTES_MAX: u64 = 1 << 20;

/// Above this, a vector leaves the processor's caches between the steps of halving and doubling,
/// while the ring passes words on as they come. The model does not count that, so here another
/// algorithm must be faster than the ring by a quarter to be chosen.
pub const CACHED_BYTES_MAX: u64 = 1 << 20;

/// An algorithm that the model puts this many times behind the best is not tried.
pub const CONTENDER_FACTOR: u32 = 2;

/// The algorithms that [`choose`] chooses from, in the order in which equals are preferred.
pub fn candidates(world: usize, bytes: u64) -> &'static [Algorithm] {
    let direct = world <= DIRECT_WORLD_MAX && bytes <= DIRECT_BYTES_MAX;
    if direct { &Algorithm::ALL } else { &Algorithm::ALL[..2] }
}

/// An algorithm, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub algorithm: Algorithm,
    pub predicted: Duration,
    /// The prediction for each candidate, as a sentence.
    pub sentence: String,
    /// The algorithms that are so close to the best that only measuring tells, the best first, with
    /// their predictions.
    pub contenders: Vec<(Algorithm, Duration)>,
}

/// The algorithm that is the fastest by the model: the same for all workers that know the same
/// link.
///
/// # Panics
/// If there is no worker.
pub fn choose(world: usize, bytes: u64, link: &Link) -> Choice {
    let predictions: Vec<(Algorithm, Duration)> = candidates(world, bytes)
        .iter()
        .map(|&algorithm| (algorithm, Cost::of(algorithm, world, bytes).predict(link)))
        .collect();
    let judged = |&(algorithm, predicted): &(Algorithm, Duration)| match algorithm {
        Algorithm::Ring if bytes > CACHED_BYTES_MAX => predicted * 3 / 4,
        _ => predicted,
    };
    let mut contenders = predictions.clone();
    contenders.sort_by_key(judged);
    let (algorithm, predicted) = contenders[0];
    let limit = judged(&contenders[0]) * CONTENDER_FACTOR;
    contenders.retain(|contender| judged(contender) <= limit);
    let others: Vec<String> = predictions
        .iter()
        .filter(|(other, _)| *other != algorithm)
        .map(|(other, predicted)| format!("{other} {}", microseconds(*predicted)))
        .collect();
    let sentence = format!(
        "{algorithm} for {bytes} bytes among {world} workers: {} predicted ({}; {link})",
        microseconds(predicted),
        others.join(", ")
    );
    Choice { algorithm, predicted, sentence, contenders }
}

fn microseconds(duration: Duration) -> String {
    format!("{:.0} us", duration.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 Gbit/s and 50 us, as in a good rack.
    const RACK: Link = Link { latency_ns: 50_000, overhead_ns: 0, picoseconds_per_byte: 800 };

    fn microseconds_of(algorithm: Algorithm, world: usize, bytes: u64) -> u128 {
        Cost::of(algorithm, world, bytes).predict(&RACK).as_micros()
    }

    #[test]
    fn predictions_are_those_of_the_formulas() {
        // By hand: 14 latencies and 14/8 of 247 kB; 6 latencies and the same bytes; 1 latency and
        // 7 times 247 kB.
        assert_eq!(microseconds_of(Algorithm::Ring, 8, 247_000), 700 + 345);
        assert_eq!(microseconds_of(Algorithm::HalvingDoubling, 8, 247_000), 300 + 345);
        assert_eq!(microseconds_of(Algorithm::Direct, 8, 247_000), 50 + 1_383);
        // 6 = 4 + 2: 2 * 2 steps and two more, 6/4 of the bytes and two whole vectors.
        assert_eq!(
            Cost::of(Algorithm::HalvingDoubling, 6, 1_000),
            Cost { latencies: 6, messages: 6, bytes: 3_500 }
        );
        for algorithm in Algorithm::ALL {
            let nothing = Cost { latencies: 0, messages: 0, bytes: 0 };
            assert_eq!(Cost::of(algorithm, 1, 1_000), nothing);
        }
    }

    #[test]
    fn small_vectors_go_directly_and_large_ones_around() {
        assert_eq!(choose(8, 4, &RACK).algorithm, Algorithm::Direct);
        assert_eq!(choose(8, 247_000, &RACK).algorithm, Algorithm::HalvingDoubling);
        // Folding moves two vectors more, so at some size the ring wins.
        assert_eq!(choose(6, 100 << 20, &RACK).algorithm, Algorithm::Ring);
        // Among large vectors the ring is preferred, until latency speaks clearly against it.
        assert_eq!(choose(8, 100 << 20, &RACK).algorithm, Algorithm::Ring);
        let far = Link { latency_ns: 10_000_000, ..RACK };
        assert_eq!(choose(8, 4 << 20, &far).algorithm, Algorithm::HalvingDoubling);
        // Among two all algorithms move the same bytes, one of them in one step.
        assert_eq!(choose(2, 4, &RACK).algorithm, Algorithm::Direct);
        assert_eq!(choose(2, 100 << 20, &RACK).algorithm, Algorithm::Ring);
    }

    #[test]
    fn only_close_algorithms_are_worth_trying() {
        let contenders = |world, bytes| -> Vec<Algorithm> {
            choose(world, bytes, &RACK).contenders.iter().map(|contender| contender.0).collect()
        };
        // 646, 1,046 and 1,433 us; 50, 300 and 700 us.
        assert_eq!(contenders(8, 247_000), [Algorithm::HalvingDoubling, Algorithm::Ring]);
        assert_eq!(contenders(8, 4), [Algorithm::Direct]);
    }

    #[test]
    fn overheads_add_up_where_latencies_do_not() {
        let busy = Link { latency_ns: 1_000, overhead_ns: 50_000, picoseconds_per_byte: 800 };
        let cost = Cost::of(Algorithm::Direct, 16, 0);
        assert_eq!(cost.predict(&busy), Duration::from_micros(1 + 15 * 50));
        assert_eq!(choose(16, 4, &busy).algorithm, Algorithm::HalvingDoubling);
    }

    #[test]
    fn large_worlds_are_not_connected_each_with_each() {
        for world in 1..100 {
            let choice = choose(world, 4, &RACK);
            assert_eq!(choice.algorithm == Algorithm::Direct, (2..=16).contains(&world));
        }
    }

    #[test]
    fn the_sentence_names_all_candidates() {
        let choice = choose(8, 247_000, &RACK);
        assert_eq!(
            choice.sentence,
            "halving-doubling for 247000 bytes among 8 workers: 646 us predicted \
             (ring 1046 us, direct 1433 us; latency 50.0 us, overhead 0.0 us, 1250 MB/s)"
        );
    }

    #[test]
    fn the_largest_values_do_not_overflow() {
        let slowest =
            Link { latency_ns: u32::MAX, overhead_ns: u32::MAX, picoseconds_per_byte: u32::MAX };
        for algorithm in Algorithm::ALL {
            for world in [1, 2, 3, 1_000] {
                Cost::of(algorithm, world, u64::MAX).predict(&slowest);
            }
        }
    }
}
