//! Local worker processes: started, watched, stopped, and never left behind.
//!
//! Each child is this program again, with the hidden flag `worker --launched`. It takes its order
//! (with the cluster key) and its peers' addresses from its standard input and tells its events on
//! its standard output; its standard error is passed on line by line. A child whose standard input
//! closes ends at once, so that no worker outlives its launcher, however that one ended.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::net::identity::ClusterKey;
use crate::train::event::{Event, Observer};
use crate::train::metrics::RunSummary;

use super::LaunchError;
use super::adapters::Assignment;
use super::pipe::{FromWorker, ToWorker, WorkerOrder, unix_time_us};
use super::worker::WorkerPlan;

/// How often the launcher looks at the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long the other workers may take to say why, once one has failed.
const LAST_WORDS: Duration = Duration::from_millis(1_500);

/// The exit code that means "a peer was lost": another worker's own failure explains more.
const LOST_PEER: u8 = 5;

/// A worker's last lines for people that are kept for the message about its death.
const LINES_KEPT: usize = 5;

/// A group of local workers.
pub struct LocalGroup<'a> {
    /// For every worker; the folder is written by rank 0 alone.
    pub plan: WorkerPlan,
    /// One a worker.
    pub assignments: Vec<Assignment>,
    pub run_id: String,
    pub started_at: Instant,
    /// Set once to end the run after the current step, twice (see `abort`) to end it at once.
    pub stop: &'a AtomicBool,
    pub abort: &'a AtomicBool,
}

/// What the launcher hears of a child.
enum News {
    Message(FromWorker),
    /// A line that is meant for people: on standard error, or by a driver on standard output.
    Line(String),
    /// Its standard output is closed: it has ended or is about to.
    Closed,
}

impl LocalGroup<'_> {
    /// Runs the group to the end of the training.
    pub fn run(self, observer: &mut dyn Observer) -> Result<RunSummary, LaunchError> {
        let (sender, receiver) = channel();
        let mut children = Children::default();
        self.spawn_all(&mut children, &sender)?;
        drop(sender);
        let mut group = Supervisor {
            bound: vec![None; children.list.len()],
            open: children.list.len(),
            children,
            summary: None,
            failure: None,
            stopping: false,
        };
        group.watch(&receiver, &self, observer)?;
        group.outcome()
    }

    fn spawn_all(
        &self,
        children: &mut Children,
        news: &Sender<(usize, News)>,
    ) -> Result<(), LaunchError> {
        let program = std::env::current_exe().map_err(LaunchError::Spawn)?;
        let key = ClusterKey::generate()?.to_pem().to_owned();
        let launched_at_us = unix_time_us()
            .saturating_sub(u64::try_from(self.started_at.elapsed().as_micros()).unwrap_or(0));
        for (rank, assignment) in self.assignments.iter().enumerate() {
            let mut command = Command::new(&program);
            command
                .args(["worker", "--launched"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            #[cfg(unix)]
            {
                // Ctrl-C goes to the launcher alone, which ends the run at a step's border.
                std::os::unix::process::CommandExt::process_group(&mut command, 0);
            }
            let child = command.spawn().map_err(LaunchError::Spawn)?;
            let child = children.add(child, rank, news);
            let plan = WorkerPlan {
                adapter: assignment.adapter.clone(),
                cores: assignment.cores,
                folder: self.plan.folder.clone().filter(|_| rank == 0),
                ..self.plan.clone()
            };
            child.send(&ToWorker::Order(Box::new(WorkerOrder {
                rank,
                workers: self.assignments.len(),
                run_id: self.run_id.clone(),
                cluster_key_pem: key.clone(),
                plan,
                launched_at_us,
            })));
        }
        Ok(())
    }
}

/// The group under way.
struct Supervisor {
    children: Children,
    bound: Vec<Option<Vec<SocketAddr>>>,
    /// Children whose output is still open.
    open: usize,
    summary: Option<RunSummary>,
    failure: Option<Failure>,
    stopping: bool,
}

/// The failure that explains the others best so far.
struct Failure {
    error: LaunchError,
    /// Lower explains more.
    weight: u8,
    /// When the first failure was heard of.
    since: Instant,
}

impl Supervisor {
    fn watch(
        &mut self,
        news: &Receiver<(usize, News)>,
        group: &LocalGroup<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(), LaunchError> {
        while self.open > 0 {
            match news.recv_timeout(POLL_INTERVAL) {
                Ok((rank, item)) => self.hear(rank, item, observer)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if group.stop.load(Ordering::Relaxed) && !self.stopping {
                self.stopping = true;
                self.children.list.iter_mut().for_each(|child| child.send(&ToWorker::Stop));
            }
            let waited_enough =
                self.failure.as_ref().is_some_and(|f| f.since.elapsed() > LAST_WORDS);
            if waited_enough || group.abort.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    }

    fn hear(
        &mut self,
        rank: usize,
        item: News,
        observer: &mut dyn Observer,
    ) -> Result<(), LaunchError> {
        match item {
            News::Message(FromWorker::Bound { addresses }) => {
                self.bound[rank] = Some(addresses);
                self.introduce();
            }
            News::Message(FromWorker::Event { body }) => {
                if let Event::Finished(summary) = &body {
                    self.summary = Some((**summary).clone());
                }
                // Every worker has the same news; one teller is enough.
                if rank == 0 {
                    observer.event(body);
                }
            }
            News::Message(FromWorker::Failed { message, exit_code }) => {
                let weight = if exit_code == LOST_PEER { 2 } else { 0 };
                self.fail(weight, LaunchError::Worker { rank, message, exit_code });
            }
            News::Line(line) => {
                let child = &mut self.children.list[rank];
                if child.last_lines.len() == LINES_KEPT {
                    child.last_lines.pop_front();
                }
                child.last_lines.push_back(line.clone());
                observer.event(Event::Notice { text: format!("[worker {rank}] {line}") });
            }
            News::Closed => {
                self.open -= 1;
                let status = self.children.list[rank].process.wait().map_err(LaunchError::Spawn)?;
                if !status.success() {
                    self.bury(rank, status);
                }
            }
        }
        Ok(())
    }

    /// Tells all workers their peers' addresses, once they are all known.
    fn introduce(&mut self) {
        let all: Option<Vec<Vec<SocketAddr>>> = self.bound.iter().cloned().collect();
        if let Some(addresses) = all {
            let peers = ToWorker::Peers { addresses };
            self.children.list.iter_mut().for_each(|child| child.send(&peers));
        }
    }

    /// Notes a death that the worker did not explain itself.
    fn bury(&mut self, rank: usize, status: ExitStatus) {
        let mut message = format!("ended without a word ({status})");
        for line in &self.children.list[rank].last_lines {
            message.push_str("\n  ");
            message.push_str(line);
        }
        self.fail(1, LaunchError::Worker { rank, message, exit_code: LOST_PEER });
    }

    fn fail(&mut self, weight: u8, error: LaunchError) {
        let since = self.failure.as_ref().map_or_else(Instant::now, |f| f.since);
        if self.failure.as_ref().is_none_or(|f| weight < f.weight) {
            self.failure = Some(Failure { error, weight, since });
        }
    }

    fn outcome(self) -> Result<RunSummary, LaunchError> {
        match (self.failure, self.summary) {
            (None, Some(summary)) => Ok(summary),
            (Some(failure), _) => Err(failure.error),
            (None, None) => Err(LaunchError::Worker {
                rank: 0,
                message: "was ended before the run was over".into(),
                exit_code: 1,
            }),
        }
    }
}

/// Worker processes; those that still run when this is dropped are killed.
#[derive(Default)]
struct Children {
    list: Vec<WorkerProcess>,
}

struct WorkerProcess {
    process: Child,
    stdin: ChildStdin,
    last_lines: VecDeque<String>,
}

impl WorkerProcess {
    /// A worker that cannot be told anything has ended; its closed output tells so.
    fn send(&mut self, message: &ToWorker) {
        let mut line = serde_json::to_string(message).expect("a message serializes");
        line.push('\n');
        let _ = self.stdin.write_all(line.as_bytes());
    }
}

impl Children {
    /// Starts to read a fresh child's output.
    fn add(
        &mut self,
        mut process: Child,
        rank: usize,
        news: &Sender<(usize, News)>,
    ) -> &mut WorkerProcess {
        let stdin = process.stdin.take().expect("stdin is piped");
        let stdout = process.stdout.take().expect("stdout is piped");
        let stderr = process.stderr.take().expect("stderr is piped");
        self.list.push(WorkerProcess { process, stdin, last_lines: VecDeque::new() });
        let sender = news.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let item = match serde_json::from_str(&line) {
                    Ok(message) => News::Message(message),
                    Err(_) => News::Line(line),
                };
                if sender.send((rank, item)).is_err() {
                    return;
                }
            }
            let _ = sender.send((rank, News::Closed));
        });
        let sender = news.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send((rank, News::Line(line))).is_err() {
                    return;
                }
            }
        });
        self.list.last_mut().expect("one was just added")
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.list {
            // An error means that it has ended already.
            let _ = child.process.kill();
            let _ = child.process.wait();
        }
    }
}
