//! How a step turns a batch into new parameters: the trainer knows topologies by this trait alone.

use std::time::Duration;

use crate::net::SelectionReport;

use super::collective::{CollectiveError, Traffic};
use super::engine::{EngineDescription, EngineError};
use super::evaluate::Evaluation;
use super::metrics::{PlanReport, ServedStep, ServerReport};
use super::trainer::{TrainError, TrainingState};
use super::views::{Regrouped, Standing};

/// Makes steps, and does among the workers whatever else a run needs of them.
///
/// Every worker of a group calls the same methods in the same order.
pub trait Update: Send {
    /// Completes step `state.step`: the state is that after it, its step being one more. A failure
    /// leaves the state that of the last completed step, unless the loss diverged.
    fn step(&mut self, state: &mut TrainingState) -> Result<StepOutcome, TrainError>;

    /// Makes the state whole where others hold parts of it; called before it is looked at.
    fn complete(&mut self, _state: &mut TrainingState) -> Result<(), TrainError> {
        Ok(())
    }

    /// Accuracy and loss of the state's parameters over the whole test set.
    fn evaluate(&mut self, state: &TrainingState) -> Result<Evaluation, TrainError>;

    /// Fails if any worker holds another state.
    fn check_replicas(&mut self, state: &TrainingState) -> Result<(), TrainError>;

    /// Goes on after a failure, with the workers that are left: the state is then that with which
    /// their view begins.
    ///
    /// # Errors
    /// The failure itself, where nothing can be done about it.
    fn regroup(
        &mut self,
        _state: &mut TrainingState,
        _standing: Standing,
        error: CollectiveError,
    ) -> Result<Regrouped, TrainError> {
        Err(error.into())
    }

    /// Tries once to compute on a new device in the place of one that was lost; returns that after
    /// which to [`regroup`](Update::regroup), where the others have gone on meanwhile.
    ///
    /// # Errors
    /// The loss itself, where nothing can be done about it.
    fn replace_engine(&mut self, lost: EngineError) -> Result<Option<CollectiveError>, TrainError> {
        Err(lost.into())
    }

    /// Workers that take part.
    fn workers(&self) -> usize;

    /// What gradients are computed on.
    fn engine(&self) -> EngineDescription;

    /// How the workers worked together so far.
    fn report(&self) -> UpdateReport;

    /// Parts in peace, once everything handed over has reached the others.
    fn close(self: Box<Self>) -> Result<(), TrainError>;

    /// Parts at once and tells the others why: their run ends with this reason.
    fn abort(self: Box<Self>, reason: String);
}

/// What became of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepOutcome {
    /// Cross-entropy summed over the step's samples.
    pub loss_sum: f64,
    /// Samples of the step, over all workers.
    pub samples: u32,
    pub lr: f32,
    /// How often the step was redone.
    pub redone: u32,
    /// A worker wants the run to end here.
    pub stop: bool,
    /// From the next step on the workers have other shares.
    pub rebalanced: bool,
    /// Until the last bucket was read back, over all attempts.
    pub compute: Duration,
    /// What was waited for the others after that.
    pub comm: Duration,
    /// The time during which something was on its way to or from the others.
    pub comm_busy: Duration,
    /// What a parameter server has to say of the step.
    pub server: Option<ServedStep>,
}

/// How workers worked together, for `run.json`.
#[derive(Clone, Debug)]
pub struct UpdateReport {
    /// `solo`, `ring` or `parameter-server`.
    pub topology: &'static str,
    /// The algorithm's name, or `auto` where it depends on the vector.
    pub algorithm: &'static str,
    /// For each size of vector so far, which algorithm it was and how long it took.
    pub selections: Vec<SelectionReport>,
    /// Bytes to and from this node: the busiest, if there are others.
    pub traffic: Traffic,
    /// For how long each worker has waited for each other one: `[who][for whom]`.
    pub waited_ms: Vec<Vec<f64>>,
    /// What each worker computes, where the workers decide that themselves.
    pub plan: Option<PlanReport>,
    /// Where there are parameter servers.
    pub server: Option<ServerReport>,
}
