//! How a worker computes: it waits, or it runs real kernels.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Settings;
use crate::bench::BenchError;
use crate::bench::step::images_without_sense;
use crate::config::{Kernels, RunConfig};
use crate::data::sampler::{Sampler, share};
use crate::launch::engines::{EngineRequest, open_engine};
use crate::model::layout::{BUCKETS, SCALE_COUNT};
use crate::numerics::fixed_point::{FixedPoint, INITIAL_MAXIMUM};
use crate::simulate::Scenario;
use crate::train::engine::GradientEngine;
use crate::train::synthetic::{ComputeTimes, gradient_sums, wait_until};

/// One worker's computing.
pub(super) struct Load {
    rank: usize,
    workers: usize,
    batch: usize,
    /// Added to each step.
    delay: Duration,
    kind: Kind,
}

enum Kind {
    Waits(ComputeTimes),
    Kernels { engine: Box<dyn GradientEngine>, sampler: Sampler, words: Vec<Vec<u32>> },
}

impl Load {
    /// That of worker `rank`.
    pub(super) fn new(
        scenario: &Scenario,
        settings: &Settings,
        rank: usize,
    ) -> Result<Load, BenchError> {
        let (workers, batch) = (scenario.workers, settings.batch);
        let kind = match &settings.synthetic {
            Some(compute) => Kind::Waits(ComputeTimes::new(compute, batch, settings.seed)?),
            None => {
                let dataset = Arc::new(images_without_sense());
                let sampler = Sampler::new(settings.seed, dataset.train.labels.len(), batch);
                let request = EngineRequest {
                    model: RunConfig::default().model,
                    kernels: Kernels::Auto,
                    adapter: None,
                    cores: 1,
                    samples_per_step: share(batch, workers, 0).len(),
                };
                let engine = open_engine(&request, &dataset.into(), &mut |_| {})?;
                let words = BUCKETS.iter().map(|bucket| vec![0; bucket.words()]).collect();
                Kind::Kernels { engine, sampler, words }
            }
        };
        let slowdown = scenario.straggler.filter(|straggler| straggler.rank == rank);
        let delay = slowdown.map_or(Duration::ZERO, |straggler| straggler.delay);
        Ok(Load { rank, workers, batch, delay, kind })
    }

    /// Computes the gradient sums of a share of a step; how long that took.
    pub(super) fn compute(
        &mut self,
        step: u64,
        part: usize,
        parameters: &[f32],
        sums: &mut [u32],
    ) -> Result<Duration, BenchError> {
        let began = Instant::now();
        let mine = share(self.batch, self.workers, part);
        match &mut self.kind {
            Kind::Waits(times) => {
                let takes = times.of(self.rank, step, mine.len()) + self.delay;
                let first = step * self.batch as u64;
                gradient_sums(mine.map(|place| (first + place as u64) as u32), sums);
                wait_until(began + takes);
            }
            Kind::Kernels { engine, sampler, words } => {
                std::thread::sleep(self.delay);
                let batch = sampler.batch(step);
                let fixed_point =
                    FixedPoint::for_batch(batch.len(), &[INITIAL_MAXIMUM; SCALE_COUNT]);
                let mine = mine.start.min(batch.len())..mine.end.min(batch.len());
                engine.begin_step(parameters, &batch[mine], &fixed_point)?;
                for (index, (bucket, words)) in BUCKETS.iter().zip(words).enumerate() {
                    engine.finish_bucket(index, words)?;
                    let elements = bucket.parameter_range();
                    let (of_bucket, count) = (&mut sums[elements.clone()], elements.len());
                    of_bucket.copy_from_slice(&words[..count]);
                }
            }
        }
        Ok(began.elapsed())
    }
}
