//! One server at work: messages in, decisions, numbers, messages out.

use std::time::{Duration, Instant};

use crate::config::RunConfig;
use crate::model::layout::{BUCKETS, PARAMETERS, SCALE_COUNT};
use crate::net::{NetError, Star, StarEvent};
use crate::numerics::fixed_point::Maxima;
use crate::protocol::parameter_server::{
    Age, Departure, Grant, Mode, ParameterServer, Request, Task, Verdict,
};
use crate::protocol::star::{self, Message, Order, PushHeader, ToServer, ToWorker};
use crate::train::collective::CollectiveError;
use crate::train::trainer::{TrainError, TrainingState};

use super::slice::{Applied, Outcome, Slice, Words};
use super::{ServerPlan, StalenessLr};

/// The longest vector of a message: a slice with an optimizer's two vectors.
pub const WORDS_MAX: usize = 3 * PARAMETERS + 1_000;

/// A server: the same for the coordinator and the others, which only hold a slice.
pub struct ServerNode {
    pub(super) plan: ServerPlan,
    /// Among the servers.
    server: usize,
    pub(super) star: Star<Message, Message>,
    pub(super) decisions: ParameterServer,
    pub(super) slice: Slice,
    /// Of each worker: the buckets that are in of the push that is coming.
    incoming: Vec<Words>,
    /// Of each worker: how long its last task took.
    compute: Vec<Duration>,
    /// What the coordinator wants to save, until it is there.
    save: Option<Age>,
    /// Workers that have parted in peace.
    left: Vec<usize>,
    began: Instant,
}

/// What a message led to, as far as the coordinator is concerned.
pub(super) enum News {
    Nothing,
    Ready {
        rank: usize,
        engine: String,
    },
    Evaluated {
        rank: usize,
        words: Vec<u32>,
    },
    /// A push was applied, or the step that it completed was.
    Applied {
        applied: Applied,
        staleness: u64,
        compute: Duration,
    },
    /// The step must be computed once more.
    Redo,
    Saved {
        server: usize,
        version: u64,
        updates: u64,
        words: Vec<u32>,
    },
    /// A worker is gone, and the others go on.
    Left {
        rank: usize,
    },
    Finish,
}

impl ServerNode {
    /// The server that takes part in `star` as this one of the plan's.
    pub fn new(
        plan: ServerPlan,
        server: usize,
        star: Star<Message, Message>,
        config: RunConfig,
        samples: usize,
        state: &TrainingState,
    ) -> ServerNode {
        let workers = star.workers();
        ServerNode {
            plan,
            server,
            star,
            decisions: ParameterServer::new(plan.mode, workers, state.step).begin_with(server),
            slice: Slice::new(
                config,
                samples,
                star::slice(PARAMETERS, plan.servers, server),
                state,
            ),
            incoming: vec![Vec::new(); workers],
            compute: vec![Duration::ZERO; workers],
            save: None,
            left: Vec::new(),
            began: Instant::now(),
        }
    }

    /// Waits for something to happen and does what follows from it.
    pub(super) fn turn(&mut self) -> Result<News, TrainError> {
        let event = self.star.receive().map_err(net)?;
        self.handle(event)
    }

    pub(super) fn handle(&mut self, event: StarEvent<Message>) -> Result<News, TrainError> {
        let news = match event {
            StarEvent::Message { node, message: Message::ToServer(message), words } => {
                self.hear(node, message, words)?
            }
            StarEvent::Message {
                node,
                message: Message::ToWorker(ToWorker::Saved { version, updates }),
                words,
            } => News::Saved { server: node - self.star.workers(), version, updates, words },
            StarEvent::Message { node, .. } => {
                return Err(net(out_of_turn(node, "a message for workers")));
            }
            StarEvent::Lost { node, error } => self.lose(node, error)?,
            // The coordinator's word that the run is over may reach a worker first.
            StarEvent::Left { node } if self.server != 0 && node < self.star.workers() => {
                self.left.push(node);
                News::Nothing
            }
            StarEvent::Left { node } => {
                self.lose(node, out_of_turn(node, "it left before the end"))?
            }
        };
        self.grant()?;
        self.save_if_ready()?;
        Ok(news)
    }

    fn hear(
        &mut self,
        node: usize,
        message: ToServer,
        words: Vec<u32>,
    ) -> Result<News, TrainError> {
        let is_worker = node < self.star.workers();
        match message {
            ToServer::Ready { engine } if is_worker => {
                self.ask(node, Request::Task);
                Ok(News::Ready { rank: node, engine })
            }
            ToServer::Push(header) if is_worker => self.push(node, &header, words),
            ToServer::Pull(age) if is_worker => {
                self.ask(node, Request::Slice(age));
                Ok(News::Nothing)
            }
            ToServer::Evaluated if is_worker => {
                self.ask(node, Request::Task);
                Ok(News::Evaluated { rank: node, words })
            }
            ToServer::Save(age) if !is_worker => {
                self.save = Some(age);
                Ok(News::Nothing)
            }
            ToServer::Finish if !is_worker => Ok(News::Finish),
            _ => Err(net(out_of_turn(node, "a message that is not its to send"))),
        }
    }

    /// The others may take a task from the coordinator alone.
    fn ask(&mut self, rank: usize, request: Request) {
        if request != Request::Task || self.server == 0 {
            self.decisions.ask(self.began.elapsed(), rank, request);
        }
    }

    /// Takes in a bucket of a push, and the push with the last one.
    fn push(
        &mut self,
        rank: usize,
        header: &PushHeader,
        words: Vec<u32>,
    ) -> Result<News, TrainError> {
        let buckets = &mut self.incoming[rank];
        let due = header.bucket as usize == buckets.len();
        match self.slice.unpack(buckets.len(), words).filter(|_| due) {
            Some(words) => buckets.push(words),
            None => return Err(net(out_of_turn(rank, "a bucket that does not fit"))),
        }
        if buckets.len() < BUCKETS.len() {
            return Ok(News::Nothing);
        }
        let words = std::mem::take(buckets);
        self.compute[rank] = Duration::from_micros(header.compute_us);
        let scale = scale_of(&header.scale)
            .ok_or_else(|| net(out_of_turn(rank, "a scale that does not fit")))?;
        let task = header.task;
        let verdict = self
            .decisions
            .push(rank, task, header.version)
            .map_err(|fault| net(out_of_turn(rank, &fault.to_string())))?;
        let news = match verdict {
            Verdict::Drop => News::Nothing,
            Verdict::Add | Verdict::Complete => {
                if self.plan.mode == Mode::Sync {
                    self.slice.add(&words);
                } else {
                    self.slice.add_own(task.step, &scale, &words)?;
                }
                if verdict == Verdict::Complete { self.complete(task)? } else { News::Nothing }
            }
            Verdict::Apply { staleness } => {
                self.slice.add_own(task.step, &scale, &words)?;
                let inverse = self.plan.staleness_lr == StalenessLr::Inverse;
                let slower = if inverse { 1.0 + staleness as f64 } else { 1.0 };
                let weigh = |lr: f64, share: f64| lr * share / slower;
                let applied = self.slice.apply_own(task.step, weigh)?;
                News::Applied { applied, staleness, compute: self.compute[rank] }
            }
        };
        self.ask(rank, Request::Task);
        Ok(news)
    }

    /// Applies the gradients of a step that are all in.
    fn complete(&mut self, task: Task) -> Result<News, TrainError> {
        let applied = if self.plan.mode == Mode::Sync {
            match self.slice.apply_sums(task.step, self.decisions.attempt())? {
                Outcome::Applied(applied) => applied,
                Outcome::Redo => {
                    self.decisions.redo();
                    return Ok(News::Redo);
                }
            }
        } else {
            // The mean over those samples that count, at the step's own rate.
            self.slice.apply_own(task.step, |lr, _| lr)?
        };
        self.decisions.applied();
        let compute = self.compute.iter().copied().max().unwrap_or_default();
        Ok(News::Applied { applied, staleness: 0, compute })
    }

    fn lose(&mut self, node: usize, error: NetError) -> Result<News, TrainError> {
        if node >= self.star.workers() {
            return Err(net(error));
        }
        self.incoming[node].clear();
        let step = self.decisions.steps_done();
        match self.decisions.leave(node) {
            Departure::Ends => Err(net(error)),
            departure => {
                // One server tells for all.
                if self.server == 0 {
                    tracing::warn!("worker {node} is lost, and the others go on: {error}");
                }
                match departure {
                    Departure::Completes => self.complete(Task { step, share: 0, attempt: 0 }),
                    _ => Ok(News::Left { rank: node }),
                }
            }
        }
    }

    /// Gives workers what they wait for, where they may have it.
    pub(super) fn grant(&mut self) -> Result<(), TrainError> {
        while let Some((rank, grant)) = self.decisions.next_grant(self.began.elapsed()) {
            let version = self.decisions.version();
            let message = match grant {
                Grant::Slice => ToWorker::Slice { version },
                Grant::Task(task) => ToWorker::Compute(Order {
                    task,
                    version,
                    pull: self.decisions.age(false),
                    scale: self.slice.maxima.map(f32::to_bits).to_vec(),
                    own_range: self.plan.mode != Mode::Sync,
                }),
            };
            self.tell(rank, message, self.slice.words())?;
        }
        Ok(())
    }

    fn save_if_ready(&mut self) -> Result<(), TrainError> {
        if self.save.take_if(|age| self.decisions.has(age)).is_some() {
            let mut words = self.slice.words();
            words.extend(self.slice.optimizer.to_words());
            let (version, updates) = (self.decisions.version(), self.slice.optimizer.steps());
            let coordinator = self.star.workers();
            self.tell(coordinator, ToWorker::Saved { version, updates }, words)?;
        }
        Ok(())
    }

    pub(super) fn tell(
        &self,
        node: usize,
        message: ToWorker,
        words: Vec<u32>,
    ) -> Result<(), TrainError> {
        self.star.send(node, &Message::ToWorker(message), words).map_err(net)
    }

    /// Withdraws a worker's wish for a task, if it has one, to give it other work.
    pub(super) fn take_idle(&mut self, rank: usize) -> bool {
        self.decisions.take_idle(self.began.elapsed(), rank)
    }

    /// The worker waits for a task again.
    pub(super) fn ask_again(&mut self, rank: usize) {
        self.ask(rank, Request::Task);
    }

    /// Waits until all workers have left, each of which has been told that the run is over, so that
    /// no connection is closed under a message; then parts.
    pub(super) fn see_off(mut self) {
        let workers = self.star.workers();
        let there = |&rank: &usize| self.decisions.is_alive(rank) && !self.left.contains(&rank);
        let mut there: Vec<usize> = (0..workers).filter(there).collect();
        while !there.is_empty() {
            match self.star.receive() {
                Ok(StarEvent::Left { node } | StarEvent::Lost { node, .. }) => {
                    there.retain(|&rank| rank != node);
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        self.star.close();
    }
}

/// Serves until the coordinator says that the run is over: all that a server other than it does.
///
/// # Errors
/// If the run cannot go on; the others have been told.
pub fn serve(mut node: ServerNode) -> Result<(), TrainError> {
    loop {
        match node.turn() {
            Ok(News::Finish) => {
                node.see_off();
                return Ok(());
            }
            Ok(_) => {}
            Err(error) => {
                node.star.abort(error.to_string());
                return Err(error);
            }
        }
    }
}

/// A network's error in this layer.
pub(super) fn net(error: NetError) -> TrainError {
    TrainError::Collective(CollectiveError::Net(error))
}

fn out_of_turn(node: usize, fault: &str) -> NetError {
    NetError::OutOfTurn { node, fault: fault.to_owned() }
}

/// Maxima by their bits.
pub(super) fn scale_of(bits: &[u32]) -> Option<Maxima> {
    let bits: [u32; SCALE_COUNT] = bits.try_into().ok()?;
    let maxima = bits.map(f32::from_bits);
    maxima.iter().all(|maximum| maximum.is_finite() && *maximum >= 0.0).then_some(maxima)
}
