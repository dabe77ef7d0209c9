//! One worker from start to finish: data, checkpoint, engine, collective, training.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::config::{Kernels, RunConfig};
use crate::data::dataset::SampleLimits;
use crate::data::{DataError, Dataset, DatasetRequest, LoadedDataset, SearchRoots};
use crate::gpu::engine::{Engine, EngineSettings, Sums};
use crate::net::PeerAddress;
use crate::numerics::fixed_point::TILE_SAMPLES;
use crate::reference::engine::ReferenceEngine;
use crate::train::checkpoint::read_checkpoint;
use crate::train::collective::{Collective, Solo};
use crate::train::engine::GradientEngine;
use crate::train::event::{Event, Observer};
use crate::train::metrics::RunSummary;
use crate::train::run_folder::RunFolder;
use crate::train::trainer::{Trainer, TrainingState};

use super::LaunchError;

/// What a worker needs to know, apart from its peers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerPlan {
    pub config: RunConfig,
    pub data: DataPlan,
    /// What `--adapter` takes; none: the best.
    pub adapter: Option<String>,
    /// Cores that a software adapter may use.
    pub cores: usize,
    /// A checkpoint or a run folder to go on from.
    pub resume: Option<PathBuf>,
    /// For the worker that writes the run folder.
    pub folder: Option<FolderPlan>,
}

/// Which images are trained on; what [`DatasetRequest`] is made of.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DataPlan {
    /// What `--dataset` takes; none: the first that is found.
    pub dataset: Option<String>,
    pub train_limit: Option<usize>,
    pub test_limit: Option<usize>,
}

impl DataPlan {
    /// Loads the images; the seed is that of the synthetic digits.
    pub fn load(&self, seed: u64) -> Result<LoadedDataset, DataError> {
        DatasetRequest {
            choice: self.dataset.as_deref().map(str::parse).transpose()?,
            limits: SampleLimits { train: self.train_limit, test: self.test_limit },
            seed,
            roots: SearchRoots::default(),
        }
        .load()
    }
}

/// Where a run's files go.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FolderPlan {
    pub path: PathBuf,
    /// The text of `config.toml`.
    pub config_toml: String,
    pub checkpoint_every: Option<u64>,
}

/// Joins the other workers, given the digest of the configuration and the data.
pub type Connect<'a> =
    Box<dyn FnOnce([u8; 32]) -> Result<Box<dyn Collective>, LaunchError> + Send + 'a>;

/// A worker's place among the others, once the data is there and the digest known.
pub struct Membership<'a> {
    pub rank: usize,
    pub workers: usize,
    /// Joins the others; runs beside the engine's start.
    pub connect: Connect<'a>,
    /// A description of each member, by rank.
    pub members: Vec<String>,
}

impl Membership<'_> {
    /// The only worker.
    pub fn solo() -> Membership<'static> {
        Membership {
            rank: 0,
            workers: 1,
            connect: Box::new(|_| Ok(Box::new(Solo::default()))),
            members: vec!["this process".into()],
        }
    }

    /// Descriptions of members that are reached at these addresses.
    pub fn describe(addresses: &[Vec<SocketAddr>]) -> Vec<String> {
        addresses
            .iter()
            .map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "))
            .collect()
    }
}

/// The addresses at which bound sockets are reached, as the ring takes them.
pub fn peer_addresses(bound: &[Vec<SocketAddr>]) -> Vec<Vec<PeerAddress>> {
    bound.iter().map(|list| list.iter().copied().map(PeerAddress::from).collect()).collect()
}

/// Runs one worker to the end of the training.
pub fn run_worker(
    plan: WorkerPlan,
    membership: Membership<'_>,
    started_at: Instant,
    stop: Arc<AtomicBool>,
    observer: &mut dyn Observer,
) -> Result<RunSummary, LaunchError> {
    plan.config.validate()?;
    let LoadedDataset { dataset, notices, .. } = plan.data.load(plan.config.seed)?;
    for text in notices {
        observer.event(Event::Notice { text });
    }
    let dataset = Arc::new(dataset);
    let state = initial_state(&plan, &dataset, observer)?;
    let folder = match &plan.folder {
        None => None,
        Some(f) if plan.resume.is_none() => Some(RunFolder::create(&f.path, &f.config_toml)?),
        Some(f) => Some(RunFolder::resume(&f.path, &f.config_toml, state.step)?),
    };
    let digest = plan.config.digest(&dataset.sha256);
    let Membership { workers, connect, members, .. } = membership;
    let (engine, collective) = std::thread::scope(|scope| {
        let connecting = scope.spawn(move || connect(digest));
        let engine = open_engine(&plan, workers, &dataset, observer);
        let collective = connecting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (engine, collective) {
            (Ok(engine), Ok(collective)) => Ok((engine, collective)),
            (Err(error), Ok(collective)) => {
                collective.abort(error.to_string());
                Err(error)
            }
            // A worker without an engine says that: that it has no peers is the lesser news.
            (Err(error), Err(_)) | (Ok(_), Err(error)) => Err(error),
        }
    })?;
    let trainer = Trainer {
        config: plan.config,
        dataset,
        engine,
        collective,
        state,
        folder,
        checkpoint_every: plan.folder.and_then(|folder| folder.checkpoint_every),
        stop,
        started_at,
        members,
    };
    Ok(trainer.run(observer)?)
}

/// Makes the engine that the configuration asks for.
pub fn open_engine(
    plan: &WorkerPlan,
    workers: usize,
    dataset: &Arc<Dataset>,
    observer: &mut dyn Observer,
) -> Result<Box<dyn GradientEngine>, LaunchError> {
    if plan.config.kernels == Kernels::Reference {
        return Ok(Box::new(ReferenceEngine::new(plan.config.model, dataset.clone())));
    }
    let batch = plan.config.batch.min(dataset.train.labels.len());
    let settings = EngineSettings {
        adapter: plan.adapter.as_deref().map(str::parse).transpose()?.unwrap_or_default(),
        kernels: plan.config.kernels,
        model: plan.config.model,
        dataset: dataset.clone(),
        samples_per_step: batch.div_ceil(TILE_SAMPLES).div_ceil(workers) * TILE_SAMPLES,
        cores: plan.cores,
        sums: Sums::Exact,
    };
    let engine = Engine::open(settings, &mut |done, total| {
        observer.event(Event::Pipelines { done, total });
    })?;
    Ok(Box::new(engine))
}

fn initial_state(
    plan: &WorkerPlan,
    dataset: &Dataset,
    observer: &mut dyn Observer,
) -> Result<TrainingState, LaunchError> {
    let Some(resume) = &plan.resume else { return Ok(TrainingState::initial(&plan.config)) };
    let (path, checkpoint) = read_checkpoint(resume)?;
    check_resumable(&path, &checkpoint.config, &plan.config)?;
    let sha256 = crate::train::metrics::hex(&dataset.sha256);
    if checkpoint.dataset_sha256 != sha256 {
        return Err(LaunchError::ResumeDiffers {
            path,
            made_with: format!(
                "data set {} (SHA-256 {})",
                checkpoint.dataset_name, checkpoint.dataset_sha256
            ),
            asked_for: format!("{} (SHA-256 {sha256})", dataset.name),
        });
    }
    observer.event(Event::Notice {
        text: format!("resumed from {} after step {}", path.display(), checkpoint.state.step),
    });
    Ok(checkpoint.state)
}

/// A resumed run may be longer than it was meant to be; anything else must be as it was.
fn check_resumable(path: &Path, made: &RunConfig, asked: &RunConfig) -> Result<(), LaunchError> {
    let differs = |made_with: String, asked_for: String| LaunchError::ResumeDiffers {
        path: path.to_owned(),
        made_with,
        asked_for,
    };
    let same_length = RunConfig { length: asked.length, ..made.clone() };
    if same_length == *asked {
        return Ok(());
    }
    let (made, asked) = (fields(made), fields(asked));
    for ((name, made), (_, asked)) in made.iter().zip(&asked) {
        if made != asked && name != "length" {
            return Err(differs(format!("{name} {made}"), asked.to_string()));
        }
    }
    unreachable!("configurations that differ do so in a field")
}

fn fields(config: &RunConfig) -> Vec<(String, serde_json::Value)> {
    match serde_json::to_value(config) {
        Ok(serde_json::Value::Object(map)) => map.into_iter().collect(),
        _ => unreachable!("a struct serializes to an object"),
    }
}
