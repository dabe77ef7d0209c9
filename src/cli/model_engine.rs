//! An engine for commands that only run a trained model forward.

use std::path::Path;
use std::sync::Arc;

use crate::config::{Kernels, RunConfig};
use crate::data::Dataset;
use crate::launch::driver_environment::set_driver_environment;
use crate::launch::worker::{DataPlan, WorkerPlan, open_engine};
use crate::train::checkpoint::{TrainedModel, read_model};
use crate::train::engine::GradientEngine;

use super::CommandError;

/// Reads a model and says in the error which file it was.
pub fn model(path: &Path) -> Result<TrainedModel, CommandError> {
    Ok(read_model(path)?)
}

/// Opens an engine for the model over the data set's test images.
pub fn forward_engine(
    model: &TrainedModel,
    dataset: Dataset,
    adapter: Option<String>,
    kernels: Kernels,
) -> Result<Box<dyn GradientEngine>, CommandError> {
    let plan = WorkerPlan {
        config: RunConfig { model: model.kind, kernels, ..RunConfig::default() },
        data: DataPlan::default(),
        adapter,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        resume: None,
        folder: None,
    };
    // SAFETY: these commands start no thread of their own.
    unsafe { set_driver_environment(kernels, plan.cores) };
    // Kernels that are compiled in a second or two need no display of their own.
    Ok(open_engine(&plan, 1, &Arc::new(dataset), &mut |_| {})?)
}
