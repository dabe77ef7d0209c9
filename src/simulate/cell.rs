//! What became of a scenario.

use serde::{Deserialize, Serialize};

use super::scenario::Scenario;

/// A scenario with its figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    pub scenario: Scenario,
    pub source: CellSource,
    /// Samples of a step, over all workers.
    pub batch: usize,
    /// Seconds that the counted steps took, all of them together.
    pub wall_s: f64,
    pub images_per_s: f64,
    pub step: StepTimes,
    /// Milliseconds that a step would take if messages cost nothing: see
    /// [`Scenario::step_without_messages`].
    #[serde(default)]
    pub compute_ms: f64,
    /// Of the node through which most bytes went, a step.
    pub busiest_node: NodeBytes,
    /// Milliseconds a step for which a worker waited for others, on average over workers: what is
    /// left of a step when computing is taken away.
    pub waited_ms: f64,
    /// Where gradients may be late.
    pub staleness: Option<Staleness>,
    /// Share of the machine's cores that was busy, 0 to 1, where it was measured: near 1 the figures
    /// are those of a machine that is too small for so many nodes, and not the topology's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_busy: Option<f64>,
}

/// Where a cell's figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CellSource {
    Measured,
    Simulated,
}

/// Milliseconds from one step of a worker to its next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    pub p50: f64,
    pub p99: f64,
    /// All of them, in the order in which they were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<f32>,
}

/// Bytes a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeBytes {
    pub sent: f64,
    pub received: f64,
}

/// Versions behind at apply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Staleness {
    pub mean: f64,
    pub max: u64,
    /// How many gradients were so many versions behind, by index.
    pub histogram: Vec<u64>,
}
