//! A scenario simulated: from its text to its cell.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::machine::Machine;
use super::record::Recording;
use super::scenario::{Compute, Scenario, Topology};
use super::{all_reduce, servers};
use crate::protocol::exchange::Algorithm;

/// What all cells of a simulated sweep have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Samples of a step, over all workers.
    pub batch: usize,
    /// Steps that count, or 0 for as many as show what is to be shown.
    pub steps: usize,
    /// Of jitter and losses.
    pub seed: u64,
    /// Computing takes up to this share of its time longer, at random.
    pub jitter: f64,
    /// How long a batch takes by real kernels on one worker, if that is known.
    pub kernels: Option<Duration>,
    pub machine: Machine,
    /// Packets of a cell that are simulated one by one: with more, three workers of a ring stand for
    /// all if all are alike; else the cell has fewer steps, and then several packets move as one.
    pub packets_max: usize,
}

/// Some seconds' worth.
const PACKETS_MAX: usize = 1_500_000;

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            batch: 64,
            steps: 0,
            seed: 0,
            jitter: 0.0,
            kernels: None,
            machine: Machine::default(),
            packets_max: PACKETS_MAX,
        }
    }
}

/// What cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulateError {
    #[error(
        "--workers {workers} with {servers} servers: at most {NODE_PAIRS_MAX} pairs of a worker and \
         a server are simulated; give fewer of either"
    )]
    TooLarge { workers: usize, servers: usize },
    #[error("--compute kernels: how long they take is not known here; give a time such as 20ms")]
    Kernels,
    #[error("as many workers are spare as there are, which is no run; give more --workers")]
    Impossible,
}

/// A connection, with what both ends remember of it, takes 200 bytes.
pub const NODE_PAIRS_MAX: usize = 1 << 20;

/// Steps before those that count: in the first one nobody has anything to wait for.
const WARMUP: usize = 2;

/// Simulates a scenario.
///
/// # Errors
/// If it is too large, or cannot be.
pub fn simulate(scenario: &Scenario, settings: &Settings) -> Result<Cell, SimulateError> {
    let (workers, servers) = (scenario.workers, scenario.servers());
    if !scenario.is_possible() {
        return Err(SimulateError::Impossible);
    }
    if workers.saturating_mul(servers) > NODE_PAIRS_MAX {
        return Err(SimulateError::TooLarge { workers, servers });
    }
    if scenario.compute == Compute::Kernels && settings.kernels.is_none() {
        return Err(SimulateError::Kernels);
    }
    let (warmup, steps) = settings.steps(scenario);
    let mut recording = Recording::new(workers, warmup, steps);
    match scenario.topology {
        Topology::AllReduce(strategy) => {
            all_reduce::run(scenario, settings, strategy, warmup + steps, &mut recording);
        }
        Topology::Servers { mode, .. } => {
            servers::run(scenario, settings, mode, warmup + steps, &mut recording);
        }
    }
    Ok(recording.cell(scenario, settings))
}

impl Settings {
    /// Steps that do not count, and steps that do: fewer where one has very many packets.
    fn steps(&self, scenario: &Scenario) -> (usize, usize) {
        let affordable = (self.packets_max as f64 / self.packets(scenario)) as usize;
        match self.steps {
            0 => (WARMUP.min(affordable.max(1)), affordable.clamp(1, 20)),
            steps => (WARMUP.min(affordable.max(1)), steps),
        }
    }

    /// So that all steps are affordable, where messages have many packets.
    pub(super) fn packets_at_once(&self, scenario: &Scenario) -> usize {
        let (warmup, steps) = self.steps(scenario);
        let all = (warmup + steps) as f64 * self.packets(scenario);
        (all / self.packets_max as f64).ceil().clamp(1.0, 1e6) as usize
    }

    /// Workers of an all-reduce that are simulated: all, unless there would be too many packets in
    /// a single step and few can [stand for them](all_reduce::STAND_INS).
    pub(super) fn nodes(&self, scenario: &Scenario) -> usize {
        let Scenario { workers, link, straggler, .. } = scenario;
        let are_alike = straggler.is_none()
            && self.jitter == 0.0
            && self.machine.cores == 0
            && !self.machine.emulated
            && link.loss_ppm == 0;
        let is_ring = matches!(scenario.topology, Topology::AllReduce(strategy)
            if all_reduce::algorithm(scenario, self, strategy) == Algorithm::Ring);
        let is_too_much = self.packets_of(scenario, *workers) > self.packets_max as f64;
        if is_ring && are_alike && is_too_much {
            all_reduce::STAND_INS.min(*workers)
        } else {
            *workers
        }
    }

    /// Of a step, about.
    fn packets(&self, scenario: &Scenario) -> f64 {
        self.packets_of(scenario, self.nodes(scenario))
    }

    /// Of a step in which so many workers send, about.
    fn packets_of(&self, scenario: &Scenario, senders: usize) -> f64 {
        let (n, senders) = (scenario.workers as f64, senders as f64);
        let full = |bytes: f64| (bytes / f64::from(self.machine.mtu)).ceil();
        let bytes = scenario.bytes() as f64;
        let packets = match scenario.topology {
            Topology::AllReduce(strategy) => {
                match all_reduce::algorithm(scenario, self, strategy).name() {
                    "ring" => senders * 2.0 * (n - 1.0) * full(bytes / n),
                    "direct" => n * (n - 1.0) * full(bytes),
                    _ => n * (2.0 * n.log2() + full(2.0 * bytes)),
                }
            }
            Topology::Servers { .. } => {
                let servers = scenario.servers() as f64;
                n * servers * (2.0 * full(bytes / servers) + 1.0)
            }
        };
        packets.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(workers: usize, topology: &str, link: &str) -> Scenario {
        Scenario {
            workers,
            topology: topology.parse().unwrap(),
            link: link.parse().unwrap(),
            compute: "20ms".parse().unwrap(),
            elements: 61_706,
            straggler: None,
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_cell() {
        let settings = |seed| Settings { seed, jitter: 0.2, steps: 5, ..Settings::default() };
        for topology in ["ring", "halving-doubling", "direct", "server*2", "async", "staleness=2"] {
            let scenario = scenario(6, topology, "100mbit/1ms/0.5%/jitter=1ms");
            let cell = |seed| simulate(&scenario, &settings(seed)).unwrap();
            assert_eq!(cell(1), cell(1), "{topology}");
            assert_ne!(cell(1), cell(2), "{topology}");
        }
    }

    #[test]
    fn one_worker_alone_only_computes() {
        let cell = simulate(&scenario(1, "ring", "lan-1g"), &Settings::default()).unwrap();
        let machine = Machine::default();
        let alone =
            20.0 + (machine.timer_ns + machine.wake_ns + machine.update_ns(61_706)) as f64 / 1e6;
        assert!((cell.step.p50 - alone).abs() < 1e-3, "{} {alone}", cell.step.p50);
        assert_eq!((cell.busiest_node.sent, cell.busiest_node.received), (0.0, 0.0));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |workers, topology| {
            simulate(&scenario(workers, topology, "lan-1g"), &Settings::default()).unwrap_err()
        };
        assert_eq!(refused(2, "backup=2"), SimulateError::Impossible);
        let error = refused(2_048, "server*workers");
        assert!(matches!(error, SimulateError::TooLarge { .. }), "{error}");
    }
}
