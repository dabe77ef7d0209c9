//! The same workers as threads of one process: for tests and for users of the library.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::net::identity::ClusterKey;
use crate::net::{RingOptions, TransportSettings};
use crate::train::collective::Ring;
use crate::train::event::{Observer, Silent};
use crate::train::metrics::RunSummary;

use super::LaunchError;
use super::worker::{Membership, WorkerPlan, peer_addresses, run_worker};

/// All threads start at once; what they wait for is each other's data and kernels.
const JOIN_TIMEOUT: Duration = Duration::from_secs(120);

/// Trains with `workers` threads that form a ring over loopback QUIC; returns rank 0's summary.
///
/// The folder, if the plan has one, is written by rank 0, and `observer` hears rank 0's events.
pub fn train_in_threads(
    plan: &WorkerPlan,
    workers: usize,
    observer: &mut (dyn Observer + Send),
) -> Result<RunSummary, LaunchError> {
    let started_at = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    if workers == 1 {
        return run_worker(plan.clone(), Membership::solo(), started_at, stop, observer);
    }
    let key = ClusterKey::generate()?;
    let mut sockets = Vec::with_capacity(workers);
    let mut addresses = Vec::with_capacity(workers);
    for _ in 0..workers {
        let (socket, address) = bind_loopback()?;
        sockets.push(socket);
        addresses.push(vec![address]);
    }
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
                let (key, addresses, stop) = (key.clone(), addresses.clone(), stop.clone());
                scope.spawn(move || {
                    let membership = Membership {
                        rank,
                        workers,
                        members: Membership::describe(&addresses),
                        connect: Box::new(move |config_digest| {
                            Ok(Box::new(Ring::join(RingOptions {
                                socket,
                                key,
                                peers: peer_addresses(&addresses),
                                rank,
                                run_id: "threads".into(),
                                config_digest,
                                join_timeout: JOIN_TIMEOUT,
                                transport: TransportSettings::default(),
                            })?))
                        }),
                    };
                    let mut silent = Silent;
                    let observer: &mut dyn Observer = match &mut observer {
                        Some(observer) => *observer,
                        None => &mut silent,
                    };
                    run_worker(plan, membership, started_at, stop, observer)
                })
            })
            .collect();
        let mut results = threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let first = results.next().expect("there are workers");
        results.try_for_each(|result| result.map(drop))?;
        first
    })
}

/// A socket on loopback, at a port that the system chooses.
pub fn bind_loopback() -> Result<(UdpSocket, std::net::SocketAddr), LaunchError> {
    const ADDRESS: &str = "127.0.0.1:0";
    let bind = |source| LaunchError::Bind { address: ADDRESS.into(), source };
    let socket = UdpSocket::bind(ADDRESS).map_err(bind)?;
    let address = socket.local_addr().map_err(bind)?;
    Ok((socket, address))
}
