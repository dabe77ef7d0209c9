//! Local worker processes: started, watched, stopped, and never left behind.
//!
//! Each child is this program again, with the hidden flag `worker --launched`. It takes its order
//! (with the cluster key) and its peers' addresses from its standard input and tells its events on
//! its standard output; its standard error is passed on line by line. A child whose standard input
//! closes ends at once, so that no worker outlives its launcher, however that one ended.

use std::net::SocketAddr;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::net::identity::ClusterKey;
use crate::protocol::membership::{Arbiter, LEAVES, MemberId};
use crate::train::event::{Event, Observer};
use crate::train::metrics::RunSummary;
use crate::train::server::ServerPlan;

use super::LaunchError;
use super::adapters::Assignment;
use super::pipe::{FromWorker, ToWorker, unix_time_us};
use super::process::{Children, LINES_KEPT, News, ending_text};
use super::spawner::Spawner;
use super::worker::WorkerPlan;

/// How long a worker may take from its start to a bound socket: it has loaded nothing yet.
const BIND_TIMEOUT: Duration = Duration::from_secs(60);

/// How often the launcher looks at the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long the other workers may take to say why, once one has failed.
const LAST_WORDS: Duration = Duration::from_millis(1_500);

/// How long they may take once they train around servers: a node that was killed is missed only
/// after the failure timeout, and then the first server writes a last checkpoint.
const LAST_WORDS_IN_TRAINING: Duration = Duration::from_secs(8);

/// The exit code that means "a peer was lost": another worker's own failure explains more.
const LOST_PEER: u8 = 5;

/// A group of local workers.
pub struct LocalGroup<'a> {
    /// For every worker; the folder is written by rank 0 alone, or by the first server.
    pub plan: WorkerPlan,
    /// With fewer workers the run stops.
    pub workers_min: usize,
    /// No more workers are let in.
    pub workers_max: usize,
    /// How long workers wait for each other at the start, and one that comes later to be let in.
    pub join_timeout: Duration,
    /// So many lost workers are replaced, over the whole run.
    pub restarts_max: usize,
    /// One a worker.
    pub assignments: Vec<Assignment>,
    pub run_id: String,
    pub started_at: Instant,
    /// Set once to end the run after the current step, twice (see `abort`) to end it at once.
    pub stop: &'a AtomicBool,
    pub abort: &'a AtomicBool,
}

impl LocalGroup<'_> {
    /// Runs the group to the end of the training.
    pub fn run(self, observer: &mut dyn Observer) -> Result<RunSummary, LaunchError> {
        let (sender, receiver) = channel();
        let launched_at_us = unix_time_us()
            .saturating_sub(u64::try_from(self.started_at.elapsed().as_micros()).unwrap_or(0));
        let (stop, abort, started_at) = (self.stop, self.abort, self.started_at);
        let mut group = Supervisor {
            workers: self.assignments.len(),
            servers: self.plan.network.servers,
            spawner: Spawner {
                program: std::env::current_exe().map_err(LaunchError::Spawn)?,
                key: ClusterKey::generate()?.to_pem().to_owned(),
                launched_at_us,
                group: self,
                news: sender,
            },
            bound: Vec::new(),
            open: 0,
            children: Children::default(),
            arbiter: None,
            members: Vec::new(),
            restarts: 0,
            summary: None,
            failure: None,
            stopping: false,
            training: false,
        };
        let servers = group.servers.map_or(0, |plan| plan.servers);
        for place in 0..group.workers + servers {
            group.spawn(place, false)?;
        }
        group.watch(&receiver, started_at, stop, abort, observer)?;
        group.outcome()
    }
}

/// The group under way.
pub(super) struct Supervisor<'a> {
    spawner: Spawner<'a>,
    pub(super) children: Children,
    /// Children that are workers at the start; with servers, all others are these.
    workers: usize,
    pub(super) servers: Option<ServerPlan>,
    /// Of those that the run begins with.
    pub(super) bound: Vec<Option<Vec<SocketAddr>>>,
    /// Of the newest view.
    pub(super) members: Vec<MemberId>,
    /// Workers that were started in the place of lost ones.
    restarts: usize,
    /// Elects views, once the first one is known.
    pub(super) arbiter: Option<Arbiter>,
    /// Children whose output is still open.
    open: usize,
    summary: Option<RunSummary>,
    failure: Option<Failure>,
    stopping: bool,
    /// All are connected and the first step has begun.
    pub(super) training: bool,
}

/// The failure that explains the others best so far.
struct Failure {
    error: LaunchError,
    /// Lower explains more.
    weight: u8,
    /// When the first failure was heard of.
    since: Instant,
}

impl Supervisor<'_> {
    fn spawn(&mut self, place: usize, joins: bool) -> Result<(), LaunchError> {
        self.spawner.spawn(&mut self.children, place, joins)?;
        self.open += 1;
        if !joins {
            self.bound.push(None);
        }
        Ok(())
    }

    /// Whether somebody is left who has a part in the newest view.
    fn works(&self) -> bool {
        match self.arbiter {
            // Joiners alone have nothing to join.
            Some(_) => self.members.iter().any(|&id| !self.has_ended(id)),
            None => self.open > 0,
        }
    }

    fn watch(
        &mut self,
        news: &Receiver<(usize, News)>,
        started_at: Instant,
        stop: &AtomicBool,
        abort: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<(), LaunchError> {
        while self.works() {
            match news.recv_timeout(POLL_INTERVAL) {
                Ok((rank, item)) => self.hear(rank, item, observer)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if stop.load(Ordering::Relaxed) && !self.stopping {
                self.stopping = true;
                self.children.awake().for_each(|child| child.send(&ToWorker::Stop));
            }
            if self.bound.iter().any(Option::is_none) && started_at.elapsed() > BIND_TIMEOUT {
                let rank = self.bound.iter().position(Option::is_none).unwrap_or(0);
                self.fail(0, LaunchError::NotBound { rank, seconds: BIND_TIMEOUT.as_secs() });
            }
            let waited_enough = self
                .failure
                .as_ref()
                .zip(self.patience())
                .is_some_and(|(failure, patience)| failure.since.elapsed() > patience);
            if waited_enough || abort.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    }

    /// How long the others may take after a failure; none: as long as they want.
    fn patience(&self) -> Option<Duration> {
        match (self.training, self.servers) {
            (false, _) => Some(LAST_WORDS),
            (true, Some(_)) => Some(LAST_WORDS_IN_TRAINING),
            // The others go on, or find out by themselves that they cannot.
            (true, None) => None,
        }
    }

    fn hear(
        &mut self,
        rank: usize,
        item: News,
        observer: &mut dyn Observer,
    ) -> Result<(), LaunchError> {
        match item {
            News::Message(FromWorker::Bound { addresses }) => {
                // Who comes later makes itself known.
                if let Some(bound) = self.bound.get_mut(rank) {
                    *bound = Some(addresses);
                    self.introduce();
                }
            }
            News::Message(FromWorker::Event { body }) => {
                match &body {
                    Event::Started(_) => self.training = true,
                    Event::Finished(summary) => self.summary = Some((**summary).clone()),
                    _ => {}
                }
                // Every worker has the same news; one of them tells.
                observer.event(body);
            }
            News::Message(FromWorker::Message { from, to, message }) => {
                self.pass_on(rank, from, to, message, observer);
            }
            News::Message(FromWorker::Failed { message, exit_code }) => {
                self.children.list[rank].explained = true;
                if self.is_expendable(rank) {
                    let text = format!("{}: {message}", self.name(rank));
                    observer.event(Event::Notice { text });
                } else {
                    let weight = if exit_code == LOST_PEER { 2 } else { 0 };
                    self.fail(weight, self.failed(rank, message, exit_code));
                }
            }
            News::Line(line) => {
                let child = &mut self.children.list[rank];
                if child.last_lines.len() == LINES_KEPT {
                    child.last_lines.pop_front();
                }
                child.last_lines.push_back(line.clone());
                let text = format!("[{}] {line}", self.name(rank));
                observer.event(Event::Notice { text });
            }
            News::Ended(status) => {
                self.open -= 1;
                let status = status.map_err(LaunchError::Spawn)?;
                let child = &mut self.children.list[rank];
                let left = status.success() && child.leaves;
                child.ended = Some(if left { LEAVES.to_owned() } else { ending_text(status) });
                if left && self.servers.is_none() {
                    // It may have left while it was being let in.
                    self.report_ended();
                }
                if !status.success() {
                    if !self.children.list[rank].explained {
                        self.bury(rank, status, observer);
                    }
                    if self.servers.is_none() {
                        self.note_lost(rank, observer);
                        self.report_ended();
                        self.replace(rank, observer)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Starts a worker in the place of a lost one, if that is wanted.
    fn replace(&mut self, index: usize, observer: &mut dyn Observer) -> Result<(), LaunchError> {
        let left = self.spawner.group.restarts_max.saturating_sub(self.restarts);
        if !self.training || self.stopping || self.summary.is_some() || left == 0 || !self.works() {
            return Ok(());
        }
        self.restarts += 1;
        let (place, new) = (self.children.list[index].place, self.children.list.len());
        let text = format!("worker {new} is started in the place of worker {index}");
        observer.event(Event::Notice { text });
        self.spawn(place, true)
    }

    /// Notes a death that the worker did not explain itself.
    fn bury(&mut self, rank: usize, status: ExitStatus, observer: &mut dyn Observer) {
        let mut message = format!("ended without a word ({status})");
        for line in &self.children.list[rank].last_lines {
            message.push_str("\n  ");
            message.push_str(line);
        }
        if self.is_expendable(rank) {
            let text = format!("{}: {message}; the others go on", self.name(rank));
            observer.event(Event::Notice { text });
        } else {
            self.fail(1, self.failed(rank, message, LOST_PEER));
        }
    }

    /// Whether the others go on when this child is lost. If it was the last worker, the servers fail.
    fn is_expendable(&self, rank: usize) -> bool {
        let survived = self.servers.is_some_and(|plan| plan.mode.survives_losses());
        survived && self.training && rank < self.workers
    }

    /// A child's number among the servers, if it is one.
    fn server(&self, rank: usize) -> Option<usize> {
        self.servers.and_then(|_| rank.checked_sub(self.workers))
    }

    fn name(&self, rank: usize) -> String {
        match self.server(rank) {
            Some(server) => format!("server {server}"),
            None => format!("worker {rank}"),
        }
    }

    fn failed(&self, rank: usize, message: String, exit_code: u8) -> LaunchError {
        match self.server(rank) {
            Some(server) => LaunchError::Server { server, message, exit_code },
            None => LaunchError::Worker { rank, message, exit_code },
        }
    }

    fn fail(&mut self, weight: u8, error: LaunchError) {
        let since = self.failure.as_ref().map_or_else(Instant::now, |f| f.since);
        if self.failure.as_ref().is_none_or(|f| weight < f.weight) {
            self.failure = Some(Failure { error, weight, since });
        }
    }

    fn outcome(self) -> Result<RunSummary, LaunchError> {
        match (self.failure, self.summary) {
            // Whoever was lost on the way is told in it.
            (_, Some(summary)) => Ok(summary),
            (Some(failure), None) => Err(failure.error),
            (None, None) => Err(LaunchError::Worker {
                rank: 0,
                message: "was ended before the run was over".into(),
                exit_code: 1,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use super::super::worker::NetworkPlan;
    use super::*;
    use crate::config::RunConfig;
    use crate::data::DataPlan;

    fn supervisor(children: usize) -> Supervisor<'static> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        let (news, _) = channel();
        let mut list = Children::default();
        for rank in 0..children {
            let child = Command::new("sleep")
                .arg("60")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            list.add(child, rank, rank, &news);
        }
        let plan = WorkerPlan {
            config: RunConfig::default(),
            data: DataPlan::default(),
            network: NetworkPlan::default(),
            adapter: None,
            cores: 1,
            resume: None,
            folder: None,
            timeline: None,
        };
        let group = LocalGroup {
            plan,
            workers_min: 1,
            workers_max: children,
            join_timeout: Duration::from_secs(60),
            restarts_max: 0,
            assignments: Vec::new(),
            run_id: String::new(),
            started_at: Instant::now(),
            stop: &NEVER,
            abort: &NEVER,
        };
        Supervisor {
            spawner: Spawner {
                group,
                program: PathBuf::new(),
                key: String::new(),
                launched_at_us: 0,
                news,
            },
            bound: vec![None; children],
            open: children,
            workers: children,
            servers: None,
            children: list,
            arbiter: None,
            members: Vec::new(),
            restarts: 0,
            summary: None,
            failure: None,
            stopping: false,
            training: false,
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_failure_that_explains_the_others_is_told() {
        use std::os::unix::process::ExitStatusExt;
        let failed = |message: &str, exit_code| {
            News::Message(FromWorker::Failed { message: message.into(), exit_code })
        };
        let ended = |raw: i32| News::Ended(Ok(ExitStatus::from_raw(raw)));
        let told = |news: Vec<(usize, News)>| {
            let mut supervisor = supervisor(3);
            for (rank, item) in news {
                supervisor.hear(rank, item, &mut |_| {}).unwrap();
            }
            supervisor.outcome().unwrap_err().to_string()
        };
        // Those that lost a peer say so and end; the one that was killed cannot say anything.
        let text = told(vec![
            (0, failed("lost rank 2", 5)),
            (0, ended(5 << 8)),
            (1, failed("lost rank 2", 5)),
            (2, ended(9)),
        ]);
        assert!(text.starts_with("worker 2: ended without a word"), "{text}");
        // A worker's own reason is more than another's loss of it, whichever comes first.
        let text = told(vec![
            (0, failed("lost rank 1", 5)),
            (0, ended(5 << 8)),
            (1, failed("no adapter", 3)),
            (1, ended(3 << 8)),
        ]);
        assert_eq!(text, "worker 1: no adapter");
        // Without any better reason, the loss is told in the worker's words.
        let text = told(vec![(0, failed("lost rank 1 at home", 5)), (0, ended(5 << 8))]);
        assert_eq!(text, "worker 0: lost rank 1 at home");
    }
}
