//! `bench topology`: what becomes of a [`Scenario`], measured.
//!
//! A cell is a group of its own: every worker and server is a thread of this process with an
//! endpoint, an emulated card and a network thread of its own, so that sixteen workers and as many
//! servers fit two cores and start at once; what goes between them is what goes between machines:
//! the same handshake, QUIC, collectives and server protocol as in training. A worker waits for its
//! share of the computing time (or computes with real kernels), exchanges a gradient of any size,
//! and applies it; ring and servers do the same work, only elsewhere.
//!
//! | file | what it holds |
//! |---|---|
//! | `load` | how a worker computes |
//! | `all_reduce` | a step among workers |
//! | `star` | a step around servers |
//! | `record` | what the nodes saw, and the cell that follows from it |
//! | [`folder`] | the cells on disk, and those that are still to be measured |
//! | [`sweep`] | the combinations that are measured |
//! | [`table`] | the cells as CSV, Markdown and text |

mod all_reduce;
pub mod folder;
mod load;
mod record;
mod star;
pub mod sweep;
pub mod table;

use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::BenchError;
use crate::launch::threads::bind_loopback;
use crate::net::{ClusterKey, PeerAddress, TransportSettings};
use crate::simulate::{Cell, Scenario, Topology};
use crate::train::synthetic::SyntheticCompute;

/// What all cells of a sweep have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Samples of a step, over all workers.
    pub batch: usize,
    /// Steps before those that count; at least one.
    pub warmup: usize,
    /// Steps that count.
    pub steps: usize,
    pub seed: u64,
    /// How long workers wait instead of computing; none: they compute with real kernels.
    pub synthetic: Option<SyntheticCompute>,
    /// The link is the scenario's.
    pub transport: TransportSettings,
}

/// All threads start at once; what they wait for is each other's kernels.
const JOIN_TIMEOUT: Duration = Duration::from_secs(120);

/// Measures one cell.
///
/// # Errors
/// If a node fails, or the workers end with different parameters.
///
/// # Panics
/// If the scenario is not [possible](Scenario::is_possible).
pub fn measure(scenario: &Scenario, settings: &Settings) -> Result<Cell, BenchError> {
    assert!(scenario.is_possible(), "a scenario that can be");
    let records = match scenario.topology {
        Topology::AllReduce(strategy) => all_reduce::run(scenario, settings, strategy)?,
        Topology::Servers { mode, .. } => star::run(scenario, settings, mode)?,
    };
    Ok(records.cell(scenario, settings))
}

/// Runs a node on each of so many bound sockets, as threads; what each of them returns, in their
/// order.
fn on_threads<T: Send>(
    nodes: usize,
    node: impl Fn(usize, std::net::UdpSocket, &ClusterKey, &[Vec<PeerAddress>]) -> Result<T, BenchError>
    + Sync,
) -> Result<Vec<T>, BenchError> {
    let key = ClusterKey::generate()?;
    let mut sockets = Vec::with_capacity(nodes);
    let mut addresses = Vec::with_capacity(nodes);
    for _ in 0..nodes {
        let (socket, address) = bind_loopback()?;
        sockets.push(socket);
        addresses.push(vec![PeerAddress::from(address)]);
    }
    let results: Vec<Result<T, BenchError>> = thread::scope(|scope| {
        let threads: Vec<_> = sockets
            .into_iter()
            .enumerate()
            .map(|(index, socket)| {
                let (key, addresses, node) = (&key, &addresses, &node);
                scope.spawn(move || node(index, socket, key, addresses))
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut values = Vec::with_capacity(nodes);
    let mut failure: Option<BenchError> = None;
    for result in results {
        match result {
            Ok(value) => values.push(value),
            // That a peer was lost is what the others saw.
            Err(error) if failure.as_ref().is_none_or(BenchError::is_about_a_peer) => {
                failure = Some(error);
            }
            Err(_) => {}
        }
    }
    failure.map_or(Ok(values), Err)
}

/// The transport of a scenario's nodes.
fn transport(scenario: &Scenario, settings: &Settings) -> TransportSettings {
    TransportSettings { link: Some(scenario.link), ..settings.transport.clone() }
}

/// An update of plain gradient descent, with sums in place of means.
fn apply(parameters: &mut [f32], sums: &[u32]) {
    /// So small that parameters stay near zero over any number of steps.
    const RATE: f32 = 1.0 / (1 << 20) as f32;
    for (parameter, &sum) in parameters.iter_mut().zip(sums) {
        *parameter -= RATE * (sum as i32) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Compute, Slowdown};

    const MS: Duration = Duration::from_millis(1);

    pub(super) fn settings() -> Settings {
        Settings {
            batch: 96,
            warmup: 1,
            steps: 4,
            seed: 0,
            synthetic: Some(SyntheticCompute::Batch(6 * MS)),
            transport: TransportSettings {
                failure_timeout: Duration::from_secs(60),
                ..TransportSettings::default()
            },
        }
    }

    fn scenario(workers: usize, topology: &str) -> Scenario {
        Scenario {
            workers,
            topology: topology.parse().unwrap(),
            link: "loopback".parse().unwrap(),
            compute: Compute::Synthetic { batch: 6 * MS },
            elements: 1_001,
            straggler: None,
        }
    }

    #[test]
    fn every_topology_is_measured() {
        for topology in
            ["ring", "halving-doubling", "auto", "server*2", "async*2", "staleness=1", "backup=1"]
        {
            let cell = measure(&scenario(3, topology), &settings()).unwrap();
            assert!(cell.wall_s > 0.0 && cell.images_per_s > 0.0, "{topology}");
            assert!(cell.step.p50 > 0.0 && cell.step.p99 >= cell.step.p50, "{topology}");
            // A third of 6 ms, or what was waited for longer than asked.
            assert!(cell.compute_ms >= 2.0, "{topology}: {}", cell.compute_ms);
            let bytes = cell.busiest_node;
            // Of 4,004 bytes, a worker sends two thirds twice.
            assert!(bytes.sent >= 4_004.0 && bytes.received >= 4_004.0, "{topology}: {bytes:?}");
            let late = topology.starts_with("async") || topology.starts_with("staleness");
            assert_eq!(cell.staleness.is_some(), late, "{topology}");
        }
    }

    #[test]
    fn one_worker_alone_sends_nothing() {
        let cell = measure(&scenario(1, "ring"), &settings()).unwrap();
        assert_eq!((cell.busiest_node.sent, cell.busiest_node.received), (0.0, 0.0));
        assert_eq!(cell.step.samples.len(), 4);
    }

    #[test]
    fn workers_end_with_the_same_parameters_in_every_synchronous_topology() {
        let end = |scenario: &Scenario| {
            let records = match scenario.topology {
                Topology::AllReduce(strategy) => all_reduce::run(scenario, &settings(), strategy),
                Topology::Servers { mode, .. } => star::run(scenario, &settings(), mode),
            };
            records.unwrap().fingerprint
        };
        let alone = end(&scenario(1, "ring"));
        assert_ne!(alone, 0, "something was learnt");
        for (workers, topology) in [(3, "ring"), (4, "direct"), (2, "server"), (5, "server*3")] {
            assert_eq!(end(&scenario(workers, topology)), alone, "{workers} {topology}");
        }
    }

    #[test]
    fn a_straggler_is_waited_for_where_nobody_may_go_on_without_it() {
        let slowed = |topology: &str| {
            let straggler = Some(Slowdown { rank: 1, delay: 20 * MS });
            measure(&Scenario { straggler, ..scenario(3, topology) }, &settings()).unwrap()
        };
        assert!(slowed("ring").compute_ms >= 22.0);
        assert!(slowed("server").compute_ms >= 22.0);
        // The other two push ten times while it computes once.
        assert!(slowed("backup=1").compute_ms < 20.0);
    }
}
