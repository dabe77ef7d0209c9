//! The validated run configuration and its digest; no command line in it.
//!
//! [`RunConfig`] holds exactly what decides the trained bits, so its digest (together with the data
//! set's hash) tells whether two workers may train together. How many workers there are, where
//! files go and what is shown is not part of it: it does not change the result.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::model::ModelKind;

/// Everything that decides the result of a run, apart from the data's bytes and the adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    pub model: ModelKind,
    /// Seed of the initial parameters, the sample order and the synthetic digits.
    pub seed: u64,
    /// Global batch: samples of one optimizer update, over all workers.
    pub batch: usize,
    pub length: Length,
    pub optimizer: OptimizerConfig,
    /// Peak learning rate.
    pub lr: f32,
    pub schedule: Schedule,
    /// Steps over which the learning rate rises linearly to its peak.
    pub warmup_steps: u64,
    pub kernels: Kernels,
    /// Width of the sums that workers exchange: it bounds the precision of a partial gradient.
    #[serde(default)]
    pub wire: Wire,
}

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Length {
    Epochs(u64),
    Steps(u64),
}

/// The update rule; the learning rate stands apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Stochastic gradient descent with momentum, in PyTorch's form.
    Sgd { momentum: f32, nesterov: bool, weight_decay: f32 },
    /// AdamW (Loshchilov and Hutter 2019).
    AdamW { beta1: f32, beta2: f32, epsilon: f32, weight_decay: f32 },
}

impl OptimizerConfig {
    pub const fn name(&self) -> &'static str {
        match self {
            OptimizerConfig::Sgd { .. } => "sgd",
            OptimizerConfig::AdamW { .. } => "adamw",
        }
    }
}

/// How the learning rate changes after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    Constant,
    /// Half a cosine down to zero at the end (Loshchilov and Hutter 2017).
    #[default]
    Cosine,
    /// A tenth after half of the run, a hundredth after three quarters (He et al. 2016).
    Step,
}

/// Which kernel set computes: part of the configuration, since rounding differs between sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kernels {
    /// By the adapter's kind.
    #[default]
    Auto,
    /// Looped, workgroup-tiled shaders within WebGPU's default limits.
    Portable,
    /// Shaders for adapters that compute on the CPU: a lane is a sample.
    Lane,
    /// The same arithmetic in plain Rust, without a GPU.
    Reference,
    /// None: gradients that cost nothing, after a time that is waited for.
    Synthetic,
}

/// Bits of a gradient's sum on its way between workers. With 16 half as many bytes travel, and a
/// partial gradient keeps fewer bits the more tiles the batch has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wire {
    #[default]
    I32,
    I16,
}

/// The largest global batch with [`Wire::I16`]: 64 tiles, which leaves a partial gradient 9 bits
/// and its sign.
pub const BATCH_MAX_I16: usize = 1 << 10;

/// The largest global batch: indices and counts stay far from 32-bit limits.
pub const BATCH_MAX: usize = 1 << 20;

/// The largest number of epochs or steps: with any data set's steps an epoch it fits 64 bits.
const LENGTH_MAX: u64 = 1 << 32;

/// A value that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("--batch {0}: the global batch must be between 1 and {BATCH_MAX}")]
    Batch(usize),
    #[error(
        "--batch {0}: sums of 16 bits hold the gradients of at most {BATCH_MAX_I16} samples; take a \
         smaller batch, or --wire i32"
    )]
    BatchOfI16(usize),
    #[error("--lr {0}: the learning rate must be a finite number above 0")]
    LearningRate(String),
    #[error("--{flag} {value}: must be {expected}")]
    Range { flag: &'static str, value: String, expected: &'static str },
}

impl RunConfig {
    /// Checks every value against its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.batch == 0 || self.batch > BATCH_MAX {
            return Err(ConfigError::Batch(self.batch));
        }
        if self.wire == Wire::I16 && self.batch > BATCH_MAX_I16 {
            return Err(ConfigError::BatchOfI16(self.batch));
        }
        if !(self.lr.is_finite() && self.lr > 0.0) {
            return Err(ConfigError::LearningRate(self.lr.to_string()));
        }
        let (flag, length) = match self.length {
            Length::Epochs(epochs) => ("epochs", epochs),
            Length::Steps(steps) => ("steps", steps),
        };
        if !(1..=LENGTH_MAX).contains(&length) {
            return Err(ConfigError::Range {
                flag,
                value: length.to_string(),
                expected: "between 1 and 4294967296",
            });
        }
        match self.optimizer {
            OptimizerConfig::Sgd { momentum, nesterov, weight_decay } => {
                fraction("momentum", momentum)?;
                not_negative("weight-decay", weight_decay)?;
                if nesterov && momentum == 0.0 {
                    return Err(ConfigError::Range {
                        flag: "momentum",
                        value: momentum.to_string(),
                        expected: "above 0 with --nesterov",
                    });
                }
            }
            OptimizerConfig::AdamW { beta1, beta2, epsilon, weight_decay } => {
                fraction("beta1", beta1)?;
                fraction("beta2", beta2)?;
                not_negative("weight-decay", weight_decay)?;
                if !(epsilon.is_finite() && epsilon > 0.0) {
                    return Err(ConfigError::Range {
                        flag: "epsilon",
                        value: epsilon.to_string(),
                        expected: "a finite number above 0",
                    });
                }
            }
        }
        Ok(())
    }

    /// Steps of an epoch over `samples` training samples; the last may be short.
    pub fn steps_per_epoch(&self, samples: usize) -> u64 {
        samples.div_ceil(self.batch) as u64
    }

    /// Steps of the whole run.
    pub fn total_steps(&self, samples: usize) -> u64 {
        match self.length {
            Length::Epochs(epochs) => epochs * self.steps_per_epoch(samples),
            Length::Steps(steps) => steps,
        }
    }

    /// Samples of the batch of a step, counted from the start of the run.
    pub fn batch_of(&self, step: u64, samples: usize) -> usize {
        // Below the steps of an epoch, so the product is below the samples.
        let before = (step % self.steps_per_epoch(samples)) as usize * self.batch;
        (samples - before).min(self.batch)
    }

    /// SHA-256 over the configuration and the data set's hash: equal digests train equal bits on
    /// the same kind of adapter.
    pub fn digest(&self, dataset_sha256: &[u8; 32]) -> [u8; 32] {
        let text = serde_json::to_vec(self).expect("a tree of plain values serializes");
        Sha256::new()
            .chain_update(b"annulet run 1\0")
            .chain_update(text)
            .chain_update(dataset_sha256)
            .finalize()
            .into()
    }
}

fn fraction(flag: &'static str, value: f32) -> Result<(), ConfigError> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::Range { flag, value: value.to_string(), expected: "at least 0 and below 1" })
}

fn not_negative(flag: &'static str, value: f32) -> Result<(), ConfigError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(ConfigError::Range {
        flag,
        value: value.to_string(),
        expected: "a finite number, 0 or more",
    })
}

impl Default for RunConfig {
    /// What suits Fashion-MNIST at batch 128.
    fn default() -> Self {
        RunConfig {
            model: ModelKind::default(),
            seed: 0,
            batch: 128,
            length: Length::Epochs(10),
            optimizer: OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 5e-4 },
            lr: 0.05,
            schedule: Schedule::default(),
            warmup_steps: 0,
            kernels: Kernels::default(),
            wire: Wire::default(),
        }
    }
}
