//! How any worker starts: data are read and the others are joined while kernels are compiled.

use std::sync::Arc;

use crate::data::{Dataset, DatasetChoice, DatasetPromise, LoadedDataset};
use crate::train::engine::GradientEngine;
use crate::train::event::{Event, Observer};

use super::LaunchError;
use super::engines::open_worker_engine;
use super::worker::WorkerPlan;

/// What a worker has when it has started.
pub(super) struct Start<T> {
    pub(super) engine: Box<dyn GradientEngine>,
    pub(super) dataset: Arc<Dataset>,
    pub(super) origin: DatasetChoice,
    /// The same data set, for engines that are opened later.
    pub(super) promise: DatasetPromise,
    /// What became of the data set.
    pub(super) begun: T,
}

/// Starts a worker. `begin` is given the data set as soon as it is read, before the kernels are
/// there, and begins whatever else needs it: the others are joined by a thread of its own that it
/// leaves behind. If the start fails, so does that thread's work: whoever it reaches then hears that
/// this worker has left.
pub(super) fn start<T: Send>(
    plan: &WorkerPlan,
    rank: Option<usize>,
    observer: &mut dyn Observer,
    begin: impl FnOnce(&Arc<Dataset>) -> Result<T, LaunchError> + Send,
) -> Result<Start<T>, LaunchError> {
    let (promise, keeper) = DatasetPromise::pending();
    let (engine, loaded) = std::thread::scope(|scope| {
        let loader = scope.spawn(|| {
            let LoadedDataset { dataset, origin, notices } = plan.data.load(plan.config.seed)?;
            let dataset = Arc::new(dataset);
            let begun = begin(&dataset)?;
            keeper.keep(dataset.clone());
            Ok::<_, LaunchError>((dataset, origin, notices, begun))
        });
        let engine = open_worker_engine(plan, rank, &promise, observer);
        (engine, loader.join())
    });
    let loaded = loaded.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (dataset, origin, notices, begun) = loaded?;
    for text in notices {
        observer.event(Event::Notice { text });
    }
    Ok(Start { engine: engine?, dataset, origin, promise, begun })
}
