//! What a launcher and its worker processes tell each other: a JSON line a message, over the
//! worker's standard input and output.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use crate::protocol::membership::{MemberId, Message, Party, View};
use crate::train::event::Event;

use super::worker::WorkerPlan;

/// From the launcher. When the pipe closes, the launcher is gone and the worker ends.
///
/// Not `Debug`, since it carries the key.
#[derive(Serialize, Deserialize)]
#[serde(tag = "to_worker", rename_all = "kebab-case")]
pub enum ToWorker {
    /// Comes first. The key travels here, never as an argument that other users could read.
    Order(Box<WorkerOrder>),
    /// Comes once every worker has told its address: whom to work with.
    Begin { view: Box<View> },
    /// The same around parameter servers, which no view elects: all addresses, by number.
    Peers { addresses: Vec<Vec<SocketAddr>> },
    /// Another worker's or the launcher's message about views.
    Message { from: Party, message: Message },
    /// A worker's process has ended before the run's end.
    Exited { id: MemberId, why: String },
    /// End the run after the current step.
    Stop,
}

/// What a worker is to do. Not `Debug`, since it carries the key.
#[derive(Serialize, Deserialize)]
pub struct WorkerOrder {
    /// The worker's; servers are numbered behind the workers that the run begins with.
    pub id: MemberId,
    /// Comes into a run under way, in the place of a worker that was lost: no first view will be
    /// told.
    pub joins: bool,
    /// With fewer workers the run stops.
    pub workers_min: usize,
    /// Workers that the run begins with.
    pub workers: usize,
    /// No more workers are let in.
    pub workers_max: usize,
    /// How long workers wait for each other at the start, and a joiner to be let in.
    pub join_timeout: Duration,
    pub run_id: String,
    pub cluster_key_pem: String,
    pub plan: WorkerPlan,
    /// When the launcher started, in microseconds since the Unix epoch.
    pub launched_at_us: u64,
}

/// From a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "from_worker", rename_all = "kebab-case")]
pub enum FromWorker {
    /// The socket is bound; this is where the others reach it.
    Bound { addresses: Vec<SocketAddr> },
    /// A message about views, to be passed on. `from` is the worker's present life.
    Message { from: MemberId, to: Party, message: Message },
    /// The run's events; rank 0, or the first server, tells them for all.
    Event { body: Event },
    /// The worker ends without success.
    Failed { message: String, exit_code: u8 },
}

/// Now, as it travels between processes.
pub fn unix_time_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The `Instant` at which the launcher's clock showed this time.
pub fn instant_of(unix_time: u64) -> Instant {
    let ago = Duration::from_micros(unix_time_us().saturating_sub(unix_time));
    let now = Instant::now();
    now.checked_sub(ago).unwrap_or(now)
}
