//! A parameter server's decisions: which gradients count, who may go on, who waits for whom.
//!
//! A server holds a slice of the parameters. Workers *push* gradients to it and *pull* the slice; a
//! worker's next **task** (a share of a step's batch) is handed out by the first server, the
//! *coordinator*. Gradients and parameters are opaque here: the shell adds, applies and sends what
//! this module says.
//!
//! | mode | when a push counts | when a worker goes on |
//! |---|---|---|
//! | [`Sync`](Mode::Sync) | with all others of its step | when the step is applied |
//! | [`Backup`](Mode::Backup) (Chen et al. 2016) | if it is among the first `n - spare` of its step | when the step is applied |
//! | [`Async`](Mode::Async) | at once, as an update of its own | at once, or bounded: see below |
//!
//! **Bounded staleness** (Ho et al. 2013): a worker's *clock* is the number of its pushes. With bound
//! `S`, a worker starts its next task only while its clock is at most `S` above the slowest one's. With
//! `S = 0` nobody may go on before all have pushed, which is the barrier of [`Mode::Sync`], and
//! [`Mode::bounded`] makes it that.
//!
//! A **version** is the number of updates that a server has applied. A push's *staleness* is the
//! number of versions applied since its worker pulled the parameters that it was computed from.
//!
//! **Cost** of a step with `n` workers, a vector of `m` bytes and `K` servers: each server receives
//! and sends `n m / K`; a worker sends and receives `m`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// When gradients are applied and who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// All workers' gradients of a step are one update.
    Sync,
    /// The first `n - spare` gradients of a step are one update; late ones are dropped.
    Backup { spare: usize },
    /// Each gradient is an update. A bound is above 0.
    Async { bound: Option<u64> },
}

impl Mode {
    /// Bounded staleness, which is synchronous where the bound is 0.
    pub fn bounded(bound: u64) -> Mode {
        if bound == 0 { Mode::Sync } else { Mode::Async { bound: Some(bound) } }
    }

    /// Backup workers, of which none is the same as synchronous.
    pub fn backup(spare: usize) -> Mode {
        if spare == 0 { Mode::Sync } else { Mode::Backup { spare } }
    }

    /// `sync`, `backup`, `bounded` or `async`.
    pub const fn name(&self) -> &'static str {
        match self {
            Mode::Sync => "sync",
            Mode::Backup { .. } => "backup",
            Mode::Async { bound: Some(_) } => "bounded",
            Mode::Async { bound: None } => "async",
        }
    }

    /// Whether the others go on when a worker is lost.
    pub const fn survives_losses(&self) -> bool {
        !matches!(self, Mode::Sync)
    }

    const fn is_async(&self) -> bool {
        matches!(self, Mode::Async { .. })
    }
}

/// A share of a step's batch, to be computed by one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Task {
    pub step: u64,
    /// Of as many shares as the run began with workers.
    pub share: u32,
    /// 0, or how often the step has been redone.
    pub attempt: u32,
}

/// What is to become of a push's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Add them to the step's sum.
    Add,
    /// Add them; the step is complete with them. Then call [`ParameterServer::applied`], or
    /// [`ParameterServer::redo`] if the sum did not fit its range.
    Complete,
    /// Apply them at once; they are this stale.
    Apply { staleness: u64 },
    /// They are too late.
    Drop,
}

/// What a worker waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Its next task, of the coordinator.
    Task,
    /// The slice, once it is as new as this.
    Slice(Age),
}

/// The least that a slice must have in it to be pulled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Age {
    /// Updates applied.
    pub version: u64,
    /// Pushes of each worker, by rank; those that are lost, or missing here, do not count.
    pub clocks: Vec<u64>,
}

/// What a worker that has waited is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    Task(Task),
    Slice,
}

/// What follows from a worker's leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The others go on.
    GoesOn,
    /// The others go on, and the step is complete without it: as at [`Verdict::Complete`].
    Completes,
    /// The run cannot go on.
    Ends,
}

/// What only a worker that breaks the protocol can cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushFault {
    #[error("gradients of step {step}, attempt {attempt}, which it was not asked for")]
    NotAsked { step: u64, attempt: u32 },
    #[error("gradients of parameters of version {theirs}, while this server has {ours}")]
    FromTheFuture { theirs: u64, ours: u64 },
}

/// Histograms of staleness end here: the last place holds all that is more.
pub const STALENESS_MAX: usize = 64;

/// One server's decisions.
///
/// Tell it what happens ([`push`](ParameterServer::push), [`ask`](ParameterServer::ask),
/// [`leave`](ParameterServer::leave)), and after each take [`next_grant`](ParameterServer::next_grant)
/// until there is none. Times are passed in, counted from any fixed moment.
#[derive(Clone, Debug)]
pub struct ParameterServer {
    mode: Mode,
    workers: Vec<Worker>,
    version: u64,
    /// Of the step whose gradients are being collected; unused in the asynchronous mode.
    step: u64,
    attempt: u32,
    /// No task of this step or a later one is given.
    until: u64,
    /// Who is granted something first.
    first: usize,
    /// Workers whose requests may have become grantable since they were looked at.
    stirred: BTreeSet<usize>,
    /// The next fresh task, counted in shares; the asynchronous mode alone.
    next_share: u64,
    /// Tasks of workers that were lost.
    returned: BTreeSet<Task>,
    /// Pushes that were applied or counted, with the steps before the first counted in.
    shares_done: u64,
    last_push: usize,
    /// Workers whose gradients of the current attempt are in, and those that are gone without.
    counted: usize,
    absent: usize,
    staleness: Vec<u64>,
    dropped: u64,
}

#[derive(Clone, Debug)]
struct Worker {
    alive: bool,
    /// Pushes so far.
    clock: u64,
    /// What it was last given, and whether that is still to be pushed.
    task: Option<Task>,
    owes: bool,
    /// The gradients of the current attempt are in; unused in the asynchronous mode.
    pushed: bool,
    waiting: Vec<(Request, Duration)>,
    /// How long it has waited for each other worker for which it has.
    waited: BTreeMap<usize, Duration>,
}

impl ParameterServer {
    /// The server of `workers` workers, at the start of `step`, of which no task is given until
    /// [`allow`](ParameterServer::allow).
    ///
    /// # Panics
    /// If there are no workers, or no more of them than are spare.
    pub fn new(mode: Mode, workers: usize, step: u64) -> ParameterServer {
        assert!(workers > 0, "a server has workers");
        if let Mode::Backup { spare } = mode {
            assert!(spare < workers, "some gradients count");
        }
        let worker = Worker {
            alive: true,
            clock: 0,
            task: None,
            owes: false,
            pushed: false,
            waiting: Vec::new(),
            waited: BTreeMap::new(),
        };
        ParameterServer {
            mode,
            workers: vec![worker; workers],
            version: 0,
            step,
            attempt: 0,
            until: step,
            first: 0,
            stirred: BTreeSet::new(),
            next_share: step * workers as u64,
            returned: BTreeSet::new(),
            shares_done: step * workers as u64,
            last_push: 0,
            counted: 0,
            absent: 0,
            staleness: Vec::new(),
            dropped: 0,
        }
    }

    /// Grants what several workers may have to this one first, then to those behind it: servers that
    /// begin with different workers do not all send to the same one at once.
    pub fn begin_with(mut self, rank: usize) -> ParameterServer {
        self.first = rank % self.workers.len();
        self
    }

    /// Lets tasks of steps below `until` be given.
    pub fn allow(&mut self, until: u64) {
        self.until = until;
        self.stir();
    }

    /// In the asynchronous mode, lets the steps that are begun be finished, and no more.
    pub fn allow_begun(&mut self) {
        self.until = self.until.min(self.next_share.div_ceil(self.workers.len() as u64));
    }

    /// No task of this step or a later one is given.
    pub fn allowed(&self) -> u64 {
        self.until
    }

    /// Takes notice of a push of `task`, computed from parameters of `version`.
    ///
    /// # Errors
    /// If the worker breaks the protocol; nothing has changed then.
    pub fn push(&mut self, rank: usize, task: Task, version: u64) -> Result<Verdict, PushFault> {
        if version > self.version {
            return Err(PushFault::FromTheFuture { theirs: version, ours: self.version });
        }
        let (step, attempt) = (self.step, self.attempt);
        let worker = &mut self.workers[rank];
        let fault = PushFault::NotAsked { step: task.step, attempt: task.attempt };
        let verdict = match self.mode {
            Mode::Async { .. } => {
                if worker.owes && worker.task != Some(task) {
                    return Err(fault);
                }
                let staleness = self.version - version;
                self.version += 1;
                self.shares_done += 1;
                self.note_staleness(staleness);
                Verdict::Apply { staleness }
            }
            Mode::Backup { .. } if task.step < step => {
                self.dropped += 1;
                Verdict::Drop
            }
            _ if (task.step, task.attempt) != (step, attempt) || worker.pushed => {
                return Err(fault);
            }
            _ => {
                worker.pushed = true;
                self.counted += 1;
                if self.is_complete() { Verdict::Complete } else { Verdict::Add }
            }
        };
        self.last_push = rank;
        let worker = &mut self.workers[rank];
        worker.owes = false;
        worker.clock += 1;
        if self.mode.is_async() {
            self.stir();
        }
        Ok(verdict)
    }

    /// The complete step was applied.
    pub fn applied(&mut self) {
        debug_assert!(self.is_complete() && !self.mode.is_async());
        for _ in 0..self.counted() {
            self.note_staleness(0);
        }
        self.version += 1;
        self.step += 1;
        self.shares_done = self.step * self.workers.len() as u64;
        self.attempt = 0;
        self.begin_attempt();
    }

    /// The complete step did not fit its range: all compute it again.
    pub fn redo(&mut self) {
        debug_assert!(self.is_complete() && !self.mode.is_async());
        self.attempt += 1;
        self.begin_attempt();
    }

    /// A worker waits for something from `now` on.
    pub fn ask(&mut self, now: Duration, rank: usize, request: Request) {
        self.workers[rank].waiting.push((request, now));
        self.stirred.insert(rank);
    }

    /// Something that can be given to a worker that waits for it.
    pub fn next_grant(&mut self, now: Duration) -> Option<(usize, Grant)> {
        while let Some(rank) = self.next_stirred() {
            for place in 0..self.workers[rank].waiting.len() {
                let (request, since) = &self.workers[rank].waiting[place];
                let since = *since;
                let grant = match request {
                    Request::Slice(age) => self.has(age).then_some(Grant::Slice),
                    Request::Task => self.next_task(rank).map(Grant::Task),
                };
                let Some(grant) = grant else { continue };
                self.workers[rank].waiting.remove(place);
                self.note_wait(rank, now.saturating_sub(since));
                if let Grant::Task(task) = grant {
                    self.hand_out(rank, task);
                }
                return Some((rank, grant));
            }
            self.stirred.remove(&rank);
        }
        None
    }

    /// Withdraws the worker's wish for a task, if it has one, so that it can be given other work.
    pub fn take_idle(&mut self, now: Duration, rank: usize) -> bool {
        let waiting = &mut self.workers[rank].waiting;
        let Some(place) = waiting.iter().position(|(request, _)| *request == Request::Task) else {
            return false;
        };
        let (_, since) = waiting.remove(place);
        self.note_wait(rank, now.saturating_sub(since));
        true
    }

    /// A worker is gone. What it was to compute goes to another one.
    pub fn leave(&mut self, rank: usize) -> Departure {
        let worker = &mut self.workers[rank];
        if !worker.alive {
            return Departure::GoesOn;
        }
        let had_pushed = worker.pushed;
        worker.alive = false;
        worker.waiting.clear();
        self.absent += usize::from(!had_pushed);
        let worker = &mut self.workers[rank];
        if worker.owes && self.mode.is_async() {
            self.returned.extend(worker.task);
        }
        worker.owes = false;
        // Nobody waits for its pushes any more.
        self.stir();
        if !self.mode.survives_losses() || self.live() == 0 {
            return Departure::Ends;
        }
        if !self.mode.is_async() && !had_pushed && self.is_complete() {
            return Departure::Completes;
        }
        Departure::GoesOn
    }

    /// Whether everything of this age is applied.
    pub fn has(&self, age: &Age) -> bool {
        let clocks = self.workers.iter().zip(&age.clocks);
        let late = |(worker, clock): (&Worker, &u64)| worker.alive && worker.clock < *clock;
        self.version >= age.version && !clocks.into_iter().any(late)
    }

    /// What another server must have in its slice to go with this one's, for a worker that may go
    /// on; `settled` if no push is under way and all that were made are wanted.
    pub fn age(&self, settled: bool) -> Age {
        let clocks = self.workers.iter().map(|worker| worker.clock);
        match self.mode {
            Mode::Sync | Mode::Backup { .. } => Age { version: self.version, clocks: Vec::new() },
            Mode::Async { .. } if settled => Age { version: 0, clocks: clocks.collect() },
            Mode::Async { bound: Some(_) } => {
                Age { version: 0, clocks: vec![self.slowest(); self.workers.len()] }
            }
            Mode::Async { bound: None } => Age::default(),
        }
    }

    /// Updates applied.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whole steps whose gradients are applied.
    pub fn steps_done(&self) -> u64 {
        self.shares_done / self.workers.len() as u64
    }

    /// How often the current step has been redone.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The least number of pushes of a worker that is there.
    pub fn slowest(&self) -> u64 {
        self.workers.iter().filter(|w| w.alive).map(|w| w.clock).min().unwrap_or(0)
    }

    pub fn is_alive(&self, rank: usize) -> bool {
        self.workers[rank].alive
    }

    /// Workers that are there.
    pub fn live(&self) -> usize {
        self.workers.iter().filter(|worker| worker.alive).count()
    }

    /// How many gradients had each staleness, from 0; the last of [`STALENESS_MAX`] places holds all
    /// that are staler.
    pub fn staleness(&self) -> &[u64] {
        &self.staleness
    }

    /// Gradients that came too late to count.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How long each worker has waited for each other one: `[who][for whom]`.
    pub fn waits(&self) -> Vec<Vec<Duration>> {
        let count = self.workers.len();
        let row = |worker: &Worker| {
            let waited = |other| worker.waited.get(&other).copied().unwrap_or_default();
            (0..count).map(waited).collect()
        };
        self.workers.iter().map(row).collect()
    }

    /// Gradients of the current step that are in.
    pub fn counted(&self) -> usize {
        self.counted
    }

    fn is_complete(&self) -> bool {
        let spare = if let Mode::Backup { spare } = self.mode { spare } else { 0 };
        // Those that were lost after their push still count; those that will never push do not.
        let possible = self.workers.len() - self.absent;
        let counted = self.counted();
        counted > 0 && counted >= possible.min(self.workers.len() - spare)
    }

    fn next_stirred(&self) -> Option<usize> {
        let mut behind = self.stirred.range(self.first..);
        behind.next().or_else(|| self.stirred.first()).copied()
    }

    /// No gradients of the current attempt are in yet.
    fn begin_attempt(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.pushed = false);
        self.counted = 0;
        self.absent = self.workers.len() - self.live();
        self.stir();
    }

    /// Something has changed for all that wait.
    fn stir(&mut self) {
        let waiting = self.workers.iter().enumerate().filter(|(_, w)| !w.waiting.is_empty());
        self.stirred.extend(waiting.map(|(rank, _)| rank));
    }

    /// What the worker may compute now.
    fn next_task(&self, rank: usize) -> Option<Task> {
        let worker = &self.workers[rank];
        if let Mode::Async { bound } = self.mode {
            if bound.is_some_and(|bound| worker.clock > self.slowest() + bound) {
                return None;
            }
            let shares = self.workers.len() as u64;
            let fresh = Task {
                step: self.next_share / shares,
                share: (self.next_share % shares) as u32,
                attempt: 0,
            };
            let task = self.returned.first().copied().unwrap_or(fresh);
            return (task.step < self.until).then_some(task);
        }
        let task = Task { step: self.step, share: rank as u32, attempt: self.attempt };
        (self.step < self.until && worker.task != Some(task)).then_some(task)
    }

    fn hand_out(&mut self, rank: usize, task: Task) {
        if self.mode.is_async() && !self.returned.remove(&task) {
            self.next_share += 1;
        }
        let worker = &mut self.workers[rank];
        (worker.task, worker.owes) = (Some(task), true);
    }

    fn note_staleness(&mut self, staleness: u64) {
        let place = usize::try_from(staleness).unwrap_or(usize::MAX).min(STALENESS_MAX - 1);
        if self.staleness.len() <= place {
            self.staleness.resize(place + 1, 0);
        }
        self.staleness[place] += 1;
    }

    /// Whoever waits goes on because of the last push, so that is whom it has waited for.
    fn note_wait(&mut self, rank: usize, waited: Duration) {
        let culprit = self.last_push;
        if culprit != rank {
            *self.workers[rank].waited.entry(culprit).or_default() += waited;
        }
    }
}

#[cfg(test)]
#[path = "parameter_server_simulation.rs"]
mod simulation;
