//! What the nodes of a cell saw, and the figures that follow.

use std::time::{Duration, Instant};

use super::Settings;
use crate::protocol::parameter_server::Mode;
use crate::simulate::{Cell, CellSource, NodeBytes, Scenario, Staleness, StepTimes, Topology};
use crate::train::metrics::{Percentiles, milliseconds};

/// One worker's steps.
#[derive(Debug, Default)]
pub(super) struct WorkerRecord {
    marks: Vec<Mark>,
    /// Through this worker, a step.
    pub(super) bytes: NodeBytes,
}

/// The moment at which a worker had the parameters that the next step begins with.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    /// What it has computed since the mark before.
    computed: Duration,
}

impl WorkerRecord {
    pub(super) fn mark(&mut self, computed: Duration) {
        self.marks.push(Mark { at: Instant::now(), computed });
    }

    /// The steps that ended within the window: when, how long, and how long of that was computed.
    fn steps(&self, window: &WindowClock) -> impl Iterator<Item = (Instant, Duration, Duration)> {
        let (from, to) = (window.from.at, window.to.at);
        self.marks
            .windows(2)
            .map(|pair| (pair[1].at, pair[1].at - pair[0].at, pair[1].computed))
            // A worker may be a moment behind the one whose clock counts.
            .filter(move |(at, took, _)| *at - *took / 2 >= from && *at - *took / 2 <= to)
    }
}

/// The time in which steps count, by the clock of the first worker, or of the first server.
#[derive(Clone, Debug)]
pub(super) struct WindowClock {
    state: WindowState,
    from: Moment,
    to: Moment,
    /// Samples whose gradients were applied meanwhile.
    pub(super) images: u64,
    /// How many gradients meanwhile were so many versions late.
    pub(super) staleness: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowState {
    WarmingUp,
    Open,
    Closed,
}

#[derive(Clone, Copy, Debug)]
struct Moment {
    at: Instant,
    machine: Option<MachineTime>,
}

impl Moment {
    fn now() -> Moment {
        Moment { at: Instant::now(), machine: MachineTime::now() }
    }
}

impl Default for WindowClock {
    fn default() -> Self {
        let now = Moment { at: Instant::now(), machine: None };
        let (from, to) = (now, now);
        WindowClock { state: WindowState::WarmingUp, from, to, images: 0, staleness: Vec::new() }
    }
}

impl WindowClock {
    pub(super) fn is_open(&self) -> bool {
        self.state == WindowState::Open
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state == WindowState::Closed
    }

    pub(super) fn open(&mut self) {
        self.state = WindowState::Open;
        self.from = Moment::now();
    }

    pub(super) fn close(&mut self) {
        self.state = WindowState::Closed;
        self.to = Moment::now();
    }
}

/// Ticks of all cores together since the start of the machine.
#[derive(Clone, Copy, Debug)]
struct MachineTime {
    idle: u64,
    all: u64,
}

impl MachineTime {
    /// Where the system tells: Linux.
    fn now() -> Option<MachineTime> {
        MachineTime::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line's user, nice, system, idle, iowait, irq, softirq and steal.
    fn parse(text: &str) -> Option<MachineTime> {
        let ticks = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> =
            ticks.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(MachineTime { idle: ticks.get(3)? + ticks.get(4)?, all: ticks.iter().sum() })
    }

    /// Share of the cores' time that was busy since an earlier moment.
    fn busy_since(&self, earlier: &MachineTime) -> Option<f64> {
        let all = self.all.checked_sub(earlier.all).filter(|&all| all > 0)?;
        let idle = self.idle.saturating_sub(earlier.idle);
        Some(1.0 - idle as f64 / all as f64)
    }
}

/// What all nodes of a cell saw.
pub(super) struct Records {
    /// By rank.
    pub(super) workers: Vec<WorkerRecord>,
    /// What went through each server, a step.
    pub(super) servers: Vec<NodeBytes>,
    pub(super) window: WindowClock,
    /// Of the parameters at the end: see [`fingerprint`].
    pub(super) fingerprint: u64,
}

impl Records {
    /// The cell's figures.
    pub(super) fn cell(&self, scenario: &Scenario, settings: &Settings) -> Cell {
        let window = &self.window;
        let wall_s = (window.to.at - window.from.at).as_secs_f64();
        let mut steps: Vec<(Instant, Duration)> = Vec::new();
        let mut computed: Vec<Vec<f64>> = Vec::new();
        let mut waited = Vec::new();
        for worker in &self.workers {
            let mut own = Vec::new();
            let mut took_in_all = Duration::ZERO;
            for (at, took, computed) in worker.steps(window) {
                steps.push((at, took));
                own.push(milliseconds(computed));
                took_in_all += took;
            }
            if !own.is_empty() {
                let all = milliseconds(took_in_all);
                waited.push((all - own.iter().sum::<f64>()).max(0.0) / own.len() as f64);
                computed.push(own);
            }
        }
        steps.sort_by_key(|(at, _)| *at);
        let samples: Vec<f32> = steps.iter().map(|(_, took)| milliseconds(*took) as f32).collect();
        let Percentiles { p50, p99 } = Percentiles::of(&samples);
        let nodes = self.workers.iter().map(|worker| worker.bytes).chain(self.servers.clone());
        let through = |bytes: &NodeBytes| bytes.sent + bytes.received;
        let busiest = nodes.max_by(|a, b| through(a).total_cmp(&through(b)));
        let machine = window.from.machine.zip(window.to.machine);
        Cell {
            scenario: scenario.clone(),
            source: CellSource::Measured,
            batch: settings.batch,
            wall_s,
            images_per_s: window.images as f64 / wall_s,
            step: StepTimes { p50, p99, samples },
            compute_ms: compute_ms(scenario, &computed),
            busiest_node: busiest.unwrap_or_default(),
            waited_ms: mean(&waited),
            staleness: is_late(scenario).then(|| staleness(&window.staleness)),
            machine_busy: machine.and_then(|(from, to)| to.busy_since(&from)),
        }
    }
}

/// What a step would take without messages, from what each worker has computed in each of its own.
fn compute_ms(scenario: &Scenario, computed: &[Vec<f64>]) -> f64 {
    if computed.is_empty() {
        return 0.0;
    }
    let steps = computed.iter().map(Vec::len).min().unwrap_or(0);
    let together = matches!(
        scenario.topology,
        Topology::AllReduce(_) | Topology::Servers { mode: Mode::Sync, .. }
    );
    if together {
        // Step by step, since another worker may be the slowest in each.
        let step = |step: usize| {
            let of_all: Vec<f64> = computed.iter().map(|own| own[step]).collect();
            scenario.step_without_messages(&of_all)
        };
        return mean(&(0..steps).map(step).collect::<Vec<_>>());
    }
    let means: Vec<f64> = computed.iter().map(|own| mean(own)).collect();
    scenario.step_without_messages(&means)
}

fn is_late(scenario: &Scenario) -> bool {
    matches!(scenario.topology, Topology::Servers { mode: Mode::Async { .. }, .. })
}

fn staleness(histogram: &[u64]) -> Staleness {
    let all: u64 = histogram.iter().sum();
    let sum: u64 = histogram.iter().zip(0..).map(|(count, late)| count * late).sum();
    Staleness {
        mean: sum as f64 / all.max(1) as f64,
        max: histogram.iter().rposition(|&count| count > 0).unwrap_or(0) as u64,
        histogram: histogram.to_vec(),
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// A number that tells parameters apart, each by its value and its place in the whole vector; that
/// of two slices is the sum of theirs.
pub(super) fn fingerprint(first: usize, parameters: &[f32]) -> u64 {
    let weight = |place: usize| (2 * place as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let add = |sum: u64, (place, value): (usize, &f32)| {
        sum.wrapping_add(u64::from(value.to_bits()).wrapping_mul(weight(first + place)))
    };
    parameters.iter().enumerate().fold(0, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_the_sum_of_its_slices() {
        let parameters = [1.0, 2.0, -3.0, 0.5];
        let sum = fingerprint(0, &parameters[..1]).wrapping_add(fingerprint(1, &parameters[1..]));
        assert_eq!(fingerprint(0, &parameters), sum);
        assert_ne!(fingerprint(0, &[1.0, 2.0]), fingerprint(0, &[2.0, 1.0]));
    }

    #[test]
    fn staleness_is_counted() {
        let staleness = staleness(&[2, 1, 0, 1, 0]);
        assert_eq!((staleness.mean, staleness.max), (1.0, 3));
    }

    #[test]
    fn the_machine_s_time_is_read() {
        let before = MachineTime::parse("cpu  10 0 10 70 10 0 0 0 5 5\ncpu0 1").unwrap();
        let after = MachineTime::parse("cpu  40 0 10 80 20 0 0 0 5 5\n").unwrap();
        assert_eq!(after.busy_since(&before), Some(0.6));
        assert!(MachineTime::parse("intr 1").is_none());
    }
}
