//! The engines of workers: which one is opened, and what is made of it for a demonstration.

use serde::{Deserialize, Serialize};

use crate::config::{Kernels, RunConfig};
use crate::data::DatasetPromise;
use crate::gpu::GpuError;
use crate::gpu::engine::{Engine, EngineSettings, Sums};
use crate::model::ModelKind;
use crate::reference::engine::ReferenceEngine;
use crate::train::device_loss::DeviceLoss;
use crate::train::engine::GradientEngine;
use crate::train::event::{Event, Observer};
use crate::train::straggler::{Slowness, Straggler};
use crate::train::synthetic::{ComputeTimes, SyntheticEngine};

use super::LaunchError;
use super::worker::WorkerPlan;

/// A worker whose computing takes longer in each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StragglerPlan {
    pub rank: usize,
    pub slowness: Slowness,
}

/// A worker whose device is lost in the step that is its so-manieth, counted from 0, as if the driver
/// had failed: to see what then happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLossPlan {
    pub rank: usize,
    pub step: u64,
}

/// What an engine is to compute, and on what.
#[derive(Clone, Debug)]
pub struct EngineRequest {
    pub model: ModelKind,
    pub kernels: Kernels,
    /// What `--adapter` takes; none: the best.
    pub adapter: Option<String>,
    /// Cores that a software adapter may use.
    pub cores: usize,
    /// Training samples of a step on this worker, at most.
    pub samples_per_step: usize,
}

impl WorkerPlan {
    fn engine_request(&self) -> EngineRequest {
        EngineRequest {
            model: self.config.model,
            kernels: self.config.kernels,
            adapter: self.adapter.clone(),
            cores: self.cores,
            // Shares may come to differ: with room for all, no step has to wait for memory.
            samples_per_step: self.config.batch,
        }
    }
}

/// Makes the engine of a worker: slow if it is to be the straggler, and not for long if it is to lose
/// its device.
pub(super) fn open_worker_engine(
    plan: &WorkerPlan,
    rank: Option<usize>,
    dataset: &DatasetPromise,
    observer: &mut dyn Observer,
) -> Result<Box<dyn GradientEngine>, LaunchError> {
    let mut engine = match (&plan.network.synthetic, plan.config.kernels) {
        (Some(compute), Kernels::Synthetic) => {
            let RunConfig { batch, seed, .. } = plan.config;
            // Who comes later draws times that are nobody else's.
            let drawer = rank.unwrap_or(usize::MAX);
            Box::new(SyntheticEngine::new(ComputeTimes::new(compute, batch, seed)?, drawer))
        }
        _ => open_engine(&plan.engine_request(), dataset, observer)?,
    };
    if let Some(loss) = plan.network.device_loss.filter(|loss| Some(loss.rank) == rank) {
        engine = Box::new(DeviceLoss::new(engine, loss.step));
    }
    if let Some(straggler) = plan.network.straggler.filter(|plan| Some(plan.rank) == rank) {
        engine = Box::new(Straggler::new(engine, straggler.slowness));
    }
    Ok(engine)
}

/// Makes the engine that is asked for.
pub fn open_engine(
    request: &EngineRequest,
    dataset: &DatasetPromise,
    observer: &mut dyn Observer,
) -> Result<Box<dyn GradientEngine>, GpuError> {
    if request.kernels == Kernels::Reference {
        let dataset = dataset.wait().ok_or(GpuError::NoData)?;
        return Ok(Box::new(ReferenceEngine::new(request.model, dataset.clone())));
    }
    let settings = EngineSettings {
        adapter: request.adapter.as_deref().map(str::parse).transpose()?.unwrap_or_default(),
        kernels: request.kernels,
        model: request.model,
        dataset: dataset.clone(),
        samples_per_step: request.samples_per_step,
        cores: request.cores,
        sums: Sums::Exact,
    };
    let engine = Engine::open(settings, &mut |done, total| {
        observer.event(Event::Pipelines { done, total });
    })?;
    Ok(Box::new(engine))
}
