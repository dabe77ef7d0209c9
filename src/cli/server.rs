//! `annulet server`: one parameter server of a group over several machines.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use crate::launch::star::{StarPlace, run_server};
use crate::net::PeerAddress;
use crate::net::identity::ClusterKey;

use super::CommandError;
use super::group_flags::{listen, refuse_some_loopback, run_id_of};
use super::interrupt::Interrupt;
use super::network_flags::NetworkFlags;
use super::plan_flags::{PlanFlags, WORKERS_MAX, report};
use super::progress::Display;
use super::run_flags::OutputFlags;
use super::topology_flags::ServerFlags;
use super::watch_flags::MetricsFlags;

#[derive(Debug, Args)]
pub struct ServerArguments {
    /// Every server's HOST:PORT, in their order, the same list for all; the first one writes the
    /// run folder
    #[arg(
        long,
        env = "ANNULET_SERVER",
        value_delimiter = ',',
        value_name = "HOST:PORT,...",
        required = true
    )]
    server: Vec<PeerAddress>,
    /// This server's place in --server, from 0
    #[arg(long, env = "ANNULET_INDEX", value_name = "I", default_value_t = 0)]
    index: usize,
    /// Workers around the servers
    #[arg(long, env = "ANNULET_WORKERS", value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=WORKERS_MAX))]
    workers: u64,
    /// The file that `annulet key` made, the same for all
    #[arg(long, env = "ANNULET_CLUSTER_KEY", value_name = "FILE")]
    cluster_key: PathBuf,
    /// Address to listen on [default: the port of this server's entry in --server, on all
    /// interfaces]
    #[arg(long, env = "ANNULET_LISTEN", value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Seconds to wait for the others to appear
    #[arg(long, env = "ANNULET_JOIN_TIMEOUT", value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..))]
    join_timeout: u64,
    #[command(flatten)]
    pub plan: PlanFlags,
    #[command(flatten)]
    mode: ServerFlags,
    #[command(flatten)]
    network: NetworkFlags,
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    metrics: MetricsFlags,
}

pub fn run(arguments: ServerArguments) -> Result<(), CommandError> {
    let started_at = Instant::now();
    let (workers, index) = (arguments.workers as usize, arguments.index);
    let servers = arguments.server;
    let Some(own) = servers.get(index) else {
        return Err(CommandError::Usage(format!(
            "--index {index}: --server lists {} servers, so it goes from 0 to {}",
            servers.len(),
            servers.len().saturating_sub(1)
        )));
    };
    refuse_some_loopback("--server", &servers)?;
    let mode = arguments.mode.resolve(workers, servers.len())?;
    let network = arguments.network.resolve(true)?;
    let mut plan = arguments.plan.plan(network, &arguments.output)?;
    if index != 0 {
        plan.folder = None;
        arguments.metrics.refuse()?;
    }
    let folder = plan.folder.as_ref().map(|folder| folder.path.clone());
    let interrupt = Interrupt::install(true);
    let mut display = Display::new(arguments.plan.json);
    let exposition = arguments.metrics.start()?;
    let mut observer = exposition.observing(&mut display);
    let place = StarPlace {
        socket: listen(arguments.listen, own.port())?,
        key: ClusterKey::read(&arguments.cluster_key)?,
        node: workers + index,
        workers,
        run_id: run_id_of(&servers),
        servers: servers.into_iter().map(|server| vec![server]).collect(),
        join_timeout: Duration::from_secs(arguments.join_timeout),
    };
    let stop = interrupt.stop.clone();
    match run_server(plan, mode, place, started_at, stop, &mut observer)? {
        Some(summary) => report(&summary, arguments.plan.json, folder),
        None => Ok(()),
    }
}
