//! What workers and parameter servers say to each other, behind the same handshake as workers'.
//!
//! Every message may carry words: a piece of gradients, or a slice of parameters. Nodes are
//! numbered in one row: first the workers by rank, then the servers, of which the first is the
//! coordinator.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::parameter_server::{Age, Task};

/// Anything that one node says to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    ToServer(ToServer),
    ToWorker(ToWorker),
}

/// From a worker, or from the coordinator to the other servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToServer {
    /// The worker is ready; tells the coordinator what it computes on, as JSON.
    Ready { engine: String },
    /// Words of one bucket of a task's gradients, for this server's slice: sums, statistics,
    /// maxima. The bucket is complete with them; the last one completes the push.
    Push(PushHeader),
    /// Wants the slice, once it is as new as this.
    Pull(Age),
    /// Words: the worker's part of an evaluation.
    Evaluated,
    /// The coordinator wants the slice with the optimizer's state, once it is as new as this.
    Save(Age),
    /// The run is over.
    Finish,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PushHeader {
    pub task: Task,
    pub bucket: u32,
    /// Of the parameters that the gradients were computed from.
    pub version: u64,
    /// The maxima, as bits, that the exponents of the fixed-point sums follow from.
    pub scale: Vec<u32>,
    /// How long the whole task has taken so far.
    pub compute_us: u64,
}

/// From a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Words: the coordinator's slice.
    Compute(Order),
    /// Words: the coordinator's slice. Wants the test samples of one of so many parts evaluated.
    Evaluate { part: u32, parts: u32, pull: Age },
    /// Words: the slice.
    Slice { version: u64 },
    /// Words: the slice and the optimizer's vectors. For the coordinator.
    Saved { version: u64, updates: u64 },
    /// The run is over.
    Finish,
}

/// What a worker is to compute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub task: Task,
    /// The version of the slice that comes along.
    pub version: u64,
    /// What the other servers' slices must have in them.
    pub pull: Age,
    /// Maxima, as bits, that the exponents of the fixed-point sums follow from.
    pub scale: Vec<u32>,
    /// The worker makes sure by itself that its gradients fit their range; else all servers judge
    /// the sum alike and the step is redone by all.
    pub own_range: bool,
}

/// The part of the flat vector that a server holds: as equal as whole elements allow.
///
/// # Panics
/// If `server` is not below `servers`.
pub fn slice(elements: usize, servers: usize, server: usize) -> Range<usize> {
    assert!(server < servers, "server {server} of {servers}");
    elements * server / servers..elements * (server + 1) / servers
}

/// The servers in the order in which a worker speaks to them: each worker begins with another one, so
/// that no card has to take in what all send at once while others are idle.
pub fn in_turn(rank: usize, servers: usize) -> impl Iterator<Item = usize> {
    (0..servers).map(move |i| (rank + i) % servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_workers_begin_with_each_server() {
        let first = |rank| in_turn(rank, 3).next().unwrap();
        assert_eq!([0, 1, 2, 3, 4, 5].map(first), [0, 1, 2, 0, 1, 2]);
        assert_eq!(in_turn(4, 3).collect::<Vec<_>>(), [1, 2, 0]);
    }

    #[test]
    fn slices_are_equal_and_cover_everything_once() {
        for servers in 1..9 {
            let slices: Vec<_> = (0..servers).map(|k| slice(61_706, servers, k)).collect();
            assert_eq!((slices[0].start, slices[servers - 1].end), (0, 61_706));
            assert!(slices.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lengths = slices.iter().map(Range::len);
            assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
        }
    }
}
