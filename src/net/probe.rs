//! What the link between workers is like: a few all-reduces at the start, and one more by which
//! all workers agree on what they measured.
//!
//! The fastest of a few repetitions counts, since whatever else a machine does makes one slower and
//! never faster. On a fast link there are more of them: fresh connections have yet to find their
//! packet size and window, and a few milliseconds buy a better choice for the whole run.

use std::time::{Duration, Instant};

use super::NetError;
use super::group::GroupHandle;
use crate::protocol::collective::{CollectiveId, Content, Reduction};
use crate::protocol::cost_model::{Cost, Link};
use crate::protocol::exchange::Algorithm;

/// One word: all that it takes is latency and overhead.
const SMALL_WORDS: usize = 1;
const SMALL_REPETITIONS: usize = 8;

/// 256 KiB, about a training step's gradients.
const LARGE_WORDS: usize = 64 << 10;
const LARGE_BYTES: u64 = (LARGE_WORDS * size_of::<u32>()) as u64;
const LARGE_REPETITIONS: usize = 3;

/// So many more, of both, where a large one is predicted to take less than this.
const MORE_REPETITIONS: usize = 12;
const MORE_IF_FASTER_THAN: Duration = Duration::from_millis(20);

/// Measures the links of a group that has nothing under way. Every worker must call this at once,
/// and all are given the same answer: the largest of each value.
///
/// # Errors
/// If the group fails.
pub fn measure(handle: &mut GroupHandle) -> Result<Link, NetError> {
    let world = handle.world_size();
    let algorithms = handle.strategy().algorithms(world);
    let algorithm = algorithms[0];
    let direct = algorithms.iter().copied().find(|&other| other == Algorithm::Direct);
    let mut probe = Probe { handle, algorithm, direct, step: 0 };
    let link = probe.round(SMALL_REPETITIONS, LARGE_REPETITIONS)?;
    let large = Cost::of(algorithm, world, LARGE_BYTES).predict(&link);
    if large < MORE_IF_FASTER_THAN {
        return probe.round(MORE_REPETITIONS, MORE_REPETITIONS);
    }
    Ok(link)
}

struct Probe<'a> {
    handle: &'a mut GroupHandle,
    /// By which most is measured.
    algorithm: Algorithm,
    /// The direct exchange, if workers are connected for it.
    direct: Option<Algorithm>,
    /// Numbers the probe's collectives.
    step: u64,
}

impl Probe<'_> {
    fn round(&mut self, small: usize, large: usize) -> Result<Link, NetError> {
        let world = self.handle.world_size();
        let algorithm = self.algorithm;
        let small_took = self.fastest(algorithm, SMALL_WORDS, small)?;
        let direct_took = match self.direct {
            Some(direct) => Some(self.fastest(direct, SMALL_WORDS, small)?),
            None => None,
        };
        let large_took = self.fastest(algorithm, LARGE_WORDS, large)?;
        self.agree(fit(algorithm, world, small_took, direct_took, large_took))
    }

    fn fastest(
        &mut self,
        algorithm: Algorithm,
        words: usize,
        repetitions: usize,
    ) -> Result<Duration, NetError> {
        let reduction = Reduction::sums(words);
        let mut vector = vec![0; words];
        let mut fastest = Duration::MAX;
        for _ in 0..repetitions {
            let began = Instant::now();
            vector = self.reduce(algorithm, reduction, vector)?;
            fastest = fastest.min(began.elapsed());
        }
        Ok(fastest)
    }

    fn agree(&mut self, own: Link) -> Result<Link, NetError> {
        let vector = vec![own.latency_ns, own.overhead_ns, own.picoseconds_per_byte];
        let reduction = Reduction::maxima(vector.len());
        let largest = self.reduce(self.algorithm, reduction, vector)?;
        Ok(Link {
            latency_ns: largest[0],
            overhead_ns: largest[1],
            picoseconds_per_byte: largest[2],
        })
    }

    fn reduce(
        &mut self,
        algorithm: Algorithm,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<Vec<u32>, NetError> {
        let id =
            CollectiveId { generation: 0, step: self.step, attempt: 0, content: Content::Probe };
        self.step += 1;
        self.handle.start(id, algorithm, reduction, vector)?;
        Ok(self.handle.finish()?.vector)
    }
}

/// The link with which the cost model gives these times: an algorithm's with one word, a direct
/// exchange's with one word, and the algorithm's with [`LARGE_WORDS`].
fn fit(
    algorithm: Algorithm,
    world: usize,
    small: Duration,
    direct: Option<Duration>,
    large: Duration,
) -> Link {
    let cost = Cost::of(algorithm, world, LARGE_BYTES);
    if cost.latencies == 0 {
        return Link { latency_ns: 0, overhead_ns: 0, picoseconds_per_byte: 1 };
    }
    // Each of the algorithm's steps takes a latency and an overhead; the direct exchange takes one
    // latency, and the overheads of all its messages.
    let step_ns = small.as_nanos() / u128::from(cost.latencies);
    let messages = Cost::of(Algorithm::Direct, world, 0).messages;
    let overhead_ns = match direct {
        Some(direct) if messages > 1 => {
            let beyond_one_step = direct.as_nanos().saturating_sub(step_ns);
            (beyond_one_step / u128::from(messages - 1)).min(step_ns)
        }
        // Among two workers, or by one algorithm alone, the two cannot be told apart.
        _ => 0,
    };
    let words_ps = large.saturating_sub(small).as_nanos() * 1_000;
    let narrow = |value: u128| u32::try_from(value).unwrap_or(u32::MAX);
    Link {
        latency_ns: narrow(step_ns - overhead_ns),
        overhead_ns: narrow(overhead_ns),
        picoseconds_per_byte: narrow((words_ps / u128::from(cost.bytes)).max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_found_again_in_what_it_makes_of_a_probe() {
        let link = Link { latency_ns: 40_000, overhead_ns: 10_000, picoseconds_per_byte: 8_000 };
        let time = |algorithm, world, bytes| Cost::of(algorithm, world, bytes).predict(&link);
        for world in [3, 4, 8, 16] {
            let ring = time(Algorithm::Ring, world, 0);
            let direct = time(Algorithm::Direct, world, 0);
            let large = time(Algorithm::Ring, world, 256 << 10);
            assert_eq!(fit(Algorithm::Ring, world, ring, Some(direct), large), link);
        }
        // Two workers see the sum of the two.
        let seen = fit(
            Algorithm::Ring,
            2,
            time(Algorithm::Ring, 2, 0),
            Some(time(Algorithm::Direct, 2, 0)),
            time(Algorithm::Ring, 2, 256 << 10),
        );
        assert_eq!(seen, Link { latency_ns: 50_000, overhead_ns: 0, ..link });
    }

    #[test]
    fn strange_measurements_give_a_link_all_the_same() {
        let millisecond = Duration::from_millis(1);
        let fit = |small, direct, large| fit(Algorithm::Ring, 4, small, Some(direct), large);
        // Directly in no time, slower than the ring, and words faster than none.
        assert_eq!(fit(millisecond, Duration::ZERO, millisecond).overhead_ns, 0);
        assert_eq!(fit(millisecond, millisecond * 100, millisecond).latency_ns, 0);
        assert_eq!(fit(millisecond, millisecond, Duration::ZERO).picoseconds_per_byte, 1);
        let endless = fit(Duration::MAX, Duration::MAX, Duration::MAX);
        assert_eq!(endless.latency_ns.max(endless.overhead_ns), u32::MAX);
    }
}
