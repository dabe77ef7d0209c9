//! The trainer: steps, evaluation, checkpoints, metrics.

pub mod collective;
pub mod engine;
