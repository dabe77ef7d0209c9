//! The tokio and quinn shell: identities, connections, the collective's driver.
//!
//! The rest of the program sees a [`group`]: a handle that takes vectors and gives them back reduced.
//! Behind it is one thread with an [`endpoint`] on its UDP socket (`socket`), on which a group lives
//! (`life`): [`peer`] makes the connections to other workers, and the `driver` moves the words on
//! their streams (`channel`) as the state machines of [`protocol`](crate::protocol) say, and notices
//! when nothing moves (`stall`). [`selection`] chooses the algorithms by what [`probe`] measured.
//!
//! A worker whose groups change has a [`station`]: one address and thread for all its groups, and
//! for the connections by which members agree on the next one (`members`).
//!
//! Where `--link` asks for it, an emulated card (`link`) stands before the socket: a `port` for each
//! socket, and one thread, the `mover`, that serves all of a process.
//!
//! A [`star`] is the other shape: workers around parameter servers, with messages instead of
//! collectives, over the same endpoints and the same handshake.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

mod channel;
pub mod congestion;
mod door;
mod driver;
pub mod endpoint;
pub mod group;
mod handshake;
pub mod identity;
mod interrupt;
mod life;
mod link;
mod members;
mod mover;
pub mod peer;
mod port;
pub mod probe;
pub mod selection;
#[cfg(unix)]
mod socket;
mod stall;
pub mod star;
pub mod station;
pub mod wire;

pub use congestion::{Congestion, CongestionError};
pub use endpoint::TransportSettings;
pub use group::{GroupHandle, GroupOptions, IN_FLIGHT_MAX, Reduced, Seat};
pub use identity::{ClusterKey, KeyError};
pub use interrupt::Interrupt;
pub use peer::{AddressError, PeerAddress};
pub use selection::{Selection, SelectionReport};
pub use star::{Star, StarEvent, StarOptions};
pub use station::{Contact, Station, StationEvent, StationOptions, Unheeded};

use crate::protocol::message::{Abort, HeaderMismatch, HelloMismatch, PreambleMismatch};

/// A failure of the network or of a peer.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("cannot use the UDP socket: {0}")]
    Socket(#[source] io::Error),
    #[error("cannot start the network thread: {0}")]
    Thread(#[source] io::Error),
    #[error("network settings: {0}")]
    Settings(String),
    #[error(
        "rank {rank} could not be reached within {} s ({failures}); \
         see that it runs and that its address is right",
        within.as_secs_f32()
    )]
    Unreachable { rank: usize, within: Duration, failures: Failures },
    #[error(
        "rank {rank} did not connect within {} s ({failures}); \
         see that it runs and that it has this worker's address",
        within.as_secs_f32()
    )]
    Absent { rank: usize, within: Duration, failures: Failures },
    #[error(
        "rank {rank} at {address} holds another cluster key; give every worker the same key file"
    )]
    OtherKey { rank: usize, address: SocketAddr },
    #[error("the peer at {address} does not fit: {mismatch}")]
    Version { address: SocketAddr, mismatch: PreambleMismatch },
    #[error("the worker at {address} does not fit: {mismatch}")]
    Mismatch { address: SocketAddr, mismatch: Box<HelloMismatch> },
    #[error("the member at {address} refused this worker: {reason}")]
    RefusedByMember { address: SocketAddr, reason: String },
    #[error(
        "no member of a run could be reached within {} s ({failures}); see that one runs at an \
         address of --join",
        within.as_secs_f32()
    )]
    NoMember { within: Duration, failures: Failures },
    #[error("rank {rank} at {address} refused this worker: {reason}")]
    Refused { rank: usize, address: SocketAddr, reason: String },
    #[error("lost rank {rank} at {address} during {during}: {reason}")]
    Lost { rank: usize, address: SocketAddr, during: String, reason: String },
    #[error("rank {} ended the run: {}", .0.rank, .0.reason)]
    Aborted(Abort),
    #[error(
        "lost server {server} at {address}: {reason}; go on from the last checkpoint with --resume"
    )]
    LostServer { server: usize, address: SocketAddr, reason: String },
    #[error("node {node} broke the protocol: {fault}")]
    OutOfTurn { node: usize, fault: String },
    #[error("server {server} broke the protocol: it said what was not its turn to say")]
    ServerOutOfTurn { server: usize },
    #[error("server {server} ended the run: {reason}")]
    ServerEnded { server: usize, reason: String },
    #[error(
        "server {server} could not be reached within {} s ({failures}); \
         see that it runs and that its address is right",
        within.as_secs_f32()
    )]
    ServerUnreachable { server: usize, within: Duration, failures: Failures },
    #[error(transparent)]
    OutOfStep(#[from] Box<HeaderMismatch>),
    #[error("rank {rank} at {address} broke the protocol: {fault}")]
    Violation { rank: usize, address: SocketAddr, fault: String },
    #[error("more than {0} collectives under way; finish some before starting more")]
    TooManyInFlight(usize),
    #[error("the collective has stopped: {0}")]
    Stopped(String),
    #[error("the group is to form anew: {0}")]
    Interrupted(String),
}

impl NetError {
    /// The rank of the worker that is lost, out of reach or broken, as far as is known.
    pub fn culprit(&self) -> Option<usize> {
        match self {
            NetError::Unreachable { rank, .. }
            | NetError::Absent { rank, .. }
            | NetError::OtherKey { rank, .. }
            | NetError::Lost { rank, .. }
            | NetError::Violation { rank, .. } => Some(*rank),
            NetError::Aborted(abort) => abort.culprit.map(|rank| rank as usize),
            NetError::Socket(_)
            | NetError::Thread(_)
            | NetError::Settings(_)
            | NetError::Version { .. }
            | NetError::Mismatch { .. }
            | NetError::Refused { .. }
            | NetError::RefusedByMember { .. }
            | NetError::NoMember { .. }
            | NetError::LostServer { .. }
            | NetError::ServerEnded { .. }
            | NetError::OutOfTurn { .. }
            | NetError::ServerOutOfTurn { .. }
            | NetError::ServerUnreachable { .. }
            | NetError::OutOfStep(_)
            | NetError::TooManyInFlight(_)
            | NetError::Stopped(_)
            | NetError::Interrupted(_) => None,
        }
    }

    /// Whether a peer, and not this worker's own machine, is at fault.
    pub fn is_about_a_peer(&self) -> bool {
        !matches!(
            self,
            NetError::Socket(_)
                | NetError::Thread(_)
                | NetError::Settings(_)
                | NetError::TooManyInFlight(_)
        )
    }

    /// What worker `rank` tells its neighbours when this ends its run. What it was told itself is
    /// passed on unchanged, so that everybody hears of the first cause.
    fn to_abort(&self, rank: usize) -> Abort {
        match self {
            NetError::Aborted(abort) => abort.clone(),
            error => {
                let culprit = error.culprit().map(|culprit| culprit as u32);
                Abort::new(rank as u32, culprit, error.to_string())
            }
        }
    }
}

/// What went wrong with each address: one line an address, the latest failure of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    lines: Vec<(String, String)>,
    left_out: usize,
}

/// Addresses that are told apart in [`Failures`]: strangers must not fill the memory.
const FAILURES_MAX: usize = 16;

impl Failures {
    fn note(&mut self, address: impl fmt::Display, failure: impl fmt::Display) {
        let (address, failure) = (address.to_string(), failure.to_string());
        if let Some((_, latest)) = self.lines.iter_mut().find(|(known, _)| *known == address) {
            *latest = failure;
        } else if self.lines.len() < FAILURES_MAX {
            self.lines.push((address, failure));
        } else {
            self.left_out += 1;
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lines.is_empty() {
            return f.write_str("nobody tried");
        }
        for (i, (address, failure)) in self.lines.iter().enumerate() {
            let separator = if i > 0 { "; " } else { "" };
            write!(f, "{separator}{address}: {failure}")?;
        }
        if self.left_out > 0 {
            write!(f, "; and {} more", self.left_out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_keep_the_latest_of_each_address() {
        let mut failures = Failures::default();
        assert_eq!(failures.to_string(), "nobody tried");
        failures.note("a:1", "timed out");
        failures.note("b:1", "no such name");
        failures.note("a:1", "refused");
        assert_eq!(failures.to_string(), "a:1: refused; b:1: no such name");
        for port in 0..FAILURES_MAX {
            failures.note(port, "x");
        }
        assert!(failures.to_string().ends_with("; and 2 more"), "{failures}");
    }

    #[test]
    fn an_abort_is_passed_on_unchanged() {
        let address = SocketAddr::from(([10, 0, 0, 2], 4000));
        let lost = NetError::Lost {
            rank: 2,
            address,
            during: "step 4 bucket 1".into(),
            reason: "timed out".into(),
        };
        let abort = lost.to_abort(1);
        assert_eq!((abort.rank, abort.culprit), (1, Some(2)));
        let received = NetError::Aborted(abort.clone());
        assert_eq!(received.to_abort(0), abort);
        assert_eq!(received.culprit(), Some(2));
        assert_eq!(
            received.to_string(),
            "rank 1 ended the run: lost rank 2 at 10.0.0.2:4000 during step 4 bucket 1: timed out"
        );
    }
}
