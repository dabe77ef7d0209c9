//! Steps by all-reduce: every worker computes its share of the gradient sums, the sums are reduced
//! over all workers, and each applies the same optimizer to its own copy of the parameters.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::config::RunConfig;
use crate::data::Dataset;
use crate::data::sampler::{Sampler, samples, tiles};
use crate::model::layout::{BUCKETS, LOSS_SCALE, PARAMETERS, SCALE_COUNT, TENSORS};
use crate::net::NetError;
use crate::numerics::fixed_point::FixedPoint;
use crate::numerics::schedule::learning_rate;
use crate::protocol::balancer::Balancer;
use crate::protocol::collective::{CollectiveId, Content, Reduction};
use crate::protocol::membership::View;

use super::collective::{Collective, CollectiveError, Solo, Traffic};
use super::device_loss::LostEngine;
use super::engine::{EngineDescription, EngineError, GradientEngine, Reopen};
use super::evaluate::{Evaluation, evaluate};
use super::metrics::{PlanReport, milliseconds};
use super::timeline::{Timeline, Track};
use super::trainer::{TrainError, TrainingState};
use super::transfer;
use super::update::{StepOutcome, Update, UpdateReport};
use super::vectors::{Reduced, computed_us, empty_vectors, join, pack, separate, unpack};
use super::views::{Joined, Regrouped, Standing, Views};

/// A redone step has exponents made from its own exact maxima, so a second redo cannot happen
/// unless engines disagree with themselves.
const ATTEMPTS_MAX: u32 = 2;

/// One worker's part in steps by all-reduce.
pub struct AllReduce {
    config: RunConfig,
    dataset: Arc<Dataset>,
    engine: Box<dyn GradientEngine>,
    collective: Box<dyn Collective>,
    /// The view's.
    generation: u32,
    /// Finds the others again when the group has broken; without it, that is the end.
    views: Option<Box<dyn Views>>,
    /// Opens another engine in the place of one whose device was lost; that is tried once.
    reopen: Option<Reopen>,
    /// What went over the groups before this one.
    traffic_before: Traffic,
    /// Set from outside to end the run after the current step, on all workers alike.
    stop: Arc<AtomicBool>,
    /// Whether a bucket is reduced while the next one is computed.
    overlap: bool,
    /// Says which worker computes what in this view.
    balancer: Balancer,
    rebalance: Option<NonZero<u32>>,
    /// Changes of the plan in the views before.
    changes_before: u64,
    total_steps: u64,
    sampler: Sampler,
    gradients: Vec<f32>,
    /// A vector a bucket: filled by the engine, or unpacked from what the collective returned.
    vectors: Vec<Vec<u32>>,
    /// The same as it travels, kept for the next step; where nothing is packed, it is the vector.
    packed: Vec<Vec<u32>>,
    /// All of `packed` as one vector, where nothing overlaps; kept for the next step.
    joined: Vec<u32>,
    /// For how long each worker of the present group has waited for each other one, by rank.
    waited: Vec<Vec<Duration>>,
    timeline: Timeline,
}

/// What a worker's part consists of.
pub struct AllReduceParts {
    pub config: RunConfig,
    pub dataset: Arc<Dataset>,
    pub engine: Box<dyn GradientEngine>,
    pub collective: Box<dyn Collective>,
    /// Set from outside to end the run after the current step, on all workers alike.
    pub stop: Arc<AtomicBool>,
    /// Whether a bucket is reduced while the next one is computed; if not, all are reduced as one
    /// once all are computed. The same for all workers.
    pub overlap: bool,
    /// The shares follow the workers' speeds, and change once in so many steps at most; none: they
    /// stay equal. The same for all workers.
    pub rebalance: Option<NonZero<u32>>,
}

impl AllReduce {
    pub fn new(parts: AllReduceParts) -> AllReduce {
        let AllReduceParts { config, dataset, engine, collective, stop, overlap, rebalance } =
            parts;
        let samples = dataset.train.labels.len();
        let world = collective.world_size();
        AllReduce {
            total_steps: config.total_steps(samples),
            sampler: Sampler::new(config.seed, samples, config.batch),
            gradients: vec![0.0; PARAMETERS],
            vectors: empty_vectors(world),
            packed: vec![Vec::new(); BUCKETS.len()],
            joined: Vec::new(),
            waited: vec![vec![Duration::ZERO; world]; world],
            generation: 0,
            views: None,
            reopen: None,
            balancer: Balancer::new(world, tiles(config.batch.min(samples)), rebalance),
            rebalance,
            changes_before: 0,
            timeline: Timeline::default(),
            traffic_before: Traffic::default(),
            config,
            dataset,
            engine,
            collective,
            stop,
            overlap,
        }
    }

    /// Keeps what is done when.
    pub fn recorded(mut self, timeline: Timeline) -> AllReduce {
        self.timeline = timeline;
        self
    }

    /// Lets the run go on in the next view when the group breaks.
    pub fn elastic(mut self, views: Box<dyn Views>) -> AllReduce {
        self.views = Some(views);
        self
    }

    /// Lets the run go on with a new engine, once, when the device is lost.
    pub fn reopening(mut self, reopen: Reopen) -> AllReduce {
        self.reopen = Some(reopen);
        self
    }
}

impl Update for AllReduce {
    fn step(&mut self, state: &mut TrainingState) -> Result<StepOutcome, TrainError> {
        let batch = self.sampler.batch(state.step).len();
        let mut maxima = state.maxima;
        let mut spent = Spent::default();
        let mut attempt = 0;
        let (fixed_point, reduced) = loop {
            let fixed_point = FixedPoint::for_wire(self.config.wire, batch, &maxima);
            let reduced = self.reduce_gradients(state, attempt, &fixed_point, &mut spent)?;
            maxima = reduced.maxima;
            if maxima.iter().any(|m| !m.is_finite()) {
                return Err(self.diverged(state.step));
            }
            if reduced.samples as usize != batch {
                return Err(TrainError::SharesDiffer { step: state.step + 1 });
            }
            if fixed_point.exceeded(&maxima).next().is_none() {
                break (fixed_point, reduced);
            }
            attempt += 1;
            if attempt == ATTEMPTS_MAX {
                return Err(TrainError::NotReproducible { step: state.step + 1 });
            }
        };

        if let Some(views) = &mut self.views {
            views.completing(self.generation, state.step + 1)?;
        }
        let reduced_at = Instant::now();
        let lr = learning_rate(&self.config, state.step, self.total_steps);
        self.mean_gradients(&fixed_point, reduced.samples);
        if state.optimizer.step(&mut state.parameters, &self.gradients, lr).is_err() {
            return Err(self.diverged(state.step));
        }
        self.timeline.span(Track::Optimizer, state.step, reduced_at);
        state.maxima = maxima;
        state.step += 1;
        let rebalanced = self.balancer.observe(tiles(batch), computed_us(&self.vectors));
        Ok(StepOutcome {
            loss_sum: fixed_point.dequantize(LOSS_SCALE, reduced.loss),
            samples: reduced.samples,
            lr,
            redone: attempt,
            stop: reduced.stop,
            rebalanced,
            compute: spent.compute,
            comm: spent.comm,
            comm_busy: spent.comm_busy,
            server: None,
        })
    }

    fn evaluate(&mut self, state: &TrainingState) -> Result<Evaluation, TrainError> {
        evaluate(
            self.engine.as_mut(),
            self.collective.as_mut(),
            &self.dataset.test,
            &state.parameters,
            self.generation,
            state.step,
        )
    }

    /// The maximum of a digest and the maximum of its complement are complements of each other only
    /// where all digests are equal.
    fn check_replicas(&mut self, state: &TrainingState) -> Result<(), TrainError> {
        if self.collective.world_size() == 1 {
            return Ok(());
        }
        let digest = state.sha256();
        let words: Vec<u32> = digest
            .chunks_exact(4)
            .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        let vector: Vec<u32> =
            words.iter().copied().chain(words.iter().map(|word| !word)).collect();
        let id = CollectiveId {
            generation: self.generation,
            step: state.step,
            attempt: 0,
            content: Content::Digest,
        };
        let reduction = Reduction::maxima(vector.len());
        self.collective.start(id, reduction, vector)?;
        let vector = self.collective.finish()?;
        let (largest, complement) = vector.split_at(words.len());
        if largest.iter().zip(complement).any(|(&a, &b)| a != !b) {
            return Err(TrainError::ReplicasDiffer { step: state.step });
        }
        Ok(())
    }

    fn regroup(
        &mut self,
        state: &mut TrainingState,
        standing: Standing,
        mut error: CollectiveError,
    ) -> Result<Regrouped, TrainError> {
        let mut changes = Vec::new();
        loop {
            let Some(views) = self.views.as_mut().filter(|_| error.is_about_the_group()) else {
                return Err(error.into());
            };
            let Traffic { bytes_sent, bytes_received } = self.collective.traffic();
            self.traffic_before.bytes_sent += bytes_sent;
            self.traffic_before.bytes_received += bytes_received;
            // The old group's thread must be gone before its address is used anew.
            self.collective = Box::new(Solo::default());
            let mut joined = views.next(&error)?;
            self.collective = std::mem::replace(&mut joined.collective, Box::new(Solo::default()));
            self.generation = joined.view.generation;
            // A view may end before its members have agreed; what changed in it counts.
            changes.append(&mut joined.view.changes);
            // Vectors may have been lost with the old group, and ranks mean other workers now.
            let world = self.collective.world_size();
            self.vectors = empty_vectors(world);
            self.packed = vec![Vec::new(); BUCKETS.len()];
            self.waited = vec![vec![Duration::ZERO; world]; world];
            // What the members know of each other's speeds may differ by a step.
            self.changes_before += self.balancer.changes();
            self.balancer = Balancer::new(world, self.balancer.plan().total(), self.rebalance);
            match self.agree(state, standing, &joined) {
                Ok(standing) => {
                    let view = View { changes, ..joined.view };
                    return Ok(Regrouped { view, rank: joined.rank, standing });
                }
                Err(TrainError::Collective(again)) => error = again,
                Err(error) => return Err(error),
            }
        }
    }

    fn replace_engine(&mut self, lost: EngineError) -> Result<Option<CollectiveError>, TrainError> {
        let others = self.workers() > 1;
        // A group that cannot change has no place for a worker that comes again.
        let can_leave = self.views.is_some() || !others;
        let Some(reopen) = self.reopen.take().filter(|_| can_leave) else {
            return Err(lost.into());
        };
        tracing::warn!("{lost}; a new device is opened");
        if let Some(views) = self.views.as_mut().filter(|_| others) {
            views.leave(lost.to_string());
        }
        // Memory that the old device holds may be what the new one needs.
        self.engine = Box::new(LostEngine(self.engine.description()));
        let lost = Box::new(lost);
        self.engine = reopen().map_err(|reason| EngineError::NotReplaced { lost, reason })?;
        let comes_again = || NetError::Interrupted("this worker has a new device".to_owned());
        Ok(others.then(|| comes_again().into()))
    }

    fn workers(&self) -> usize {
        self.collective.world_size()
    }

    fn engine(&self) -> EngineDescription {
        self.engine.description()
    }

    fn report(&self) -> UpdateReport {
        let traffic = self.collective.traffic();
        UpdateReport {
            topology: if self.workers() == 1 { "solo" } else { "ring" },
            algorithm: self.collective.algorithm(),
            selections: self.collective.selections(),
            traffic: Traffic {
                bytes_sent: self.traffic_before.bytes_sent + traffic.bytes_sent,
                bytes_received: self.traffic_before.bytes_received + traffic.bytes_received,
            },
            waited_ms: (self.waited.iter())
                .map(|waits| waits.iter().copied().map(milliseconds).collect())
                .collect(),
            plan: Some(PlanReport {
                tiles: self.balancer.plan().clone(),
                changes: self.changes_before + self.balancer.changes(),
                rebalance: self.rebalance,
            }),
            server: None,
        }
    }

    fn close(self: Box<Self>) -> Result<(), TrainError> {
        match self.collective.close() {
            // Whoever needed something has a way to go on without this worker.
            Err(error) if self.views.is_some() => {
                tracing::debug!("the group broke when it was no longer needed: {error}");
                Ok(())
            }
            closed => Ok(closed?),
        }
    }

    fn abort(self: Box<Self>, reason: String) {
        self.collective.abort(reason);
    }
}

/// Where a step's time went, over all attempts.
#[derive(Default)]
struct Spent {
    compute: Duration,
    comm: Duration,
    comm_busy: Duration,
}

impl AllReduce {
    /// Copies the state if this worker is behind, hands it out if it is the source, makes sure that
    /// all hold the same, and finds out where everybody stands.
    fn agree(
        &mut self,
        state: &mut TrainingState,
        standing: Standing,
        joined: &Joined,
    ) -> Result<Standing, TrainError> {
        let step = joined.view.start_step;
        let content = Content::State;
        let id = CollectiveId { generation: self.generation, step, attempt: 0, content };
        let (reduction, words) = transfer::contribution(joined, state, standing);
        self.collective.start(id, reduction, words)?;
        let reduced = self.collective.finish()?;
        if joined.is_behind() {
            let copy = transfer::state(&self.config.optimizer, &reduced)?;
            if let Some(views) = &mut self.views {
                views.completing(self.generation, copy.step)?;
            }
            *state = copy;
        }
        self.check_replicas(state)?;
        Ok(transfer::standing(&reduced))
    }

    /// Computes this worker's share of the gradient sums and reduces them over all workers,
    /// bucket by bucket: the first bucket travels while the second is computed. If `overlap` is off,
    /// all travel as one once all are computed. The reduced words are left in `self.vectors`.
    fn reduce_gradients(
        &mut self,
        state: &TrainingState,
        attempt: u32,
        fixed_point: &FixedPoint,
        spent: &mut Spent,
    ) -> Result<Reduced, TrainError> {
        let began = Instant::now();
        let (step, wire) = (state.step, self.config.wire);
        let collective = self.collective.as_mut();
        let busy_before = collective.busy();
        let batch = self.sampler.batch(step);
        let rank = collective.rank();
        let mine = self.balancer.plan().run(tiles(batch.len()), rank);
        let mine = samples(mine, batch.len());
        self.engine.begin_step(&state.parameters, &batch[mine], fixed_point)?;
        let id = |index| CollectiveId {
            generation: self.generation,
            step,
            attempt,
            content: Content::Gradients(index as u32),
        };
        let mut reductions = [Reduction::sums(0); BUCKETS.len()];
        let (mut computed_at, mut started_at) = (began, [began; BUCKETS.len()]);
        for (index, bucket) in BUCKETS.iter().enumerate() {
            let vector = &mut self.vectors[index];
            let (words, control) = vector.split_at_mut(bucket.words());
            self.engine.finish_bucket(index, words)?;
            control.fill(0);
            control[0] = u32::from(self.stop.load(Ordering::Relaxed));
            control[1 + rank] = u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX);
            computed_at = self.timeline.span(Track::Compute(index), step, computed_at);
            started_at[index] = Instant::now();
            let packed = &mut self.packed[index];
            reductions[index] = pack(wire, bucket, vector, packed);
            if self.overlap {
                collective.start(id(index), reductions[index], std::mem::take(packed))?;
            }
        }
        let computed = Instant::now();
        if !self.overlap {
            // Nothing is gained by two collectives where the one waits for the other.
            let reduction = join(&self.packed, &reductions, &mut self.joined);
            collective.start(id(0), reduction, std::mem::take(&mut self.joined))?;
        }
        spent.compute += computed - began;
        if !self.overlap {
            self.joined = collective.finish()?;
            self.timeline.span(Track::Communication(0), step, computed);
            separate(&self.joined, &reductions, &mut self.packed);
        }
        let vectors = self.vectors.iter_mut().zip(&mut self.packed);
        for (index, (bucket, (vector, packed))) in BUCKETS.iter().zip(vectors).enumerate() {
            if self.overlap {
                *packed = collective.finish()?;
                self.timeline.span(Track::Communication(index), step, started_at[index]);
            }
            unpack(wire, bucket, packed, vector);
        }
        self.timeline.span(Track::Waiting, step, computed);
        spent.comm += computed.elapsed();
        spent.comm_busy += collective.busy().saturating_sub(busy_before);
        self.note_waits();
        Ok(Reduced::read(&self.vectors))
    }

    /// All workers wait for the one that has computed longest, in the ring as in any all-reduce.
    fn note_waits(&mut self) {
        let computed = computed_us(&self.vectors);
        let Some((slowest, &longest)) = computed.iter().enumerate().max_by_key(|(_, us)| **us)
        else {
            return;
        };
        for (waits, &us) in self.waited.iter_mut().zip(computed) {
            waits[slowest] += Duration::from_micros((longest - us).into());
        }
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

    fn diverged(&self, step: u64) -> TrainError {
        let lr = learning_rate(&self.config, step, self.total_steps);
        TrainError::Diverged { step: step + 1, lr }
    }
}
