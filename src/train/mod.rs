//! The trainer: steps, evaluation, checkpoints, metrics.

pub mod all_reduce;
pub mod buffers;
pub mod checkpoint;
pub mod collective;
pub mod device_loss;
pub mod engine;
pub mod evaluate;
pub mod event;
pub mod metrics;
pub mod progress;
mod run;
pub mod run_folder;
pub mod server;
pub mod straggler;
pub mod synthetic;
pub mod tensorboard;
pub mod timeline;
pub mod trainer;
mod transfer;
pub mod update;
mod vectors;
pub mod views;

pub use trainer::{TrainError, Trainer};
