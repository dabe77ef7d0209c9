//! The flags for looking on at a run: none of them changes it.

use std::net::SocketAddr;

use clap::Args;

use crate::launch::exposition::Exposition;
use crate::launch::metrics_server::serve;

use super::CommandError;
use super::output::note;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct MetricsFlags {
    /// Serve metrics for Prometheus at http://IP:PORT/metrics; port 0 takes a free one and prints it
    #[arg(long, env = "ANNULET_METRICS_ADDR", value_name = "IP:PORT")]
    metrics_addr: Option<SocketAddr>,
}

impl MetricsFlags {
    /// What serves the metrics, if they are asked for, and is to be told of all events.
    pub fn start(&self) -> Result<Exposition, CommandError> {
        let exposition = Exposition::default();
        if let Some(address) = self.metrics_addr {
            let address = serve(address, exposition.clone()).map_err(|error| {
                CommandError::Usage(format!(
                    "--metrics-addr {address}: {error}; choose an address of this machine and a \
                     free port, or port 0"
                ))
            })?;
            note(&format!("metrics: http://{address}/metrics"));
        }
        Ok(exposition)
    }

    /// For a node that has no figures of the run.
    pub fn refuse(&self) -> Result<(), CommandError> {
        match self.metrics_addr {
            None => Ok(()),
            Some(address) => Err(CommandError::Usage(format!(
                "--metrics-addr {address}: around parameter servers the first one has the run's \
                 figures; give it there"
            ))),
        }
    }
}
