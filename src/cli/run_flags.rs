//! The flags that describe a run, shared by `train` and `worker`, and the file they can come from.

use std::num::NonZero;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::config::{Kernels, Length, OptimizerConfig, RunConfig, Schedule, Wire};
use crate::data::DataPlan;
use crate::model::ModelKind;
use crate::train::synthetic::SyntheticCompute;

use super::CommandError;
use super::compute_flag::ComputeFlag;

/// What `--optimizer` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    Sgd,
    #[value(name = "adamw")]
    #[serde(rename = "adamw")]
    AdamW,
}

impl ValueEnum for ModelKind {
    fn value_variants<'a>() -> &'a [Self] {
        &ModelKind::ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.name()))
    }
}

/// Flags that decide the result. All are optional: what is not given comes from `--config`, from
/// the checkpoint that is resumed, or from the defaults.
#[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Training")]
pub struct RunFlags {
    /// Data set: a folder with IDX files, fashion-mnist, mnist, or synthetic [default: the first
    /// that is found]
    #[arg(long, env = "ANNULET_DATASET", value_name = "DIR|NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Take the first N training samples
    #[arg(long, env = "ANNULET_TRAIN_LIMIT", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_limit: Option<usize>,
    /// Take the first N test samples
    #[arg(long, env = "ANNULET_TEST_LIMIT", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_limit: Option<usize>,
    /// Model [default: lenet5]
    #[arg(long, env = "ANNULET_MODEL", value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelKind>,
    /// Seed of the initial parameters, the sample order and the synthetic digits [default: 0]
    #[arg(long, env = "ANNULET_SEED", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Global batch: samples of one update, over all workers [default: 128]
    #[arg(long, env = "ANNULET_BATCH", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// Passes over the training data [default: 10]
    #[arg(long, env = "ANNULET_EPOCHS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Updates, instead of --epochs
    #[arg(long, env = "ANNULET_STEPS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Optimizer [default: sgd]
    #[arg(long, env = "ANNULET_OPTIMIZER", value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<OptimizerKind>,
    /// Peak learning rate [default: 0.05 for sgd, 0.001 for adamw]
    #[arg(long, env = "ANNULET_LR", value_name = "RATE", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f32>,
    /// Momentum of sgd [default: 0.9]
    #[arg(long, env = "ANNULET_MOMENTUM", value_name = "M", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f32>,
    /// Nesterov's momentum in sgd
    #[arg(long, env = "ANNULET_NESTEROV", num_args = 0..=1, default_missing_value = "true",
          require_equals = true, value_name = "true|false")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nesterov: Option<bool>,
    /// Weight decay [default: 0.0005 for sgd, 0.01 for adamw]
    #[arg(long, env = "ANNULET_WEIGHT_DECAY", value_name = "D", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f32>,
    /// How the learning rate falls: step divides it by ten after half and three quarters of the
    /// run [default: cosine]
    #[arg(long, env = "ANNULET_SCHEDULE", value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// Steps over which the learning rate rises to its peak [default: 0]
    #[arg(long, env = "ANNULET_WARMUP", value_name = "STEPS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<u64>,
    /// Kernel set: portable for GPUs, lane for software adapters; auto goes by the adapter alone;
    /// reference is plain Rust without a GPU [default: auto]
    #[arg(long, env = "ANNULET_KERNELS", value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels: Option<Kernels>,
    /// How long computing takes: kernels, as long as they need; a time, such as 20ms, for a batch by
    /// one worker, each of which waits for its share without using the CPU (synthetic compute, which
    /// learns nothing); or trace:RUN, for the times of a recorded run [default: kernels]
    #[arg(long, env = "ANNULET_COMPUTE", value_name = "kernels|TIME|trace:RUN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<ComputeFlag>,
    /// Bits of a gradient's sum between workers: i16 halves the bytes and keeps fewer bits of each
    /// gradient, for slow links and batches of at most 1024 [default: i32]
    #[arg(long, env = "ANNULET_WIRE", value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
}

impl ValueEnum for Schedule {
    fn value_variants<'a>() -> &'a [Self] {
        &[Schedule::Constant, Schedule::Cosine, Schedule::Step]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(match self {
            Schedule::Constant => "constant",
            Schedule::Cosine => "cosine",
            Schedule::Step => "step",
        }))
    }
}

impl ValueEnum for Wire {
    fn value_variants<'a>() -> &'a [Self] {
        &[Wire::I32, Wire::I16]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(match self {
            Wire::I32 => "i32",
            Wire::I16 => "i16",
        }))
    }
}

impl ValueEnum for Kernels {
    fn value_variants<'a>() -> &'a [Self] {
        &[Kernels::Auto, Kernels::Portable, Kernels::Lane, Kernels::Reference]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(match self {
            Kernels::Auto => "auto",
            Kernels::Portable => "portable",
            Kernels::Lane => "lane",
            Kernels::Reference => "reference",
            // Named by --compute alone.
            Kernels::Synthetic => return None,
        }))
    }
}

impl RunFlags {
    /// Reads a `--config` file: the same names as the flags, in TOML.
    pub fn read(path: &Path) -> Result<RunFlags, CommandError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| CommandError::ReadConfig { path: path.to_owned(), source })?;
        toml::from_str(&text).map_err(|error| CommandError::ConfigFile {
            path: path.to_owned(),
            reason: error.to_string(),
        })
    }

    /// These flags, and where one is not given, the other's.
    pub fn or(self, other: RunFlags) -> RunFlags {
        // A length given here replaces the other's, whichever way each is expressed.
        let (epochs, steps) = if self.epochs.is_some() || self.steps.is_some() {
            (self.epochs, self.steps)
        } else {
            (other.epochs, other.steps)
        };
        RunFlags {
            dataset: self.dataset.or(other.dataset),
            train_limit: self.train_limit.or(other.train_limit),
            test_limit: self.test_limit.or(other.test_limit),
            model: self.model.or(other.model),
            seed: self.seed.or(other.seed),
            batch: self.batch.or(other.batch),
            epochs,
            steps,
            optimizer: self.optimizer.or(other.optimizer),
            lr: self.lr.or(other.lr),
            momentum: self.momentum.or(other.momentum),
            nesterov: self.nesterov.or(other.nesterov),
            weight_decay: self.weight_decay.or(other.weight_decay),
            schedule: self.schedule.or(other.schedule),
            warmup: self.warmup.or(other.warmup),
            kernels: self.kernels.or(other.kernels),
            compute: self.compute.or(other.compute),
            wire: self.wire.or(other.wire),
        }
    }

    /// The validated configuration: what is given here over `base`.
    pub fn resolve(&self, base: RunConfig) -> Result<RunConfig, CommandError> {
        let optimizer = self.resolve_optimizer(&base)?;
        let same_kind = optimizer.name() == base.optimizer.name();
        let default_lr = match optimizer {
            _ if same_kind => base.lr,
            OptimizerConfig::Sgd { .. } => DEFAULT_LR_SGD,
            OptimizerConfig::AdamW { .. } => DEFAULT_LR_ADAMW,
        };
        let length = match (self.epochs, self.steps) {
            (None, None) => base.length,
            (Some(epochs), None) => Length::Epochs(epochs),
            (None, Some(steps)) => Length::Steps(steps),
            (Some(_), Some(_)) => {
                return Err(CommandError::Usage(
                    "--epochs and --steps (or their variables) exclude each other; give one".into(),
                ));
            }
        };
        let config = RunConfig {
            model: self.model.unwrap_or(base.model),
            seed: self.seed.unwrap_or(base.seed),
            batch: self.batch.unwrap_or(base.batch),
            length,
            optimizer,
            lr: self.lr.unwrap_or(default_lr),
            schedule: self.schedule.unwrap_or(base.schedule),
            warmup_steps: self.warmup.unwrap_or(base.warmup_steps),
            kernels: self.resolve_kernels(base.kernels)?,
            wire: self.wire.unwrap_or(base.wire),
        };
        config.validate()?;
        Ok(config)
    }

    /// None, where computing is waited for.
    fn resolve_kernels(&self, base: Kernels) -> Result<Kernels, CommandError> {
        let kernels = self.kernels.unwrap_or(base);
        let usage = |text: &str| Err(CommandError::Usage(text.to_owned()));
        match (self.synthetic(), kernels) {
            (Some(_), Kernels::Auto | Kernels::Synthetic) => Ok(Kernels::Synthetic),
            (Some(_), _) => {
                usage("--compute: what is waited for needs no --kernels; leave one out")
            }
            (None, Kernels::Synthetic) => usage(
                "--compute: this run waits instead of computing; say how long, such as --compute 20ms",
            ),
            (None, kernels) => Ok(kernels),
        }
    }

    /// What is waited for instead of computing.
    pub fn synthetic(&self) -> Option<SyntheticCompute> {
        self.compute.as_ref().and_then(ComputeFlag::synthetic)
    }

    fn resolve_optimizer(&self, base: &RunConfig) -> Result<OptimizerConfig, CommandError> {
        let kind = self.optimizer.unwrap_or(match base.optimizer {
            OptimizerConfig::Sgd { .. } => OptimizerKind::Sgd,
            OptimizerConfig::AdamW { .. } => OptimizerKind::AdamW,
        });
        Ok(match kind {
            OptimizerKind::Sgd => {
                let (momentum, nesterov, weight_decay) = match base.optimizer {
                    OptimizerConfig::Sgd { momentum, nesterov, weight_decay } => {
                        (momentum, nesterov, weight_decay)
                    }
                    OptimizerConfig::AdamW { .. } => (0.9, false, DEFAULT_WEIGHT_DECAY_SGD),
                };
                OptimizerConfig::Sgd {
                    momentum: self.momentum.unwrap_or(momentum),
                    nesterov: self.nesterov.unwrap_or(nesterov),
                    weight_decay: self.weight_decay.unwrap_or(weight_decay),
                }
            }
            OptimizerKind::AdamW => {
                if self.momentum.is_some() || self.nesterov == Some(true) {
                    return Err(CommandError::Usage(
                        "--momentum and --nesterov belong to --optimizer sgd; leave them out"
                            .into(),
                    ));
                }
                let (beta1, beta2, epsilon, weight_decay) = match base.optimizer {
                    OptimizerConfig::AdamW { beta1, beta2, epsilon, weight_decay } => {
                        (beta1, beta2, epsilon, weight_decay)
                    }
                    OptimizerConfig::Sgd { .. } => (0.9, 0.999, 1e-8, DEFAULT_WEIGHT_DECAY_ADAMW),
                };
                OptimizerConfig::AdamW {
                    beta1,
                    beta2,
                    epsilon,
                    weight_decay: self.weight_decay.unwrap_or(weight_decay),
                }
            }
        })
    }

    /// Flags that ask for this data.
    pub fn of_data(data: &DataPlan) -> RunFlags {
        RunFlags {
            dataset: data.dataset.clone(),
            train_limit: data.train_limit,
            test_limit: data.test_limit,
            ..RunFlags::default()
        }
    }

    /// A length on the command line replaces one in a variable, whichever way each is expressed.
    pub fn settle_length(&mut self, matches: &ArgMatches) {
        let from = |id| matches.value_source(id);
        match (from("epochs"), from("steps")) {
            (Some(ValueSource::CommandLine), Some(ValueSource::EnvVariable)) => self.steps = None,
            (Some(ValueSource::EnvVariable), Some(ValueSource::CommandLine)) => self.epochs = None,
            _ => {}
        }
    }

    /// Flags that give this configuration, and the data and compute of `data`: what `config.toml` holds.
    pub fn from_config(config: &RunConfig, data: &RunFlags) -> RunFlags {
        let (epochs, steps) = match config.length {
            Length::Epochs(epochs) => (Some(epochs), None),
            Length::Steps(steps) => (None, Some(steps)),
        };
        let (optimizer, momentum, nesterov, weight_decay) = match config.optimizer {
            OptimizerConfig::Sgd { momentum, nesterov, weight_decay } => {
                (OptimizerKind::Sgd, Some(momentum), Some(nesterov), weight_decay)
            }
            OptimizerConfig::AdamW { weight_decay, .. } => {
                (OptimizerKind::AdamW, None, None, weight_decay)
            }
        };
        RunFlags {
            dataset: data.dataset.clone(),
            train_limit: data.train_limit,
            test_limit: data.test_limit,
            model: Some(config.model),
            seed: Some(config.seed),
            batch: Some(config.batch),
            epochs,
            steps,
            optimizer: Some(optimizer),
            lr: Some(config.lr),
            momentum,
            nesterov,
            weight_decay: Some(weight_decay),
            schedule: Some(config.schedule),
            warmup: Some(config.warmup_steps),
            kernels: Some(config.kernels),
            compute: data.compute.clone(),
            wire: Some(config.wire),
        }
    }
}

const DEFAULT_LR_SGD: f32 = 0.05;
const DEFAULT_WEIGHT_DECAY_SGD: f32 = 5e-4;
const DEFAULT_WEIGHT_DECAY_ADAMW: f32 = 0.01;
const DEFAULT_LR_ADAMW: f32 = 0.001;

/// Where a run's files go and how often; no part of the result.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Folder for config, metrics, checkpoints and summary [default: runs/<time>-<id>]
    #[arg(long, env = "ANNULET_OUT", value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Steps between checkpoints; the last state is always written
    #[arg(long, env = "ANNULET_CHECKPOINT_EVERY", value_name = "STEPS",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_every: Option<u64>,
    /// Keep only so many of the newest checkpoints [default: all]
    #[arg(long, env = "ANNULET_KEEP", value_name = "CHECKPOINTS")]
    pub keep: Option<NonZero<usize>>,
    /// Go on from a checkpoint, or from the newest valid one of a run folder; auto: from that of
    /// --out, if it holds one
    #[arg(long, env = "ANNULET_RESUME", value_name = "FILE|DIR|auto")]
    pub resume: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_comes_from_the_base() {
        assert_eq!(
            RunFlags::default().resolve(RunConfig::default()).unwrap(),
            RunConfig::default()
        );
    }

    #[test]
    fn another_optimizer_brings_its_own_defaults() {
        let flags = RunFlags { optimizer: Some(OptimizerKind::AdamW), ..RunFlags::default() };
        let config = flags.resolve(RunConfig::default()).unwrap();
        assert_eq!(config.lr, DEFAULT_LR_ADAMW);
        let OptimizerConfig::AdamW { weight_decay, .. } = config.optimizer else {
            panic!("{config:?}")
        };
        assert_eq!(weight_decay, 0.01);
    }

    #[test]
    fn a_configuration_survives_its_file() {
        let flags = RunFlags {
            optimizer: Some(OptimizerKind::Sgd),
            nesterov: Some(true),
            lr: Some(0.1),
            steps: Some(7),
            ..RunFlags::default()
        };
        let config = flags.resolve(RunConfig::default()).unwrap();
        let text = toml::to_string(&RunFlags::from_config(&config, &flags)).unwrap();
        let back: RunFlags = toml::from_str(&text).unwrap();
        assert_eq!(back.resolve(RunConfig::default()).unwrap(), config);
    }

    #[test]
    fn waiting_takes_the_place_of_kernels_and_says_how_long() {
        let waiting = RunFlags { compute: Some("20ms".parse().unwrap()), ..RunFlags::default() };
        let config = waiting.resolve(RunConfig::default()).unwrap();
        assert_eq!(config.kernels, Kernels::Synthetic);
        let text = toml::to_string(&RunFlags::from_config(&config, &waiting)).unwrap();
        let back: RunFlags = toml::from_str(&text).unwrap();
        assert_eq!(back.compute, waiting.compute);
        assert_eq!(back.resolve(RunConfig::default()).unwrap(), config);
        let both = RunFlags { kernels: Some(Kernels::Lane), ..waiting };
        assert!(matches!(both.resolve(RunConfig::default()), Err(CommandError::Usage(_))));
        // A checkpoint does not know how long.
        assert!(matches!(RunFlags::default().resolve(config), Err(CommandError::Usage(_))));
    }

    #[test]
    fn a_length_on_the_command_line_replaces_the_other_kind_in_the_file() {
        let line = RunFlags { steps: Some(5), ..RunFlags::default() };
        let file = RunFlags { epochs: Some(3), ..RunFlags::default() };
        let config = line.or(file).resolve(RunConfig::default()).unwrap();
        assert_eq!(config.length, Length::Steps(5));
    }

    #[test]
    fn momentum_with_adamw_is_a_usage_error() {
        let flags = RunFlags {
            optimizer: Some(OptimizerKind::AdamW),
            momentum: Some(0.5),
            ..RunFlags::default()
        };
        assert!(matches!(flags.resolve(RunConfig::default()), Err(CommandError::Usage(_))));
    }
}
