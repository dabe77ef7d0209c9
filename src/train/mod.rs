//! The trainer: steps, evaluation, checkpoints, metrics.
//!
//! A [`Trainer`] works with a [`GradientEngine`](engine::GradientEngine) and an
//! [`Update`](update::Update), which makes a step by all-reduce or by parameter servers, and tells
//! an [`Observer`](event::Observer) how it goes.
//!
//! | file | what it holds |
//! |---|---|
//! | `trainer`, `run` | a worker's trainer, and its run: epochs, evaluation, checkpoints |
//! | `update`, `all_reduce`, `vectors`, `server` | how a step turns a batch into new parameters |
//! | `collective`, `buffers` | what reduces vectors, for the trainer and for any program |
//! | `views`, `transfer` | going on with other workers, and the state that they begin with |
//! | `engine`, `synthetic`, `straggler`, `device_loss` | what computes, and what is made of it for a demonstration |
//! | `evaluate` | accuracy and loss over the test set |
//! | `checkpoint`, `run_folder` | what a run leaves behind |
//! | `event`, `progress`, `metrics`, `tensorboard`, `timeline` | how a run goes: as it happens, and in files |

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
