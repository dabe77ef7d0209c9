//! The scenarios of a sweep, and how much work each of them is.

use std::time::Duration;

use super::Settings;
use crate::protocol::exchange::Strategy;
use crate::protocol::link::LinkProfile;
use crate::protocol::parameter_server::Mode;
use crate::simulate::{Compute, Scenario, Slowdown, Topology};

/// Every combination of these is a scenario.
#[derive(Clone, Debug)]
pub struct Axes {
    pub workers: Vec<usize>,
    pub topologies: Vec<Topology>,
    pub links: Vec<LinkProfile>,
    pub elements: Vec<usize>,
    pub stragglers: Vec<Option<Slowdown>>,
}

impl Axes {
    /// The combinations that are possible, each once. For each size the one worker alone comes
    /// first, with which the others are compared.
    pub fn scenarios(&self, compute: Compute) -> Vec<Scenario> {
        let mut scenarios: Vec<Scenario> = Vec::new();
        let mut add = |scenario: Scenario| {
            if scenario.is_possible() && !scenarios.contains(&scenario) {
                scenarios.push(scenario);
            }
        };
        for &elements in &self.elements {
            for &link in &self.links {
                let alone = Scenario {
                    workers: 1,
                    topology: Topology::AllReduce(Strategy::Ring),
                    link,
                    compute,
                    elements,
                    straggler: None,
                };
                add(alone.clone());
                for &straggler in &self.stragglers {
                    for &topology in &self.topologies {
                        for &workers in &self.workers {
                            add(Scenario { workers, topology, straggler, ..alone.clone() });
                        }
                    }
                }
            }
        }
        scenarios
    }
}

/// About how long it takes to measure a scenario: by the link's rate and latency alone, which is
/// good enough to tell how much is left.
pub fn estimate(scenario: &Scenario, settings: &Settings) -> Duration {
    /// Joining and parting.
    const OVERHEAD: Duration = Duration::from_millis(500);
    let workers = scenario.workers as f64;
    let compute = match scenario.compute {
        Compute::Kernels => Duration::from_millis(20),
        Compute::Synthetic { batch } | Compute::Trace { batch, .. } => batch.div_f64(workers),
    };
    let delay = scenario.straggler.map_or(Duration::ZERO, |straggler| straggler.delay);
    let bits = 8.0 * scenario.bytes() as f64;
    // A core does about 2 Gbit/s.
    let rate = match scenario.link.bits_per_s {
        0 => 2e9,
        rate => (rate as f64).min(2e9),
    };
    let (times_vector, hops) = match scenario.topology {
        Topology::AllReduce(_) if scenario.workers == 1 => (0.0, 0.0),
        Topology::AllReduce(Strategy::Ring) => {
            (2.0 * (workers - 1.0) / workers, 2.0 * (workers - 1.0))
        }
        Topology::AllReduce(_) => (2.0 * (workers - 1.0) / workers, 2.0 * workers.log2().ceil()),
        Topology::Servers { mode, .. } => {
            let both_ways = if matches!(mode, Mode::Async { .. }) { 1.0 } else { 2.0 };
            (both_ways * workers / scenario.servers() as f64, 2.0)
        }
    };
    let messages =
        Duration::from_secs_f64(times_vector * bits / rate) + scenario.link.latency.mul_f64(hops);
    let steps = (settings.warmup + settings.steps) as f64;
    OVERHEAD + (compute + delay + messages).mul_f64(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possible_combinations_come_once_and_behind_the_one_worker_alone() {
        let axes = Axes {
            workers: vec![2, 1, 2],
            topologies: ["server", "backup=1", "ring"].map(|t| t.parse().unwrap()).to_vec(),
            links: vec!["lan-1g".parse().unwrap()],
            elements: vec![10, 20],
            stragglers: vec![None, Some("1:5".parse().unwrap())],
        };
        let scenarios = axes.scenarios(Compute::Kernels);
        let first: Vec<String> = scenarios[..scenarios.len() / 2]
            .iter()
            .map(|s| format!("{} {} {}", s.topology, s.workers, s.straggler.is_some()))
            .collect();
        assert_eq!(
            first,
            [
                "ring 1 false",
                "server 2 false",
                "server 1 false",
                "backup=1 2 false",
                "ring 2 false",
                "server 2 true",
                "backup=1 2 true",
                "ring 2 true",
            ]
        );
        assert!(scenarios[8..].iter().all(|scenario| scenario.elements == 20));
    }
}
