//! `annulet bench`: what this machine can do.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::bench::BenchError;
use crate::bench::collective::{Growth, Row, Sweep};
use crate::bench::group::{GroupMember, LocalGroup, follow_orders};
use crate::bench::loopback::{tcp_times, udp_times};
use crate::bench::statistics::Summary;
use crate::bench::step::{StepPlan, measure_steps};
use crate::config::Kernels;
use crate::launch::driver_environment::set_driver_environment;
use crate::launch::worker::{GroupPlace, NetworkPlan};
use crate::model::ModelKind;
use crate::protocol::cost_model::Link;
use crate::train::checkpoint::write_atomically;

use super::CommandError;
use super::bench_topology::{self, TopologyArguments};
use super::group_flags::GroupFlags;
use super::network_flags::NetworkFlags;
use super::output::{json, note, result};

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time the all-reduce among local processes: nccl-tests' flags and columns
    Collective(Box<CollectiveArguments>),
    /// Time the training step of one worker: by phase, by kernel, as a share of the peak
    Step(StepArguments),
    /// Compare all-reduce with parameter servers, over emulated links: workers, topologies, links
    Topology(Box<TopologyArguments>),
}

#[derive(Debug, Args)]
pub struct StepArguments {
    /// Samples of a step
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "32,64,128,256,1024",
          value_parser = clap::value_parser!(u64).range(1..=STEP_BATCH_MAX))]
    batches: Vec<u64>,
    /// Devices of the lane set, a thread each [default: the number of cores]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u64).range(1..=256))]
    instances: Vec<u64>,
    /// Steps of each measurement
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    steps: u64,
    /// Model variant
    #[arg(long, value_enum, default_value_t = ModelKind::LeNet5)]
    model: ModelKind,
    /// Kernel set
    #[arg(long, env = "ANNULET_KERNELS", value_enum, default_value_t = Kernels::Auto)]
    kernels: Kernels,
    /// Adapter: index, part of the name, backend, or PCI id [default: the best]
    #[arg(long, env = "ANNULET_ADAPTER", value_name = "INDEX|NAME|PCI")]
    adapter: Option<String>,
    /// Print everything as JSON, each step's time included
    #[arg(long)]
    json: bool,
}

/// As many as the images that are measured with.
const STEP_BATCH_MAX: u64 = 60_000;

#[derive(Debug, Args)]
pub struct CollectiveArguments {
    /// Be a child of `annulet bench`: orders come on standard input
    #[arg(long, hide = true)]
    launched: bool,
    /// Worker processes on this machine; for a group over several machines, start this command on
    /// each with --rank, --peers and --cluster-key instead
    #[arg(long, env = "ANNULET_WORKERS", default_value_t = 4,
          value_parser = clap::value_parser!(u64).range(1..=256))]
    workers: u64,
    /// Smallest size in bytes; K, M and G are powers of 1024
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "4")]
    minbytes: Bytes,
    /// Largest size
    #[arg(short = 'e', long, value_name = "SIZE", default_value = "16M")]
    maxbytes: Bytes,
    /// Grow by this many bytes
    #[arg(short = 'i', long, value_name = "SIZE", conflicts_with = "stepfactor")]
    stepbytes: Option<Bytes>,
    /// Grow by this factor [default: 4]
    #[arg(short = 'f', long, value_name = "FACTOR", value_parser = clap::value_parser!(u64).range(2..))]
    stepfactor: Option<u64>,
    /// Iterations of each size
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    iters: u64,
    /// Iterations before those
    #[arg(short = 'w', long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    warmup_iters: u64,
    /// Check every result (1) or none (0)
    #[arg(short = 'c', long, value_name = "0|1", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,
    /// Write everything as JSON, each iteration's time included
    #[arg(short = 'J', long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    /// Instead of a table: reduce vectors of random sizes by random algorithms for so long, among
    /// local processes, and check every one
    #[arg(long, value_name = "SECONDS", conflicts_with = "rank",
          value_parser = clap::value_parser!(u64).range(1..))]
    soak: Option<u64>,
    /// Seed of the sizes and algorithms of --soak
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "soak")]
    soak_seed: u64,
    #[command(flatten)]
    network: NetworkFlags,
    #[command(flatten)]
    group: GroupFlags,
}

/// A number of bytes, such as 4, 32K or 1G.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
            Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
            Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
            _ => (text, 0),
        };
        digits
            .parse::<u64>()
            .ok()
            .filter(|&number| number <= BYTES_MAX >> shift)
            .map(|number| Bytes(number << shift))
            .ok_or_else(|| "write a number of bytes up to 8G, such as 4, 32K or 1G".to_owned())
    }
}

/// Twice this, and a vector has more words than a collective's header can say.
const BYTES_MAX: u64 = 8 << 30;

/// What `-J` writes.
#[derive(Serialize)]
struct Report<'a> {
    version: &'static str,
    workers: usize,
    network: &'a NetworkPlan,
    sweep: Sweep,
    link: Link,
    rows: &'a [Row],
}

/// # Safety
/// No other thread may be running: the environment is changed for drivers.
pub unsafe fn run(command: BenchCommand) -> Result<(), CommandError> {
    match command {
        // SAFETY: the caller's promise.
        BenchCommand::Step(arguments) => unsafe { step(arguments) },
        // SAFETY: the caller's promise.
        BenchCommand::Topology(arguments) => unsafe { bench_topology::run(*arguments) },
        BenchCommand::Collective(arguments) if arguments.launched => Ok(follow_orders()?),
        BenchCommand::Collective(arguments) => collective(*arguments),
    }
}

fn collective(arguments: CollectiveArguments) -> Result<(), CommandError> {
    let sweep = arguments.sweep()?;
    let network = arguments.network.resolve(true)?;
    if let Some(seconds) = arguments.soak {
        return soak_locally(arguments.workers as usize, seconds, arguments.soak_seed, &network);
    }
    // Rank 0 writes for a whole group.
    let output_file =
        arguments.output_file.as_ref().filter(|_| arguments.group.rank.unwrap_or(0) == 0);
    let (link, rows) = match arguments.group.place()? {
        Some(place) => measure_with_peers(place, &sweep, &network)?,
        None => measure_locally(arguments.workers as usize, &sweep, &network)?,
    };
    if let Some(path) = output_file {
        let version = env!("CARGO_PKG_VERSION");
        let workers = rows.first().map_or(0, |row| row.workers);
        let report = Report { version, workers, network: &network, sweep, link, rows: &rows };
        let mut text = serde_json::to_string_pretty(&report).expect("a report serializes");
        text.push('\n');
        write_atomically(path, text.as_bytes())
            .map_err(|source| CommandError::Write { path: path.clone(), source })?;
    }
    let wrong: u64 = rows.iter().map(|row| row.wrong).sum();
    if wrong > 0 {
        return Err(CommandError::WrongSums { wrong });
    }
    Ok(())
}

impl CollectiveArguments {
    fn sweep(&self) -> Result<Sweep, CommandError> {
        let growth = match self.stepbytes {
            Some(Bytes(step)) => Growth::Step(step),
            None => Growth::Factor(self.stepfactor.unwrap_or(4)),
        };
        let sweep = Sweep {
            smallest: self.minbytes.0,
            largest: self.maxbytes.0,
            growth,
            iterations: self.iters as usize,
            warmup: self.warmup_iters as usize,
            check: self.check == 1,
        };
        if sweep.smallest > sweep.largest {
            return Err(CommandError::Usage(
                "-b is larger than -e: there is no size to measure".into(),
            ));
        }
        Ok(sweep)
    }
}

/// Starts worker processes, which measure; beside each row comes what plain sockets do.
fn measure_locally(
    workers: usize,
    sweep: &Sweep,
    network: &NetworkPlan,
) -> Result<(Link, Vec<Row>), CommandError> {
    let mut group = LocalGroup::start(&["bench", "collective", "--launched"], workers, network)?;
    let link = *group.link();
    result(&format!(
        "# {workers} local processes, mutual TLS over QUIC; measured at the start: {link}\n\
         # model: the cost model's prediction; tcp ring: the same ring, unencrypted; tcp, udp: plain \
         loopback, one way, two threads\n{}",
        Row::head()
    ))?;
    let mut rows = Vec::new();
    for bytes in sweep.sizes() {
        let mut row = group.measure(bytes, sweep)?;
        row.tcp_us = plain(tcp_times(bytes as usize, sweep.iterations))?;
        row.udp_us = plain(udp_times(bytes as usize, sweep.iterations))?;
        result(&format!("{row}\n"))?;
        rows.push(row);
    }
    group.end()?;
    Ok((link, rows))
}

fn soak_locally(
    workers: usize,
    seconds: u64,
    seed: u64,
    network: &NetworkPlan,
) -> Result<(), CommandError> {
    let mut group = LocalGroup::start(&["bench", "collective", "--launched"], workers, network)?;
    let report = group.soak(seconds, seed)?;
    group.end()?;
    result(&format!("{workers} local processes, {seconds} s, seed {seed}: {report}\n"))?;
    match report.wrong {
        0 => Ok(()),
        wrong => Err(CommandError::WrongSums { wrong }),
    }
}

/// Measures as one of a group over several machines; rank 0 prints.
fn measure_with_peers(
    place: GroupPlace,
    sweep: &Sweep,
    network: &NetworkPlan,
) -> Result<(Link, Vec<Row>), CommandError> {
    let (rank, workers) = (place.rank, place.peers.len());
    // Workers that measure other sizes would wait for each other: they do not fit.
    let text = serde_json::to_vec(sweep).expect("a sweep serializes");
    let config_digest = Sha256::digest(text).into();
    let mut member = GroupMember::join(place.options(config_digest, network.clone()))?;
    let link = *member.link();
    if rank == 0 {
        result(&format!(
            "# {workers} workers, mutual TLS over QUIC; measured at the start: {link}\n\
             # model: the cost model's prediction\n{}",
            Row::head()
        ))?;
    } else {
        tracing::info!("rank {rank} of {workers} measures; rank 0 prints the table");
    }
    let mut rows = Vec::new();
    for bytes in sweep.sizes() {
        let row = member.measure(bytes, sweep)?;
        if rank == 0 {
            result(&format!("{row}\n"))?;
        }
        rows.push(row);
    }
    member.end()?;
    Ok((link, rows))
}

/// # Safety
/// No other thread may be running: the environment is changed for drivers.
unsafe fn step(arguments: StepArguments) -> Result<(), CommandError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: the caller's promise.
    unsafe { set_driver_environment(arguments.kernels, cores) };
    let sizes = |values: Vec<u64>| values.into_iter().map(|value| value as usize).collect();
    let adapter = arguments.adapter.as_deref().map(str::parse).transpose()?;
    let plan = StepPlan {
        adapter: adapter.unwrap_or_default(),
        kernels: arguments.kernels,
        model: arguments.model,
        batches: sizes(arguments.batches),
        instances: match arguments.instances.is_empty() {
            true => vec![cores],
            false => sizes(arguments.instances),
        },
        steps: arguments.steps as usize,
    };
    let report = measure_steps(&plan, &mut |stage| note(stage)).map_err(|error| match error {
        // It has an exit code of its own.
        BenchError::Gpu(error) => CommandError::from(error),
        error => CommandError::from(error),
    })?;
    if arguments.json { json(&report) } else { result(&report.to_string()) }
}

/// The median of plain sockets' times, where there is one.
fn plain(times: std::io::Result<Vec<f64>>) -> Result<Option<f64>, BenchError> {
    let times = times.map_err(BenchError::Loopback)?;
    Ok((!times.is_empty()).then(|| Summary::of(&times).p50))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_suffixes() {
        assert_eq!("4".parse(), Ok(Bytes(4)));
        assert_eq!("32K".parse(), Ok(Bytes(32 << 10)));
        assert_eq!("1g".parse(), Ok(Bytes(1 << 30)));
        for text in ["", "K", "-1", "1T", "9G", "18446744073709551615K", "1.5M"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
