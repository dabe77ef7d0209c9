//! What computes gradients: the trainer knows engines by this trait alone.

use std::ops::Range;

use crate::gpu::{Engine, GpuError};
use crate::numerics::fixed_point::FixedPoint;
use crate::reference::engine::ReferenceEngine;

/// Computes fixed-point gradient sums over a worker's samples, bucket by bucket.
///
/// A step is one [`begin_step`](GradientEngine::begin_step), then one
/// [`finish_bucket`](GradientEngine::finish_bucket) for each bucket in the order of
/// [`BUCKETS`](crate::model::layout::BUCKETS). The sums are the same bits on the same kind of
/// adapter, however the batch is cut into runs of whole tiles.
pub trait GradientEngine: Send {
    /// Starts forward and backward over the training samples with these indices and returns
    /// without waiting. Each 16 consecutive samples are a tile; the last may be short. Without
    /// samples every bucket's words will be zero.
    fn begin_step(
        &mut self,
        parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), EngineError>;

    /// Waits until the bucket's words are ready and writes them, in the form documented at
    /// [`Bucket`](crate::model::Bucket).
    fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) -> Result<(), EngineError>;

    /// Appends the logits (N, 10) of a run of test samples to `logits`.
    fn logits(
        &mut self,
        parameters: &[f32],
        samples: Range<u32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), EngineError>;

    /// What the engine runs on, for people and for `run.json`.
    fn description(&self) -> EngineDescription;

    /// Takes the device away from under the engine, as a failing driver does; says whether there
    /// was one. For tests.
    fn destroy_device(&mut self) -> bool {
        false
    }
}

/// Opens an engine anew when its device was lost.
pub type Reopen = Box<dyn FnOnce() -> Result<Box<dyn GradientEngine>, Cause> + Send>;

/// Why an engine could not be opened, by whatever opens it.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What an engine runs on.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EngineDescription {
    /// The adapter's name, or `cpu` for the reference.
    pub adapter: String,
    /// `vulkan`, `metal`, `dx12`, `gl`, or `reference`.
    pub backend: String,
    /// Driver and version.
    pub driver: String,
    /// `portable`, `lane` or `reference`.
    pub kernels: String,
}

/// An engine's failure.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("{lost}; and no other device could be opened in its place: {reason}")]
    NotReplaced { lost: Box<EngineError>, reason: Cause },
}

impl EngineError {
    /// Whether the same engine on a new device may well go on.
    pub fn is_device_lost(&self) -> bool {
        use GpuError::{Lost, OutOfMemory, Timeout};
        matches!(self, EngineError::Gpu(Lost { .. } | OutOfMemory { .. } | Timeout { .. }))
    }
}

impl GradientEngine for Engine {
    fn begin_step(
        &mut self,
        parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), EngineError> {
        Ok(self.begin_step(parameters, samples, fixed_point)?)
    }

    fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) -> Result<(), EngineError> {
        Ok(self.finish_bucket(bucket, words)?)
    }

    fn logits(
        &mut self,
        parameters: &[f32],
        samples: Range<u32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        Ok(self.logits(parameters, samples, logits)?)
    }

    fn description(&self) -> EngineDescription {
        let adapter = self.adapter();
        EngineDescription {
            adapter: adapter.name.clone(),
            backend: adapter.backend.clone(),
            driver: adapter.driver.clone(),
            kernels: self.kernels().to_owned(),
        }
    }

    fn destroy_device(&mut self) -> bool {
        Engine::destroy_device(self);
        true
    }
}

/// Cannot fail, and computes the whole step in `begin_step`.
impl GradientEngine for ReferenceEngine {
    fn begin_step(
        &mut self,
        parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), EngineError> {
        self.begin_step(parameters, samples, fixed_point);
        Ok(())
    }

    fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) -> Result<(), EngineError> {
        self.finish_bucket(bucket, words);
        Ok(())
    }

    fn logits(
        &mut self,
        parameters: &[f32],
        samples: Range<u32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        self.logits(parameters, samples, logits);
        Ok(())
    }

    fn description(&self) -> EngineDescription {
        EngineDescription {
            adapter: "cpu".to_owned(),
            backend: "reference".to_owned(),
            driver: concat!("annulet ", env!("CARGO_PKG_VERSION")).to_owned(),
            kernels: "reference".to_owned(),
        }
    }
}
