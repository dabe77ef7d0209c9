//! What can go wrong with a command, and the exit code it leads to.

use std::path::PathBuf;

use crate::bench::BenchError;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::gpu::GpuError;
use crate::launch::LaunchError;
use crate::net::NetError;
use crate::net::identity::KeyError;
use crate::report::ReportError;
use crate::train::TrainError;
use crate::train::checkpoint::CheckpointError;

/// A command's failure; its text names the flag, file or peer and the next thing to do.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("{0}")]
    Usage(String),
    #[error("--config {path}: {reason}", path = path.display())]
    ConfigFile { path: PathBuf, reason: String },
    #[error("--config {path}: {source}; check the path", path = path.display())]
    ReadConfig { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}; choose a file that can be written", path = path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{wrong} wrong sums: this is a defect of the machine or of annulet; please report it")]
    WrongSums { wrong: u64 },
    #[error("could not write the result: {0}")]
    Output(std::io::Error),
    #[error("interrupted after step {step}{}", resume_hint(.folder))]
    Interrupted { step: u64, folder: Option<PathBuf> },
    #[error("interrupted before the run was over")]
    Aborted,
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Report(#[from] ReportError),
}

impl CommandError {
    /// 1 failed, 2 usage, 3 no adapter, 4 data, 5 lost quorum or peer, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            CommandError::Usage(_)
            | CommandError::ConfigFile { .. }
            | CommandError::ReadConfig { .. }
            | CommandError::Config(_) => 2,
            CommandError::Write { .. }
            | CommandError::WrongSums { .. }
            | CommandError::Output(_)
            | CommandError::Report(_)
            | CommandError::Bench(_) => 1,
            CommandError::Interrupted { .. } | CommandError::Aborted => 130,
            CommandError::Launch(error) => error.exit_code(),
        }
    }
}

fn resume_hint(folder: &Option<PathBuf>) -> String {
    match folder {
        Some(folder) => format!("; go on with --resume {}", folder.display()),
        None => String::new(),
    }
}

/// The errors of the layers below keep their exit codes by way of [`LaunchError`].
macro_rules! through_launch_error {
    ($($error:ty),*) => {
        $(impl From<$error> for CommandError {
            fn from(error: $error) -> Self {
                CommandError::Launch(error.into())
            }
        })*
    };
}

through_launch_error!(DataError, GpuError, NetError, KeyError, TrainError, CheckpointError);
