//! The coordinator: the server that runs the trainer, hands out tasks and asks for evaluations.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::config::RunConfig;
use crate::model::layout::PARAMETERS;
use crate::net::StarEvent;
use crate::protocol::parameter_server::Mode;
use crate::protocol::star::{self, Message, ToServer, ToWorker};
use crate::train::collective::Traffic;
use crate::train::engine::EngineDescription;
use crate::train::evaluate::{EVALUATION_WORDS, Evaluation};
use crate::train::metrics::{ServedStep, ServerReport, milliseconds};
use crate::train::trainer::{TrainError, TrainingState};
use crate::train::update::{StepOutcome, Update, UpdateReport};

use super::node::{News, ServerNode, net};

/// What the coordinator works with.
pub struct CoordinatorParts {
    pub node: ServerNode,
    pub config: RunConfig,
    /// Training samples of the data set.
    pub samples: usize,
    pub checkpoint_every: Option<u64>,
    /// Set from outside to end the run after the current step.
    pub stop: Arc<AtomicBool>,
}

/// Makes steps by letting workers compute them.
pub struct Coordinator {
    node: ServerNode,
    config: RunConfig,
    samples: usize,
    checkpoint_every: Option<u64>,
    stop: Arc<AtomicBool>,
    engine: EngineDescription,
    /// What came while something else was awaited.
    deferred: VecDeque<StarEvent<Message>>,
    /// What all workers had waited in all before this step.
    waited: Duration,
}

impl Coordinator {
    /// Waits until a worker has said what it computes on.
    ///
    /// # Errors
    /// If nobody does.
    pub fn new(parts: CoordinatorParts) -> Result<Coordinator, TrainError> {
        let CoordinatorParts { mut node, config, samples, checkpoint_every, stop } = parts;
        let engine = loop {
            if let News::Ready { rank, engine } = node.turn()? {
                break serde_json::from_str(&engine).map_err(|error| {
                    let fault = format!("it describes its engine wrongly: {error}");
                    net(crate::net::NetError::OutOfTurn { node: rank, fault })
                })?;
            }
        };
        Ok(Coordinator {
            node,
            config,
            samples,
            checkpoint_every,
            stop,
            engine,
            deferred: VecDeque::new(),
            waited: Duration::ZERO,
        })
    }

    fn turn(&mut self) -> Result<News, TrainError> {
        match self.deferred.pop_front() {
            Some(event) => self.node.handle(event),
            None => self.node.turn(),
        }
    }

    /// The step at which the state is looked at next: no task beyond it is handed out before.
    fn border(&self, step: u64) -> u64 {
        if !matches!(self.node.plan.mode, Mode::Async { .. }) {
            return step + 1;
        }
        let after = |every: u64| (step / every + 1) * every;
        let epoch = after(self.config.steps_per_epoch(self.samples));
        let checkpoint = self.checkpoint_every.map_or(u64::MAX, after);
        epoch.min(checkpoint).min(self.config.total_steps(self.samples))
    }

    fn waited_in_all(&self) -> Duration {
        self.node.decisions.waits().into_iter().flatten().sum()
    }

    fn live(&self) -> Vec<usize> {
        (0..self.workers()).filter(|&rank| self.node.decisions.is_alive(rank)).collect()
    }
}

impl Update for Coordinator {
    /// In the asynchronous modes a step is as many applied pushes as the run began with workers.
    fn step(&mut self, state: &mut TrainingState) -> Result<StepOutcome, TrainError> {
        let began = Instant::now();
        let step = state.step;
        if self.node.decisions.allowed() <= step {
            self.node.decisions.allow(self.border(step));
            self.node.grant()?;
        }
        let mut outcome = StepOutcome {
            loss_sum: 0.0,
            samples: 0,
            lr: 0.0,
            redone: 0,
            stop: false,
            rebalanced: false,
            compute: Duration::ZERO,
            comm: Duration::ZERO,
            comm_busy: Duration::ZERO,
            server: None,
        };
        let (mut pushes, mut stale, mut stalest) = (0u64, 0u64, 0u64);
        let dropped = self.node.decisions.dropped();
        while self.node.decisions.steps_done() <= step {
            match self.turn()? {
                News::Applied { applied, staleness, compute } => {
                    outcome.loss_sum += applied.loss_sum;
                    outcome.samples += applied.samples;
                    outcome.lr = applied.lr;
                    outcome.compute += compute;
                    pushes += 1;
                    stale += staleness;
                    stalest = stalest.max(staleness);
                }
                News::Redo => outcome.redone += 1,
                _ => {}
            }
            if self.stop.load(Ordering::Relaxed) {
                self.node.decisions.allow_begun();
            }
        }
        state.step += 1;
        // Asynchronous workers are stopped by giving no more tasks: what they have begun is done.
        outcome.stop = self.stop.load(Ordering::Relaxed)
            && (!matches!(self.node.plan.mode, Mode::Async { .. })
                || state.step >= self.node.decisions.allowed());
        let pushes = pushes.max(1);
        outcome.compute = outcome.compute.div_f64(pushes as f64);
        outcome.comm = began.elapsed().saturating_sub(outcome.compute);
        outcome.comm_busy = outcome.comm;
        let waited = self.waited_in_all();
        outcome.server = Some(ServedStep {
            staleness_mean: stale as f64 / pushes as f64,
            staleness_max: stalest,
            waited_ms: milliseconds(waited.saturating_sub(self.waited)),
            dropped: self.node.decisions.dropped() - dropped,
        });
        self.waited = waited;
        Ok(outcome)
    }

    /// Gathers the slices of the other servers. In the asynchronous modes the state of a run that
    /// fails holds some gradients of the next step too, which a resumed run computes again.
    fn complete(&mut self, state: &mut TrainingState) -> Result<(), TrainError> {
        let slice = &self.node.slice;
        state.parameters[slice.range.clone()].copy_from_slice(&slice.parameters);
        let (steps, words) = (slice.optimizer.steps(), slice.optimizer.to_words());
        let fits = state.optimizer.put_back(slice.range.clone(), steps, &words);
        debug_assert!(fits, "it is a part of the same optimizer");
        state.maxima = slice.maxima;
        let servers = self.node.plan.servers;
        let age = self.node.decisions.age(true);
        let coordinator = self.workers();
        for server in 1..servers {
            let message = Message::ToServer(ToServer::Save(age.clone()));
            self.node.star.send(coordinator + server, &message, Vec::new()).map_err(net)?;
        }
        let mut missing = servers - 1;
        while missing > 0 {
            let event = self.node.star.receive().map_err(net)?;
            let is_worker = match &event {
                StarEvent::Message { node, .. }
                | StarEvent::Left { node }
                | StarEvent::Lost { node, .. } => *node < coordinator,
            };
            if is_worker {
                self.deferred.push_back(event);
                continue;
            }
            let News::Saved { server, version, updates, words } = self.node.handle(event)? else {
                continue;
            };
            let range = star::slice(PARAMETERS, servers, server);
            let (parameters, rest) = words.split_at_checked(range.len()).unwrap_or((&[], &[]));
            let same_step = matches!(self.node.plan.mode, Mode::Async { .. })
                || version == self.node.decisions.version();
            let fits = state.optimizer.put_back(range.clone(), updates, rest);
            if parameters.len() != range.len() || !fits || !same_step {
                return Err(net(crate::net::NetError::ServerOutOfTurn { server }));
            }
            for (value, &word) in state.parameters[range].iter_mut().zip(parameters) {
                *value = f32::from_bits(word);
            }
            missing -= 1;
        }
        Ok(())
    }

    /// Cuts the test set into a part for each worker; a lost worker's part goes to another.
    fn evaluate(&mut self, _state: &TrainingState) -> Result<Evaluation, TrainError> {
        // Every worker that is there comes for its next task first, so that nothing is under way.
        let mut idle: Vec<usize> = Vec::new();
        while !self.live().iter().all(|rank| idle.contains(rank)) {
            let asking: Vec<usize> = (self.live().into_iter())
                .filter(|&rank| !idle.contains(&rank) && self.node.take_idle(rank))
                .collect();
            if asking.is_empty() {
                self.turn()?;
            }
            idle.extend(asking);
        }
        let pull = self.node.decisions.age(true);
        let parts = self.live().len();
        let mut to_do: VecDeque<usize> = (0..parts).collect();
        let mut busy: BTreeMap<usize, usize> = BTreeMap::new();
        let mut sums = [0u32; EVALUATION_WORDS];
        loop {
            idle.retain(|&rank| self.node.decisions.is_alive(rank));
            while let (Some(&part), Some(&rank)) = (to_do.front(), idle.first()) {
                let (part, parts) = (part as u32, parts as u32);
                let message = ToWorker::Evaluate { part, parts, pull: pull.clone() };
                self.node.tell(rank, message, self.node.slice.words())?;
                busy.insert(rank, part as usize);
                to_do.pop_front();
                idle.remove(0);
            }
            if to_do.is_empty() && busy.is_empty() {
                break;
            }
            match self.turn()? {
                News::Evaluated { rank, words } => {
                    busy.remove(&rank);
                    for (sum, word) in sums.iter_mut().zip(words) {
                        *sum = sum.wrapping_add(word);
                    }
                }
                News::Left { rank } => to_do.extend(busy.remove(&rank)),
                _ => {}
            }
            if !to_do.is_empty() {
                let live = self.live();
                idle.extend(live.into_iter().filter(|&rank| self.node.take_idle(rank)));
            }
        }
        // Those that were idle and had no part wait for their next task again.
        for rank in idle {
            self.node.ask_again(rank);
        }
        Ok(Evaluation::from_words(&sums))
    }

    /// There is one copy of the state.
    fn check_replicas(&mut self, _state: &TrainingState) -> Result<(), TrainError> {
        Ok(())
    }

    fn workers(&self) -> usize {
        self.node.star.workers()
    }

    fn engine(&self) -> EngineDescription {
        self.engine.clone()
    }

    fn report(&self) -> UpdateReport {
        let (bytes_sent, bytes_received) = self.node.star.traffic();
        let (plan, decisions) = (self.node.plan, &self.node.decisions);
        UpdateReport {
            topology: "parameter-server",
            algorithm: plan.mode.name(),
            selections: Vec::new(),
            traffic: Traffic { bytes_sent, bytes_received },
            waited_ms: (decisions.waits().iter())
                .map(|waits| waits.iter().copied().map(milliseconds).collect())
                .collect(),
            plan: None,
            server: Some(ServerReport {
                plan,
                staleness: decisions.staleness().to_vec(),
                dropped: decisions.dropped(),
                lost_workers: (0..self.workers())
                    .filter(|&rank| !decisions.is_alive(rank))
                    .collect(),
            }),
        }
    }

    fn close(self: Box<Self>) -> Result<(), TrainError> {
        let Coordinator { node, .. } = *self;
        let workers = node.star.workers();
        for rank in (0..workers).filter(|&rank| node.decisions.is_alive(rank)) {
            node.tell(rank, ToWorker::Finish, Vec::new())?;
        }
        for server in 1..node.plan.servers {
            let message = Message::ToServer(ToServer::Finish);
            node.star.send(workers + server, &message, Vec::new()).map_err(net)?;
        }
        node.see_off();
        Ok(())
    }

    fn abort(self: Box<Self>, reason: String) {
        self.node.star.abort(reason);
    }
}
