//! The flags that say how workers exchange vectors, shared by all commands that start some. None of
//! them changes a result.

use std::str::FromStr;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use crate::launch::worker::NetworkPlan;
use crate::net::{Congestion, NetError, TransportSettings};
use crate::protocol::exchange::Strategy;
use crate::protocol::link::LinkProfile;

use super::CommandError;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Network")]
pub struct NetworkFlags {
    /// All-reduce algorithm; auto measures the link at the start and takes for each size what the
    /// cost model says is fastest
    #[arg(long, env = "ANNULET_ALGORITHM", value_enum, default_value_t)]
    pub algorithm: Strategy,
    /// Seconds without a word after which a worker is taken for lost
    #[arg(long, env = "ANNULET_FAILURE_TIMEOUT", value_name = "SECONDS", default_value_t = 3.0,
          value_parser = failure_timeout)]
    pub failure_timeout: f64,
    /// Largest UDP payload: auto finds it, up to 65000 bytes on loopback and 1452 elsewhere
    #[arg(long, env = "ANNULET_MTU", value_name = "auto|BYTES", default_value = "auto")]
    pub mtu: Mtu,
    /// Congestion control: cubic, or always so many bytes in flight, for links that lose packets
    /// and are not shared
    #[arg(long, env = "ANNULET_CONGESTION", value_name = "cubic|fixed:BYTES",
          default_value_t = Congestion::Cubic)]
    pub congestion: Congestion,
    /// Emulate a network card and link: RATE/LATENCY/LOSS, such as 1gbit/0.5ms/0.1%, then
    /// jitter=TIME or queue=PACKETS; or loopback (no card), lan-1g (1gbit, 0.1 ms), lan-10g (10gbit,
    /// 0.05 ms), wifi (200mbit, 2 ms, 0.1%), wan (100mbit, 10 ms, 0.01%). Each worker has one card
    #[arg(long, env = "ANNULET_LINK", value_name = "LINK")]
    pub link: Option<LinkProfile>,
    /// Hand packets to the system in batches; off only helps where the network card's driver fails
    #[arg(
        long,
        env = "ANNULET_GSO",
        value_enum,
        value_name = "on|off",
        default_value = "on",
        hide_possible_values = true
    )]
    pub gso: Switch,
}

// Of those that compute. (A doc comment would become the help of the commands.)
#[derive(Clone, Debug, Args)]
pub struct OverlapFlags {
    #[command(flatten)]
    network: NetworkFlags,
    /// Reduce no bucket before all are computed, for comparison
    #[arg(long, env = "ANNULET_NO_OVERLAP", help_heading = "Network")]
    no_overlap: bool,
}

impl OverlapFlags {
    pub fn resolve(&self) -> Result<NetworkPlan, CommandError> {
        self.network.resolve(!self.no_overlap)
    }
}

/// What `--mtu` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mtu {
    Auto,
    Bytes(u16),
}

impl FromStr for Mtu {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Mtu::Auto);
        }
        text.parse().map(Mtu::Bytes).map_err(|_| "write auto, or a number of bytes".to_owned())
    }
}

/// Shorter ones would take a busy machine for a dead one, longer ones are as good as none.
fn failure_timeout(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.2..=3_600.0).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds from 0.2 to 3600".to_owned()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

impl ValueEnum for Strategy {
    fn value_variants<'a>() -> &'a [Self] {
        &Strategy::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

impl NetworkFlags {
    /// The valid plan, or a usage error that names the flag.
    pub fn resolve(&self, overlap: bool) -> Result<NetworkPlan, CommandError> {
        let mut transport = TransportSettings {
            congestion: self.congestion,
            gso: self.gso == Switch::On,
            link: self.link,
            failure_timeout: Duration::from_secs_f64(self.failure_timeout),
            ..TransportSettings::default()
        };
        if let Mtu::Bytes(bytes) = self.mtu {
            (transport.loopback_mtu, transport.mtu) = (bytes, bytes);
        }
        transport.validate().map_err(|error| match error {
            // The text begins with the setting that is refused, which has its flag's name.
            NetError::Settings(text) => CommandError::Usage(format!("--{text}")),
            error => error.into(),
        })?;
        Ok(NetworkPlan { strategy: self.algorithm, overlap, transport, ..NetworkPlan::default() })
    }
}
