//! The flags that say whether workers form a ring or stand around parameter servers.

use std::num::NonZero;
use std::str::FromStr;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use crate::launch::engines::{DeviceLossPlan, StragglerPlan};
use crate::launch::worker::NetworkPlan;
use crate::protocol::parameter_server::Mode;
use crate::train::server::{ServerPlan, StalenessLr};

use super::CommandError;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Topology")]
pub struct TopologyFlags {
    /// Who adds up gradients: the workers among themselves, or parameter servers
    #[arg(long, env = "ANNULET_TOPOLOGY", value_enum, default_value_t = TopologyKind::Ring)]
    topology: TopologyKind,
    #[command(flatten)]
    servers: ServerFlags,
    /// Parameter servers, each of which holds an equal slice of the parameters [default: 1]
    #[arg(long = "servers", env = "ANNULET_SERVER_COUNT", value_name = "K",
          value_parser = clap::value_parser!(u64).range(1..=SERVERS_MAX))]
    count: Option<u64>,
    #[command(flatten)]
    pub shares: ShareFlags,
}

/// Which part of each step a worker computes, and how fast; shared by `train` and `worker`.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Topology")]
pub struct ShareFlags {
    /// Let the workers' shares of a batch follow their speeds, and change them once in N steps at
    /// most; off keeps them equal. The result is the same
    #[arg(long, env = "ANNULET_REBALANCE", value_name = "N|off", default_value = "20")]
    pub rebalance: Rebalance,
    /// Make one worker slower: its computing takes MS milliseconds longer in each step, or with 4x
    /// four times as long
    #[arg(long, env = "ANNULET_STRAGGLER", value_name = "RANK:MS|RANK:4x")]
    pub straggler: Option<StragglerPlan>,
    /// Lose a worker's device in its step STEP, as if the driver had failed
    #[arg(long, hide = true, value_name = "RANK:STEP")]
    pub lose_device: Option<DeviceLossPlan>,
}

/// Steps between changes of the shares, at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebalance(pub Option<NonZero<u32>>);

impl FromStr for Rebalance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Rebalance(None));
        }
        let steps = text.parse().map_err(|_| "write a number of steps, such as 20, or off")?;
        Ok(Rebalance(Some(steps)))
    }
}

impl ShareFlags {
    /// Takes these values in the place of the network's.
    pub fn resolve(&self, network: NetworkPlan) -> NetworkPlan {
        NetworkPlan {
            straggler: self.straggler,
            device_loss: self.lose_device,
            rebalance: self.rebalance.0,
            ..network
        }
    }
}

/// How parameter servers treat gradients, shared by `train` and `server`.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Topology")]
pub struct ServerFlags {
    /// Parameter server: all gradients of a step are one update, with the ring's bits, or each is an
    /// update of its own [default: sync, or async with --staleness]
    #[arg(long, env = "ANNULET_PS_MODE", value_enum)]
    ps_mode: Option<PsMode>,
    /// Asynchronous, but no worker runs more than S gradients ahead of the slowest; 0 is sync
    #[arg(long, env = "ANNULET_STALENESS", value_name = "S")]
    staleness: Option<u64>,
    /// Synchronous, but a step takes the first gradients that come and drops the last K
    #[arg(long, env = "ANNULET_BACKUP_WORKERS", value_name = "K")]
    backup_workers: Option<u64>,
    /// Learning rate of a late gradient in async: constant, or inverse: lr / (1 + staleness)
    /// [default: constant]
    #[arg(long, env = "ANNULET_STALENESS_LR", value_enum)]
    staleness_lr: Option<StalenessLr>,
}

/// More servers than this are a mistake: a slice would be shorter than its header.
const SERVERS_MAX: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TopologyKind {
    Ring,
    Ps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PsMode {
    Sync,
    Async,
}

impl ValueEnum for StalenessLr {
    fn value_variants<'a>() -> &'a [Self] {
        &[StalenessLr::Constant, StalenessLr::Inverse]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            StalenessLr::Constant => "constant",
            StalenessLr::Inverse => "inverse",
        }))
    }
}

impl FromStr for StragglerPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (rank, slowness) = text.split_once(':')?;
            Some(StragglerPlan { rank: rank.parse().ok()?, slowness: slowness.parse().ok()? })
        };
        parse().ok_or_else(|| "write RANK:MS, such as 1:20, or RANK:TIMES, such as 1:4x".to_owned())
    }
}

impl FromStr for DeviceLossPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (rank, step) = text.split_once(':')?;
            Some(DeviceLossPlan { rank: rank.parse().ok()?, step: step.parse().ok()? })
        };
        parse().ok_or_else(|| "write RANK:STEP, such as 1:20".to_owned())
    }
}

impl TopologyFlags {
    /// The servers among `workers` workers, or none in a ring.
    pub fn resolve(&self, workers: usize) -> Result<Option<ServerPlan>, CommandError> {
        let straggler = self.shares.straggler;
        if let Some(straggler) = straggler.filter(|straggler| straggler.rank >= workers) {
            return Err(CommandError::Usage(format!(
                "--straggler {}:{}: there are {workers} workers, with ranks from 0 to {}",
                straggler.rank,
                straggler.slowness,
                workers - 1
            )));
        }
        if self.topology == TopologyKind::Ring {
            let given = self.servers.first_given().or(self.count.map(|_| "servers"));
            return match given {
                Some(flag) => Err(CommandError::Usage(format!(
                    "--{flag} belongs to --topology ps; add that, or leave it out"
                ))),
                None => Ok(None),
            };
        }
        let servers = self.count.unwrap_or(1) as usize;
        Ok(Some(self.servers.resolve(workers, servers)?))
    }
}

impl ServerFlags {
    /// How so many servers treat the gradients of `workers` workers.
    pub fn resolve(&self, workers: usize, servers: usize) -> Result<ServerPlan, CommandError> {
        let usage = |text: String| Err(CommandError::Usage(text));
        let mode = match (self.ps_mode, self.staleness, self.backup_workers) {
            (_, Some(_), Some(_)) => {
                return usage(
                    "--staleness and --backup-workers exclude each other; give one".into(),
                );
            }
            (Some(PsMode::Sync), Some(1..), None) => {
                return usage(
                    "--staleness above 0 is asynchronous; leave out --ps-mode sync".into(),
                );
            }
            (Some(PsMode::Async), None, Some(_)) => {
                return usage("--backup-workers is synchronous; leave out --ps-mode async".into());
            }
            (_, Some(bound), None) => Mode::bounded(bound),
            (_, None, Some(spare)) if spare as usize >= workers => {
                return usage(format!(
                    "--backup-workers {spare}: of {workers} workers at least one must count; give \
                     at most {}",
                    workers - 1
                ));
            }
            (_, None, Some(spare)) => Mode::backup(spare as usize),
            (Some(PsMode::Async), None, None) => Mode::Async { bound: None },
            (Some(PsMode::Sync) | None, None, None) => Mode::Sync,
        };
        if self.staleness_lr.is_some() && !matches!(mode, Mode::Async { .. }) {
            return usage(format!(
                "--staleness-lr: in {} mode no gradient is stale; leave it out",
                mode.name()
            ));
        }
        Ok(ServerPlan { mode, servers, staleness_lr: self.staleness_lr.unwrap_or_default() })
    }

    /// The name of a flag that was given.
    fn first_given(&self) -> Option<&'static str> {
        (self.ps_mode.map(|_| "ps-mode"))
            .or(self.staleness.map(|_| "staleness"))
            .or(self.backup_workers.map(|_| "backup-workers"))
            .or(self.staleness_lr.map(|_| "staleness-lr"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_follows_from_the_flags() {
        let flags = |ps_mode, staleness, backup_workers| ServerFlags {
            ps_mode,
            staleness,
            backup_workers,
            staleness_lr: None,
        };
        let mode = |flags: ServerFlags| flags.resolve(3, 1).map(|plan| plan.mode).ok();
        assert_eq!(mode(flags(None, None, None)), Some(Mode::Sync));
        assert_eq!(mode(flags(None, Some(0), None)), Some(Mode::Sync));
        assert_eq!(mode(flags(None, Some(4), None)), Some(Mode::Async { bound: Some(4) }));
        assert_eq!(mode(flags(Some(PsMode::Async), None, None)), Some(Mode::Async { bound: None }));
        assert_eq!(mode(flags(None, None, Some(2))), Some(Mode::Backup { spare: 2 }));
        assert_eq!(mode(flags(None, None, Some(3))), None);
        assert_eq!(mode(flags(Some(PsMode::Sync), Some(1), None)), None);
        assert_eq!(mode(flags(Some(PsMode::Async), None, Some(1))), None);
        assert_eq!(mode(flags(None, Some(1), Some(1))), None);
    }
}
