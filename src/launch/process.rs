//! Child processes: what they say, how they end, and that none is left behind.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ExitStatus};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::protocol::membership::MemberId;

use super::pipe::{FromWorker, ToWorker};

/// How often a process whose outputs are closed is looked at.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How every message of a worker starts.
const MESSAGE_START: &str = r#"{"from_worker":"#;

/// A worker's last lines for people that are kept for the message about its death.
pub(super) const LINES_KEPT: usize = 5;

/// What the launcher hears of a child.
pub(super) enum News {
    Message(FromWorker),
    /// A line that is meant for people: on standard error, or by a driver on standard output.
    Line(String),
    /// It has ended and everything that it said was heard.
    Ended(std::io::Result<ExitStatus>),
}

/// Worker processes; those that still run when this is dropped are killed.
#[derive(Default)]
pub(super) struct Children {
    pub(super) list: Vec<WorkerProcess>,
}

/// One of them.
pub(super) struct WorkerProcess {
    process: Arc<Mutex<Child>>,
    /// As a member: its number, in its present life.
    pub(super) id: MemberId,
    /// A view without it was chosen, and it has not been heard since. It may be standing still, and
    /// what is written to it would stay in the pipe until that is full.
    pub(super) left_behind: bool,
    /// It has said that it leaves, in its present life.
    pub(super) leaves: bool,
    /// Its assignment's index.
    pub(super) place: usize,
    stdin: ChildStdin,
    pub(super) last_lines: VecDeque<String>,
    /// It has said itself why it ends, or the launcher has.
    pub(super) explained: bool,
    /// How it ended, if it has.
    pub(super) ended: Option<String>,
}

impl WorkerProcess {
    /// A worker that cannot be told anything has ended; its closed output tells so.
    pub(super) fn send(&mut self, message: &ToWorker) {
        let mut line = serde_json::to_string(message).expect("a message serializes");
        line.push('\n');
        let _ = self.stdin.write_all(line.as_bytes());
    }
}

/// How a process ended, for the others.
pub(super) fn ending_text(status: ExitStatus) -> String {
    if status.success() {
        "its part of the run is over".to_owned()
    } else {
        format!("its process ended ({status})")
    }
}

impl Children {
    /// Those that can be told something.
    pub(super) fn awake(&mut self) -> impl Iterator<Item = &mut WorkerProcess> {
        self.list.iter_mut().filter(|child| child.ended.is_none() && !child.left_behind)
    }

    /// Starts to read a fresh child's output.
    pub(super) fn add(
        &mut self,
        mut process: Child,
        rank: usize,
        place: usize,
        news: &Sender<(usize, News)>,
    ) -> &mut WorkerProcess {
        let stdin = process.stdin.take().expect("stdin is piped");
        let stdout = process.stdout.take().expect("stdout is piped");
        let stderr = process.stderr.take().expect("stderr is piped");
        let process = Arc::new(Mutex::new(process));
        self.list.push(WorkerProcess {
            process: process.clone(),
            id: MemberId(rank as u64),
            left_behind: false,
            leaves: false,
            place,
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
}
