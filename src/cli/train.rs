//! `annulet train`: local workers, one display, one result.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;

use crate::config::{Kernels, RunConfig};
use crate::data::DataPlan;
use crate::gpu::{AdapterChoice, adapters_for};
use crate::launch::adapters::{self, Assignment, cores_of_each};
use crate::launch::driver_environment::set_driver_environment;
use crate::launch::local::LocalGroup;
use crate::launch::worker::{
    FolderPlan, Membership, NetworkPlan, TimelinePlan, WorkerPlan, run_worker,
};
use crate::train::checkpoint::{has_checkpoint, read_checkpoint};
use crate::train::metrics::RunSummary;
use crate::train::timeline;

use super::CommandError;
use super::interrupt::Interrupt;
use super::network_flags::NetworkFlags;
use super::output::{json, note};
use super::progress::Display;
use super::run_flags::{OutputFlags, RunFlags};
use super::topology_flags::TopologyFlags;
use super::watch_flags::MetricsFlags;

/// More local workers than this are a mistake, not a plan.
pub const WORKERS_MAX: u64 = 256;

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
    /// Read flags that are not given from this TOML file, such as a run's config.toml
    #[arg(long, env = "ANNULET_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print run.json on stdout at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub run: RunFlags,
    #[command(flatten)]
    topology: TopologyFlags,
    #[command(flatten)]
    network: NetworkFlags,
    /// Reduce no bucket before all are computed, for comparison
    #[arg(long, env = "ANNULET_NO_OVERLAP", help_heading = "Network")]
    no_overlap: bool,
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
    let network = arguments.network.resolve(!arguments.no_overlap)?;
    let network = NetworkPlan { servers, ..arguments.topology.shares.resolve(network) };
    let mut plan = plan_worker(&arguments.run, &arguments.config, network, &arguments.output)?;
    plan.timeline = plan_timeline(&plan, arguments.timeline, 0);
    plan.adapter = arguments.adapter;
    plan.cores = cores_of_each(cores, workers);
    // SAFETY: the caller's promise. Worker processes inherit the variables.
    unsafe { set_driver_environment(plan.config.kernels, plan.cores) };

    let alone = workers == 1 && servers.is_none();
    let interrupt = Interrupt::install(alone);
    let mut display = Display::new(arguments.json);
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
    report(&summary, arguments.json, folder)
}

/// Where a worker's part of the timeline goes, if it is asked for.
pub fn plan_timeline(plan: &WorkerPlan, wanted: bool, worker: u64) -> Option<TimelinePlan> {
    let folder = plan.folder.as_ref().filter(|_| wanted)?;
    Some(TimelinePlan { folder: folder.path.clone(), worker })
}

/// What every worker is told, from flags, variables, the `--config` file and the checkpoint.
pub fn plan_worker(
    run: &RunFlags,
    config_file: &Option<PathBuf>,
    network: NetworkPlan,
    output: &OutputFlags,
) -> Result<WorkerPlan, CommandError> {
    let mut flags = run.clone();
    if let Some(path) = config_file {
        flags = flags.or(RunFlags::read(path)?);
    }
    let (mut base, mut resume) = (RunConfig::default(), None);
    if let Some(path) = resumed(output)? {
        let (file, checkpoint) = read_checkpoint(&path)?;
        base = checkpoint.config;
        flags = flags.or(RunFlags::of_data(&checkpoint.data));
        resume = Some(file);
    }
    let folder = match (&output.out, &resume) {
        (Some(out), _) => out.clone(),
        // A resumed run goes on where it was.
        (None, Some(checkpoint)) => folder_of(checkpoint),
        (None, None) => Path::new("runs").join(format!("{}-{}", timestamp(), run_id())),
    };
    let config = flags.resolve(base)?;
    let network = NetworkPlan { synthetic: flags.synthetic(), ..network };
    let table = toml::Table::try_from(RunFlags::from_config(&config, &flags))
        .map_err(|error| CommandError::Usage(format!("the configuration has no file: {error}")))?;
    Ok(WorkerPlan {
        config,
        data: DataPlan {
            dataset: flags.dataset,
            train_limit: flags.train_limit,
            test_limit: flags.test_limit,
        },
        network,
        adapter: None,
        cores: 1,
        resume,
        folder: Some(FolderPlan {
            path: folder,
            config: table,
            checkpoint_every: output.checkpoint_every,
            keep: output.keep,
            is_own: false,
        }),
        timeline: None,
    })
}

/// The checkpoint or folder that the run goes on from.
fn resumed(output: &OutputFlags) -> Result<Option<PathBuf>, CommandError> {
    if output.resume.as_deref() != Some(Path::new("auto")) {
        return Ok(output.resume.clone());
    }
    let Some(out) = &output.out else {
        let text = "--resume auto: give the run's folder with --out, which is looked through";
        return Err(CommandError::Usage(text.into()));
    };
    Ok(has_checkpoint(out).then(|| out.clone()))
}

/// Prints the summary where it is asked for, and tells how the run ended.
pub fn report(
    summary: &RunSummary,
    as_json: bool,
    folder: Option<PathBuf>,
) -> Result<(), CommandError> {
    if as_json {
        json(summary)?;
    }
    if let Some(folder) = &folder {
        note(&format!("run folder: {}", folder.display()));
    }
    if summary.interrupted {
        return Err(CommandError::Interrupted { step: summary.steps, folder });
    }
    Ok(())
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

/// Eight hexadecimal digits that tell runs of one second apart.
fn run_id() -> String {
    let nanos = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    format!("{:08x}", nanos.rotate_left(16) ^ std::process::id())
}

/// The folder that a checkpoint lies in.
fn folder_of(checkpoint: &Path) -> PathBuf {
    match checkpoint.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// UTC now as `20261130-150110`.
fn timestamp() -> String {
    let now = time::OffsetDateTime::now_utc();
    format!(
        "{:04}{:02}{:02}-{:02}{:02}{:02}",
        now.year(),
        u8::from(now.month()),
        now.day(),
        now.hour(),
        now.minute(),
        now.second()
    )
}
