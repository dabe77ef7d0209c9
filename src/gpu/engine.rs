//! The gradient engine on a GPU: one interface over the kernel sets.

use std::ops::Range;
use std::time::Duration;

use super::GpuError;
use super::adapter::{AdapterChoice, AdapterKind, AdapterReport};
use super::device::Gpu;
use super::lane::{self, LaneSet};
use super::portable::PortableSet;
use super::timing::{self, KernelTimes};
use crate::config::Kernels;
use crate::data::DatasetPromise;
use crate::model::layers::ModelKind;
use crate::model::layout::{BUCKETS, PARAMETERS};
use crate::numerics::fixed_point::FixedPoint;

/// What an [`Engine`] is opened with.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    pub adapter: AdapterChoice,
    pub kernels: Kernels,
    pub model: ModelKind,
    /// May still be being read: kernels are compiled meanwhile.
    pub dataset: DatasetPromise,
    /// Samples of a step that memory is reserved for; a larger step makes the buffers grow.
    pub samples_per_step: usize,
    /// Cores that the lane set computes on: a device for each. Other sets take no notice.
    pub cores: usize,
    pub sums: Sums,
}

/// How partial gradients are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sums {
    /// In fixed point, with exact maxima: the result does not depend on order.
    #[default]
    Exact,
    /// In plain `f32`, whose bits stand in the words in place of the integers; the maxima stay 0.
    /// For the benchmark of what exactness costs.
    Plain,
}

/// One way to compute a step on a GPU. The engine checks arguments and the order of calls.
pub(super) trait KernelSet: Send {
    /// `portable`, ...: the value of `--kernels` that names the set.
    fn name(&self) -> &'static str;

    /// The adapter the set runs on.
    fn report(&self) -> &AdapterReport;

    /// Submits forward and backward over training samples, at least one, and does not wait.
    fn begin_step(
        &mut self,
        parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), GpuError>;

    /// Waits for the words of a bucket and copies them.
    fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) -> Result<(), GpuError>;

    /// Appends the logits (N, 10) of test samples.
    fn logits(
        &mut self,
        parameters: &[f32],
        samples: Range<u32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), GpuError>;

    /// Time spent waiting for devices.
    fn waited(&self) -> Duration;

    /// Times each kernel over the samples of the last step.
    fn time_kernels(&mut self) -> Result<KernelTimes, GpuError>;

    /// Destroys the device, or one of them.
    fn destroy_device(&self);
}

/// Computes gradients on a GPU; see [`GradientEngine`](crate::train::engine::GradientEngine) for
/// the order of calls.
pub struct Engine {
    set: Box<dyn KernelSet>,
    train_samples: usize,
    test_samples: usize,
    step: Step,
}

/// Where the engine stands between the calls of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// No step begun yet.
    None,
    /// Begun without samples: its words are zero.
    Empty,
    /// Submitted to the GPU.
    Submitted,
}

impl Engine {
    /// Opens the adapter, puts the data set on it and makes all pipelines; `progress` is told
    /// (pipelines ready, pipelines in all).
    ///
    /// # Errors
    /// No fitting adapter, no data set or one beyond the adapter's limits, or a failing driver.
    pub fn open(
        settings: EngineSettings,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Engine, GpuError> {
        if settings.kernels == Kernels::Reference {
            return Err(GpuError::NotAGpuKernelSet { kernels: "reference" });
        }
        if settings.kernels == Kernels::Synthetic {
            return Err(GpuError::NotAGpuKernelSet { kernels: "synthetic" });
        }
        let gpu = Gpu::open(&settings.adapter, lane::FEATURES | timing::FEATURES)?;
        let lanes = match settings.kernels {
            Kernels::Auto => gpu.report().kind == AdapterKind::Software,
            kernels => kernels == Kernels::Lane,
        };
        let set: Box<dyn KernelSet> = if lanes {
            Box::new(LaneSet::open(gpu, &settings, progress)?)
        } else {
            Box::new(PortableSet::open(gpu, &settings, progress)?)
        };
        let dataset = settings.dataset.wait().ok_or(GpuError::NoData)?;
        let train_samples = dataset.train.labels.len();
        let test_samples = dataset.test.labels.len();
        Ok(Engine { set, train_samples, test_samples, step: Step::None })
    }

    /// Starts a step and returns without waiting.
    ///
    /// # Panics
    /// If the parameters' length or a sample's index is wrong: both are the caller's own.
    pub fn begin_step(
        &mut self,
        parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), GpuError> {
        assert_eq!(parameters.len(), PARAMETERS);
        assert!(samples.iter().all(|&s| (s as usize) < self.train_samples), "a training sample");
        if samples.is_empty() {
            self.step = Step::Empty;
            return Ok(());
        }
        self.set.begin_step(parameters, samples, fixed_point)?;
        self.step = Step::Submitted;
        Ok(())
    }

    /// Waits until a bucket's words are ready and writes them.
    ///
    /// # Panics
    /// If no step was begun, or `words` does not have the bucket's length.
    pub fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) -> Result<(), GpuError> {
        assert_eq!(words.len(), BUCKETS[bucket].words());
        match self.step {
            Step::None => panic!("finish_bucket follows begin_step"),
            Step::Empty => {
                words.fill(0);
                Ok(())
            }
            Step::Submitted => self.set.finish_bucket(bucket, words),
        }
    }

    /// Appends the logits (N, 10) of a run of test samples.
    ///
    /// # Panics
    /// If the parameters' length or the run of samples is wrong.
    pub fn logits(
        &mut self,
        parameters: &[f32],
        samples: Range<u32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), GpuError> {
        assert_eq!(parameters.len(), PARAMETERS);
        assert!(samples.end as usize <= self.test_samples, "test samples");
        if samples.is_empty() {
            return Ok(());
        }
        self.set.logits(parameters, samples, logits)
    }

    /// Time spent waiting for devices since the engine was opened: what calls take beyond that is
    /// the host's own.
    pub fn waited(&self) -> Duration {
        self.set.waited()
    }

    /// Times each kernel over the samples of the last step, whose words are lost.
    ///
    /// # Panics
    /// If no step was made.
    pub fn time_kernels(&mut self) -> Result<KernelTimes, GpuError> {
        assert!(self.step == Step::Submitted, "a step comes first");
        self.set.time_kernels()
    }

    /// Destroys a device: whatever follows fails as with one that the driver has lost. For tests.
    pub fn destroy_device(&self) {
        self.set.destroy_device();
    }

    /// The adapter that computes.
    pub fn adapter(&self) -> &AdapterReport {
        self.set.report()
    }

    /// The kernel set that computes, by its name on the command line.
    pub fn kernels(&self) -> &'static str {
        self.set.name()
    }
}
