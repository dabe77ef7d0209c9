//! `annulet train`: local workers, one display, one result.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use clap::Args;

use crate::config::{Kernels, RunConfig};
use crate::gpu::{AdapterChoice, adapters_for};
use crate::launch::adapters::{self, Assignment, cores_of_each};
use crate::launch::driver_environment::set_driver_environment;
use crate::launch::local::LocalGroup;
use crate::launch::worker::{DataPlan, FolderPlan, Membership, WorkerPlan, run_worker};
use crate::train::checkpoint::read_checkpoint;
use crate::train::metrics::RunSummary;

use super::CommandError;
use super::progress::Display;
use super::run_flags::{OutputFlags, RunFlags};

/// More local workers than this are a mistake, not a plan.
const WORKERS_MAX: u64 = 256;

#[derive(Debug, Args)]
pub struct TrainArguments {
    /// Worker processes on this machine; 1 needs no network
    #[arg(long, short = 'n', env = "ANNULET_WORKERS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=WORKERS_MAX))]
    workers: u64,
    /// Adapter for all workers: index, part of the name, or PCI id [default: spread over all]
    #[arg(long, env = "ANNULET_ADAPTER", value_name = "INDEX|NAME|PCI")]
    adapter: Option<String>,
    /// Read flags that are not given from this TOML file, such as a run's config.toml
    #[arg(long, env = "ANNULET_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print run.json on stdout at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run: RunFlags,
    #[command(flatten)]
    output: OutputFlags,
}

pub fn run(arguments: TrainArguments) -> Result<(), CommandError> {
    let started_at = Instant::now();
    let workers = arguments.workers as usize;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let folder = match (&arguments.output.out, &arguments.output.resume) {
        (Some(out), _) => out.clone(),
        // A resumed run goes on where it was.
        (None, Some(resume)) => folder_of(resume),
        (None, None) => new_folder(),
    };
    let mut plan = plan_worker(&arguments.run, &arguments.config, &arguments.output, folder)?;
    plan.adapter = arguments.adapter;
    plan.cores = cores_of_each(cores, workers);
    // SAFETY: no thread was started yet. Worker processes inherit the variables.
    unsafe { set_driver_environment(plan.config.kernels, plan.cores) };

    let interrupt = Interrupt::install(workers == 1);
    let mut display = Display::new(arguments.json);
    let path = plan.folder.as_ref().map(|f| f.path.clone()).unwrap_or_default();
    let summary = if workers == 1 {
        let stop = interrupt.stop.clone();
        run_worker(plan, Membership::solo(), started_at, stop, &mut display)?
    } else {
        let assignments = assign(&plan, workers, cores)?;
        let group = LocalGroup {
            plan,
            assignments,
            run_id: run_id(),
            started_at,
            stop: &interrupt.stop,
            abort: &interrupt.abort,
        };
        match group.run(&mut display) {
            Err(_) if interrupt.abort.load(Ordering::Relaxed) => return Err(CommandError::Aborted),
            result => result?,
        }
    };
    report(&summary, arguments.json, path)
}

/// What every worker is told, from flags, variables, the `--config` file and the checkpoint.
pub fn plan_worker(
    run: &RunFlags,
    config_file: &Option<PathBuf>,
    output: &OutputFlags,
    folder: PathBuf,
) -> Result<WorkerPlan, CommandError> {
    let flags = match config_file {
        Some(path) => run.clone().or(RunFlags::read(path)?),
        None => run.clone(),
    };
    let base = match &output.resume {
        Some(path) => read_checkpoint(path)?.1.config,
        None => RunConfig::default(),
    };
    let config = flags.resolve(base)?;
    let data = DataPlan {
        dataset: flags.dataset.clone(),
        train_limit: flags.train_limit,
        test_limit: flags.test_limit,
    };
    let config_toml = toml::to_string(&RunFlags::from_config(&config, &flags))
        .map_err(|error| CommandError::Usage(format!("the configuration has no file: {error}")))?;
    Ok(WorkerPlan {
        config,
        data,
        adapter: None,
        cores: 1,
        resume: output.resume.clone(),
        folder: Some(FolderPlan {
            path: folder,
            config_toml,
            checkpoint_every: output.checkpoint_every,
        }),
    })
}

/// Prints the summary where it is asked for, and tells how the run ended.
pub fn report(summary: &RunSummary, json: bool, folder: PathBuf) -> Result<(), CommandError> {
    if json {
        let text = serde_json::to_string_pretty(summary).expect("a summary serializes");
        writeln!(std::io::stdout(), "{text}").map_err(CommandError::Output)?;
    }
    eprintln!("run folder: {}", folder.display());
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
    if plan.config.kernels == Kernels::Reference {
        let alone = Assignment { adapter: None, cores: 1 };
        return Ok(vec![alone; workers]);
    }
    let choice = plan.adapter.as_deref().map(str::parse::<AdapterChoice>).transpose()?;
    let present = adapters_for(&choice.clone().unwrap_or_default());
    Ok(adapters::assign(&present, choice.as_ref(), workers, cores)?)
}

/// Ctrl-C, SIGTERM and SIGHUP: once ends the run after the current step, twice at once.
pub struct Interrupt {
    pub stop: Arc<AtomicBool>,
    pub abort: Arc<AtomicBool>,
}

impl Interrupt {
    /// With `lone`, no launcher is there to look at [`Interrupt::abort`]: the process ends itself.
    pub fn install(lone: bool) -> Interrupt {
        let interrupt = Interrupt { stop: Arc::default(), abort: Arc::default() };
        let (stop, abort) = (interrupt.stop.clone(), interrupt.abort.clone());
        let installed = ctrlc::set_handler(move || {
            if stop.swap(true, Ordering::Relaxed) {
                if lone {
                    std::process::exit(130);
                }
                abort.store(true, Ordering::Relaxed);
            } else {
                eprintln!("stopping after this step; once more to stop at once");
            }
        });
        if let Err(error) = installed {
            tracing::warn!("Ctrl-C will end the run without a last checkpoint: {error}");
        }
        interrupt
    }
}

/// A run folder that is not there yet.
pub fn new_folder() -> PathBuf {
    Path::new("runs").join(format!("{}-{}", timestamp(), run_id()))
}

/// Eight hexadecimal digits that tell runs of one second apart.
fn run_id() -> String {
    let nanos = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    format!("{:08x}", nanos.rotate_left(16) ^ std::process::id())
}

/// The run folder that a `--resume` path belongs to.
pub fn folder_of(resume: &Path) -> PathBuf {
    if resume.is_dir() {
        return resume.to_owned();
    }
    match resume.parent() {
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
