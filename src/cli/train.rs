//! `annulet train`: local workers, one display, one result.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;

use crate::config::Kernels;
use crate::gpu::{AdapterChoice, adapters_for};
use crate::launch::adapters::{self, Assignment, cores_of_each};
use crate::launch::driver_environment::set_driver_environment;
use crate::launch::local::LocalGroup;
use crate::launch::worker::{Membership, NetworkPlan, WorkerPlan, run_worker};
use crate::train::timeline;

use super::CommandError;
use super::interrupt::Interrupt;
use super::network_flags::OverlapFlags;
use super::output::note;
use super::plan_flags::{PlanFlags, WORKERS_MAX, plan_timeline, report, run_id};
use super::progress::Display;
use super::run_flags::OutputFlags;
use super::topology_flags::TopologyFlags;
use super::watch_flags::MetricsFlags;

#[derive(Debug, Args)]
pub struct TrainArguments {
    /// Worker processes on this machine; 1 needs no network
    #[arg(long, short = 'n', env = "ANNULET_WORKERS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=WORKERS_MAX))]
    workers: u64,
    /// Stop when fewer workers than this are left
    #[arg(long, env = "ANNULET_MIN_WORKERS", value_name = "WORKERS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=WORKERS_MAX))]
    min_workers: u64,
    /// Let no worker come in when there are so many [default: --workers]
    #[arg(long, env = "ANNULET_MAX_WORKERS", value_name = "WORKERS",
          value_parser = clap::value_parser!(u64).range(1..=WORKERS_MAX))]
    max_workers: Option<u64>,
    /// Seconds that workers wait for each other at the start, or to be let in later: they compile
    /// their kernels on the same cores
    #[arg(long, env = "ANNULET_JOIN_TIMEOUT", value_name = "SECONDS", default_value_t = 120,
          value_parser = clap::value_parser!(u64).range(1..))]
    join_timeout: u64,
    /// Start a new worker in the place of one that is lost, up to so many times
    #[arg(long, env = "ANNULET_RESTART", value_name = "TIMES", default_value_t = 0)]
    restart: u64,
    /// Adapter for all workers: index, part of the name, backend, or PCI id [default: spread over
    /// all]
    #[arg(long, env = "ANNULET_ADAPTER", value_name = "INDEX|NAME|PCI")]
    adapter: Option<String>,
    #[command(flatten)]
    pub plan: PlanFlags,
    #[command(flatten)]
    topology: TopologyFlags,
    #[command(flatten)]
    network: OverlapFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// Write what each worker did when to timeline.json in the run's folder, for ui.perfetto.dev or
    /// chrome://tracing: the first and the last few hundred steps
    #[arg(long, env = "ANNULET_TIMELINE", help_heading = "Output")]
    timeline: bool,
    #[command(flatten)]
    metrics: MetricsFlags,
}

/// # Safety
/// No other thread may be running: the environment is changed for drivers.
pub unsafe fn run(arguments: TrainArguments) -> Result<(), CommandError> {
    let started_at = Instant::now();
    let workers = arguments.workers as usize;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let servers = arguments.topology.resolve(workers)?;
    let workers_max = arguments.max_workers.unwrap_or(arguments.workers) as usize;
    let least = workers.max(arguments.min_workers as usize);
    if arguments.max_workers.is_some() && workers_max < least {
        return Err(CommandError::Usage(format!(
            "--max-workers {workers_max}: there are to be {least} at least; give a larger number"
        )));
    }
    let changes_size = arguments.min_workers > 1 || arguments.max_workers.is_some();
    if servers.is_some() && (changes_size || arguments.restart > 0) {
        return Err(CommandError::Usage(
            "--min-workers, --max-workers and --restart belong to --topology ring: a server's workers are not \
             replaced; leave them out"
                .into(),
        ));
    }
    let network = arguments.network.resolve()?;
    let network = NetworkPlan { servers, ..arguments.topology.shares.resolve(network) };
    let mut plan = arguments.plan.plan(network, &arguments.output)?;
    plan.timeline = plan_timeline(&plan, arguments.timeline, 0);
    plan.adapter = arguments.adapter;
    plan.cores = cores_of_each(cores, workers);
    // SAFETY: the caller's promise. Worker processes inherit the variables.
    unsafe { set_driver_environment(plan.config.kernels, plan.cores) };

    let alone = workers == 1 && servers.is_none();
    let interrupt = Interrupt::install(alone);
    let mut display = Display::new(arguments.plan.json);
    let exposition = arguments.metrics.start()?;
    let mut observer = exposition.observing(&mut display);
    let folder = plan.folder.as_ref().map(|folder| folder.path.clone());
    let outcome = if alone {
        let stop = interrupt.stop.clone();
        run_worker(plan, Membership::solo(), started_at, stop, &mut observer)
    } else {
        let assignments = assign(&plan, workers, cores)?;
        let group = LocalGroup {
            plan,
            workers_min: arguments.min_workers as usize,
            workers_max,
            join_timeout: Duration::from_secs(arguments.join_timeout),
            restarts_max: arguments.restart as usize,
            assignments,
            run_id: run_id(),
            started_at,
            stop: &interrupt.stop,
            abort: &interrupt.abort,
        };
        group.run(&mut observer)
    };
    if let (true, Some(folder)) = (arguments.timeline, &folder)
        && let Err(error) = timeline::join_parts(folder)
    {
        note(&format!("no timeline: {}: {error}", folder.display()));
    }
    let summary = match outcome {
        Err(_) if interrupt.abort.load(Ordering::Relaxed) => return Err(CommandError::Aborted),
        outcome => outcome?,
    };
    report(&summary, arguments.plan.json, folder)
}

/// Which worker computes on which adapter.
fn assign(
    plan: &WorkerPlan,
    workers: usize,
    cores: usize,
) -> Result<Vec<Assignment>, CommandError> {
    if matches!(plan.config.kernels, Kernels::Reference | Kernels::Synthetic) {
        return Ok(vec![Assignment { adapter: None, cores: 1 }; workers]);
    }
    let choice = plan.adapter.as_deref().map(str::parse::<AdapterChoice>).transpose()?;
    let present = adapters_for(&choice.clone().unwrap_or_default());
    Ok(adapters::assign(&present, choice.as_ref(), workers, cores)?)
}
