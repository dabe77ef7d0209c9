//! One worker from start to finish: data, checkpoint, engine, collective, training.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::{Kernels, RunConfig};
use crate::data::sampler::share;
use crate::data::{DataError, DataPlan, Dataset, DatasetPromise};
use crate::gpu::GpuError;
use crate::gpu::engine::{Engine, EngineSettings, Sums};
use crate::model::ModelKind;
use crate::net::{ClusterKey, GroupOptions, PeerAddress, TransportSettings};
use crate::protocol::exchange::Strategy;
use crate::reference::engine::ReferenceEngine;
use crate::train::checkpoint::read_checkpoint;
use crate::train::collective::{Collective, Group, Solo};
use crate::train::engine::GradientEngine;
use crate::train::event::{Event, Observer};
use crate::train::metrics::{RunSummary, hex};
use crate::train::run_folder::RunFolder;
use crate::train::trainer::{Trainer, TrainingState};

use super::LaunchError;

/// What a worker needs to know, apart from its peers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerPlan {
    pub config: RunConfig,
    pub data: DataPlan,
    pub network: NetworkPlan,
    /// What `--adapter` takes; none: the best.
    pub adapter: Option<String>,
    /// Cores that a software adapter may use.
    pub cores: usize,
    /// A checkpoint to go on from.
    pub resume: Option<PathBuf>,
    /// For the worker that writes the run folder.
    pub folder: Option<FolderPlan>,
}

/// How workers exchange gradients; nothing in here changes the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPlan {
    pub strategy: Strategy,
    /// Whether a bucket is reduced while the next one is computed.
    pub overlap: bool,
    pub transport: TransportSettings,
}

impl Default for NetworkPlan {
    fn default() -> Self {
        NetworkPlan {
            strategy: Strategy::Auto,
            overlap: true,
            transport: TransportSettings::default(),
        }
    }
}

/// Where a run's files go.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FolderPlan {
    pub path: PathBuf,
    /// What `config.toml` holds; the data set that was found is added where none was asked for.
    pub config: toml::Table,
    pub checkpoint_every: Option<u64>,
}

/// Joins the other workers, given the digest of the configuration and the data.
type Connect =
    Box<dyn FnOnce([u8; 32], NetworkPlan) -> Result<Box<dyn Collective>, LaunchError> + Send>;

/// A worker's place among the others.
pub struct Membership {
    workers: usize,
    /// A description of each member, by rank.
    members: Vec<String>,
    connect: Connect,
}

/// What a worker needs to join a group.
#[derive(Debug)]
pub struct GroupPlace {
    /// Bound to the address that the others were told.
    pub socket: UdpSocket,
    pub key: ClusterKey,
    pub rank: usize,
    /// Where each worker may be reached, by rank.
    pub peers: Vec<Vec<PeerAddress>>,
    pub run_id: String,
    /// How long the others may take to be there.
    pub join_timeout: Duration,
}

impl Membership {
    /// The only worker.
    pub fn solo() -> Membership {
        Membership {
            workers: 1,
            members: vec!["this process".into()],
            connect: Box::new(|_, _| Ok(Box::new(Solo::default()))),
        }
    }

    /// One of several.
    pub fn group(place: GroupPlace) -> Membership {
        let describe = |addresses: &Vec<PeerAddress>| {
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
        };
        Membership {
            workers: place.peers.len(),
            members: place.peers.iter().map(describe).collect(),
            connect: Box::new(move |config_digest, network| {
                Ok(Box::new(Group::join(GroupOptions {
                    socket: place.socket,
                    key: place.key,
                    rank: place.rank,
                    peers: place.peers,
                    run_id: place.run_id,
                    config_digest,
                    join_timeout: place.join_timeout,
                    strategy: network.strategy,
                    transport: network.transport,
                })?))
            }),
        }
    }
}

/// The addresses at which bound sockets are reached, as a group takes them.
pub fn peer_addresses(bound: &[Vec<SocketAddr>]) -> Vec<Vec<PeerAddress>> {
    bound.iter().map(|list| list.iter().copied().map(PeerAddress::from).collect()).collect()
}

/// Runs one worker to the end of the training.
pub fn run_worker(
    plan: WorkerPlan,
    membership: Membership,
    started_at: Instant,
    stop: Arc<AtomicBool>,
    observer: &mut dyn Observer,
) -> Result<RunSummary, LaunchError> {
    plan.config.validate()?;
    if let (Some(folder), None) = (&plan.folder, &plan.resume) {
        RunFolder::check_free(&folder.path)?;
    }
    let Membership { workers, members, connect } = membership;

    // Data are read and the others are joined while kernels are compiled. If joining fails the
    // thread is left to itself: whoever it reaches then hears that this worker has left.
    let (promise, keeper) = DatasetPromise::pending();
    let (sender, joined) = sync_channel(1);
    let (engine, loaded) = std::thread::scope(|scope| {
        let loader = scope.spawn(|| {
            let loaded = plan.data.load(plan.config.seed)?;
            let dataset = Arc::new(loaded.dataset);
            keeper.keep(dataset.clone());
            let digest = plan.config.digest(&dataset.sha256);
            let network = plan.network.clone();
            std::thread::spawn(move || {
                let _ = sender.send(connect(digest, network));
            });
            Ok::<_, DataError>((dataset, loaded.origin, loaded.notices))
        });
        let engine = open_engine(&plan.engine_request(workers), &promise, observer);
        (engine, loader.join())
    });
    let loaded = loaded.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (dataset, origin, notices) = loaded?;
    for text in notices {
        observer.event(Event::Notice { text });
    }
    let state = initial_state(&plan, &dataset, observer)?;
    let data = plan.data.pinned(&origin);
    let engine = engine?;
    let collective = joined.recv().map_err(|_| LaunchError::JoinPanicked)??;

    let checkpoint_every = plan.folder.as_ref().and_then(|folder| folder.checkpoint_every);
    let folder = plan
        .folder
        .as_ref()
        .map(|folder| open_folder(folder, plan.resume.as_deref(), &data, state.step))
        .transpose()?;
    let trainer = Trainer {
        config: plan.config,
        dataset,
        data,
        engine,
        collective,
        state,
        folder,
        checkpoint_every,
        stop,
        started_at,
        members,
        overlap: plan.network.overlap,
    };
    Ok(trainer.run(observer)?)
}

/// What an engine is to compute, and on what.
#[derive(Clone, Debug)]
pub struct EngineRequest {
    pub model: ModelKind,
    pub kernels: Kernels,
    /// What `--adapter` takes; none: the best.
    pub adapter: Option<String>,
    /// Cores that a software adapter may use.
    pub cores: usize,
    /// Training samples of a step, on this worker.
    pub samples_per_step: usize,
}

impl WorkerPlan {
    fn engine_request(&self, workers: usize) -> EngineRequest {
        EngineRequest {
            model: self.config.model,
            kernels: self.config.kernels,
            adapter: self.adapter.clone(),
            cores: self.cores,
            samples_per_step: share(self.config.batch, workers, 0).len(),
        }
    }
}

/// Makes the engine that is asked for.
pub fn open_engine(
    request: &EngineRequest,
    dataset: &DatasetPromise,
    observer: &mut dyn Observer,
) -> Result<Box<dyn GradientEngine>, LaunchError> {
    if request.kernels == Kernels::Reference {
        let dataset = dataset.wait().ok_or(GpuError::NoData)?;
        return Ok(Box::new(ReferenceEngine::new(request.model, dataset.clone())));
    }
    let settings = EngineSettings {
        adapter: request.adapter.as_deref().map(str::parse).transpose()?.unwrap_or_default(),
        kernels: request.kernels,
        model: request.model,
        dataset: dataset.clone(),
        samples_per_step: request.samples_per_step,
        cores: request.cores,
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
    let found = hex(&dataset.sha256);
    if checkpoint.dataset_sha256 != found {
        return Err(LaunchError::ResumeData {
            path,
            made_with: format!("{} ({})", checkpoint.dataset_name, checkpoint.dataset_sha256),
            found: format!("{} ({found})", dataset.name),
        });
    }
    observer.event(Event::Notice {
        text: format!("resumed from {} after step {}", path.display(), checkpoint.state.step),
    });
    Ok(checkpoint.state)
}

/// A resumed run may be longer than it was meant to be; anything else must be as it was.
fn check_resumable(path: &Path, made: &RunConfig, asked: &RunConfig) -> Result<(), LaunchError> {
    let fields = |config: &RunConfig| {
        let value = serde_json::to_value(RunConfig { length: asked.length, ..config.clone() });
        value.ok().and_then(|value| value.as_object().cloned()).unwrap_or_default()
    };
    let (made, asked) = (fields(made), fields(asked));
    match made.iter().find(|(name, value)| asked.get(*name) != Some(value)) {
        None => Ok(()),
        Some((name, value)) => Err(LaunchError::ResumeDiffers {
            path: path.to_owned(),
            made_with: format!("{name} {value}"),
            asked_for: asked.get(name).map(ToString::to_string).unwrap_or_default(),
        }),
    }
}

/// A run goes on in its own folder; any other folder must be free.
fn open_folder(
    folder: &FolderPlan,
    resume: Option<&Path>,
    data: &DataPlan,
    step: u64,
) -> Result<RunFolder, LaunchError> {
    let mut config = folder.config.clone();
    if let Some(dataset) = &data.dataset {
        config.insert("dataset".into(), dataset.clone().into());
    }
    let text = config.to_string();
    let own = resume.is_some_and(|checkpoint| {
        let parent = checkpoint.canonicalize().ok().and_then(|p| p.parent().map(Path::to_owned));
        parent.is_some() && parent == folder.path.canonicalize().ok()
    });
    Ok(if own {
        RunFolder::resume(&folder.path, &text, step)?
    } else {
        RunFolder::create(&folder.path, &text)?
    })
}
