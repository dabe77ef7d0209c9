//! Starting workers: one in this process, several as child processes, or several as threads.
//!
//! A program of its own calls [`threads::train_in_threads`] with a [`worker::WorkerPlan`]; the rest
//! serves the command line:
//!
//! | file | what it holds |
//! |---|---|
//! | `worker` | one worker from start to finish, and what it is told: its plan |
//! | `start` | how any worker starts: data, kernels and the others at once |
//! | `engines` | the engine that a plan asks for |
//! | `threads` | workers as threads |
//! | `local`, `spawner`, `process`, `pipe` | workers as child processes, and what is said to them |
//! | `arbitration` | the launcher's part in the membership |
//! | `elastic`, `member_thread` | a worker's part in it |
//! | `star` | one node of a run with parameter servers |
//! | `adapters`, `driver_environment` | who computes on what |
//! | `exposition`, `metrics_server` | a run's figures for Prometheus |

pub(crate) mod adapters;
mod arbitration;
pub mod driver_environment;
pub(crate) mod elastic;
pub mod engines;
pub(crate) mod exposition;
pub(crate) mod local;
pub(crate) mod member_thread;
pub(crate) mod metrics_server;
pub(crate) mod pipe;
mod process;
mod spawner;
pub(crate) mod star;
mod start;
pub mod threads;
pub mod worker;

use std::path::PathBuf;

use crate::config::ConfigError;
use crate::data::DataError;
use crate::gpu::GpuError;
use crate::net::NetError;
use crate::net::identity::KeyError;
use crate::protocol::membership::Ending;
use crate::protocol::membership::successor::NoSuccessor;
use crate::train::TrainError;
use crate::train::checkpoint::CheckpointError;
use crate::train::run_folder::RunFolderError;
use crate::train::synthetic::TraceError;

/// Why a worker or a group of workers could not start or ended early.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    RunFolder(#[from] RunFolderError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(
        "--resume {path}: it was made with {made_with}, this run asks for {asked_for}; leave that \
         flag out to go on as before, or start a new run",
        path = path.display()
    )]
    ResumeDiffers { path: PathBuf, made_with: String, asked_for: String },
    #[error(
        "--resume {path}: it was trained on {made_with}, but the data set is now {found}; give \
         the --dataset and the limits of that run, or start a new run",
        path = path.display()
    )]
    ResumeData { path: PathBuf, made_with: String, found: String },
    #[error("could not start a worker process: {0}; check that annulet may run itself")]
    Spawn(std::io::Error),
    #[error("could not bind a socket on {address}: {source}; choose another address")]
    Bind { address: String, source: std::io::Error },
    #[error("joining the other workers panicked, which is a defect of annulet; please report it")]
    JoinPanicked,
    #[error("worker {rank} did not bind its socket within {seconds} s; is the machine overloaded?")]
    NotBound { rank: usize, seconds: u64 },
    #[error("server {server}: {message}")]
    Server { server: usize, message: String, exit_code: u8 },
    /// A worker process ended without success; its own message, and the code it asked for.
    #[error("worker {rank}: {message}")]
    Worker { rank: usize, message: String, exit_code: u8 },
}

impl LaunchError {
    /// Whether the worker has left as it was asked to, and the others go on: no failure.
    pub fn is_leave(&self) -> bool {
        matches!(self, LaunchError::Train(TrainError::Parted(ending)) if **ending == Ending::Left)
    }

    /// The program's exit code: 0 left as asked to, 2 usage, 3 no adapter, 4 data, 5 lost peer,
    /// 130 interrupted, 1 anything else.
    pub fn exit_code(&self) -> u8 {
        use crate::train::collective::CollectiveError;
        match self {
            LaunchError::Config(_)
            | LaunchError::Trace(_)
            | LaunchError::ResumeDiffers { .. }
            | LaunchError::Gpu(GpuError::AdapterSyntax { .. }) => 2,
            LaunchError::Gpu(GpuError::NoAdapter { .. } | GpuError::NoSuchAdapter { .. }) => 3,
            LaunchError::Data(_)
            | LaunchError::ResumeData { .. }
            | LaunchError::Gpu(GpuError::DatasetTooLarge { .. }) => 4,
            LaunchError::Net(error)
            | LaunchError::Train(TrainError::Collective(CollectiveError::Net(error)))
                if error.is_about_a_peer() =>
            {
                5
            }
            LaunchError::Train(TrainError::Parted(ending)) => match **ending {
                Ending::Left => 0,
                Ending::NoSuccessor(NoSuccessor::AllLeave) => 130,
                _ => 5,
            },
            LaunchError::Worker { exit_code, .. } | LaunchError::Server { exit_code, .. } => {
                *exit_code
            }
            _ => 1,
        }
    }
}
