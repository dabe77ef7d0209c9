//! Benchmarks that come with the program, so that anybody can repeat them where it matters.

pub mod collective;
pub mod group;
pub mod loopback;
pub mod peak;
pub mod soak;
pub mod statistics;
pub mod step;
pub mod tcp_ring;

use std::io;

use crate::gpu::GpuError;
use crate::net::NetError;
use crate::net::identity::KeyError;
use crate::train::buffers::BufferError;
use crate::train::collective::CollectiveError;

/// Why a benchmark could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Buffer(#[from] BufferError),
    #[error("could not start a worker process: {0}; check that annulet may run itself")]
    Spawn(#[source] io::Error),
    #[error("worker {rank}: {message}")]
    Worker { rank: usize, message: String },
    #[error("worker {rank} ended without a word")]
    Silent { rank: usize },
    #[error("worker {rank} said something unexpected: {found}; all workers must be one version")]
    Pipe { rank: usize, found: String },
    #[error("--launched is for `annulet bench` alone")]
    NotLaunched,
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("nothing to measure: give at least one batch size and one number of instances")]
    NothingToMeasure,
    #[error("a parameter is no longer a finite number; the adapter computes nonsense")]
    Diverged,
    #[error("loopback sockets for comparison: {0}")]
    Loopback(#[source] io::Error),
}
