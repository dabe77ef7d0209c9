//! The trainer: steps, evaluation, checkpoints, metrics.

pub mod checkpoint;
pub mod collective;
pub mod engine;
pub mod evaluate;
pub mod event;
pub mod metrics;
pub mod run_folder;
pub mod trainer;

pub use trainer::{TrainError, Trainer};
