//! The training step of one worker, taken apart: what the host does, what the kernels take, and
//! how far it all is from what the processor could do.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::BenchError;
use super::peak::multiply_adds_per_s;
use super::statistics::Summary;
use crate::config::{Kernels, RunConfig};
use crate::data::dataset::{Dataset, ImageSet, Normalization};
use crate::data::sampler::Sampler;
use crate::gpu::timing::KernelTimes;
use crate::gpu::{AdapterChoice, AdapterKind, AdapterReport, Engine, EngineSettings, Sums};
use crate::model::initial::initial_parameters;
use crate::model::layers::{CLASSES, CONV1, CONV2, CONVOLUTIONS, DENSE, IMAGE_PIXELS, ModelKind};
use crate::model::layout::{BUCKETS, LOSS_SCALE, PARAMETERS, SCALE_COUNT};
use crate::numerics::fixed_point::{FixedPoint, INITIAL_MAXIMUM, Maxima};
use crate::numerics::optimizer::Optimizer;

/// As many images as the usual data sets have, so that they do not fit a cache either.
const TRAIN_SAMPLES: usize = 60_000;
/// Steps before those that count.
const WARMUP_STEPS: usize = 5;
/// So small that the parameters stay what they are on images without sense.
const LEARNING_RATE: f32 = 1e-4;

/// What is measured.
#[derive(Clone, Debug)]
pub struct StepPlan {
    pub adapter: AdapterChoice,
    pub kernels: Kernels,
    pub model: ModelKind,
    /// Samples of a step.
    pub batches: Vec<usize>,
    /// Devices that the lane set computes on, in one thread each.
    pub instances: Vec<usize>,
    /// Steps of each measurement.
    pub steps: usize,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    pub version: &'static str,
    pub adapter: AdapterReport,
    pub kernels: &'static str,
    pub model: ModelKind,
    /// Multiply-adds that a training step needs for each image.
    pub multiply_adds_per_image: u64,
    pub rows: Vec<StepRow>,
}

/// One batch size on one number of devices.
#[derive(Clone, Debug, Serialize)]
pub struct StepRow {
    pub batch: usize,
    pub instances: usize,
    pub images_per_s: f64,
    /// Of whole steps.
    pub step_ms: Summary,
    /// Share of a step that is the host's own work.
    pub host_share: f64,
    /// Share of the multiply-adds that as many threads could do; none for a real GPU.
    pub peak_share: Option<f64>,
    /// Mean milliseconds of a step.
    pub phases_ms: Phases,
    pub kernels: KernelTimes,
    /// Every step's milliseconds.
    pub steps_ms: Vec<f64>,
}

/// Milliseconds of a step's phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Phases {
    /// Which samples, and the scales of their sums.
    pub indices: f64,
    /// Parameters and samples laid out and handed over, commands recorded.
    pub upload: f64,
    /// The devices compute; the host does nothing.
    pub wait: f64,
    /// Sums of the devices added up and put in order.
    pub readback: f64,
    /// Sums turned into mean gradients.
    pub dequantise: f64,
    pub optimizer: f64,
}

impl Phases {
    fn total(&self) -> f64 {
        self.host() + self.wait
    }

    fn host(&self) -> f64 {
        self.indices + self.upload + self.readback + self.dequantise + self.optimizer
    }
}

/// Measures every batch size on every number of devices. `progress` is told of each measurement
/// before it begins.
///
/// # Errors
/// No fitting adapter, or a failing driver.
pub fn measure_steps(
    plan: &StepPlan,
    progress: &mut dyn FnMut(&str),
) -> Result<StepReport, BenchError> {
    let dataset = Arc::new(images_without_sense());
    let largest = plan.batches.iter().copied().max().unwrap_or(1);
    let mut found = None;
    let mut rows = Vec::new();
    for &instances in &plan.instances {
        progress(&format!("opening {instances} device(s)"));
        let settings = EngineSettings {
            adapter: plan.adapter.clone(),
            kernels: plan.kernels,
            model: plan.model,
            dataset: dataset.clone().into(),
            samples_per_step: largest,
            cores: instances,
            sums: Sums::Exact,
        };
        let mut worker = Worker::new(Engine::open(settings, &mut |_, _| ())?);
        let adapter = worker.engine.adapter().clone();
        let is_software = adapter.kind == AdapterKind::Software;
        let peak = is_software.then(|| multiply_adds_per_s(instances));
        for &batch in &plan.batches {
            progress(&format!("batch {batch} on {instances} device(s)"));
            rows.push(worker.measure(batch, instances, plan.steps, peak)?);
        }
        found = Some((adapter, worker.engine.kernels()));
    }
    let (adapter, kernels) = found.ok_or(BenchError::NothingToMeasure)?;
    Ok(StepReport {
        version: env!("CARGO_PKG_VERSION"),
        adapter,
        kernels,
        model: plan.model,
        multiply_adds_per_image: multiply_adds_per_image(),
        rows,
    })
}

/// Forward, gradient of the weights, and gradient of the input but for the first layer's.
fn multiply_adds_per_image() -> u64 {
    let convolution = |c: &crate::model::layers::Convolution| {
        c.out_side() * c.out_side() * c.out_channels * c.fan_in()
    };
    let forward: usize = CONVOLUTIONS.iter().map(convolution).sum::<usize>()
        + DENSE.iter().map(|layer| layer.inputs * layer.outputs).sum::<usize>();
    debug_assert_eq!(CONVOLUTIONS, [CONV1, CONV2]);
    (3 * forward - convolution(&CONV1)) as u64
}

/// Images without sense; what they are does not change the time.
pub(super) fn images_without_sense() -> Dataset {
    let set = |samples: usize| ImageSet {
        pixels: (0..samples * IMAGE_PIXELS).map(|i| ((i * 2_654_435_761) >> 9) as u8).collect(),
        labels: (0..samples).map(|i| (i % CLASSES) as u8).collect(),
    };
    Dataset {
        name: "bench".to_owned(),
        train: set(TRAIN_SAMPLES),
        test: set(1),
        normalization: Normalization { scale: 0.011, offset: -0.8 },
        sha256: [0; 32],
    }
}

/// What a trainer does in a step, without peers.
struct Worker {
    engine: Engine,
    parameters: Vec<f32>,
    gradients: Vec<f32>,
    optimizer: Optimizer,
    maxima: Maxima,
    words: Vec<Vec<u32>>,
}

impl Worker {
    fn new(engine: Engine) -> Worker {
        Worker {
            engine,
            parameters: initial_parameters(1),
            gradients: vec![0.0; PARAMETERS],
            optimizer: Optimizer::new(&RunConfig::default().optimizer),
            maxima: [INITIAL_MAXIMUM; SCALE_COUNT],
            words: BUCKETS.iter().map(|bucket| vec![0; bucket.words()]).collect(),
        }
    }

    fn measure(
        &mut self,
        batch: usize,
        instances: usize,
        steps: usize,
        peak: Option<f64>,
    ) -> Result<StepRow, BenchError> {
        let mut sampler = Sampler::new(1, TRAIN_SAMPLES, batch);
        // Short batches at the end of an epoch are left out.
        let full_steps = (TRAIN_SAMPLES / batch).max(1);
        let mut total = Phases::default();
        let mut steps_ms = Vec::with_capacity(steps);
        for step in 0..WARMUP_STEPS + steps {
            let phases = self.step(&mut sampler, (step % full_steps) as u64)?;
            if step >= WARMUP_STEPS {
                steps_ms.push(phases.total());
                total = total.plus(&phases);
            }
        }
        let images_per_s = (steps * batch) as f64 / total.total() * 1e3;
        Ok(StepRow {
            batch,
            instances,
            images_per_s,
            step_ms: Summary::of(&steps_ms),
            host_share: total.host() / total.total(),
            peak_share: peak.map(|peak| images_per_s * multiply_adds_per_image() as f64 / peak),
            phases_ms: total.divided(steps as f64),
            kernels: self.engine.time_kernels()?,
            steps_ms,
        })
    }

    fn step(&mut self, sampler: &mut Sampler, step: u64) -> Result<Phases, BenchError> {
        let mut clock = PhaseClock::start();
        let batch = sampler.batch(step);
        let fixed_point = FixedPoint::for_batch(batch.len(), &self.maxima);
        let indices = clock.lap();

        let waited = self.engine.waited();
        self.engine.begin_step(&self.parameters, batch, &fixed_point)?;
        let waited_in_upload = self.engine.waited() - waited;
        let upload = clock.lap() - milliseconds(waited_in_upload);

        let waited = self.engine.waited();
        for (bucket, words) in self.words.iter_mut().enumerate() {
            self.engine.finish_bucket(bucket, words)?;
        }
        let waited = self.engine.waited() - waited;
        let readback = clock.lap() - milliseconds(waited);

        for (bucket, words) in BUCKETS.iter().zip(&self.words) {
            let first = bucket.parameter_range().start;
            let maxima = &words[bucket.sum_words()..];
            for (k, tensor) in bucket.tensor_specs().iter().enumerate() {
                let sums = &words[tensor.offset - first..][..tensor.count];
                let (k, gradients) = (bucket.first_tensor + k, &mut self.gradients[tensor.range()]);
                fixed_point.mean(k, sums, batch.len() as u32, gradients);
                self.maxima[k] = f32::from_bits(maxima[k - bucket.first_tensor]);
            }
            if bucket.statistics {
                self.maxima[LOSS_SCALE] = f32::from_bits(maxima[bucket.tensors]);
            }
        }
        let dequantise = clock.lap();

        self.optimizer
            .step(&mut self.parameters, &self.gradients, LEARNING_RATE)
            .map_err(|_| BenchError::Diverged)?;
        let optimizer = clock.lap();
        let wait = milliseconds(waited_in_upload + waited);
        Ok(Phases { indices, upload, wait, readback, dequantise, optimizer })
    }
}

impl Phases {
    fn plus(&self, other: &Phases) -> Phases {
        Phases {
            indices: self.indices + other.indices,
            upload: self.upload + other.upload,
            wait: self.wait + other.wait,
            readback: self.readback + other.readback,
            dequantise: self.dequantise + other.dequantise,
            optimizer: self.optimizer + other.optimizer,
        }
    }

    fn divided(&self, by: f64) -> Phases {
        Phases {
            indices: self.indices / by,
            upload: self.upload / by,
            wait: self.wait / by,
            readback: self.readback / by,
            dequantise: self.dequantise / by,
            optimizer: self.optimizer / by,
        }
    }
}

/// Milliseconds between one lap and the next.
struct PhaseClock(Instant);

impl PhaseClock {
    fn start() -> PhaseClock {
        PhaseClock(Instant::now())
    }

    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        milliseconds(now - std::mem::replace(&mut self.0, now))
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Two tables: a line a measurement, and a line a kernel with a column for each batch size on the
/// last number of devices.
impl fmt::Display for StepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# {}, {} kernels, {}: {:.2} M multiply-adds an image\n\
             # peak: share of the multiply-adds that as many cores could do; host: share of a step \
             that the host works\n\
             #{:>6} {:>9} {:>9} {:>8} {:>8} {:>6} {:>6} | {:>7} {:>7} {:>8} {:>8} {:>10} {:>9} ms",
            self.adapter.label(),
            self.kernels,
            self.model.name(),
            self.multiply_adds_per_image as f64 / 1e6,
            "batch",
            "instances",
            "images/s",
            "p50 ms",
            "p99 ms",
            "peak",
            "host",
            "indices",
            "upload",
            "wait",
            "readback",
            "dequantise",
            "optimizer",
        )?;
        for row in &self.rows {
            let Phases { indices, upload, wait, readback, dequantise, optimizer } = row.phases_ms;
            let peak = row.peak_share.map_or("-".to_owned(), percent);
            writeln!(
                f,
                "{:>7} {:>9} {:>9.0} {:>8.2} {:>8.2} {peak:>6} {:>6} | {indices:>7.3} \
                 {upload:>7.3} {wait:>8.3} {readback:>8.3} {dequantise:>10.3} {optimizer:>9.3}",
                row.batch,
                row.instances,
                row.images_per_s,
                row.step_ms.p50,
                row.step_ms.p99,
                percent(row.host_share),
            )?;
        }
        let Some(last) = self.rows.last() else { return Ok(()) };
        let columns: Vec<&StepRow> =
            self.rows.iter().filter(|row| row.instances == last.instances).collect();
        writeln!(
            f,
            "# milliseconds of each kernel alone on one device, over its share of the batch, by {}",
            match last.kernels.clock {
                crate::gpu::timing::Clock::Timestamps => "timestamps",
                crate::gpu::timing::Clock::Submissions => "the host's clock",
            }
        )?;
        let line = |f: &mut fmt::Formatter<'_>, name: &str, cell: &dyn Fn(&StepRow) -> String| {
            let cells: String = columns.iter().map(|row| format!(" {:>9}", cell(row))).collect();
            writeln!(f, "{name:<28}{cells}")
        };
        line(f, "# batch", &|row| row.batch.to_string())?;
        for (k, kernel) in last.kernels.kernels.iter().enumerate() {
            line(f, &kernel.name, &|row| format!("{:.3}", row.kernels.kernels[k].ms))?;
        }
        line(f, "all", &|row| {
            format!("{:.3}", row.kernels.kernels.iter().map(|kernel| kernel.ms).sum::<f64>())
        })
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_s_multiply_adds_are_counted() {
        // conv1 117,600 twice, conv2 240,000 and the dense layers 58,920 three times each.
        assert_eq!(multiply_adds_per_image(), 1_131_960);
    }
}
