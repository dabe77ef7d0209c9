//! `bench collective --soak`: all-reduces of random sizes by random algorithms, back to back, every
//! result checked; what counts is that nothing is wrong, stalls or grows.

use std::fmt;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::BenchError;
use crate::protocol::collective::{CollectiveId, Content, Reduction};
use crate::train::collective::{Collective, Group};

/// Largest vector: 4 MiB.
const WORDS_BITS: u32 = 20;

/// Collectives between two agreements on whether the time is over.
const ROUND: u64 = 64;

/// A share of the time after which memory is looked at first: pools and windows have grown by then.
const SETTLED_AFTER: u32 = 4;

const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// What one worker saw.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SoakReport {
    pub collectives: u64,
    /// Of all vectors.
    pub bytes: u64,
    /// Words that were not what they must be.
    pub wrong: u64,
    /// The longest all-reduce.
    pub longest_us: f64,
    /// The process's resident memory after a quarter of the time and at the end, in KiB, where the
    /// system tells.
    pub settled_kib: Option<u64>,
    pub final_kib: Option<u64>,
}

impl SoakReport {
    /// What all workers saw together: the most of each.
    pub fn of_all(reports: &[SoakReport]) -> SoakReport {
        let mut all = reports.first().copied().unwrap_or_default();
        for report in reports.iter().skip(1) {
            all.wrong += report.wrong;
            all.longest_us = all.longest_us.max(report.longest_us);
            if report.growth_kib() > all.growth_kib() {
                (all.settled_kib, all.final_kib) = (report.settled_kib, report.final_kib);
            }
        }
        all
    }

    fn growth_kib(&self) -> Option<i64> {
        Some(self.final_kib? as i64 - self.settled_kib? as i64)
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} collectives, {:.1} GB, {} wrong words, longest {:.1} ms",
            self.collectives,
            self.bytes as f64 / 1e9,
            self.wrong,
            self.longest_us / 1e3
        )?;
        if let (Some(settled), Some(last)) = (self.settled_kib, self.final_kib) {
            write!(
                f,
                ", memory {settled} KiB after a quarter of the time and {last} KiB at the end"
            )?;
        }
        Ok(())
    }
}

/// Soaks as one of a group's workers, all of which must call this at once with the same seed.
///
/// # Errors
/// If the group fails.
pub fn soak(group: &mut Group, time: Duration, seed: u64) -> Result<SoakReport, BenchError> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut report = SoakReport::default();
    let began = Instant::now();
    let mut told = began;
    while !agreed(group, began.elapsed() >= time)? {
        for _ in 0..ROUND {
            one(group, &mut random, &mut report)?;
        }
        if report.settled_kib.is_none() && began.elapsed() >= time / SETTLED_AFTER {
            report.settled_kib = resident_kib();
        }
        if group.rank() == 0 && told.elapsed() >= PROGRESS_INTERVAL {
            told = Instant::now();
            eprintln!(
                "soak: {:.0} of {} s, {report}",
                began.elapsed().as_secs_f64(),
                time.as_secs()
            );
        }
    }
    report.final_kib = resident_kib();
    Ok(report)
}

/// One all-reduce of a size and an algorithm that all workers draw alike.
fn one(
    group: &mut Group,
    random: &mut ChaCha8Rng,
    report: &mut SoakReport,
) -> Result<(), BenchError> {
    // Small sizes are as likely as large ones, and 0 is among them.
    let bits = random.next_u32() % (WORDS_BITS + 1);
    let words = (random.next_u32() % (1 << bits)) as usize;
    let algorithms = group.algorithms();
    let algorithm = algorithms[random.next_u32() as usize % algorithms.len()];
    let salt = random.next_u32();

    let factor = |rank: usize| salt.wrapping_mul(2 * rank as u32 + 1);
    let own = factor(group.rank());
    let vector: Vec<u32> = (0..words as u32).map(|i| (i + 1).wrapping_mul(own)).collect();
    let sum = (0..group.workers()).fold(0u32, |sum, rank| sum.wrapping_add(factor(rank)));
    let step = report.collectives;
    let id = CollectiveId { generation: 0, step, attempt: 0, content: Content::Gradients(0) };

    let began = Instant::now();
    let vector = group.reduce_by(algorithm, id, Reduction::sums(words), vector)?;
    report.longest_us = report.longest_us.max(began.elapsed().as_secs_f64() * 1e6);

    let right = |(i, word): (usize, &u32)| *word == (i as u32 + 1).wrapping_mul(sum);
    report.wrong += vector.iter().enumerate().filter(|&pair| !right(pair)).count() as u64;
    report.collectives += 1;
    report.bytes += 4 * words as u64;
    Ok(())
}

/// Whether any worker's time is over: clocks differ, but all must stop at once.
fn agreed(group: &mut Group, over: bool) -> Result<bool, BenchError> {
    let id = CollectiveId { generation: 0, step: 0, attempt: 0, content: Content::Probe };
    let algorithm = group.algorithms()[0];
    let over = group.reduce_by(algorithm, id, Reduction::maxima(1), vec![u32::from(over)])?;
    Ok(over[0] != 0)
}

/// This process's resident memory, where Linux tells.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_all_workers_is_told() {
        let report = |wrong, longest_us, settled, last| SoakReport {
            collectives: 10,
            bytes: 4_000_000_000,
            wrong,
            longest_us,
            settled_kib: Some(settled),
            final_kib: Some(last),
        };
        let all = SoakReport::of_all(&[report(0, 500.0, 100, 90), report(2, 1_500.0, 80, 95)]);
        assert_eq!(
            all.to_string(),
            "10 collectives, 4.0 GB, 2 wrong words, longest 1.5 ms, \
             memory 80 KiB after a quarter of the time and 95 KiB at the end"
        );
    }
}
