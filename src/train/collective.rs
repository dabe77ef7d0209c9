//! What reduces vectors among workers: the trainer knows collectives by this trait alone.

use std::time::Duration;

use crate::net::{NetError, RingHandle, RingOptions};
use crate::protocol::collective::{CollectiveId, Reduction};

/// An all-reduce among the workers of a view.
///
/// Several vectors may be on their way; they finish in the order in which they were started, and
/// every worker must start the same ones in the same order.
pub trait Collective: Send {
    /// This worker's index.
    fn rank(&self) -> usize;

    /// Workers that take part.
    fn world_size(&self) -> usize;

    /// Hands a vector over and returns without waiting for the others.
    fn start(
        &mut self,
        id: CollectiveId,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<(), CollectiveError>;

    /// Waits for the oldest started vector and returns it, reduced over all workers.
    fn finish(&mut self) -> Result<Vec<u32>, CollectiveError>;

    /// Bytes sent and received so far, as payload of the transport.
    fn traffic(&self) -> Traffic;

    /// The time during which at least one vector was under way, on this worker.
    fn busy(&self) -> Duration;

    /// The algorithm's name, for `run.json`.
    fn algorithm(&self) -> &'static str;

    /// Parts in peace, once everything handed over has reached the others.
    fn close(self: Box<Self>) -> Result<(), CollectiveError>;

    /// Parts at once and tells the others why: their run ends with this reason.
    fn abort(self: Box<Self>, reason: String);
}

/// Bytes that went over the transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Traffic {
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

/// A collective's failure.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    #[error("finish was called with no collective under way")]
    NothingStarted,
    #[error(transparent)]
    Net(#[from] NetError),
}

/// The only worker's collective: the reduced vector is its own.
#[derive(Debug, Default)]
pub struct Solo {
    started: std::collections::VecDeque<Vec<u32>>,
}

impl Collective for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn start(
        &mut self,
        _id: CollectiveId,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<(), CollectiveError> {
        debug_assert_eq!(vector.len(), reduction.words());
        self.started.push_back(vector);
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<u32>, CollectiveError> {
        self.started.pop_front().ok_or(CollectiveError::NothingStarted)
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn busy(&self) -> Duration {
        Duration::ZERO
    }

    fn algorithm(&self) -> &'static str {
        "none"
    }

    fn close(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn abort(self: Box<Self>, _reason: String) {}
}

/// A ring of workers over QUIC, each in a process or a thread of its own.
///
/// Dropping it before [`close`](Ring::close) ends the other workers' run.
#[derive(Debug)]
pub struct Ring {
    handle: RingHandle,
}

impl Ring {
    /// Waits until both neighbours are connected.
    ///
    /// # Errors
    /// If a neighbour is not there in time, holds another key, or takes part in another run.
    ///
    /// # Panics
    /// If `rank` is not an index of `peers`.
    pub fn join(options: RingOptions) -> Result<Ring, NetError> {
        Ok(Ring { handle: RingHandle::join(options)? })
    }

    /// Finishes what is under way, makes sure that the next neighbour has all of it, and parts.
    ///
    /// # Errors
    /// If the ring fails before that.
    pub fn close(self) -> Result<(), NetError> {
        self.handle.close()
    }

    /// Parts at once and tells the other workers why: their run ends with this reason.
    pub fn abort(self, reason: String) {
        self.handle.abort(reason);
    }
}

impl Collective for Ring {
    fn rank(&self) -> usize {
        self.handle.rank()
    }

    fn world_size(&self) -> usize {
        self.handle.world_size()
    }

    fn start(
        &mut self,
        id: CollectiveId,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<(), CollectiveError> {
        Ok(self.handle.start(id, reduction, vector)?)
    }

    fn finish(&mut self) -> Result<Vec<u32>, CollectiveError> {
        if self.handle.in_flight() == 0 {
            return Err(CollectiveError::NothingStarted);
        }
        Ok(self.handle.finish()?)
    }

    fn traffic(&self) -> Traffic {
        let (bytes_sent, bytes_received) = self.handle.traffic();
        Traffic { bytes_sent, bytes_received }
    }

    fn busy(&self) -> Duration {
        self.handle.busy()
    }

    fn algorithm(&self) -> &'static str {
        "ring"
    }

    fn close(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(Ring::close(*self)?)
    }

    fn abort(self: Box<Self>, reason: String) {
        Ring::abort(*self, reason);
    }
}
