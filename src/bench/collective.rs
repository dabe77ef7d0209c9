//! `bench collective`: how long an all-reduce takes, size by size, with every result checked.
//!
//! The flags, columns and definitions are those of nccl-tests' `all_reduce_perf`: `algbw` is size
//! over time, and `busbw` is `algbw * 2(n - 1) / n`, which does not depend on the number of workers
//! where the links are the limit. Before each iteration the workers wait for each other, and an
//! iteration's time is the mean over the workers.

use std::fmt::{self, Write};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::BenchError;
use super::statistics::{Summary, gigabytes_per_s};
use crate::protocol::collective::{CollectiveId, Content, Reduction};
use crate::protocol::cost_model::{Cost, Link};
use crate::protocol::exchange::Algorithm;
use crate::train::collective::{Collective, Group, Solo};

/// Which sizes are measured, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// Bytes.
    pub smallest: u64,
    pub largest: u64,
    pub growth: Growth,
    /// Iterations that count, for each size.
    pub iterations: usize,
    /// Iterations before those; more where algorithms have to be tried.
    pub warmup: usize,
    /// Whether results are compared with what they must be.
    pub check: bool,
}

/// From one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Growth {
    /// Times so much; at least 2.
    Factor(u64),
    /// So many bytes more; at least one word.
    Step(u64),
}

const WORD_BYTES: u64 = size_of::<u32>() as u64;

impl Sweep {
    /// The sizes in bytes, each cut to whole words.
    pub fn sizes(&self) -> Vec<u64> {
        let cut = |bytes: u64| bytes / WORD_BYTES * WORD_BYTES;
        let mut sizes = Vec::new();
        let mut bytes = cut(self.smallest);
        while bytes <= self.largest {
            sizes.push(bytes);
            bytes = match self.growth {
                // From nothing, the next size is a word.
                Growth::Factor(factor) => bytes.saturating_mul(factor.max(2)).max(WORD_BYTES),
                Growth::Step(step) => bytes.saturating_add(cut(step).max(WORD_BYTES)),
            };
        }
        sizes
    }
}

/// One worker's measurements of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub algorithm: Algorithm,
    /// Of each iteration, in microseconds.
    pub times_us: Vec<f64>,
    /// Words that were not what they must be, over all iterations.
    pub wrong: u64,
}

/// What is measured: one worker's end of an all-reduce.
pub trait AllReduce {
    fn rank(&self) -> usize;

    fn workers(&self) -> usize;

    /// Reduces a vector over all workers and waits for it.
    fn all_reduce(
        &mut self,
        iteration: usize,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<Vec<u32>, BenchError>;

    /// Whether all vectors of so many bytes are reduced in the same way from now on.
    fn is_settled(&self, _bytes: u64) -> bool {
        true
    }

    /// The algorithm that reduces vectors of so many bytes.
    fn algorithm_for(&mut self, _bytes: u64) -> Algorithm {
        Algorithm::Ring
    }
}

impl AllReduce for Group {
    fn rank(&self) -> usize {
        Collective::rank(self)
    }

    fn workers(&self) -> usize {
        Collective::world_size(self)
    }

    fn all_reduce(
        &mut self,
        iteration: usize,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<Vec<u32>, BenchError> {
        let step = iteration as u64;
        let content = Content::Gradients(0);
        self.start(CollectiveId { generation: 0, step, attempt: 0, content }, reduction, vector)?;
        Ok(self.finish()?)
    }

    fn is_settled(&self, bytes: u64) -> bool {
        Group::is_settled(self, bytes)
    }

    fn algorithm_for(&mut self, bytes: u64) -> Algorithm {
        Group::algorithm_for(self, bytes)
    }
}

/// The only worker's vector is its own.
impl AllReduce for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn workers(&self) -> usize {
        1
    }

    fn all_reduce(
        &mut self,
        _iteration: usize,
        _reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<Vec<u32>, BenchError> {
        Ok(vector)
    }
}

/// Measures one size as one of a group's workers, all of which must call this at once.
///
/// # Errors
/// If the group fails.
pub fn measure(
    group: &mut impl AllReduce,
    bytes: u64,
    sweep: &Sweep,
) -> Result<Measurement, BenchError> {
    let words = (bytes / WORD_BYTES) as usize;
    let reduction = Reduction::sums(words);
    let own = input(group.rank(), words);
    let mut expected = vec![0; words];
    for rank in 0..group.workers() {
        reduction.reduce(&mut expected, 0, &input(rank, words));
    }
    let mut vector = vec![0; words];
    let mut measurement = Measurement { algorithm: Algorithm::Ring, times_us: vec![], wrong: 0 };
    let mut iteration = 0;
    while measurement.times_us.len() < sweep.iterations {
        // Each iteration's words differ from the last one's, so that none can pass for another.
        let salt = iteration as u32;
        vector.iter_mut().zip(&own).for_each(|(word, &own)| *word = own.wrapping_add(salt));
        wait_for_all(group)?;
        // While algorithms are tried it is no measurement of one.
        let counts = iteration >= sweep.warmup && group.is_settled(bytes);
        let began = Instant::now();
        vector = group.all_reduce(iteration, reduction, vector)?;
        let took = began.elapsed();
        if counts {
            measurement.times_us.push(took.as_secs_f64() * 1e6);
        }
        if sweep.check {
            let salts = salt.wrapping_mul(group.workers() as u32);
            let wrong = |(word, sum): (&u32, &u32)| *word != sum.wrapping_add(salts);
            measurement.wrong +=
                vector.iter().zip(&expected).filter(|pair| wrong(*pair)).count() as u64;
        }
        iteration += 1;
    }
    measurement.algorithm = group.algorithm_for(bytes);
    Ok(measurement)
}

/// A reduction that nobody finishes before everybody has begun it.
fn wait_for_all(group: &mut impl AllReduce) -> Result<(), BenchError> {
    group.all_reduce(0, Reduction::maxima(1), vec![0])?;
    Ok(())
}

/// A worker's words: different from all others', and with sums that wrap around.
fn input(rank: usize, words: usize) -> Vec<u32> {
    let factor = 0x9E37_79B9_u32.wrapping_mul(2 * rank as u32 + 1);
    (1..=words as u32).map(|i| i.wrapping_mul(factor)).collect()
}

/// One size's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub bytes: u64,
    pub workers: usize,
    pub algorithm: Algorithm,
    #[serde(flatten)]
    pub time_us: Summary,
    pub algbw_gb_s: f64,
    pub busbw_gb_s: f64,
    pub wrong: u64,
    /// By the cost model, for the algorithm that was used.
    pub predicted_us: f64,
    /// Median of the ring all-reduce of this size over plain TCP, among the same processes.
    pub tcp_ring_us: Option<f64>,
    /// Median of one message of this size over plain loopback, one way and unencrypted; `None` if
    /// the system dropped datagrams.
    pub tcp_us: Option<f64>,
    pub udp_us: Option<f64>,
    /// Each iteration's time, the mean over the workers.
    pub times_us: Vec<f64>,
}

impl Row {
    /// Bandwidths follow from the mean time, as in nccl-tests.
    pub fn new(bytes: u64, workers: usize, link: &Link, all: &[Measurement]) -> Row {
        let rows: Vec<Vec<f64>> = all.iter().map(|worker| worker.times_us.clone()).collect();
        let times_us = super::statistics::mean_over_rows(&rows);
        let time_us = Summary::of(&times_us);
        let algbw_gb_s = gigabytes_per_s(bytes, time_us.mean);
        let algorithm = all.first().map_or(Algorithm::Ring, |worker| worker.algorithm);
        let predicted = Cost::of(algorithm, workers, bytes).predict(link);
        Row {
            bytes,
            workers,
            algorithm,
            time_us,
            algbw_gb_s,
            busbw_gb_s: algbw_gb_s * 2.0 * (workers as f64 - 1.0) / workers as f64,
            wrong: all.iter().map(|worker| worker.wrong).sum(),
            predicted_us: predicted.as_secs_f64() * 1e6,
            tcp_ring_us: None,
            tcp_us: None,
            udp_us: None,
            times_us,
        }
    }

    /// The table's head, as a comment.
    pub fn head() -> String {
        let mut text = String::new();
        let names = [
            "size",
            "count",
            "type",
            "redop",
            "time",
            "algbw",
            "busbw",
            "#wrong",
            "p50",
            "p99",
            "algorithm",
            "model",
            "tcp ring",
            "tcp",
            "udp",
        ];
        let units = [
            "(B)",
            "(elements)",
            "",
            "",
            "(us)",
            "(GB/s)",
            "(GB/s)",
            "",
            "(us)",
            "(us)",
            "",
            "(us)",
            "(us)",
            "(GB/s)",
            "(GB/s)",
        ];
        for cells in [names, units] {
            // The comment sign takes the place of the first column's first character.
            let mut line = String::new();
            cells.iter().zip(WIDTHS).for_each(|(cell, width)| {
                let _ = write!(line, " {cell:>width$}");
            });
            let _ = writeln!(text, "#{}", &line[1..]);
        }
        text
    }
}

const WIDTHS: [usize; 15] = [11, 10, 6, 6, 10, 7, 7, 7, 10, 10, 16, 10, 10, 7, 7];

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |time: Option<f64>| {
            time.map_or("N/A".to_owned(), |time| {
                format!("{:.2}", gigabytes_per_s(self.bytes, time))
            })
        };
        let Summary { mean, p50, p99 } = self.time_us;
        let cells = [
            self.bytes.to_string(),
            (self.bytes / WORD_BYTES).to_string(),
            "int32".to_owned(),
            "sum".to_owned(),
            format!("{mean:.1}"),
            format!("{:.2}", self.algbw_gb_s),
            format!("{:.2}", self.busbw_gb_s),
            self.wrong.to_string(),
            format!("{p50:.1}"),
            format!("{p99:.1}"),
            self.algorithm.to_string(),
            format!("{:.1}", self.predicted_us),
            self.tcp_ring_us.map_or("N/A".to_owned(), |time| format!("{time:.1}")),
            rate(self.tcp_us),
            rate(self.udp_us),
        ];
        cells.iter().zip(WIDTHS).try_for_each(|(cell, width)| write!(f, " {cell:>width$}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(smallest: u64, largest: u64, growth: Growth) -> Sweep {
        Sweep { smallest, largest, growth, iterations: 1, warmup: 0, check: true }
    }

    #[test]
    fn sizes_are_whole_words_up_to_the_largest() {
        assert_eq!(sweep(8, 100, Growth::Factor(2)).sizes(), [8, 16, 32, 64]);
        assert_eq!(sweep(0, 16, Growth::Factor(2)).sizes(), [0, 4, 8, 16]);
        assert_eq!(sweep(9, 20, Growth::Step(5)).sizes(), [8, 12, 16, 20]);
        assert_eq!(sweep(8, 8, Growth::Factor(1)).sizes(), [8]);
        assert_eq!(sweep(9, 8, Growth::Step(0)).sizes(), [8]);
        assert_eq!(sweep(u64::MAX - 3, u64::MAX - 1, Growth::Factor(2)).sizes().len(), 1);
    }

    #[test]
    fn a_row_has_the_definitions_of_nccl_tests() {
        let worker =
            |times_us: Vec<f64>| Measurement { algorithm: Algorithm::Ring, times_us, wrong: 1 };
        let link = Link { latency_ns: 1_000, overhead_ns: 0, picoseconds_per_byte: 1_000 };
        let row = Row::new(4_000, 4, &link, &[worker(vec![1.0, 3.0]), worker(vec![3.0, 1.0])]);
        assert_eq!(row.times_us, [2.0, 2.0]);
        assert_eq!((row.algbw_gb_s, row.busbw_gb_s, row.wrong), (2.0, 3.0, 2));
        // Six steps of a microsecond, and 6/4 of the bytes at a byte a nanosecond.
        assert_eq!(row.predicted_us, 12.0);
    }
}
