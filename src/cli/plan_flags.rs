//! What `train`, `worker` and `server` share: from flags to the plan of a run, and its end.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;

use crate::config::RunConfig;
use crate::data::DataPlan;
use crate::launch::worker::{FolderPlan, NetworkPlan, TimelinePlan, WorkerPlan};
use crate::train::checkpoint::{has_checkpoint, read_checkpoint};
use crate::train::metrics::RunSummary;

use super::CommandError;
use super::output::{json, note};
use super::run_flags::{OutputFlags, RunFlags};

/// More workers than this are a mistake, not a plan.
pub const WORKERS_MAX: u64 = 256;

#[derive(Debug, Args)]
pub struct PlanFlags {
    /// Read flags that are not given from this TOML file, such as a run's config.toml
    #[arg(long, env = "ANNULET_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print run.json on stdout at the end
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub run: RunFlags,
}

impl PlanFlags {
    /// What every worker is told, from flags, variables, the `--config` file and the checkpoint.
    pub fn plan(
        &self,
        network: NetworkPlan,
        output: &OutputFlags,
    ) -> Result<WorkerPlan, CommandError> {
        let mut flags = self.run.clone();
        if let Some(path) = &self.config {
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
        let table =
            toml::Table::try_from(RunFlags::from_config(&config, &flags)).map_err(|error| {
                CommandError::Usage(format!("the configuration has no file: {error}"))
            })?;
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
}

/// Where a worker's part of the timeline goes, if it is asked for.
pub fn plan_timeline(plan: &WorkerPlan, wanted: bool, worker: u64) -> Option<TimelinePlan> {
    let folder = plan.folder.as_ref().filter(|_| wanted)?;
    Some(TimelinePlan { folder: folder.path.clone(), worker })
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

/// Eight hexadecimal digits that tell runs of one second apart.
pub fn run_id() -> String {
    let nanos = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    format!("{:08x}", nanos.rotate_left(16) ^ std::process::id())
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
