//! The scenarios of a sweep, and how much work each of them is.

use std::time::Duration;

use super::Settings;
use crate::protocol::exchange::Strategy;
use crate::protocol::parameter_server::Mode;
use crate::simulate::{Compute, Scenario, Topology};

/// The scenarios, each once, with the one worker alone before all others of its size, since these
/// are compared with it.
pub fn with_one_alone(scenarios: Vec<Scenario>) -> Vec<Scenario> {
    let alone = |scenario: &Scenario| Scenario {
        workers: 1,
        topology: Topology::AllReduce(Strategy::Ring),
        straggler: None,
        ..scenario.clone()
    };
    let mut all: Vec<Scenario> = Vec::with_capacity(scenarios.len() + 1);
    for scenario in scenarios {
        // One worker has no use for its link.
        let compared = |other: &Scenario| {
            let link = scenario.link;
            Scenario { link, ..other.clone() } == alone(&scenario)
        };
        if !all.iter().any(compared) {
            all.push(alone(&scenario));
        }
        if !all.contains(&scenario) {
            all.push(scenario);
        }
    }
    all
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
    fn the_one_worker_alone_comes_first_and_once_for_each_size() {
        let scenario = |topology: &str, workers, link: &str, elements| Scenario {
            workers,
            topology: topology.parse().unwrap(),
            link: link.parse().unwrap(),
            compute: Compute::Kernels,
            elements,
            straggler: None,
        };
        let swept = vec![
            scenario("server", 2, "lan-1g", 10),
            scenario("ring", 1, "lan-1g", 10),
            scenario("server", 2, "lan-1g", 10),
            scenario("server", 2, "wan", 10),
            scenario("async", 2, "lan-1g", 20),
        ];
        let expected = [
            scenario("ring", 1, "lan-1g", 10),
            scenario("server", 2, "lan-1g", 10),
            scenario("server", 2, "wan", 10),
            scenario("ring", 1, "lan-1g", 20),
            scenario("async", 2, "lan-1g", 20),
        ];
        assert_eq!(with_one_alone(swept), expected);
    }
}
