//! Benchmarks that come with the program, so that anybody can repeat them where it matters.
//!
//! | file | what it holds |
//! |---|---|
//! | `step`, `peak` | a worker's step by phase and by kernel, beside what the processor could do |
//! | `collective`, `group` | the all-reduce, size by size, among local processes or machines |
//! | `loopback`, `tcp_ring` | what it is compared with: raw TCP and UDP, and the same ring over TCP |
//! | `soak` | all-reduces of random sizes, back to back, every result checked |
//! | `topology` | all-reduce beside parameter servers over emulated links |
//! | `statistics` | medians and percentiles |

pub mod collective;
pub mod group;
pub mod loopback;
pub mod peak;
pub mod soak;
pub mod statistics;
pub mod step;
pub mod tcp_ring;
pub mod topology;

use std::io;

use crate::gpu::GpuError;
use crate::launch::LaunchError;
use crate::net::NetError;
use crate::net::identity::KeyError;
use crate::train::buffers::BufferError;
use crate::train::collective::CollectiveError;
use crate::train::engine::EngineError;
use crate::train::synthetic::TraceError;

use topology::folder::FolderError;

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
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(
        "the workers ended with different parameters: this is a defect of the machine or of \
         annulet; please report it"
    )]
    ReplicasDiffer,
    #[error(transparent)]
    Folder(#[from] FolderError),
}

impl BenchError {
    /// Whether a peer, and not this node, is at fault.
    fn is_about_a_peer(&self) -> bool {
        match self {
            BenchError::Net(error) | BenchError::Collective(CollectiveError::Net(error)) => {
                error.is_about_a_peer()
            }
            _ => false,
        }
    }
}
