//! The training loop of one worker: the same code for every engine and every topology.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::config::RunConfig;
use crate::data::sampler::{Sampler, share};
use crate::data::{DataPlan, Dataset};
use crate::model::initial::initial_parameters;
use crate::model::layout::{
    BUCKETS, Bucket, LOSS_SCALE, PARAMETERS, SCALE_COUNT, STATISTIC_WORDS, TENSORS,
};
use crate::numerics::fixed_point::{FixedPoint, INITIAL_MAXIMUM, Maxima};
use crate::numerics::optimizer::Optimizer;
use crate::numerics::schedule::learning_rate;
use crate::protocol::collective::{CollectiveId, Content, Reduction};

use super::checkpoint::{CheckpointError, Provenance};
use super::collective::{Collective, CollectiveError, Traffic};
use super::engine::{EngineError, GradientEngine};
use super::evaluate::{Evaluation, evaluate};
use super::event::{Event, Observer, Started};
use super::metrics::{
    EpochReport, MetricsLine, Percentiles, RunSummary, StepReport, StepTotals, ViewReport, hex,
    milliseconds,
};
use super::run_folder::{RunFolder, RunFolderError};

/// The only view of a group whose members do not change.
const GENERATION: u32 = 0;

/// Between two step events to the observer: a display needs no more.
const STEP_EVENT_INTERVAL: Duration = Duration::from_millis(100);

/// A redone step has exponents made from its own exact maxima, so a second redo cannot happen
/// unless engines disagree with themselves.
const ATTEMPTS_MAX: u32 = 2;

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
    fn sha256(&self) -> [u8; 32] {
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
    pub engine: Box<dyn GradientEngine>,
    pub collective: Box<dyn Collective>,
    pub state: TrainingState,
    /// Where metrics, checkpoints and the summary go; one worker of a run has one.
    pub folder: Option<RunFolder>,
    /// Steps between checkpoints; the last state is always written.
    pub checkpoint_every: Option<u64>,
    /// Set from outside to end the run after the current step, on all workers alike.
    pub stop: Arc<AtomicBool>,
    /// Start of the process, for `first_step_ms` and `wall_s`.
    pub started_at: Instant,
    /// Names of the view's members, by rank, for `run.json`.
    pub members: Vec<String>,
    /// Whether a bucket is reduced while the next one is computed; if not, all are reduced once all
    /// are computed, for comparison.
    pub overlap: bool,
}

impl Trainer {
    /// Trains to the end, or until [`Trainer::stop`] is set on any worker.
    ///
    /// Every worker of the group must call this with the same configuration, data and state.
    pub fn run(self, observer: &mut dyn Observer) -> Result<RunSummary, TrainError> {
        let mut run = Run::new(self);
        let result = run.run(observer);
        if matches!(result, Err(TrainError::Collective(_))) {
            // The state is that of the last completed step: what the others did since is not lost.
            run.write_checkpoint(observer)?;
        }
        let collective = run.trainer.collective;
        match result {
            Ok(summary) => {
                collective.close()?;
                observer.event(Event::Finished(Box::new(summary.clone())));
                Ok(summary)
            }
            Err(error) => {
                collective.abort(error.to_string());
                Err(error)
            }
        }
    }
}

/// The sums and maxima of one step over the global batch.
struct Reduced {
    maxima: Maxima,
    /// Loss in fixed point.
    loss: i32,
    samples: u32,
    stop: bool,
}

/// A trainer under way.
struct Run {
    trainer: Trainer,
    sampler: Sampler,
    gradients: Vec<f32>,
    /// A vector a bucket: filled by the engine, lent to the collective, kept for the next step.
    vectors: Vec<Vec<u32>>,
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
        let samples = trainer.dataset.train.labels.len();
        let sampler = Sampler::new(trainer.config.seed, samples, trainer.config.batch);
        Run {
            sampler,
            gradients: vec![0.0; PARAMETERS],
            vectors: BUCKETS.iter().map(|bucket| vec![0; reduction(bucket).words()]).collect(),
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
            engine: self.trainer.engine.description(),
            dataset: self.trainer.dataset.name.clone(),
            train_samples: samples,
            test_samples: self.trainer.dataset.test.labels.len(),
            workers: self.trainer.collective.world_size(),
            first_step: self.trainer.state.step,
            total_steps,
            steps_per_epoch,
        }));
        self.check_replicas()?;

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
            let report = self.run_step(epoch, total_steps, &mut totals)?;
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
        self.check_replicas()?;
        self.report_epoch(epoch + 1, &totals, observer)
    }

    fn report_epoch(
        &mut self,
        epoch: u64,
        totals: &StepTotals,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, TrainError> {
        let evaluation = self.evaluate()?;
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
            .collective
            .selections()
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

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let trainer = &mut self.trainer;
        evaluate(
            trainer.engine.as_mut(),
            trainer.collective.as_mut(),
            &trainer.dataset.test,
            &trainer.state.parameters,
            GENERATION,
            trainer.state.step,
        )
    }

    /// One optimizer update.
    fn run_step(
        &mut self,
        epoch: u64,
        total_steps: u64,
        totals: &mut StepTotals,
    ) -> Result<StepReport, TrainError> {
        let began = Instant::now();
        let step = self.trainer.state.step;
        let batch = self.sampler.batch(step).len();
        let mut maxima = self.trainer.state.maxima;
        let mut compute = Duration::ZERO;
        let mut comm = Duration::ZERO;
        let mut attempt = 0;
        let (fixed_point, reduced) = loop {
            let fixed_point = FixedPoint::for_batch(batch, &maxima);
            let reduced =
                self.reduce_gradients(step, attempt, &fixed_point, &mut compute, &mut comm)?;
            maxima = reduced.maxima;
            if maxima.iter().any(|m| !m.is_finite()) {
                return Err(self.diverged(step, total_steps));
            }
            if fixed_point.exceeded(&maxima).next().is_none() {
                break (fixed_point, reduced);
            }
            attempt += 1;
            if attempt == ATTEMPTS_MAX {
                return Err(TrainError::NotReproducible { step: step + 1 });
            }
        };
        self.redone_steps += u64::from(attempt);
        self.stopped = reduced.stop;

        let lr = learning_rate(&self.trainer.config, step, total_steps);
        self.mean_gradients(&fixed_point, reduced.samples);
        let state = &mut self.trainer.state;
        if state.optimizer.step(&mut state.parameters, &self.gradients, lr).is_err() {
            return Err(self.diverged(step, total_steps));
        }
        state.maxima = maxima;
        state.step += 1;

        let wall = began.elapsed();
        let loss_sum = fixed_point.dequantize(LOSS_SCALE, reduced.loss);
        totals.add(&StepTotals {
            steps: 1,
            samples: u64::from(reduced.samples),
            loss_sum,
            wall,
            compute,
            comm,
        });
        self.step_ms.push(milliseconds(wall) as f32);
        self.first_step_ms.get_or_insert_with(|| milliseconds(self.trainer.started_at.elapsed()));
        Ok(StepReport {
            step: step + 1,
            epoch: epoch + 1,
            loss: loss_sum / f64::from(reduced.samples.max(1)),
            lr,
            step_ms: milliseconds(wall),
            compute_ms: milliseconds(compute),
            comm_ms: milliseconds(comm),
            redone: attempt,
        })
    }

    /// Computes this worker's share of the gradient sums and reduces them over all workers,
    /// bucket by bucket: the first bucket travels while the second is computed, unless
    /// [`Trainer::overlap`] is off. The reduced words are left in `self.vectors`.
    fn reduce_gradients(
        &mut self,
        step: u64,
        attempt: u32,
        fixed_point: &FixedPoint,
        compute: &mut Duration,
        comm: &mut Duration,
    ) -> Result<Reduced, TrainError> {
        let began = Instant::now();
        let trainer = &mut self.trainer;
        let busy_before = trainer.collective.busy();
        let batch = self.sampler.batch(step);
        let mine = share(batch.len(), trainer.collective.world_size(), trainer.collective.rank());
        trainer.engine.begin_step(&trainer.state.parameters, &batch[mine], fixed_point)?;
        let id = |index| CollectiveId {
            generation: GENERATION,
            step,
            attempt,
            content: Content::Gradients(index as u32),
        };
        for (index, bucket) in BUCKETS.iter().enumerate() {
            let vector = &mut self.vectors[index];
            let (words, control) = vector.split_at_mut(bucket.words());
            trainer.engine.finish_bucket(index, words)?;
            control[0] = u32::from(trainer.stop.load(Ordering::Relaxed));
            if trainer.overlap {
                let vector = std::mem::take(vector);
                trainer.collective.start(id(index), reduction(bucket), vector)?;
            }
        }
        let computed = Instant::now();
        if !trainer.overlap {
            for (index, bucket) in BUCKETS.iter().enumerate() {
                let vector = std::mem::take(&mut self.vectors[index]);
                trainer.collective.start(id(index), reduction(bucket), vector)?;
            }
        }
        *compute += computed - began;
        for vector in &mut self.vectors {
            *vector = trainer.collective.finish()?;
        }
        *comm += computed.elapsed();
        self.comm_busy += trainer.collective.busy().saturating_sub(busy_before);
        Ok(self.parse_reduced())
    }

    /// Reads maxima and statistics out of the reduced vectors.
    fn parse_reduced(&self) -> Reduced {
        let mut reduced = Reduced { maxima: [0.0; SCALE_COUNT], loss: 0, samples: 0, stop: false };
        for (bucket, vector) in BUCKETS.iter().zip(&self.vectors) {
            let maxima = &vector[bucket.sum_words()..bucket.words()];
            for (tensor, &bits) in maxima[..bucket.tensors].iter().enumerate() {
                reduced.maxima[bucket.first_tensor + tensor] = f32::from_bits(bits);
            }
            if bucket.statistics {
                reduced.maxima[LOSS_SCALE] = f32::from_bits(maxima[bucket.tensors]);
                let statistics = &vector[bucket.sum_words() - STATISTIC_WORDS..];
                reduced.loss = statistics[0] as i32;
                reduced.samples = statistics[2];
            }
            reduced.stop |= vector[bucket.words()] != 0;
        }
        reduced
    }

    /// Turns the reduced sums into mean gradients.
    fn mean_gradients(&mut self, fixed_point: &FixedPoint, samples: u32) {
        for (bucket, vector) in BUCKETS.iter().zip(&self.vectors) {
            let first = bucket.parameter_range().start;
            for (k, tensor) in bucket.tensor_specs().iter().enumerate() {
                let sums = &vector[tensor.offset - first..tensor.offset - first + tensor.count];
                let gradients = &mut self.gradients[tensor.range()];
                fixed_point.mean(bucket.first_tensor + k, sums, samples, gradients);
            }
        }
        debug_assert_eq!(TENSORS.len() + 1, SCALE_COUNT);
    }

    fn diverged(&self, step: u64, total_steps: u64) -> TrainError {
        let lr = learning_rate(&self.trainer.config, step, total_steps);
        TrainError::Diverged { step: step + 1, lr }
    }

    /// Fails if any worker holds another state: the maximum of a digest and the maximum of its
    /// complement are complements of each other only where all digests are equal.
    fn check_replicas(&mut self) -> Result<(), TrainError> {
        if self.trainer.collective.world_size() == 1 {
            return Ok(());
        }
        let step = self.trainer.state.step;
        let digest = self.trainer.state.sha256();
        let halves: Vec<u32> = digest
            .chunks_exact(4)
            .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        let vector: Vec<u32> =
            halves.iter().copied().chain(halves.iter().map(|word| !word)).collect();
        let id =
            CollectiveId { generation: GENERATION, step, attempt: 0, content: Content::Digest };
        let reduction = Reduction::maxima(vector.len());
        self.trainer.collective.start(id, reduction, vector)?;
        let vector = self.trainer.collective.finish()?;
        let (largest, complement) = vector.split_at(halves.len());
        if largest.iter().zip(complement).any(|(&a, &b)| a != !b) {
            return Err(TrainError::ReplicasDiffer { step });
        }
        Ok(())
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
        let engine = trainer.engine.description();
        let world = trainer.collective.world_size();
        let traffic: Traffic = trainer.collective.traffic();
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
            topology: if world == 1 { "solo" } else { "ring" }.to_owned(),
            algorithm: trainer.collective.algorithm().to_owned(),
            selections: trainer.collective.selections(),
            workers: world,
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
            traffic,
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

/// A bucket's reduction, with one more word behind its maxima: whether a worker wants to stop.
fn reduction(bucket: &Bucket) -> Reduction {
    Reduction::new(bucket.sum_words(), bucket.max_words() + 1)
}
