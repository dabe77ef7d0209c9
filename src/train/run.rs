//! The run of one worker: epochs, evaluation, checkpoints, metrics. How a step is made is the
//! matter of an [`Update`](super::update::Update).

use std::time::{Duration, Instant};

use crate::net::NetError;
use crate::protocol::plan::Plan;

use super::checkpoint::Provenance;
use super::collective::CollectiveError;
use super::engine::EngineError;
use super::event::{Event, Observer, Started};
use super::metrics::{
    BytesPerStep, EpochReport, MetricsLine, Percentiles, PlanReport, RunSummary, StepReport,
    StepTotals, ViewReport, hex, milliseconds,
};
use super::progress::Progress;
use super::run_folder::RunFolder;
use super::trainer::{Heir, TrainError, Trainer, parameters_sha256};
use super::views::{Regrouped, Standing};

/// No run has as many steps.
const NOT_REPORTED: u64 = u64::MAX;

/// Between two step events to the observer: a display needs no more.
const STEP_EVENT_INTERVAL: Duration = Duration::from_millis(100);

/// Shares are told when at least a fifth of the batch has changed hands, and more than a tile.
const PLAN_PARTS_TOLD: u32 = 5;
const PLAN_TILES_TOLD: u32 = 2;

/// A trainer under way.
pub(super) struct Run {
    pub(super) trainer: Trainer,
    /// Durations of all steps, milliseconds.
    step_ms: Vec<f32>,
    /// Of the epochs that are over.
    totals: StepTotals,
    /// Of the epoch under way.
    epoch_totals: StepTotals,
    redone_steps: u64,
    first_step_ms: Option<f64>,
    /// The step behind which the last report of an epoch was made.
    reported: u64,
    last_report: Option<EpochReport>,
    /// A step is begun and not completed.
    in_step: bool,
    /// When the last step was completed, or the last change was over.
    moved_at: Instant,
    /// The views so far.
    views: Vec<ViewReport>,
    /// What the collective was busy with in steps: not with digests and evaluations.
    comm_busy: Duration,
    last_step_event: Option<Instant>,
    /// The shares in this view that the observer was told of last.
    told_plan: Option<Plan>,
    progress: Progress,
    stopped: bool,
}

impl Run {
    pub(super) fn new(trainer: Trainer) -> Run {
        Run {
            step_ms: Vec::new(),
            totals: StepTotals::default(),
            epoch_totals: StepTotals::default(),
            redone_steps: 0,
            first_step_ms: None,
            reported: trainer.state.step,
            last_report: None,
            in_step: false,
            moved_at: Instant::now(),
            views: if trainer.joins { Vec::new() } else { vec![first_view(&trainer)] },
            comm_busy: Duration::ZERO,
            last_step_event: None,
            told_plan: None,
            progress: Progress::default(),
            stopped: false,
            trainer,
        }
    }

    /// Trains to the end, or until a worker wants the run to end.
    pub(super) fn run(&mut self, observer: &mut dyn Observer) -> Result<RunSummary, TrainError> {
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
        let mut checked = if self.trainer.joins {
            let joins = NetError::Interrupted("this worker joins a run under way".to_owned());
            Err(CollectiveError::Net(joins).into())
        } else {
            self.trainer.update.check_replicas(&self.trainer.state)
        };
        // Each round ends with the run's end, or with a change of the group.
        while let Err(error) = checked.and_then(|()| self.train(total_steps, observer)) {
            match error {
                TrainError::Collective(error) => self.regroup(error, observer)?,
                TrainError::Engine(lost) if lost.is_device_lost() => {
                    self.replace_engine(lost, observer)?;
                }
                error => return Err(error),
            }
            checked = Ok(());
        }
        let last = match self.last_report.take() {
            Some(report) => report,
            // A finished run was resumed: there is nothing to train, but there is a result.
            None => {
                observer.event(Event::Notice { text: "the run is over: nothing to train".into() });
                // What the run has left must not be replaced by the figures of no step at all.
                (self.trainer.folder, self.trainer.heir) = (None, None);
                self.report_epoch(self.trainer.state.step.div_ceil(steps_per_epoch), observer)?
            }
        };
        self.trainer.update.complete(&mut self.trainer.state)?;
        self.write_checkpoint(observer)?;
        let summary = self.summary(&last);
        if let Some(folder) = &self.trainer.folder {
            folder.write_summary(&summary)?;
        }
        Ok(summary)
    }

    /// Trains to the end, with an evaluation behind each epoch and behind the last step. It goes on
    /// from wherever the state is, so it may be called again after a failure.
    fn train(&mut self, total_steps: u64, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let samples = self.trainer.dataset.train.labels.len();
        let steps_per_epoch = self.trainer.config.steps_per_epoch(samples);
        loop {
            let step = self.trainer.state.step;
            let over = step >= total_steps || self.stopped;
            if (over || step.is_multiple_of(steps_per_epoch)) && step != self.reported {
                self.trainer.update.check_replicas(&self.trainer.state)?;
                let report = self.report_epoch(step.div_ceil(steps_per_epoch), observer)?;
                self.totals.add(&std::mem::take(&mut self.epoch_totals));
                self.last_report = Some(report);
                self.reported = step;
            } else if over {
                return Ok(());
            } else {
                self.train_step(step / steps_per_epoch, total_steps, observer)?;
            }
        }
    }

    /// One step and what is due behind it.
    fn train_step(
        &mut self,
        epoch: u64,
        total_steps: u64,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let (report, rebalanced) = self.run_step(epoch)?;
        if rebalanced {
            self.tell_plan(observer);
        }
        if let Some(folder) = &mut self.trainer.folder {
            folder.sample_step(&report)?;
        }
        let every = self.trainer.checkpoint_every;
        if every.is_some_and(|every| report.step % every == 0 && report.step < total_steps) {
            self.trainer.update.complete(&mut self.trainer.state)?;
            self.write_checkpoint(observer)?;
        }
        if self.totals.steps + self.epoch_totals.steps == 1 {
            self.tell_selections(observer);
        }
        if self.last_step_event.is_none_or(|at| at.elapsed() >= STEP_EVENT_INTERVAL) {
            self.last_step_event = Some(Instant::now());
            observer.event(Event::Step(report));
            self.tell_progress(observer);
        }
        Ok(())
    }

    /// Goes on with a new device, if there is one.
    fn replace_engine(
        &mut self,
        lost: EngineError,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let text = format!("{lost}; a new device takes its place");
        match self.trainer.update.replace_engine(lost)? {
            Some(error) => self.regroup(error, observer),
            None => {
                self.redone_steps += u64::from(std::mem::take(&mut self.in_step));
                observer.event(Event::Notice { text });
                Ok(())
            }
        }
    }

    /// Goes on in the next view, if there is one.
    fn regroup(
        &mut self,
        error: CollectiveError,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        tracing::debug!("the group broke: {error}");
        let step = self.trainer.state.step;
        let standing = Standing { reported: step == self.reported, stopped: self.stopped };
        let outcome = self.trainer.update.regroup(&mut self.trainer.state, standing, error)?;
        let Regrouped { view, rank, standing } = outcome;
        let now_at = self.trainer.state.step;
        self.stopped = standing.stopped;
        // Whoever had reported already does so again, if anybody has not.
        if standing.reported {
            self.reported = now_at;
        } else if now_at == self.reported {
            self.reported = NOT_REPORTED;
        }
        let redone = u64::from(std::mem::take(&mut self.in_step) && now_at == step);
        let stood_still = self.moved_at.elapsed();
        self.moved_at = Instant::now();
        self.redone_steps += redone;
        self.progress.redone_steps += redone;
        if rank == 0
            && self.trainer.folder.is_none()
            && let Some(Heir { path, config_toml, .. }) = &self.trainer.heir
        {
            let mut folder = RunFolder::take_over(path, config_toml, now_at)?;
            if let Some(report) = self.last_report.as_ref().filter(|report| report.step == now_at) {
                folder.append(&MetricsLine::Epoch(report.clone()))?;
            }
            self.trainer.folder = Some(folder);
        } else if rank != 0 {
            // It was left behind and has come again: others write now.
            self.trainer.folder = None;
        }
        let seconds = stood_still.as_secs_f64();
        let text = format!("{view}; the ring stood still for {seconds:.2} s, {redone} step redone");
        observer.event(Event::Notice { text });
        self.told_plan = None;
        self.views.push(ViewReport {
            generation: view.generation,
            members: view.members.iter().map(|member| member.addresses.join(" or ")).collect(),
            start_step: view.start_step,
            changes: view.changes,
            stood_still_ms: milliseconds(stood_still),
            redone_steps: redone,
        });
        Ok(())
    }

    /// Evaluates, and reports the epoch (counted from 1) that ends with the last step.
    fn report_epoch(
        &mut self,
        epoch: u64,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, TrainError> {
        let evaluation = self.trainer.update.evaluate(&self.trainer.state)?;
        let step = self.trainer.state.step;
        if let Some(report) = self.last_report.as_ref().filter(|report| report.step == step) {
            // Another worker had not come as far when the group broke.
            return Ok(report.clone());
        }
        let totals = &self.epoch_totals;
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
        self.progress.epoch(&report);
        self.tell_progress(observer);
        Ok(report)
    }

    /// Tells the sums so far.
    fn tell_progress(&mut self, observer: &mut dyn Observer) {
        self.progress.traffic = self.trainer.update.report().traffic;
        self.progress.workers = self.trainer.update.workers();
        self.progress.generation = self.views.last().map_or(0, |view| view.generation);
        observer.event(Event::Progress(Box::new(self.progress.clone())));
    }

    /// Says after the first step which algorithms the run begins with, if there was a choice; which
    /// ones it settled on is in the summary.
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
            let text = format!(
                "to begin with, by the cost model: {}; what comes close to it is tried next",
                chosen.join(", ")
            );
            observer.event(Event::Notice { text });
        }
    }

    /// Says that the workers have other shares now, if they differ much from what was said last.
    fn tell_plan(&mut self, observer: &mut dyn Observer) {
        let Some(PlanReport { tiles: plan, .. }) = self.trainer.update.report().plan else {
            return;
        };
        let equal = || Plan::equal(plan.tiles().len(), plan.total());
        let told = self.told_plan.take().unwrap_or_else(equal);
        if plan.moved_from(&told) < plan.total().div_ceil(PLAN_PARTS_TOLD).max(PLAN_TILES_TOLD) {
            self.told_plan = Some(told);
            return;
        }
        let text = format!("shares by measured speed: {plan}, worker by worker");
        observer.event(Event::Notice { text });
        self.told_plan = Some(plan);
    }

    /// One optimizer update; and whether the workers' shares have changed with it.
    fn run_step(&mut self, epoch: u64) -> Result<(StepReport, bool), TrainError> {
        let began = Instant::now();
        self.in_step = true;
        let outcome = self.trainer.update.step(&mut self.trainer.state)?;
        self.in_step = false;
        self.moved_at = Instant::now();
        self.stopped = outcome.stop;
        self.redone_steps += u64::from(outcome.redone);
        self.comm_busy += outcome.comm_busy;

        let wall = began.elapsed();
        self.epoch_totals.add(&StepTotals {
            steps: 1,
            samples: u64::from(outcome.samples),
            loss_sum: outcome.loss_sum,
            wall,
            compute: outcome.compute,
            comm: outcome.comm,
        });
        self.step_ms.push(milliseconds(wall) as f32);
        self.first_step_ms.get_or_insert_with(|| milliseconds(self.trainer.started_at.elapsed()));
        let report = StepReport {
            step: self.trainer.state.step,
            epoch: epoch + 1,
            loss: outcome.loss_sum / f64::from(outcome.samples.max(1)),
            lr: outcome.lr,
            step_ms: milliseconds(wall),
            compute_ms: milliseconds(outcome.compute),
            comm_ms: milliseconds(outcome.comm),
            redone: outcome.redone,
            server: outcome.server,
        };
        self.progress.step(&report, outcome.samples);
        Ok((report, outcome.rebalanced))
    }

    /// For the last checkpoint of a worker that did not write for all, if it has where to leave it.
    pub(super) fn open_own_folder(&mut self) -> Result<(), TrainError> {
        let own = self.trainer.heir.as_ref().filter(|heir| heir.is_own);
        if let (None, Some(Heir { path, config_toml, .. })) = (&self.trainer.folder, own) {
            self.trainer.folder =
                Some(RunFolder::open_beside(path, config_toml, self.trainer.state.step)?);
        }
        Ok(())
    }

    /// Writes the state, which must be whole, if this worker writes.
    pub(super) fn write_checkpoint(
        &mut self,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let trainer = &self.trainer;
        let Some(folder) = &trainer.folder else { return Ok(()) };
        let run =
            Provenance { config: &trainer.config, data: &trainer.data, dataset: &trainer.dataset };
        let path = folder.write_checkpoint(run, &trainer.state)?;
        if let Some(kept) = trainer.checkpoints_kept {
            folder.remove_checkpoints_before(trainer.state.step, kept)?;
        }
        observer.event(Event::Checkpoint { path, step: trainer.state.step });
        Ok(())
    }

    fn summary(&self, last: &EpochReport) -> RunSummary {
        let trainer = &self.trainer;
        let engine = trainer.update.engine();
        let report = trainer.update.report();
        let steps_made = self.totals.steps.max(1) as f64;
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
            steps_made: self.totals.steps,
            first_step_ms: self.first_step_ms.unwrap_or(0.0),
            step_ms: Percentiles::of(&self.step_ms),
            compute_ms: self.totals.compute_ms(),
            comm_ms: self.totals.comm_ms(),
            overlap_ratio: self.overlap_ratio(),
            busiest_node_bytes_per_step: BytesPerStep {
                sent: report.traffic.bytes_sent as f64 / steps_made,
                received: report.traffic.bytes_received as f64 / steps_made,
            },
            traffic: report.traffic,
            waited_ms: report.waited_ms,
            plan: report.plan,
            server: report.server,
            views: self.views.clone(),
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

/// The view that the run begins with.
fn first_view(trainer: &Trainer) -> ViewReport {
    ViewReport {
        generation: 0,
        members: trainer.members.clone(),
        start_step: trainer.state.step,
        changes: Vec::new(),
        stood_still_ms: 0.0,
        redone_steps: 0,
    }
}
