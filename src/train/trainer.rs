//! The run of one worker: epochs, evaluation, checkpoints, metrics. How a step is made is the
//! matter of an [`Update`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::config::RunConfig;
use crate::data::{DataPlan, Dataset};
use crate::model::initial::initial_parameters;
use crate::model::layout::SCALE_COUNT;
use crate::numerics::fixed_point::{INITIAL_MAXIMUM, Maxima};
use crate::numerics::optimizer::Optimizer;

use super::checkpoint::{CheckpointError, Provenance};
use super::collective::CollectiveError;
use super::engine::EngineError;
use super::event::{Event, Observer, Started};
use super::metrics::{
    EpochReport, MetricsLine, Percentiles, RunSummary, StepReport, StepTotals, ViewReport, hex,
    milliseconds,
};
use super::run_folder::{RunFolder, RunFolderError};
use super::update::Update;

/// The only view of a group whose members do not change.
pub(super) const GENERATION: u32 = 0;

/// Between two step events to the observer: a display needs no more.
const STEP_EVENT_INTERVAL: Duration = Duration::from_millis(100);

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
    /// Start of the process, for `first_step_ms` and `wall_s`.
    pub started_at: Instant,
    /// Names of the view's members, by rank, for `run.json`.
    pub members: Vec<String>,
}

impl Trainer {
    /// Trains to the end, or until a worker wants the run to end.
    ///
    /// Every worker of the group must call this with the same configuration, data and state.
    pub fn run(self, observer: &mut dyn Observer) -> Result<RunSummary, TrainError> {
        let mut run = Run::new(self);
        let result = run.run(observer);
        if matches!(result, Err(TrainError::Collective(_))) {
            // The state is that of the last completed step: what the others did since is not lost.
            run.write_checkpoint(observer)?;
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

/// A trainer under way.
struct Run {
    trainer: Trainer,
    /// Durations of all steps, milliseconds.
    step_ms: Vec<f32>,
    totals: StepTotals,
    redone_steps: u64,
    first_step_ms: Option<f64>,
    /// Where the run began.
    first_step: u64,
    /// What the collective was busy with in steps: not with digests and evaluations.
    comm_busy: Duration,
    last_step_event: Option<Instant>,
    stopped: bool,
}

impl Run {
    fn new(trainer: Trainer) -> Run {
        Run {
            step_ms: Vec::new(),
            totals: StepTotals::default(),
            redone_steps: 0,
            first_step_ms: None,
            first_step: trainer.state.step,
            comm_busy: Duration::ZERO,
            last_step_event: None,
            stopped: false,
            trainer,
        }
    }

    fn run(&mut self, observer: &mut dyn Observer) -> Result<RunSummary, TrainError> {
        let samples = self.trainer.dataset.train.labels.len();
        let steps_per_epoch = self.trainer.config.steps_per_epoch(samples);
        let total_steps = self.trainer.config.total_steps(samples);
        observer.event(Event::Started(Started {
            engine: self.trainer.update.engine(),
            dataset: self.trainer.dataset.name.clone(),
            train_samples: samples,
            test_samples: self.trainer.dataset.test.labels.len(),
            workers: self.trainer.update.workers(),
            first_step: self.trainer.state.step,
            total_steps,
            steps_per_epoch,
        }));
        self.trainer.update.check_replicas(&self.trainer.state)?;

        let mut last = None;
        while self.trainer.state.step < total_steps && !self.stopped {
            let epoch = self.trainer.state.step / steps_per_epoch;
            let end = total_steps.min((epoch + 1) * steps_per_epoch);
            last = Some(self.run_epoch(epoch, end, total_steps, observer)?);
        }
        let last = match last {
            Some(report) => report,
            // A finished run was resumed: there is nothing to train, but there is a result.
            None => {
                observer.event(Event::Notice { text: "the run is over: nothing to train".into() });
                // What the run has left must not be replaced by the figures of no step at all.
                self.trainer.folder = None;
                let epoch = self.trainer.state.step.div_ceil(steps_per_epoch);
                self.report_epoch(epoch, &StepTotals::default(), observer)?
            }
        };
        self.write_checkpoint(observer)?;
        let summary = self.summary(&last);
        if let Some(folder) = &self.trainer.folder {
            folder.write_summary(&summary)?;
        }
        Ok(summary)
    }

    /// Trains until `end` steps are completed, which lies within this epoch, then evaluates.
    fn run_epoch(
        &mut self,
        epoch: u64,
        end: u64,
        total_steps: u64,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, TrainError> {
        let mut totals = StepTotals::default();
        while self.trainer.state.step < end && !self.stopped {
            let report = self.run_step(epoch, &mut totals)?;
            if let Some(folder) = &mut self.trainer.folder {
                folder.sample_step(&report)?;
            }
            let every = self.trainer.checkpoint_every;
            if every.is_some_and(|every| report.step % every == 0 && report.step < total_steps) {
                self.write_checkpoint(observer)?;
            }
            if self.totals.steps + totals.steps == 1 {
                self.tell_selections(observer);
            }
            if self.last_step_event.is_none_or(|at| at.elapsed() >= STEP_EVENT_INTERVAL) {
                self.last_step_event = Some(Instant::now());
                observer.event(Event::Step(report));
            }
        }
        self.totals.add(&totals);
        self.trainer.update.check_replicas(&self.trainer.state)?;
        self.report_epoch(epoch + 1, &totals, observer)
    }

    fn report_epoch(
        &mut self,
        epoch: u64,
        totals: &StepTotals,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, TrainError> {
        let evaluation = self.trainer.update.evaluate(&self.trainer.state)?;
        let report = EpochReport {
            epoch,
            step: self.trainer.state.step,
            train_loss: totals.mean_loss(),
            test_loss: evaluation.loss,
            test_accuracy: evaluation.accuracy(),
            images_per_s: totals.images_per_s(),
            compute_ms: totals.compute_ms(),
            comm_ms: totals.comm_ms(),
            wall_s: self.trainer.started_at.elapsed().as_secs_f64(),
        };
        if let Some(folder) = &mut self.trainer.folder {
            folder.append(&MetricsLine::Epoch(report.clone()))?;
        }
        observer.event(Event::Epoch(report.clone()));
        Ok(report)
    }

    /// Says after the first step which algorithms were chosen, if there was a choice.
    fn tell_selections(&self, observer: &mut dyn Observer) {
        let chosen: Vec<String> = self
            .trainer
            .update
            .report()
            .selections
            .iter()
            .filter_map(|s| {
                let predicted = s.predicted_us?;
                Some(format!("{} for {} bytes ({predicted:.0} us)", s.algorithm, s.bytes))
            })
            .collect();
        if !chosen.is_empty() {
            let text = format!("fastest by the cost model: {}", chosen.join(", "));
            observer.event(Event::Notice { text });
        }
    }

    /// One optimizer update.
    fn run_step(&mut self, epoch: u64, totals: &mut StepTotals) -> Result<StepReport, TrainError> {
        let began = Instant::now();
        let outcome = self.trainer.update.step(&mut self.trainer.state)?;
        self.stopped = outcome.stop;
        self.redone_steps += u64::from(outcome.redone);
        self.comm_busy += outcome.comm_busy;

        let wall = began.elapsed();
        totals.add(&StepTotals {
            steps: 1,
            samples: u64::from(outcome.samples),
            loss_sum: outcome.loss_sum,
            wall,
            compute: outcome.compute,
            comm: outcome.comm,
        });
        self.step_ms.push(milliseconds(wall) as f32);
        self.first_step_ms.get_or_insert_with(|| milliseconds(self.trainer.started_at.elapsed()));
        Ok(StepReport {
            step: self.trainer.state.step,
            epoch: epoch + 1,
            loss: outcome.loss_sum / f64::from(outcome.samples.max(1)),
            lr: outcome.lr,
            step_ms: milliseconds(wall),
            compute_ms: milliseconds(outcome.compute),
            comm_ms: milliseconds(outcome.comm),
            redone: outcome.redone,
        })
    }

    fn write_checkpoint(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let trainer = &self.trainer;
        let Some(folder) = &trainer.folder else { return Ok(()) };
        let run =
            Provenance { config: &trainer.config, data: &trainer.data, dataset: &trainer.dataset };
        let path = folder.write_checkpoint(run, &trainer.state)?;
        observer.event(Event::Checkpoint { path, step: trainer.state.step });
        Ok(())
    }

    fn summary(&self, last: &EpochReport) -> RunSummary {
        let trainer = &self.trainer;
        let engine = trainer.update.engine();
        let report = trainer.update.report();
        let steps = trainer.state.step;
        let samples = trainer.dataset.train.labels.len();
        RunSummary {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config: trainer.config.clone(),
            config_digest: hex(&trainer.config.digest(&trainer.dataset.sha256)),
            adapter: engine.adapter,
            backend: engine.backend,
            driver: engine.driver,
            kernels: engine.kernels,
            dataset: trainer.dataset.name.clone(),
            model: trainer.config.model.name().to_owned(),
            topology: report.topology.to_owned(),
            algorithm: report.algorithm.to_owned(),
            selections: report.selections,
            workers: trainer.update.workers(),
            steps,
            epochs: steps.div_ceil(trainer.config.steps_per_epoch(samples)),
            interrupted: steps < trainer.config.total_steps(samples),
            train_loss: last.train_loss,
            test_loss: last.test_loss,
            test_accuracy: last.test_accuracy,
            images_per_s: self.totals.images_per_s(),
            first_step_ms: self.first_step_ms.unwrap_or(0.0),
            step_ms: Percentiles::of(&self.step_ms),
            compute_ms: self.totals.compute_ms(),
            comm_ms: self.totals.comm_ms(),
            overlap_ratio: self.overlap_ratio(),
            traffic: report.traffic,
            views: vec![ViewReport {
                generation: GENERATION,
                members: trainer.members.clone(),
                start_step: self.first_step,
            }],
            redone_steps: self.redone_steps,
            params_sha256: hex(&parameters_sha256(&trainer.state.parameters)),
            wall_s: trainer.started_at.elapsed().as_secs_f64(),
        }
    }

    /// The share of the collective's own time that no step waited for.
    fn overlap_ratio(&self) -> f64 {
        let busy = self.comm_busy.as_secs_f64();
        if busy == 0.0 {
            return 0.0;
        }
        (1.0 - self.totals.comm.as_secs_f64() / busy).clamp(0.0, 1.0)
    }
}
