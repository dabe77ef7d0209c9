//! Local worker processes: started, watched, stopped, and never left behind.
//!
//! Each child is this program again, with the hidden flag `worker --launched`. It takes its order
//! (with the cluster key) and its peers' addresses from its standard input and tells its events on
//! its standard output; its standard error is passed on line by line. A child whose standard input
//! closes ends at once, so that no worker outlives its launcher, however that one ended.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::net::identity::ClusterKey;
use crate::protocol::membership::{Arbiter, ArbiterAction, Member, MemberId, Message, Party, View};
use crate::train::event::{Event, Observer};
use crate::train::metrics::RunSummary;

use super::LaunchError;
use super::adapters::Assignment;
use super::pipe::{FromWorker, ToWorker, WorkerOrder, unix_time_us};
use super::worker::WorkerPlan;

/// How long a worker may take from its start to a bound socket: it has loaded nothing yet.
const BIND_TIMEOUT: Duration = Duration::from_secs(60);

/// How often the launcher looks at the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long the other workers may take to say why, once one has failed.
const LAST_WORDS: Duration = Duration::from_millis(1_500);

/// How often a process whose outputs are closed is looked at.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How every message of a worker starts.
const MESSAGE_START: &str = r#"{"from_worker":"#;

/// The exit code that means "a peer was lost": another worker's own failure explains more.
const LOST_PEER: u8 = 5;

/// A worker's last lines for people that are kept for the message about its death.
const LINES_KEPT: usize = 5;

/// A group of local workers.
pub struct LocalGroup<'a> {
    /// For every worker; the folder is written by rank 0 alone.
    pub plan: WorkerPlan,
    /// With fewer workers the run stops.
    pub workers_min: usize,
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
    /// It has ended and everything that it said was heard.
    Ended(std::io::Result<ExitStatus>),
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
            arbiter: None,
            summary: None,
            failure: None,
            stopping: false,
            training: false,
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
                ..self.plan.clone()
            };
            child.send(&ToWorker::Order(Box::new(WorkerOrder {
                id: MemberId(rank as u64),
                workers_min: self.workers_min,
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
    /// Elects views, once the first one is known.
    arbiter: Option<Arbiter>,
    /// Children whose output is still open.
    open: usize,
    summary: Option<RunSummary>,
    failure: Option<Failure>,
    stopping: bool,
    /// All are connected and the first step has begun.
    training: bool,
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
            if self.bound.iter().any(Option::is_none) && group.started_at.elapsed() > BIND_TIMEOUT {
                let rank = self.bound.iter().position(Option::is_none).unwrap_or(0);
                self.fail(0, LaunchError::NotBound { rank, seconds: BIND_TIMEOUT.as_secs() });
            }
            // Once they train, the others go on, or find out by themselves that they cannot.
            let waited_enough = !self.training
                && self.failure.as_ref().is_some_and(|f| f.since.elapsed() > LAST_WORDS);
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
                match &body {
                    Event::Started(_) => self.training = true,
                    Event::Finished(summary) => self.summary = Some((**summary).clone()),
                    _ => {}
                }
                observer.event(body);
            }
            News::Message(FromWorker::Message { to, message }) => {
                self.pass_on(rank, to, message, observer);
            }
            News::Message(FromWorker::Failed { message, exit_code }) => {
                self.children.list[rank].explained = true;
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
            News::Ended(status) => {
                self.open -= 1;
                let status = status.map_err(LaunchError::Spawn)?;
                self.children.list[rank].ended = Some(ending_text(status));
                if !status.success() {
                    if !self.children.list[rank].explained {
                        self.bury(rank, status);
                    }
                    self.report_ended(rank, observer);
                }
            }
        }
        Ok(())
    }

    /// Tells all workers their peers' addresses, once they are all known.
    fn introduce(&mut self) {
        let all: Option<Vec<Vec<SocketAddr>>> = self.bound.iter().cloned().collect();
        if let Some(addresses) = all {
            let member = |(id, addresses): (u64, Vec<SocketAddr>)| Member {
                id: MemberId(id),
                addresses: addresses.iter().map(ToString::to_string).collect(),
            };
            let view = View::first((0..).zip(addresses).map(member).collect(), 0);
            self.arbiter = Some(Arbiter::new(view.clone()));
            let begin = ToWorker::Begin { view: Box::new(view) };
            self.children.list.iter_mut().for_each(|child| child.send(&begin));
        }
    }

    /// Passes a worker's message about views on.
    fn pass_on(&mut self, rank: usize, to: Party, message: Message, observer: &mut dyn Observer) {
        let from = MemberId(rank as u64);
        match to {
            Party::Member(id) => {
                let message = ToWorker::Message { from: Party::Member(from), message };
                self.tell(id, &message);
            }
            Party::Launcher => {
                if let Some(arbiter) = &mut self.arbiter {
                    arbiter.handle_message(from, message);
                }
                while let Some(action) = self.arbiter.as_mut().and_then(Arbiter::poll_action) {
                    match action {
                        ArbiterAction::Send { to, message } => {
                            let from = Party::Launcher;
                            self.tell(to, &ToWorker::Message { from, message });
                        }
                        ArbiterAction::Chosen(view) => self.fence(&view, observer),
                    }
                }
            }
        }
    }

    /// Ends the processes that a new view has left behind. A worker that has only stood still would
    /// otherwise wake up one day and write over what the others did since.
    fn fence(&mut self, view: &View, observer: &mut dyn Observer) {
        for (id, child) in (0..).map(MemberId).zip(&mut self.children.list) {
            if child.ended.is_none() && !view.contains(id) {
                let text = format!("{id} was left behind and is ended: it could not be heard");
                observer.event(Event::Notice { text });
                child.explained = true;
                child.kill();
            }
        }
    }

    /// Tells those that still work that a worker has ended, and which others have before it.
    fn report_ended(&mut self, rank: usize, observer: &mut dyn Observer) {
        let ended: Vec<(MemberId, String)> = (0..)
            .map(MemberId)
            .zip(&self.children.list)
            .filter_map(|(id, child)| Some((id, child.ended.clone()?)))
            .collect();
        let left = self.children.list.len() - ended.len();
        if self.training && left > 0 {
            let why = self.children.list[rank].ended.clone().unwrap_or_default();
            let text = format!("worker {rank} is lost: {why}; {left} go on");
            observer.event(Event::Notice { text });
        }
        for (id, why) in ended {
            let exited = ToWorker::Exited { id, why };
            for child in self.children.list.iter_mut().filter(|child| child.ended.is_none()) {
                child.send(&exited);
            }
        }
    }

    fn tell(&mut self, to: MemberId, message: &ToWorker) {
        let child = usize::try_from(to.0).ok().and_then(|at| self.children.list.get_mut(at));
        if let Some(child) = child.filter(|child| child.ended.is_none()) {
            child.send(message);
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

/// Worker processes; those that still run when this is dropped are killed.
#[derive(Default)]
struct Children {
    list: Vec<WorkerProcess>,
}

struct WorkerProcess {
    process: Arc<Mutex<Child>>,
    stdin: ChildStdin,
    last_lines: VecDeque<String>,
    /// It has said itself why it ends, or the launcher has.
    explained: bool,
    /// How it ended, if it has.
    ended: Option<String>,
}

impl WorkerProcess {
    /// A worker that cannot be told anything has ended; its closed output tells so.
    fn send(&mut self, message: &ToWorker) {
        let mut line = serde_json::to_string(message).expect("a message serializes");
        line.push('\n');
        let _ = self.stdin.write_all(line.as_bytes());
    }
}

impl WorkerProcess {
    fn kill(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // An error means that it has ended already.
        let _ = process.kill();
    }
}

/// How a process ended, for the others.
fn ending_text(status: ExitStatus) -> String {
    if status.success() {
        "its part of the run is over".to_owned()
    } else {
        format!("its process ended ({status})")
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
        let process = Arc::new(Mutex::new(process));
        self.list.push(WorkerProcess {
            process: process.clone(),
            stdin,
            last_lines: VecDeque::new(),
            explained: false,
            ended: None,
        });
        let sender = news.clone();
        let errors = std::thread::spawn(move || {
            for_each_line(stderr, |line| sender.send((rank, News::Line(line))).is_ok());
        });
        let sender = news.clone();
        std::thread::spawn(move || {
            for_each_line(stdout, |line| sender.send((rank, news_of(line))).is_ok());
            // Both outputs are closed, or nobody listens any more: the process is about to end.
            let _ = errors.join();
            let status = wait_for(&process);
            let _ = sender.send((rank, News::Ended(status)));
        });
        self.list.last_mut().expect("one was just added")
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &self.list {
            let mut process = child.process.lock().unwrap_or_else(PoisonError::into_inner);
            // An error means that it has ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Waits in steps, so that the process can be killed meanwhile.
fn wait_for(process: &Mutex<Child>) -> std::io::Result<ExitStatus> {
    loop {
        let status = process.lock().unwrap_or_else(PoisonError::into_inner).try_wait()?;
        if let Some(status) = status {
            return Ok(status);
        }
        std::thread::sleep(EXIT_POLL_INTERVAL);
    }
}

/// Calls `take` with each line until it returns false; bytes that are no text are replaced.
fn for_each_line(output: impl Read, mut take: impl FnMut(String) -> bool) {
    let mut reader = BufReader::new(output);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
        if !take(String::from_utf8_lossy(&bytes).trim_end().to_owned()) {
            return;
        }
        bytes.clear();
    }
}

/// A message, or a line of a driver that prints where only messages are expected. A driver's text
/// without a line's end stands before the message that follows it.
fn news_of(line: String) -> News {
    let message = line.find(MESSAGE_START).and_then(|at| serde_json::from_str(&line[at..]).ok());
    message.map_or(News::Line(line), News::Message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_found_behind_a_drivers_chatter() {
        let line = serde_json::to_string(&FromWorker::Bound { addresses: Vec::new() }).unwrap();
        assert!(matches!(news_of(line.clone()), News::Message(FromWorker::Bound { .. })));
        assert!(matches!(news_of(format!("MESA: hm {line}")), News::Message(_)));
        assert!(matches!(news_of("MESA: hm".into()), News::Line(_)));
    }

    #[test]
    fn lines_need_not_be_text() {
        let mut lines = Vec::new();
        for_each_line(&b"a\xff\nb"[..], |line| {
            lines.push(line);
            true
        });
        assert_eq!(lines, ["a\u{fffd}", "b"]);
    }

    fn supervisor(children: usize) -> Supervisor {
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
            list.add(child, rank, &news);
        }
        Supervisor {
            bound: vec![None; children],
            open: children,
            children: list,
            arbiter: None,
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
