//! One worker from start to finish: data, checkpoint, engine, collective, training.

use std::net::{SocketAddr, UdpSocket};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::RunConfig;
use crate::data::{DataPlan, Dataset};
use crate::net::{ClusterKey, GroupOptions, PeerAddress, Station, TransportSettings};
use crate::protocol::exchange::Strategy;
use crate::train::all_reduce::{AllReduce, AllReduceParts};
use crate::train::checkpoint::read_checkpoint;
use crate::train::collective::{Collective, Group, Solo};
use crate::train::event::{Event, Observer, Silent};
use crate::train::metrics::{RunSummary, hex};
use crate::train::run_folder::RunFolder;
use crate::train::server::ServerPlan;
use crate::train::synthetic::SyntheticCompute;
use crate::train::timeline::{self, Timeline};
use crate::train::trainer::{Heir, Trainer, TrainingState};
use crate::train::views::Views;

use super::LaunchError;
use super::elastic::{ElasticPlace, ElasticViews, Started};
use super::engines::{DeviceLossPlan, StragglerPlan, open_worker_engine};
use super::start::{Start, start};

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
    /// For the worker that writes the run folder, and for those that may take its place.
    pub folder: Option<FolderPlan>,
    /// Where this worker tells what it did when; none: it does not.
    #[serde(default)]
    pub timeline: Option<TimelinePlan>,
}

/// A worker's part of the run's timeline.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimelinePlan {
    pub folder: PathBuf,
    /// Tells the parts of one folder apart.
    pub worker: u64,
}

impl TimelinePlan {
    /// Writes the part. A run does not fail for a file that only describes it.
    pub(super) fn write(&self, timeline: &Timeline, observer: &mut dyn Observer) {
        let path = timeline::part(&self.folder, self.worker);
        let written = std::fs::create_dir_all(&self.folder)
            .and_then(|()| timeline::write(&path, &timeline.trace(self.worker)));
        if let Err(error) = written {
            let text = format!("no timeline: {}: {error}", path.display());
            observer.event(Event::Notice { text });
        }
    }
}

impl WorkerPlan {
    /// Keeps spans if the plan says so.
    pub(super) fn start_timeline(&self) -> Timeline {
        if self.timeline.is_some() { Timeline::recording() } else { Timeline::default() }
    }
}

/// How workers exchange gradients; nothing in here changes the result, but for servers that are not
/// synchronous.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPlan {
    pub strategy: Strategy,
    /// Whether a bucket is reduced while the next one is computed. The same for all workers.
    pub overlap: bool,
    pub transport: TransportSettings,
    /// Parameter servers; none: the workers exchange gradients among themselves.
    pub servers: Option<ServerPlan>,
    pub straggler: Option<StragglerPlan>,
    pub device_loss: Option<DeviceLossPlan>,
    /// The shares follow the workers' speeds and change once in so many steps at most; none: they
    /// stay equal. The same for all workers; of no matter to servers.
    pub rebalance: Option<NonZero<u32>>,
    /// How long workers wait where the kernels are [`Kernels::Synthetic`](crate::config::Kernels::Synthetic).
    #[serde(default)]
    pub synthetic: Option<SyntheticCompute>,
}

/// Steps between changes of the shares: a fraction of a second of a run, and enough for a median.
pub const REBALANCE_DEFAULT: NonZero<u32> = NonZero::new(20).unwrap();

impl NetworkPlan {
    /// Extends the digest of the configuration and the data by that in which the workers of a group
    /// must agree too.
    fn group_digest(&self, config_digest: &[u8; 32]) -> [u8; 32] {
        let rebalance = self.rebalance.map_or(0, NonZero::get);
        Sha256::new()
            .chain_update(b"annulet group 2\0")
            .chain_update(config_digest)
            .chain_update(rebalance.to_le_bytes())
            .chain_update([u8::from(self.overlap)])
            .finalize()
            .into()
    }
}

impl Default for NetworkPlan {
    fn default() -> Self {
        NetworkPlan {
            strategy: Strategy::Auto,
            overlap: true,
            transport: TransportSettings::default(),
            servers: None,
            straggler: None,
            device_loss: None,
            rebalance: Some(REBALANCE_DEFAULT),
            synthetic: None,
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
    /// So many of the newest checkpoints are kept; none: all.
    #[serde(default)]
    pub keep: Option<NonZero<usize>>,
    /// Whether the folder is this worker's own, and not that of all workers of this machine.
    #[serde(default)]
    pub is_own: bool,
}

/// Everything that decides the result.
pub struct Terms {
    pub digest: [u8; 32],
    /// Each part by its name, to say which one differs.
    pub by_name: Vec<(String, String)>,
}

impl Terms {
    fn of(plan: &WorkerPlan, dataset: &Dataset) -> Terms {
        let WorkerPlan { config, network, .. } = plan;
        let mut by_name = vec![("data set (SHA-256)".to_owned(), hex(&dataset.sha256))];
        // By way of text, in which 0.1 stays 0.1.
        let text = serde_json::to_string(config).unwrap_or_default();
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&text).unwrap_or_default();
        for (name, value) in fields {
            by_name.push((name, value.to_string()));
        }
        let rebalance = network.rebalance.map_or("off".to_owned(), |steps| steps.to_string());
        by_name.push(("rebalance".to_owned(), rebalance));
        let overlap = if network.overlap { "on" } else { "off" };
        by_name.push(("overlap".to_owned(), overlap.to_owned()));
        Terms { digest: network.group_digest(&config.digest(&dataset.sha256)), by_name }
    }
}

/// Joins the other workers, given the terms and the steps completed so far.
type Connect = Box<dyn FnOnce(Terms, NetworkPlan, u64) -> Result<Connected, LaunchError> + Send>;

/// A worker's connection to the others.
struct Connected {
    collective: Box<dyn Collective>,
    /// How it goes on when the group breaks, if it does.
    views: Option<Box<dyn Views>>,
    /// What it speaks to the others by, in all their views.
    station: Option<Arc<Station>>,
}

/// A worker's place among the others.
pub struct Membership {
    /// None for a worker that comes into a run under way.
    rank: Option<usize>,
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

impl GroupPlace {
    /// The group that this place is in, of a run with this digest.
    pub fn options(self, config_digest: [u8; 32], network: NetworkPlan) -> GroupOptions {
        GroupOptions {
            socket: self.socket,
            key: self.key,
            rank: self.rank,
            peers: self.peers,
            run_id: self.run_id,
            config_digest,
            join_timeout: self.join_timeout,
            strategy: network.strategy,
            transport: network.transport,
        }
    }
}

impl Membership {
    /// The only worker.
    pub fn solo() -> Membership {
        Membership {
            rank: Some(0),
            members: vec!["this process".into()],
            connect: Box::new(|_, _, _| {
                let collective = Box::new(Solo::default());
                Ok(Connected { collective, views: None, station: None })
            }),
        }
    }

    /// One of several.
    pub fn group(place: GroupPlace) -> Membership {
        let describe = |addresses: &Vec<PeerAddress>| {
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
        };
        Membership {
            rank: Some(place.rank),
            members: place.peers.iter().map(describe).collect(),
            connect: Box::new(move |terms, network, _| {
                let collective = Box::new(Group::join(place.options(terms.digest, network))?);
                Ok(Connected { collective, views: None, station: None })
            }),
        }
    }

    /// One of several that go on without those that are lost.
    pub fn elastic(place: ElasticPlace) -> Membership {
        let members = place.first.iter().flat_map(|view| &view.members);
        let members: Vec<String> = members.map(|member| member.addresses.join(" or ")).collect();
        Membership {
            rank: place.first.as_ref().and_then(|view| view.rank(place.me.id)),
            members,
            connect: Box::new(move |terms, network, step| {
                let started = ElasticViews::start(place, terms, network, step)?;
                let Started { group, views, station } = started;
                let collective: Box<dyn Collective> = match group {
                    Some(group) => Box::new(group),
                    None => Box::new(Solo::default()),
                };
                let views: Option<Box<dyn Views>> = Some(Box::new(views));
                Ok(Connected { collective, views, station: Some(station) })
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
    let Membership { rank, members, connect } = membership;
    match (&plan.folder, &plan.resume, rank) {
        (Some(folder), None, Some(0)) => RunFolder::check_free(&folder.path)?,
        // Others may be writing to the same folder by now.
        (Some(folder), None, _) => RunFolder::check_unfinished(&folder.path)?,
        _ => {}
    }
    let (sender, joined) = sync_channel(1);
    let started = start(&plan, rank, observer, |dataset| {
        let (state, resumed) = initial_state(&plan, dataset)?;
        let terms = Terms::of(&plan, dataset);
        let (network, step) = (plan.network.clone(), state.step);
        let join = move || {
            let _ = sender.send(connect(terms, network, step));
        };
        // Nobody is to wait for a worker that comes later.
        let later = match rank {
            Some(_) => {
                std::thread::spawn(join);
                None
            }
            None => Some(join),
        };
        Ok((state, resumed, later))
    })?;
    let Start { engine, dataset, origin, promise, begun: (state, resumed, later) } = started;
    if let Some(text) = resumed {
        observer.event(Event::Notice { text });
    }
    if let Some(join) = later {
        std::thread::spawn(join);
    }
    let data = plan.data.pinned(&origin);
    let Connected { collective, views, station } =
        joined.recv().map_err(|_| LaunchError::JoinPanicked)??;

    let checkpoint_every = plan.folder.as_ref().and_then(|folder| folder.checkpoint_every);
    let checkpoints_kept = plan.folder.as_ref().and_then(|folder| folder.keep);
    let heir = plan.folder.as_ref().map(|folder| Heir {
        path: folder.path.clone(),
        config_toml: folder.config_toml(&data),
        is_own: folder.is_own,
    });
    let folder = plan
        .folder
        .as_ref()
        .filter(|_| rank == Some(0))
        .map(|folder| open_folder(folder, plan.resume.as_deref(), &data, state.step))
        .transpose()?;
    let (timeline, timeline_plan) = (plan.start_timeline(), plan.timeline.clone());
    let mut update = AllReduce::new(AllReduceParts {
        config: plan.config.clone(),
        dataset: dataset.clone(),
        engine,
        collective,
        stop,
        overlap: plan.network.overlap,
        rebalance: plan.network.rebalance,
    })
    .recorded(timeline.clone());
    if let Some(views) = views {
        update = update.elastic(views);
    }
    // What is to be seen once is not seen again.
    let mut again = plan.clone();
    again.network.device_loss = None;
    update = update
        .reopening(Box::new(move || Ok(open_worker_engine(&again, rank, &promise, &mut Silent)?)));
    let trainer = Trainer {
        config: plan.config,
        dataset,
        data,
        update: Box::new(update),
        state,
        folder,
        checkpoint_every,
        checkpoints_kept,
        started_at,
        members,
        heir,
        joins: rank.is_none(),
    };
    let result = trainer.run(observer).map_err(LaunchError::from);
    if let Some(plan) = timeline_plan {
        plan.write(&timeline, observer);
    }
    if let Some(station) = station {
        let failure = result.as_ref().err().filter(|error| !error.is_leave());
        station.part(failure.map(ToString::to_string));
    }
    result
}

/// The state that a run begins with, and a notice if it comes from a checkpoint.
pub(super) fn initial_state(
    plan: &WorkerPlan,
    dataset: &Dataset,
) -> Result<(TrainingState, Option<String>), LaunchError> {
    let Some(resume) = &plan.resume else {
        return Ok((TrainingState::initial(&plan.config), None));
    };
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
    let notice = format!("resumed from {} after step {}", path.display(), checkpoint.state.step);
    Ok((checkpoint.state, Some(notice)))
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

impl FolderPlan {
    fn config_toml(&self, data: &DataPlan) -> String {
        let mut config = self.config.clone();
        if let Some(dataset) = &data.dataset {
            config.insert("dataset".into(), dataset.clone().into());
        }
        config.to_string()
    }
}

/// A run goes on in its own folder; any other folder must be free.
pub(super) fn open_folder(
    folder: &FolderPlan,
    resume: Option<&Path>,
    data: &DataPlan,
    step: u64,
) -> Result<RunFolder, LaunchError> {
    let text = folder.config_toml(data);
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
