//! Synthetic compute: gradients that cost next to nothing, after a time that is waited for without
//! using the CPU, so that many workers fit a machine that could not compute for all of them.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::model::layers::CLASSES;
use crate::model::layout::{BUCKETS, STATISTIC_WORDS};
use crate::numerics::fixed_point::FixedPoint;

use super::engine::{EngineDescription, EngineError, GradientEngine};
use super::metrics::{MetricsLine, RunSummary};

/// What every output calls it.
pub const SYNTHETIC: &str = "synthetic compute";

/// How long computing is to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyntheticCompute {
    /// So long for a whole batch by one worker; each worker takes its share of it.
    Batch(Duration),
    /// As long for a sample as the steps of the run in this folder took, with their jitter.
    Trace(PathBuf),
}

/// How long each step of each worker takes.
#[derive(Clone, Debug)]
pub struct ComputeTimes {
    /// For a sample; one of these at random.
    per_sample: Arc<[Duration]>,
    seed: u64,
}

/// Why a run is no trace.
#[derive(Debug, thiserror::Error)]
#[error(
    "--compute trace:{run}: {reason}; give the folder of a finished run of `annulet train`",
    run = run.display()
)]
pub struct TraceError {
    run: PathBuf,
    reason: String,
}

impl ComputeTimes {
    /// For batches of so many samples; times that are drawn follow from the seed.
    ///
    /// # Errors
    /// If there is no trace where one is asked for.
    pub fn new(
        compute: &SyntheticCompute,
        batch: usize,
        seed: u64,
    ) -> Result<ComputeTimes, TraceError> {
        let per_sample = match compute {
            SyntheticCompute::Batch(time) => [time.div_f64(batch as f64)].into(),
            SyntheticCompute::Trace(run) => read_trace(run)?,
        };
        Ok(ComputeTimes { per_sample, seed })
    }

    /// How long a worker takes for so many samples of a step.
    pub fn of(&self, rank: usize, step: u64, samples: usize) -> Duration {
        let place = match self.per_sample.len() {
            1 => 0,
            all => {
                let mut random = ChaCha8Rng::seed_from_u64(self.seed);
                random.set_stream(rank as u64);
                // Of 16 words a block, one is taken.
                random.set_word_pos(16 * u128::from(step));
                random.next_u32() as usize % all
            }
        };
        self.per_sample[place].mul_f64(samples as f64)
    }

    /// For a batch of so many samples by one worker, on average.
    pub fn batch_mean(&self, batch: usize) -> Duration {
        let sum: Duration = self.per_sample.iter().sum();
        sum.div_f64(self.per_sample.len() as f64).mul_f64(batch as f64)
    }

    /// Tells times apart.
    pub fn digest(&self) -> u32 {
        let mut hash = Sha256::new();
        self.per_sample.iter().for_each(|time| hash.update(time.as_nanos().to_le_bytes()));
        let bytes: [u8; 32] = hash.finalize().into();
        u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

/// What the sampled steps of a run took for a sample, by each of its workers.
fn read_trace(run: &Path) -> Result<Arc<[Duration]>, TraceError> {
    let fault = |reason: String| TraceError { run: run.to_owned(), reason };
    let read = |name: &str| {
        std::fs::read_to_string(run.join(name)).map_err(|error| fault(format!("{name}: {error}")))
    };
    let summary: RunSummary = serde_json::from_str(&read("run.json")?)
        .map_err(|error| fault(format!("run.json: {error}")))?;
    let samples = summary.config.batch as f64 / summary.workers.max(1) as f64;
    let metrics = read("metrics.jsonl")?;
    let times: Arc<[Duration]> = metrics
        .lines()
        .filter_map(|line| match serde_json::from_str(line) {
            Ok(MetricsLine::Step(step)) => Some(step.compute_ms),
            _ => None,
        })
        // The first step's kernels were still being loaded.
        .skip(1)
        .map(|ms| Duration::try_from_secs_f64(ms / 1e3 / samples))
        .collect::<Result<_, _>>()
        .map_err(|error| fault(format!("metrics.jsonl: {error}")))?;
    if times.is_empty() {
        return Err(fault("metrics.jsonl has fewer than two steps".to_owned()));
    }
    Ok(times)
}

/// Writes the fixed-point gradient sums over some samples: the sum of two workers' words is that of
/// all their samples, whoever took which. With up to 2^20 samples the sums fit an `i32`, with up to
/// 1,024 an `i16`.
pub fn gradient_sums(samples: impl IntoIterator<Item = u32>, words: &mut [u32]) {
    // -1, 0 or 1, so that the sums stay small and have either sign.
    let coefficient = |sample: u32| (sample.wrapping_mul(0x9E37_79B9) >> 16) as i32 % 3 - 1;
    let sum: i32 = samples.into_iter().map(coefficient).sum();
    for (i, word) in words.iter_mut().enumerate() {
        *word = (sum * (1 + i as i32 % 4)) as u32;
    }
}

/// Waits without using the CPU.
pub fn wait_until(deadline: Instant) {
    sleep(deadline.saturating_duration_since(Instant::now()));
}

/// An engine that computes nothing and takes its time for it.
///
/// The gradients are those of [`gradient_sums`], the loss of a sample is 1, and every class is as
/// likely as every other. A step's buckets are ready after equal parts of its time.
pub struct SyntheticEngine {
    times: ComputeTimes,
    rank: usize,
    /// Steps begun.
    steps: u64,
    began: Instant,
    takes: Duration,
    samples: Vec<u32>,
    /// A sample's loss in fixed point.
    loss: i32,
}

/// What every maximum of partial gradients is said to be: within every range.
const MAXIMUM: f32 = 1.0;

impl SyntheticEngine {
    /// The engine of one worker.
    pub fn new(times: ComputeTimes, rank: usize) -> SyntheticEngine {
        SyntheticEngine {
            times,
            rank,
            steps: 0,
            began: Instant::now(),
            takes: Duration::ZERO,
            samples: Vec::new(),
            loss: 0,
        }
    }
}

impl GradientEngine for SyntheticEngine {
    fn begin_step(
        &mut self,
        _parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), EngineError> {
        self.began = Instant::now();
        self.takes = self.times.of(self.rank, self.steps, samples.len());
        self.steps += 1;
        self.samples.clear();
        self.samples.extend(samples);
        self.loss = fixed_point.quantize(crate::model::layout::LOSS_SCALE, 1.0);
        Ok(())
    }

    fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) -> Result<(), EngineError> {
        let layout = &BUCKETS[bucket];
        let (sums, maxima) = words.split_at_mut(layout.sum_words());
        let gradients = layout.parameter_range().len();
        gradient_sums(self.samples.iter().copied(), &mut sums[..gradients]);
        if layout.statistics {
            let samples = self.samples.len() as u32;
            let statistics = [(self.loss as u32).wrapping_mul(samples), 0, samples];
            let words: &mut [u32; STATISTIC_WORDS] =
                sums[gradients..].first_chunk_mut().expect("the bucket carries them");
            *words = statistics;
        }
        maxima.fill(if self.samples.is_empty() { 0 } else { MAXIMUM.to_bits() });
        let part = (bucket + 1) as f64 / BUCKETS.len() as f64;
        wait_until(self.began + self.takes.mul_f64(part));
        Ok(())
    }

    fn logits(
        &mut self,
        _parameters: &[f32],
        samples: Range<u32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        logits.extend(std::iter::repeat_n(0.0, samples.len() * CLASSES));
        Ok(())
    }

    fn description(&self) -> EngineDescription {
        EngineDescription {
            adapter: "no adapter".to_owned(),
            backend: "synthetic".to_owned(),
            driver: concat!("annulet ", env!("CARGO_PKG_VERSION")).to_owned(),
            kernels: SYNTHETIC.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sampler::share;
    use crate::model::layout::SCALE_COUNT;
    use crate::protocol::collective::Reduction;

    fn engine(rank: usize) -> SyntheticEngine {
        let compute = SyntheticCompute::Batch(Duration::ZERO);
        SyntheticEngine::new(ComputeTimes::new(&compute, 80, 0).unwrap(), rank)
    }

    #[test]
    fn the_sum_over_workers_does_not_depend_on_how_many_there_are() {
        let batch: Vec<u32> = (0..80).map(|i| i * 977).collect();
        let fixed_point = FixedPoint::for_batch(batch.len(), &[MAXIMUM; SCALE_COUNT]);
        let reduced = |workers: usize| {
            let mut engines: Vec<_> = (0..workers).map(engine).collect();
            for (rank, engine) in engines.iter_mut().enumerate() {
                let mine = share(batch.len(), workers, rank);
                engine.begin_step(&[], &batch[mine], &fixed_point).unwrap();
            }
            BUCKETS.each_ref().map(|layout| {
                let bucket = BUCKETS.iter().position(|other| other == layout).unwrap();
                let reduction = Reduction::new(layout.sum_words(), layout.max_words());
                let mut all = vec![0; layout.words()];
                for engine in &mut engines {
                    let mut words = vec![7; layout.words()];
                    engine.finish_bucket(bucket, &mut words).unwrap();
                    reduction.reduce(&mut all, 0, &words);
                }
                all
            })
        };
        let alone = reduced(1);
        assert!(alone[0].iter().any(|&word| word != 0), "there is something to add up");
        for workers in [2, 3, 5, 7] {
            assert!(reduced(workers) == alone, "{workers} workers");
        }
    }

    #[test]
    fn a_worker_takes_its_share_of_the_time() {
        let compute = SyntheticCompute::Batch(Duration::from_millis(20));
        let times = ComputeTimes::new(&compute, 80, 0).unwrap();
        assert_eq!(times.of(3, 9, 80), Duration::from_millis(20));
        assert_eq!(times.of(0, 0, 20), Duration::from_millis(5));
        assert_eq!(times.batch_mean(80), Duration::from_millis(20));
    }

    #[test]
    fn drawn_times_follow_from_the_seed() {
        let times = |seed| ComputeTimes {
            per_sample: (1..=100).map(Duration::from_micros).collect(),
            seed,
        };
        let drawn = |seed, rank| {
            let times = times(seed);
            (0..50).map(|step| times.of(rank, step, 1)).collect::<Vec<_>>()
        };
        assert_eq!(drawn(1, 0), drawn(1, 0));
        assert_ne!(drawn(1, 0), drawn(1, 1));
        assert_ne!(drawn(1, 0), drawn(2, 0));
        assert_ne!(times(1).digest(), engine(0).times.digest());
    }

    #[test]
    fn what_is_no_run_is_refused_with_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let trace = SyntheticCompute::Trace(folder.path().to_owned());
        let error = ComputeTimes::new(&trace, 1, 0).unwrap_err().to_string();
        assert!(error.contains(&folder.path().display().to_string()), "{error}");
        assert!(error.contains("run.json"), "{error}");
    }
}
