//! What reduces vectors among workers: the trainer knows collectives by this trait alone.

use std::time::Duration;

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
    Net(#[from] crate::net::NetError),
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
}
