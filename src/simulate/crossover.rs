//! Where one topology stops being the faster one, along one axis with all else equal.
//!
//! Each axis is walked in steps first, so that a lead that changes hands twice is seen twice; each
//! change is then bisected. Topologies are compared by samples a second, which counts for those whose
//! workers do not wait, too.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::parallel;
use super::run::{Settings, SimulateError, simulate};
use super::scenario::{Scenario, Topology};

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

    /// Where the axis is looked at first.
    fn places(self) -> impl Iterator<Item = f64> {
        let (low, high) = self.range();
        (0..PLACES).map(move |i| {
            let value = low * (high / low).powf(i as f64 / (PLACES - 1) as f64);
            if self == Axis::Workers { value.round() } else { value }
        })
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

/// Packets of a cell that are simulated one by one here, and steps that count: leads are found within
/// a percent, by many cells.
const PACKETS_MAX: usize = 150_000;
const STEPS: usize = 4;

/// Finds where the lead between two topologies changes, for each pair along each axis around each
/// scenario; `told` hears how much of it is done, from any thread.
///
/// # Errors
/// If a scenario cannot be simulated.
pub fn crossovers(
    axes: &[Axis],
    bases: &[Scenario],
    pairs: &[[Topology; 2]],
    settings: &Settings,
    told: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Crossover>, SimulateError> {
    let steps = if settings.steps == 0 { STEPS } else { settings.steps };
    let settings = Settings { steps, packets_max: PACKETS_MAX, ..settings.clone() };
    let mut topologies: Vec<Topology> = Vec::new();
    for topology in pairs.iter().flatten() {
        if !topologies.contains(topology) {
            topologies.push(*topology);
        }
    }
    let mut walks = Vec::new();
    let mut cells = Vec::new();
    for base in bases {
        for &axis in axes {
            walks.extend(pairs.iter().map(|&pair| (base, axis, pair)));
            for value in axis.places() {
                let at = axis.put(base, value);
                cells
                    .extend(topologies.iter().map(|&topology| Scenario { topology, ..at.clone() }));
            }
        }
    }
    let all = cells.len() + walks.len();
    let survey = Survey { settings, known: Mutex::default() };
    // Those with most packets first, so that no core has a long one left at the end.
    cells.sort_by_key(|cell| std::cmp::Reverse(cell.workers.saturating_mul(cell.elements)));
    for speed in parallel::map(&cells, |cell| survey.speed(cell), &|done| told(done, all)) {
        speed?;
    }
    let walk = |&(base, axis, pair): &(&Scenario, Axis, _)| survey.walk(axis, base, pair);
    let found = parallel::map(&walks, walk, &|done| told(cells.len() + done, all));
    Ok(found.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// What is known of cells.
struct Survey {
    settings: Settings,
    /// Samples a second, by the scenario's text.
    known: Mutex<HashMap<String, f64>>,
}

impl Survey {
    /// Samples a second.
    fn speed(&self, scenario: &Scenario) -> Result<f64, SimulateError> {
        let key = format!("{scenario:?}");
        let known = |key: &str| self.known.lock().expect("nobody panics with it").get(key).copied();
        if let Some(speed) = known(&key) {
            return Ok(speed);
        }
        let speed = simulate(scenario, &self.settings)?.images_per_s;
        self.known.lock().expect("nobody panics with it").insert(key, speed);
        Ok(speed)
    }

    /// Where the lead between a pair changes along an axis.
    fn walk(
        &self,
        axis: Axis,
        base: &Scenario,
        pair: [Topology; 2],
    ) -> Result<Vec<Crossover>, SimulateError> {
        // The first one's samples a second over the second one's.
        let lead = |value: f64| -> Result<f64, SimulateError> {
            let at = axis.put(base, value);
            let [first, second] = pair.map(|topology| Scenario { topology, ..at.clone() });
            Ok(self.speed(&first)? / self.speed(&second)?)
        };
        let found = |value: Option<f64>, first_leads: bool| {
            let (from, other) = if first_leads { (pair[0], pair[1]) } else { (pair[1], pair[0]) };
            let to = if value.is_none() { from } else { other };
            Crossover { axis, value, from, to, against: other, scenario: base.clone() }
        };
        let mut changes = Vec::new();
        // The last place at which one led clearly.
        let mut clear: Option<(f64, bool)> = None;
        for value in axis.places() {
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

    fn of(axis: Axis, link: &str, pair: [Topology; 2]) -> Result<Vec<Crossover>, SimulateError> {
        crossovers(&[axis], &[base(link)], &[pair], &settings(), &|_, _| {})
    }

    #[test]
    fn the_place_at_which_the_lead_changes_is_found() {
        let pair = ["ring", "server"].map(|t| t.parse().unwrap());
        let found = of(Axis::Latency, "1gbit", pair).unwrap();
        // A few latencies beside fourteen: with long ones the server wins at last.
        let [Crossover { value: Some(value), from, to, .. }] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!((*from, *to), (pair[0], pair[1]));
        let lead = |latency: f64| {
            let speed = |topology| {
                let at = Scenario { topology, ..Axis::Latency.put(&base("1gbit"), latency) };
                simulate(&at, &settings()).unwrap().images_per_s
            };
            speed(pair[0]) / speed(pair[1])
        };
        assert!(lead(value / 1.05) > 1.0 && lead(value * 1.05) < 1.0, "{value}");
    }

    #[test]
    fn where_it_never_changes_the_one_that_leads_is_told() {
        let pair = ["ring", "server"].map(|t| t.parse().unwrap());
        let found = of(Axis::Bandwidth, "200mbit", pair).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].value, found[0].from, found[0].to), (None, pair[0], pair[0]));
        assert_eq!(found[0].to_string(), "ring everywhere");
    }
}
