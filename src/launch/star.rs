//! One node of a run with parameter servers from start to finish: a worker, or a server.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use crate::data::{Dataset, DatasetChoice, LoadedDataset};
use crate::net::{ClusterKey, PeerAddress, Star, StarOptions};
use crate::protocol::star::Message;
use crate::train::event::{Event, Observer};
use crate::train::metrics::RunSummary;
use crate::train::run_folder::RunFolder;
use crate::train::server::{
    Coordinator, CoordinatorParts, ServedWorker, ServedWorkerParts, ServerNode, ServerPlan,
    WORDS_MAX, serve,
};
use crate::train::trainer::Trainer;

use super::LaunchError;
use super::start::{Start, start};
use super::worker::{WorkerPlan, initial_state, open_folder};

/// What a node needs to take its place around the servers.
#[derive(Debug)]
pub struct StarPlace {
    /// Bound; a server's to the address that the others were told.
    pub socket: UdpSocket,
    pub key: ClusterKey,
    /// A worker's rank, or the number of workers and a server's number.
    pub node: usize,
    pub workers: usize,
    /// Where each server may be reached.
    pub servers: Vec<Vec<PeerAddress>>,
    pub run_id: String,
    /// How long the others may take to be there.
    pub join_timeout: Duration,
}

impl StarPlace {
    fn join(
        self,
        plan: &WorkerPlan,
        dataset: &Dataset,
    ) -> Result<Star<Message, Message>, LaunchError> {
        let config_digest = ServerPlan::digest(&plan.config.digest(&dataset.sha256));
        Ok(Star::join(StarOptions {
            socket: self.socket,
            key: self.key,
            node: self.node,
            workers: self.workers,
            servers: self.servers,
            run_id: self.run_id,
            config_digest,
            join_timeout: self.join_timeout,
            transport: plan.network.transport.clone(),
            words_max: WORDS_MAX,
        })?)
    }
}

/// Runs a worker to the end of the training.
///
/// # Panics
/// If the place is not a worker's.
pub fn run_served_worker(
    plan: WorkerPlan,
    place: StarPlace,
    observer: &mut dyn Observer,
) -> Result<(), LaunchError> {
    let (rank, workers, servers) = (place.node, place.workers, place.servers.len());
    assert!(rank < workers, "a worker's place");
    plan.config.validate()?;
    let (sender, joined) = sync_channel(1);
    let Start { engine, dataset, .. } = start(&plan, Some(rank), observer, |dataset| {
        let (plan, dataset) = (plan.clone(), dataset.clone());
        std::thread::spawn(move || {
            let _ = sender.send(place.join(&plan, &dataset));
        });
        Ok(())
    })?;
    let star = joined.recv().map_err(|_| LaunchError::JoinPanicked)??;
    let timeline = plan.start_timeline();
    let config = plan.config;
    let worker = ServedWorker::new(ServedWorkerParts { config, dataset, engine, star, servers });
    let outcome = worker.recorded(timeline.clone()).run();
    if let Some(plan) = plan.timeline {
        plan.write(&timeline, observer);
    }
    Ok(outcome?)
}

/// Runs a server to the end of the training; the first one, the coordinator, has its summary.
///
/// A server needs no adapter, and of the data set only its digest and how many samples it has.
///
/// # Panics
/// If the place is not a server's.
pub fn run_server(
    plan: WorkerPlan,
    servers: ServerPlan,
    place: StarPlace,
    started_at: Instant,
    stop: Arc<AtomicBool>,
    observer: &mut dyn Observer,
) -> Result<Option<RunSummary>, LaunchError> {
    let server = place.node.checked_sub(place.workers).expect("a server's place");
    plan.config.validate()?;
    if let (Some(folder), None) = (&plan.folder, &plan.resume) {
        RunFolder::check_free(&folder.path)?;
    }
    let (dataset, origin) = load(&plan, observer)?;
    let (state, resumed) = initial_state(&plan, &dataset)?;
    if let Some(text) = resumed {
        observer.event(Event::Notice { text });
    }
    let members = members(&place);
    let samples = dataset.train.labels.len();
    let star = place.join(&plan, &dataset)?;
    let node = ServerNode::new(servers, server, star, plan.config.clone(), samples, &state);
    if server > 0 {
        serve(node)?;
        return Ok(None);
    }
    let checkpoint_every = plan.folder.as_ref().and_then(|folder| folder.checkpoint_every);
    let data = plan.data.pinned(&origin);
    let folder = plan
        .folder
        .as_ref()
        .map(|folder| open_folder(folder, plan.resume.as_deref(), &data, state.step))
        .transpose()?;
    let update = Coordinator::new(CoordinatorParts {
        node,
        config: plan.config.clone(),
        samples,
        checkpoint_every,
        stop,
    })?;
    let trainer = Trainer {
        config: plan.config,
        dataset: Arc::new(dataset),
        data,
        update: Box::new(update),
        state,
        folder,
        checkpoint_every,
        checkpoints_kept: plan.folder.as_ref().and_then(|folder| folder.keep),
        heir: None,
        joins: false,
        started_at,
        members,
    };
    Ok(Some(trainer.run(observer)?))
}

/// A description of each node for `run.json`.
fn members(place: &StarPlace) -> Vec<String> {
    let workers = (0..place.workers).map(|rank| format!("worker {rank}"));
    let servers = place.servers.iter().enumerate().map(|(server, addresses)| {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        format!("server {server} at {}", addresses.join(" or "))
    });
    workers.chain(servers).collect()
}

/// The data set and where it was found; the observer is told what there is to tell of it.
fn load(
    plan: &WorkerPlan,
    observer: &mut dyn Observer,
) -> Result<(Dataset, DatasetChoice), LaunchError> {
    let LoadedDataset { dataset, origin, notices } = plan.data.load(plan.config.seed)?;
    for text in notices {
        observer.event(Event::Notice { text });
    }
    Ok((dataset, origin))
}
