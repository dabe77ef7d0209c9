//! The same workers as threads of one process: for tests and for users of the library.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::net::identity::ClusterKey;
use crate::train::event::{Observer, Silent};
use crate::train::metrics::RunSummary;
use crate::train::server::ServerPlan;

use super::LaunchError;
use super::star::{StarPlace, run_served_worker, run_server};
use super::worker::{GroupPlace, Membership, WorkerPlan, peer_addresses, run_worker};

/// All threads start at once; what they wait for is each other's data and kernels.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Trains with `workers` threads that form a group over loopback QUIC; returns rank 0's summary.
///
/// A program that may compute on a software adapter calls
/// [`set_driver_environment`](super::driver_environment::set_driver_environment) before, so that the
/// driver leaves each worker its share of the cores.
///
/// The folder, if the plan has one, is written by rank 0, and `observer` hears rank 0's events. With
/// parameter servers these are threads too, and the first one stands in rank 0's place.
pub fn train_in_threads(
    plan: &WorkerPlan,
    workers: usize,
    observer: &mut (dyn Observer + Send),
) -> Result<RunSummary, LaunchError> {
    let started_at = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    if workers == 1 && plan.network.servers.is_none() {
        return run_worker(plan.clone(), Membership::solo(), started_at, stop, observer);
    }
    if let Some(servers) = plan.network.servers {
        return train_around_servers(plan, workers, servers, started_at, observer);
    }
    let key = ClusterKey::generate()?;
    let (sockets, addresses) = bind_all(workers)?;
    std::thread::scope(|scope| {
        let mut observer = Some(observer);
        let threads: Vec<_> = sockets
            .into_iter()
            .enumerate()
            .map(|(rank, socket)| {
                let mut observer = observer.take().filter(|_| rank == 0);
                let plan = WorkerPlan {
                    folder: plan.folder.clone().filter(|_| rank == 0),
                    ..plan.clone()
                };
                let (key, peers, stop) = (key.clone(), peer_addresses(&addresses), stop.clone());
                scope.spawn(move || {
                    let membership = Membership::group(GroupPlace {
                        socket,
                        key,
                        rank,
                        peers,
                        run_id: "threads".into(),
                        join_timeout: JOIN_TIMEOUT,
                    });
                    let mut silent = Silent;
                    let observer: &mut dyn Observer = match &mut observer {
                        Some(observer) => *observer,
                        None => &mut silent,
                    };
                    run_worker(plan, membership, started_at, stop, observer)
                })
            })
            .collect();
        let results: Vec<_> = threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        first_cause(results)
    })
}

fn train_around_servers(
    plan: &WorkerPlan,
    workers: usize,
    servers: ServerPlan,
    started_at: Instant,
    observer: &mut (dyn Observer + Send),
) -> Result<RunSummary, LaunchError> {
    let key = ClusterKey::generate()?;
    let (sockets, addresses) = bind_all(workers + servers.servers)?;
    let server_addresses = peer_addresses(&addresses[workers..]);
    std::thread::scope(|scope| {
        let mut observer = Some(observer);
        let threads: Vec<_> = sockets
            .into_iter()
            .enumerate()
            .map(|(node, socket)| {
                let coordinates = node == workers;
                let mut observer = if coordinates { observer.take() } else { None };
                let folder = plan.folder.clone().filter(|_| coordinates);
                let plan = WorkerPlan { folder, ..plan.clone() };
                let place = StarPlace {
                    socket,
                    key: key.clone(),
                    node,
                    workers,
                    servers: server_addresses.clone(),
                    run_id: "threads".into(),
                    join_timeout: JOIN_TIMEOUT,
                };
                scope.spawn(move || {
                    if node < workers {
                        return run_served_worker(plan, place, &mut Silent).map(|()| None);
                    }
                    let stop = Arc::new(AtomicBool::new(false));
                    let mut silent = Silent;
                    let observer: &mut dyn Observer = match &mut observer {
                        Some(observer) => *observer,
                        None => &mut silent,
                    };
                    run_server(plan, servers, place, started_at, stop, observer)
                })
            })
            .collect();
        // The coordinator first, whose word counts.
        let results = threads
            .into_iter()
            .rev()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        first_cause(results.filter_map(Result::transpose).collect())
    })
}

/// Rank 0's summary, or the failure that explains the others: a lost peer is what the others saw.
fn first_cause(results: Vec<Result<RunSummary, LaunchError>>) -> Result<RunSummary, LaunchError> {
    let mut summaries = Vec::with_capacity(results.len());
    let mut failure: Option<LaunchError> = None;
    for result in results {
        match result {
            Ok(summary) => summaries.push(summary),
            Err(error) => {
                if failure.as_ref().is_none_or(|f| f.exit_code() == 5 && error.exit_code() != 5) {
                    failure = Some(error);
                }
            }
        }
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(summaries.swap_remove(0)),
    }
}

/// So many sockets on loopback, and the addresses at which each is reached.
fn bind_all(count: usize) -> Result<(Vec<UdpSocket>, Vec<Vec<SocketAddr>>), LaunchError> {
    let bound = (0..count).map(|_| bind_loopback().map(|(socket, at)| (socket, vec![at])));
    bound.collect()
}

/// A socket on loopback, at a port that the system chooses.
pub fn bind_loopback() -> Result<(UdpSocket, SocketAddr), LaunchError> {
    const ADDRESS: &str = "127.0.0.1:0";
    let bind = |source| LaunchError::Bind { address: ADDRESS.into(), source };
    let socket = UdpSocket::bind(ADDRESS).map_err(bind)?;
    let address = socket.local_addr().map_err(bind)?;
    Ok((socket, address))
}
