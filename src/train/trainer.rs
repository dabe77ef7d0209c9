//! A worker's trainer: what it works with, what a step changes, why a run ends early.

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use sha2::{Digest, Sha256};

use crate::config::RunConfig;
use crate::data::{DataPlan, Dataset};
use crate::model::initial::initial_parameters;
use crate::model::layout::SCALE_COUNT;
use crate::numerics::fixed_point::{INITIAL_MAXIMUM, Maxima};
use crate::numerics::optimizer::{Optimizer, StateError};
use crate::protocol::membership::Ending;

use super::checkpoint::CheckpointError;
use super::collective::CollectiveError;
use super::engine::EngineError;
use super::event::{Event, Observer};
use super::metrics::RunSummary;
use super::run::Run;
use super::run_folder::{RunFolder, RunFolderError};
use super::update::Update;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error("the loss diverged at step {step}; lower --lr (it was {lr})")]
    Diverged { step: u64, lr: f32 },
    #[error(
        "the replicas differ after step {step}: a worker computed other parameters than its peers \
         from the same sums. This is a defect of the machine or of annulet; please report it with \
         run.json"
    )]
    ReplicasDiffer { step: u64 },
    #[error(
        "step {step} exceeded its fixed-point range again after it was redone; the adapter does \
         not compute the same values twice"
    )]
    NotReproducible { step: u64 },
    #[error(
        "the workers' shares do not make up the batch of step {step}: start all of them with the \
         same --rebalance"
    )]
    SharesDiffer { step: u64 },
    #[error("{0}")]
    Parted(Box<Ending>),
    #[error("the state that was handed over does not fit: {0}")]
    State(#[from] StateError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    RunFolder(#[from] RunFolderError),
}

/// Everything a step changes: what a checkpoint holds.
#[derive(Clone, Debug)]
pub struct TrainingState {
    /// Steps completed.
    pub step: u64,
    pub parameters: Vec<f32>,
    pub optimizer: Optimizer,
    /// Of the last completed step; the next step's exponents follow from them.
    pub maxima: Maxima,
}

impl TrainingState {
    /// Before the first step of a run with this configuration.
    pub fn initial(config: &RunConfig) -> TrainingState {
        TrainingState {
            step: 0,
            parameters: initial_parameters(config.seed),
            optimizer: Optimizer::new(&config.optimizer),
            maxima: [INITIAL_MAXIMUM; SCALE_COUNT],
        }
    }

    /// SHA-256 over everything that the next step depends on.
    pub(super) fn sha256(&self) -> [u8; 32] {
        let optimizer = self.optimizer.state();
        let mut hasher = Sha256::new();
        hasher.update(self.step.to_le_bytes());
        hasher.update(parameters_sha256(&self.parameters));
        hasher.update(parameters_sha256(&self.maxima));
        hasher.update(optimizer.steps.to_le_bytes());
        for (_, vector) in &optimizer.vectors {
            hasher.update(parameters_sha256(vector));
        }
        hasher.finalize().into()
    }
}

/// SHA-256 over a vector, such as the flat parameters, as little-endian bytes.
pub fn parameters_sha256(parameters: &[f32]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for value in parameters {
        hasher.update(value.to_le_bytes());
    }
    hasher.finalize().into()
}

/// Where a worker writes that did not write at first.
#[derive(Clone, Debug)]
pub struct Heir {
    pub path: PathBuf,
    /// What `config.toml` holds.
    pub config_toml: String,
    /// Whether it is this worker's own: then it leaves its last state there when it loses the others.
    pub is_own: bool,
}

/// What a trainer works with and what it leaves behind. The result is decided by the
/// configuration, the data and the state alone.
pub struct Trainer {
    pub config: RunConfig,
    pub dataset: Arc<Dataset>,
    /// Loads the same data set again.
    pub data: DataPlan,
    /// Makes the steps.
    pub update: Box<dyn Update>,
    pub state: TrainingState,
    /// Where metrics, checkpoints and the summary go; one worker of a run has one.
    pub folder: Option<RunFolder>,
    /// Steps between checkpoints; the last state is always written.
    pub checkpoint_every: Option<u64>,
    /// So many of the newest checkpoints are kept; none: all.
    pub checkpoints_kept: Option<NonZero<usize>>,
    /// Start of the process, for `first_step_ms` and `wall_s`.
    pub started_at: Instant,
    /// Names of the view's members, by rank, for `run.json`.
    pub members: Vec<String>,
    /// For a worker that may come to write for all: whenever it becomes rank 0.
    pub heir: Option<Heir>,
    /// Comes into a run under way: the state is replaced by the others'.
    pub joins: bool,
}

impl Trainer {
    /// Trains to the end, or until a worker wants the run to end.
    ///
    /// Every worker of the group must call this with the same configuration, data and state.
    pub fn run(self, observer: &mut dyn Observer) -> Result<RunSummary, TrainError> {
        let mut run = Run::new(self);
        let result = run.run(observer);
        let quorum_is_lost =
            |ending: &Ending| matches!(ending, Ending::NoQuorum { .. } | Ending::NoSuccessor(_));
        if match &result {
            Err(TrainError::Collective(_)) => true,
            Err(TrainError::Parted(ending)) => quorum_is_lost(ending),
            _ => false,
        } {
            // The state is that of the last completed step: what the others did since is not lost.
            // Where it cannot be made whole any more, the last checkpoint stands.
            match run.trainer.update.complete(&mut run.trainer.state) {
                Ok(()) => {
                    run.open_own_folder()?;
                    run.write_checkpoint(observer)?;
                }
                Err(error) => tracing::warn!("the last checkpoint stands: {error}"),
            }
        }
        let update = run.trainer.update;
        match result {
            Ok(summary) => {
                update.close()?;
                observer.event(Event::Finished(Box::new(summary.clone())));
                Ok(summary)
            }
            Err(error) => {
                update.abort(error.to_string());
                Err(error)
            }
        }
    }
}
