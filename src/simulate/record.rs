//! What the nodes of a simulated cell go through, and the cell that follows from it: the definitions
//! are those of the measured ones.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::cell::{Cell, CellSource, NodeBytes, Staleness, StepTimes};
use super::network::{Time, nanos};
use super::run::Settings;
use super::scenario::{self, Scenario, Topology};
use crate::data::sampler::share;
use crate::protocol::parameter_server::Mode;
use crate::train::metrics::Percentiles;

/// How long each worker computes.
pub(super) struct Compute {
    /// By rank: its share of the batch, and what a straggler takes longer.
    share: Vec<(Time, Time)>,
    timer_ns: Time,
    jitter: f64,
    random: ChaCha8Rng,
}

impl Compute {
    pub(super) fn new(scenario: &Scenario, settings: &Settings) -> Compute {
        let batch = match scenario.compute {
            scenario::Compute::Kernels => settings.kernels.unwrap_or_default(),
            scenario::Compute::Synthetic { batch } | scenario::Compute::Trace { batch, .. } => {
                batch
            }
        };
        let of = |rank: usize| {
            let samples = share(settings.batch, scenario.workers, rank).len();
            let part = batch.mul_f64(samples as f64 / settings.batch as f64);
            let slow = scenario.straggler.filter(|slow| slow.rank == rank);
            (nanos(part), slow.map_or(0, |slow| nanos(slow.delay)))
        };
        Compute {
            share: (0..scenario.workers).map(of).collect(),
            timer_ns: settings.machine.timer_ns,
            jitter: settings.jitter,
            random: ChaCha8Rng::seed_from_u64(settings.seed ^ 0x636F_6D70_7574_6521),
        }
    }

    /// Of a worker's next step.
    pub(super) fn next(&mut self, rank: usize) -> Time {
        let (share, delay) = self.share[rank];
        let waits = if share + delay > 0 { self.timer_ns } else { 0 };
        let jitter = if self.jitter > 0.0 {
            let drawn = f64::from(self.random.next_u32()) / f64::from(u32::MAX);
            (share as f64 * self.jitter * drawn) as Time
        } else {
            0
        };
        share + delay + waits + jitter
    }
}

/// What is noted while the nodes work.
pub(super) struct Recording {
    warmup: usize,
    steps: usize,
    /// By rank: when each step began, and what had been computed before.
    marks: Vec<Vec<(Time, Time)>>,
    /// The first node's clock.
    window: (Option<Time>, Option<Time>),
    bytes: Vec<(u64, u64)>,
    /// Samples whose gradients were applied within the window, where that is not a batch each step.
    images: Option<u64>,
    staleness: Vec<u64>,
    /// Share of the cores that was busy, where nodes share them.
    pub(super) machine_busy: Option<f64>,
}

impl Recording {
    /// Of so many steps that count, after others that do not.
    pub(super) fn new(workers: usize, warmup: usize, steps: usize) -> Recording {
        Recording {
            warmup,
            steps,
            marks: vec![Vec::new(); workers],
            window: (None, None),
            bytes: Vec::new(),
            images: None,
            staleness: Vec::new(),
            machine_busy: None,
        }
    }

    /// A worker has the parameters of its next step.
    pub(super) fn mark(&mut self, rank: usize, at: Time, computed: Time) {
        self.marks[rank].push((at, computed));
    }

    /// So many steps are applied, by the first node's clock.
    pub(super) fn applied(&mut self, steps: usize, at: Time) {
        let (from, to) = &mut self.window;
        if steps >= self.warmup {
            from.get_or_insert(at);
        }
        if steps >= self.warmup + self.steps {
            to.get_or_insert(at);
        }
    }

    /// Whether steps count at the moment.
    pub(super) fn is_open(&self) -> bool {
        self.window.0.is_some() && self.window.1.is_none()
    }

    /// Gradients of so many samples were applied, so many versions late.
    pub(super) fn count_gradients(&mut self, samples: usize, late: Option<u64>) {
        *self.images.get_or_insert(0) += samples as u64;
        if let Some(late) = late {
            let place = usize::try_from(late).unwrap_or(usize::MAX).min(STALENESS_PLACES - 1);
            if self.staleness.len() <= place {
                self.staleness.resize(place + 1, 0);
            }
            self.staleness[place] += 1;
        }
    }

    /// What went through a node in all.
    pub(super) fn count_bytes(&mut self, sent: u64, received: u64) {
        self.bytes.push((sent, received));
    }

    /// The cell's figures.
    pub(super) fn cell(&self, scenario: &Scenario, settings: &Settings) -> Cell {
        let (from, to) = (self.window.0.unwrap_or(0), self.window.1.unwrap_or(0));
        let wall_s = (to - from) as f64 / 1e9;
        let mut samples: Vec<(Time, f32)> = Vec::new();
        let (mut waited, mut computed) = (Vec::new(), Vec::new());
        for marks in &self.marks {
            let mut took_in_all = 0.0;
            let mut own = Vec::new();
            for pair in marks.windows(2) {
                let took = pair[1].0 - pair[0].0;
                let middle = pair[1].0 - took / 2;
                if (from..=to).contains(&middle) {
                    samples.push((pair[1].0, milliseconds(took) as f32));
                    took_in_all += milliseconds(took);
                    own.push(milliseconds(pair[1].1));
                }
            }
            if !own.is_empty() {
                let computing = own.iter().sum::<f64>();
                waited.push((took_in_all - computing).max(0.0) / own.len() as f64);
                computed.push(computing / own.len() as f64);
            }
        }
        samples.sort_by_key(|(at, _)| *at);
        let samples: Vec<f32> = samples.into_iter().map(|(_, took)| took).collect();
        let Percentiles { p50, p99 } = Percentiles::of(&samples);
        let steps = (self.warmup + self.steps) as f64;
        let busiest = self.bytes.iter().max_by_key(|(sent, received)| sent + received);
        let images = self.images.unwrap_or((self.steps * settings.batch) as u64);
        let is_late =
            matches!(scenario.topology, Topology::Servers { mode: Mode::Async { .. }, .. });
        Cell {
            scenario: scenario.clone(),
            source: CellSource::Simulated,
            batch: settings.batch,
            wall_s,
            images_per_s: images as f64 / wall_s.max(1e-9),
            // A large world's samples would be megabytes.
            step: StepTimes { p50, p99, samples: samples.into_iter().take(SAMPLES_MAX).collect() },
            compute_ms: if computed.is_empty() {
                0.0
            } else {
                scenario.step_without_messages(&computed)
            },
            busiest_node: busiest.map_or(NodeBytes::default(), |&(sent, received)| NodeBytes {
                sent: sent as f64 / steps,
                received: received as f64 / steps,
            }),
            waited_ms: waited.iter().sum::<f64>() / waited.len().max(1) as f64,
            staleness: is_late.then(|| self.staleness()),
            machine_busy: self.machine_busy,
        }
    }

    fn staleness(&self) -> Staleness {
        let histogram = self.staleness.clone();
        let all: u64 = histogram.iter().sum();
        let sum: u64 = histogram.iter().zip(0..).map(|(count, late)| count * late).sum();
        Staleness {
            mean: sum as f64 / all.max(1) as f64,
            max: histogram.iter().rposition(|&count| count > 0).unwrap_or(0) as u64,
            histogram,
        }
    }
}

/// As many as servers count.
const STALENESS_PLACES: usize = crate::protocol::parameter_server::STALENESS_MAX;

const SAMPLES_MAX: usize = 4_096;

fn milliseconds(time: Time) -> f64 {
    time as f64 / 1e6
}
