//! What a trainer tells while it runs: for displays, and for the pipe to a launcher.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::engine::EngineDescription;
use super::metrics::{EpochReport, RunSummary, StepReport};
use super::progress::Progress;

/// A thing that happened in a run, in the order in which it happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Something the user should read, such as which data set was taken and why.
    Notice { text: String },
    /// Kernels are being compiled.
    Pipelines { done: usize, total: usize },
    /// The engine is ready and the peers are connected.
    Started(Started),
    /// A step is over. Sent at most ten times a second.
    Step(StepReport),
    /// The sums so far, behind each of these steps and each evaluation.
    Progress(Box<Progress>),
    /// An epoch, or the run's last part of one, is over and the test set was evaluated.
    Epoch(EpochReport),
    /// A checkpoint was written.
    Checkpoint { path: PathBuf, step: u64 },
    /// The run is over.
    Finished(Box<RunSummary>),
}

/// What is known before the first step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Started {
    pub engine: EngineDescription,
    pub dataset: String,
    pub train_samples: usize,
    pub test_samples: usize,
    pub workers: usize,
    pub first_step: u64,
    pub total_steps: u64,
    pub steps_per_epoch: u64,
}

/// Receives the events of a run.
pub trait Observer {
    fn event(&mut self, event: Event);
}

impl<F: FnMut(Event)> Observer for F {
    fn event(&mut self, event: Event) {
        self(event)
    }
}

/// For workers that nobody watches.
pub struct Silent;

impl Observer for Silent {
    fn event(&mut self, _event: Event) {}
}
