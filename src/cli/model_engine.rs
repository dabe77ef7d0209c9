//! An engine for commands that only run a trained model forward.

use std::sync::Arc;

use crate::config::Kernels;
use crate::data::Dataset;
use crate::launch::driver_environment::set_driver_environment;
use crate::launch::engines::{EngineRequest, open_engine};
use crate::numerics::fixed_point::TILE_SAMPLES;
use crate::train::checkpoint::TrainedModel;
use crate::train::engine::GradientEngine;

use super::CommandError;

/// Opens an engine for the model over the data set's test images.
///
/// # Safety
/// No other thread may be running: the environment is changed for drivers.
pub unsafe fn forward_engine(
    model: &TrainedModel,
    dataset: Dataset,
    adapter: Option<String>,
    kernels: Kernels,
) -> Result<Box<dyn GradientEngine>, CommandError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: the caller's promise.
    unsafe { set_driver_environment(kernels, cores) };
    let request = EngineRequest {
        model: model.kind,
        kernels,
        adapter,
        cores,
        // No step is made.
        samples_per_step: TILE_SAMPLES,
    };
    // Kernels that are compiled in a second or two need no display of their own.
    Ok(open_engine(&request, &Arc::new(dataset).into(), &mut |_| {})?)
}
