//! A worker around parameter servers: computes the tasks that the coordinator gives it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::config::RunConfig;
use crate::data::Dataset;
use crate::data::sampler::{Sampler, share};
use crate::model::layout::{BUCKETS, LOSS_SCALE, PARAMETERS, SCALE_COUNT};
use crate::net::{Star, StarEvent};
use crate::numerics::fixed_point::{FixedPoint, Maxima};
use crate::numerics::schedule::learning_rate;
use crate::protocol::parameter_server::Age;
use crate::protocol::pulls::Pulls;
use crate::protocol::star::{self, Message, Order, PushHeader, ToServer, ToWorker};
use crate::train::engine::GradientEngine;
use crate::train::evaluate::evaluate_part;
use crate::train::timeline::{Timeline, Track};
use crate::train::trainer::TrainError;

use super::layout::cut;
use super::node::{net, scale_of};

/// What a worker works with.
pub struct ServedWorkerParts {
    pub config: RunConfig,
    pub dataset: Arc<Dataset>,
    pub engine: Box<dyn GradientEngine>,
    pub star: Star<Message, Message>,
    /// How many servers there are.
    pub servers: usize,
}

/// One worker.
pub struct ServedWorker {
    config: RunConfig,
    dataset: Arc<Dataset>,
    engine: Box<dyn GradientEngine>,
    star: Star<Message, Message>,
    sampler: Sampler,
    /// The slice of each server, and the version of it that is here.
    slices: Vec<Range<usize>>,
    versions: Vec<u64>,
    parameters: Vec<f32>,
    pulls: Pulls,
    /// A vector a bucket, as the engine gives it.
    vectors: Vec<Vec<u32>>,
    timeline: Timeline,
    /// Steps of the last task.
    step: u64,
}

impl ServedWorker {
    pub fn new(parts: ServedWorkerParts) -> ServedWorker {
        let ServedWorkerParts { config, dataset, engine, star, servers } = parts;
        let samples = dataset.train.labels.len();
        ServedWorker {
            sampler: Sampler::new(config.seed, samples, config.batch),
            slices: (0..servers).map(|server| star::slice(PARAMETERS, servers, server)).collect(),
            versions: vec![0; servers],
            parameters: vec![0.0; PARAMETERS],
            pulls: Pulls::new(servers),
            vectors: BUCKETS.iter().map(|bucket| vec![0; bucket.words()]).collect(),
            timeline: Timeline::default(),
            step: 0,
            config,
            dataset,
            engine,
            star,
        }
    }

    /// Keeps what is done when.
    pub fn recorded(mut self, timeline: Timeline) -> ServedWorker {
        self.timeline = timeline;
        self
    }

    /// Computes what it is told, until the run is over.
    ///
    /// # Errors
    /// If a server is lost or ends the run, or the worker itself fails; the servers are told.
    pub fn run(mut self) -> Result<(), TrainError> {
        match self.work() {
            Ok(()) => {
                self.star.close();
                Ok(())
            }
            Err(error) => {
                self.star.abort(error.to_string());
                Err(error)
            }
        }
    }

    fn work(&mut self) -> Result<(), TrainError> {
        let engine = serde_json::to_string(&self.engine.description());
        let engine = engine.expect("a description serializes");
        self.tell(0, ToServer::Ready { engine }, Vec::new())?;
        loop {
            let idle_since = Instant::now();
            let (message, words) = loop {
                let (server, message, words) = self.receive()?;
                if !self.take_slice(server, &message, &words)? {
                    break (message, words);
                }
            };
            self.timeline.span(Track::Waiting, self.step, idle_since);
            match message {
                ToWorker::Compute(order) => {
                    self.put(0, order.version, &words)?;
                    // For a step that is redone the parameters are those that are here.
                    if order.task.attempt == 0 {
                        self.pull(&order.pull)?;
                    }
                    self.compute(&order)?;
                }
                ToWorker::Evaluate { part, parts, pull } => {
                    self.put(0, pull.version, &words)?;
                    self.pull(&pull)?;
                    let (part, parts) = (part as usize, parts as usize);
                    let test = &self.dataset.test;
                    let engine = self.engine.as_mut();
                    let words = evaluate_part(engine, test, &self.parameters, part, parts)?;
                    self.tell(0, ToServer::Evaluated, words.to_vec())?;
                }
                ToWorker::Finish => return Ok(()),
                _ => return Err(net(unexpected(0))),
            }
        }
    }

    /// Waits until the other servers' slices are here, as new as this.
    fn pull(&mut self, age: &Age) -> Result<(), TrainError> {
        self.ask_for_slices(age)?;
        while !self.pulls.are_here() {
            let (server, message, words) = self.receive()?;
            if !self.take_slice(server, &message, &words)? {
                return Err(net(unexpected(server)));
            }
        }
        self.pulls.used();
        Ok(())
    }

    /// Asks for the other servers' slices, unless that was done already.
    fn ask_for_slices(&mut self, age: &Age) -> Result<(), TrainError> {
        if self.pulls.ask() {
            for server in 1..self.slices.len() {
                self.tell(server, ToServer::Pull(age.clone()), Vec::new())?;
            }
        }
        Ok(())
    }

    /// Takes another server's slice, if it is one.
    fn take_slice(
        &mut self,
        server: usize,
        message: &ToWorker,
        words: &[u32],
    ) -> Result<bool, TrainError> {
        let &ToWorker::Slice { version } = message else { return Ok(false) };
        self.put(server, version, words)?;
        self.pulls.arrived().map_err(|_| net(unexpected(server)))?;
        Ok(true)
    }

    fn put(&mut self, server: usize, version: u64, words: &[u32]) -> Result<(), TrainError> {
        let slice = &mut self.parameters[self.slices[server].clone()];
        if slice.len() != words.len() {
            return Err(net(unexpected(server)));
        }
        for (value, &word) in slice.iter_mut().zip(words) {
            *value = f32::from_bits(word);
        }
        self.versions[server] = version;
        Ok(())
    }

    /// Computes a task's gradients and pushes them. Where all servers judge the sums alike, each
    /// bucket is on its way while the next is computed, and the next slices are asked for at once,
    /// so that pulling overlaps pushing.
    fn compute(&mut self, order: &Order) -> Result<(), TrainError> {
        let began = Instant::now();
        let task = order.task;
        let mut scale = scale_of(&order.scale).ok_or_else(|| net(unexpected(0)))?;
        let mut redone = false;
        self.step = task.step;
        loop {
            let mut computed_at = Instant::now();
            let batch = self.sampler.batch(task.step);
            let fixed_point = FixedPoint::for_wire(self.config.wire, batch.len(), &scale);
            let mine = share(batch.len(), self.star.workers(), task.share as usize);
            self.engine.begin_step(&self.parameters, &batch[mine], &fixed_point)?;
            for bucket in 0..BUCKETS.len() {
                self.engine.finish_bucket(bucket, &mut self.vectors[bucket])?;
                self.timeline.span(Track::Compute(bucket), task.step, computed_at);
                if !order.own_range {
                    self.push(order, bucket, &scale, began)?;
                }
                computed_at = Instant::now();
            }
            if !order.own_range {
                let version = order.version + 1;
                return self.ask_for_slices(&Age { version, clocks: Vec::new() });
            }
            let maxima = self.maxima();
            if maxima.iter().any(|maximum| !maximum.is_finite()) {
                let total = self.config.total_steps(self.dataset.train.labels.len());
                let lr = learning_rate(&self.config, task.step, total);
                return Err(TrainError::Diverged { step: task.step + 1, lr });
            }
            if fixed_point.exceeded(&maxima).next().is_none() {
                break;
            }
            if redone {
                return Err(TrainError::NotReproducible { step: task.step + 1 });
            }
            (scale, redone) = (maxima, true);
        }
        for bucket in 0..BUCKETS.len() {
            self.push(order, bucket, &scale, began)?;
        }
        Ok(())
    }

    fn push(
        &self,
        order: &Order,
        bucket: usize,
        scale: &Maxima,
        began: Instant,
    ) -> Result<(), TrainError> {
        for server in star::in_turn(order.task.share as usize, self.slices.len()) {
            let slice = &self.slices[server];
            let words = cut(self.config.wire, slice, &BUCKETS[bucket], &self.vectors[bucket]);
            let header = PushHeader {
                task: order.task,
                bucket: bucket as u32,
                version: self.versions[server],
                scale: scale.map(f32::to_bits).to_vec(),
                compute_us: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
            };
            self.tell(server, ToServer::Push(header), words)?;
        }
        Ok(())
    }

    /// The maxima of this worker's own gradients.
    fn maxima(&self) -> Maxima {
        let mut maxima = [0.0; SCALE_COUNT];
        for (bucket, vector) in BUCKETS.iter().zip(&self.vectors) {
            let bits = &vector[bucket.sum_words()..];
            for (k, &bits) in bits[..bucket.tensors].iter().enumerate() {
                maxima[bucket.first_tensor + k] = f32::from_bits(bits);
            }
            if bucket.statistics {
                maxima[LOSS_SCALE] = f32::from_bits(bits[bucket.tensors]);
            }
        }
        maxima
    }

    /// What a server says next.
    fn receive(&mut self) -> Result<(usize, ToWorker, Vec<u32>), TrainError> {
        let workers = self.star.workers();
        match self.star.receive().map_err(net)? {
            StarEvent::Message { node, message: Message::ToWorker(message), words } => {
                Ok((node - workers, message, words))
            }
            StarEvent::Message { node, .. } => Err(net(unexpected(node - workers))),
            StarEvent::Left { node } => Err(net(unexpected(node - workers))),
            StarEvent::Lost { error, .. } => Err(net(error)),
        }
    }

    fn tell(&self, server: usize, message: ToServer, words: Vec<u32>) -> Result<(), TrainError> {
        let node = self.star.workers() + server;
        self.star.send(node, &Message::ToServer(message), words).map_err(net)
    }
}

fn unexpected(server: usize) -> crate::net::NetError {
    crate::net::NetError::ServerOutOfTurn { server }
}
