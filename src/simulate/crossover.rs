//! Where one topology stops being the faster one, along one axis with all else equal.
//!
//! Each axis is walked in steps first, so that a lead that changes hands twice is seen twice; each
//! change is then bisected. Topologies are compared by samples a second, which counts for those whose
//! workers do not wait, too.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::run::{Settings, SimulateError, simulate};
use super::scenario::{Scenario, Topology};
use std::time::Duration;

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    Workers,
    /// Bits a second.
    Bandwidth,
    /// Seconds, one way.
    Latency,
    /// Elements of the gradient.
    Elements,
}

/// Who leads along an axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crossover {
    pub axis: Axis,
    /// Where the lead changes, in the axis' unit; none if it never does.
    pub value: Option<f64>,
    /// The faster one below, and above.
    pub from: Topology,
    pub to: Topology,
    /// The one that it was compared with.
    pub against: Topology,
    /// Everything else; its topology and its place on the axis do not count.
    pub scenario: Scenario,
}

impl Axis {
    pub const ALL: [Axis; 4] = [Axis::Workers, Axis::Bandwidth, Axis::Latency, Axis::Elements];

    /// Where the axis begins and ends.
    pub fn range(self) -> (f64, f64) {
        match self {
            Axis::Workers => (2.0, 512.0),
            Axis::Bandwidth => (1e7, 1e11),
            Axis::Latency => (1e-6, 5e-2),
            Axis::Elements => (256.0, 4e6),
        }
    }

    /// The scenario at a place on the axis.
    fn put(self, scenario: &Scenario, value: f64) -> Scenario {
        let mut scenario = scenario.clone();
        match self {
            Axis::Workers => scenario.workers = value.round() as usize,
            Axis::Bandwidth => scenario.link.bits_per_s = value as u64,
            Axis::Latency => scenario.link.latency = Duration::from_secs_f64(value),
            Axis::Elements => scenario.elements = value.round() as usize,
        }
        scenario
    }

    /// The place half-way between two, or none if they are as close as counts.
    fn between(self, low: f64, high: f64) -> Option<f64> {
        let middle = (low * high).sqrt();
        match self {
            Axis::Workers => {
                let middle = middle.round().clamp(low, high);
                (middle > low && middle < high).then_some(middle)
            }
            _ => (high / low > CLOSE).then_some(middle),
        }
    }

    /// The value as people write it.
    pub fn show(self, value: f64) -> String {
        match self {
            Axis::Workers => format!("{value:.0} workers"),
            Axis::Bandwidth if value >= 1e9 => format!("{:.2} gbit", value / 1e9),
            Axis::Bandwidth => format!("{:.0} mbit", value / 1e6),
            Axis::Latency if value >= 1e-3 => format!("{:.2} ms", value * 1e3),
            Axis::Latency => format!("{:.0} us", value * 1e6),
            Axis::Elements => format!("{value:.0} elements"),
        }
    }
}

/// A crossover is known to 2 %.
const CLOSE: f64 = 1.02;

/// Places at which an axis is looked at first.
const PLACES: usize = 9;

/// A lead that is smaller than this is none: both are as fast.
const LEAD_MIN: f64 = 1.01;

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Axis::Workers => "workers",
            Axis::Bandwidth => "bandwidth",
            Axis::Latency => "latency",
            Axis::Elements => "elements",
        })
    }
}

/// As a sentence's second half: "faster up to 12 workers, then server".
impl fmt::Display for Crossover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Some(value) => {
                write!(f, "{} up to {}, then {}", self.from, self.axis.show(value), self.to)
            }
            None => write!(f, "{} everywhere", self.from),
        }
    }
}

/// Finds where the lead between two topologies changes along an axis.
///
/// # Errors
/// If a scenario cannot be simulated.
pub fn crossovers(
    axis: Axis,
    base: &Scenario,
    pair: [Topology; 2],
    settings: &Settings,
) -> Result<Vec<Crossover>, SimulateError> {
    let mut known: HashMap<u64, f64> = HashMap::new();
    // The first one's samples a second over the second one's.
    let mut lead = |value: f64| -> Result<f64, SimulateError> {
        if let Some(&lead) = known.get(&value.to_bits()) {
            return Ok(lead);
        }
        let place = axis.put(base, value);
        let mut speeds = [0.0; 2];
        for (speed, topology) in speeds.iter_mut().zip(pair) {
            *speed = simulate(&Scenario { topology, ..place.clone() }, settings)?.images_per_s;
        }
        let lead = speeds[0] / speeds[1];
        known.insert(value.to_bits(), lead);
        Ok(lead)
    };
    let (low, high) = axis.range();
    let place = |i: usize| {
        let value = low * (high / low).powf(i as f64 / (PLACES - 1) as f64);
        if axis == Axis::Workers { value.round() } else { value }
    };
    let found = |value: Option<f64>, first_leads: bool| {
        let (from, to) = if first_leads { (pair[0], pair[1]) } else { (pair[1], pair[0]) };
        let (to, against) = if value.is_none() { (from, to) } else { (to, to) };
        Crossover { axis, value, from, to, against, scenario: base.clone() }
    };
    let mut changes = Vec::new();
    // The last place at which one led clearly.
    let mut clear: Option<(f64, bool)> = None;
    for value in (0..PLACES).map(place) {
        let now = lead(value)?;
        let is_clear = !(1.0 / LEAD_MIN..LEAD_MIN).contains(&now);
        let leads = now > 1.0;
        if !is_clear {
            continue;
        }
        if let Some((before, led)) = clear.filter(|&(_, led)| led != leads) {
            let (mut below, mut above) = (before, value);
            while let Some(middle) = axis.between(below, above) {
                if (lead(middle)? > 1.0) == led {
                    below = middle;
                } else {
                    above = middle;
                }
            }
            changes.push(found(Some(above), led));
        }
        clear = Some((value, leads));
    }
    if changes.is_empty() {
        changes.extend(clear.map(|(_, leads)| found(None, leads)));
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Machine;

    fn base(link: &str) -> Scenario {
        Scenario {
            workers: 8,
            topology: "ring".parse().unwrap(),
            link: link.parse().unwrap(),
            compute: "0ms".parse().unwrap(),
            elements: 61_706,
            straggler: None,
        }
    }

    fn settings() -> Settings {
        Settings { machine: Machine::without_overheads(), steps: 2, ..Settings::default() }
    }

    #[test]
    fn the_place_at_which_the_lead_changes_is_found() {
        let pair = ["halving-doubling", "server"].map(|t| t.parse().unwrap());
        let found = crossovers(Axis::Latency, &base("100mbit"), pair, &settings()).unwrap();
        // Two latencies beside six: with long ones the server wins at last.
        let [Crossover { value: Some(value), from, to, .. }] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!((*from, *to), (pair[0], pair[1]));
        let lead = |latency: f64| {
            let speed = |topology| {
                let at = Scenario { topology, ..Axis::Latency.put(&base("100mbit"), latency) };
                simulate(&at, &settings()).unwrap().images_per_s
            };
            speed(pair[0]) / speed(pair[1])
        };
        assert!(lead(value / 1.05) > 1.0 && lead(value * 1.05) < 1.0, "{value}");
    }

    #[test]
    fn where_it_never_changes_the_one_that_leads_is_told() {
        let pair = ["ring", "server"].map(|t| t.parse().unwrap());
        let found = crossovers(Axis::Bandwidth, &base("200mbit"), pair, &settings()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].value, found[0].from, found[0].to), (None, pair[0], pair[0]));
        assert_eq!(found[0].to_string(), "ring everywhere");
    }
}
