//! What is measured during a run and what a run leaves behind: `metrics.jsonl` and `run.json`.

use std::num::NonZero;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::RunConfig;
use crate::net::SelectionReport;
use crate::protocol::membership::Change;
use crate::protocol::plan::Plan;

use super::collective::Traffic;
use super::server::ServerPlan;

/// One step, as shown and as sampled into `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Steps completed, this one included.
    pub step: u64,
    /// The epoch it belongs to, from 1.
    pub epoch: u64,
    /// Mean cross-entropy over the global batch.
    pub loss: f64,
    pub lr: f32,
    pub step_ms: f64,
    /// Until the last bucket was read back.
    pub compute_ms: f64,
    /// What was waited for the collective after that.
    pub comm_ms: f64,
    pub redone: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServedStep>,
}

/// What a parameter server has to say of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServedStep {
    /// Of the step's pushes: versions applied since their workers pulled.
    pub staleness_mean: f64,
    pub staleness_max: u64,
    /// What all workers together have waited for each other.
    pub waited_ms: f64,
    /// Gradients that came too late to count.
    pub dropped: u64,
}

/// How parameter servers fared in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    #[serde(flatten)]
    pub plan: ServerPlan,
    /// How many gradients had each staleness, from 0, at the coordinator; the last of 64 places
    /// holds all that were staler.
    pub staleness: Vec<u64>,
    /// Gradients that came too late to count.
    pub dropped: u64,
    /// Workers that were lost on the way, by rank.
    pub lost_workers: Vec<usize>,
}

/// What each worker computes of a step, and how that came to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanReport {
    /// Tiles of a whole batch, by rank, at the end.
    pub tiles: Plan,
    /// How often the plan has changed within views.
    pub changes: u64,
    /// Least number of steps between changes; null where the shares stay equal.
    pub rebalance: Option<NonZero<u32>>,
}

/// Mean bytes of a step through one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BytesPerStep {
    pub sent: f64,
    pub received: f64,
}

/// One epoch, or the last part of one where the run ends within it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// From 1.
    pub epoch: u64,
    /// Steps completed since the start of the run.
    pub step: u64,
    /// Mean cross-entropy over the samples trained on in this epoch.
    pub train_loss: f64,
    pub test_loss: f64,
    /// Share of right answers, 0 to 1.
    pub test_accuracy: f64,
    /// Training samples a second over all workers, evaluation excluded.
    pub images_per_s: f64,
    /// Mean of a step.
    pub compute_ms: f64,
    /// Mean of a step.
    pub comm_ms: f64,
    pub wall_s: f64,
}

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum MetricsLine {
    Step(StepReport),
    Epoch(EpochReport),
}

/// Median and 99th percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
}

impl Percentiles {
    /// Of these samples (nearest rank); zeros when there are none.
    pub fn of(samples: &[f32]) -> Percentiles {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f32::total_cmp);
        let rank = |share: f64| -> f64 {
            let index = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(index.saturating_sub(1)).copied().map_or(0.0, f64::from)
        };
        Percentiles { p50: rank(0.5), p99: rank(0.99) }
    }
}

/// Who worked together, from which step on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewReport {
    pub generation: u32,
    /// A description of each member, by rank.
    pub members: Vec<String>,
    pub start_step: u64,
    /// Who left and came since the view before, and why.
    #[serde(default)]
    pub changes: Vec<Change>,
    /// How long the ring stood still before it: from the last completed step to the moment at which
    /// all members held the same state again.
    #[serde(default)]
    pub stood_still_ms: f64,
    /// Steps that were begun in the view before, and made anew in this one.
    #[serde(default)]
    pub redone_steps: u64,
}

/// `run.json`: the summary of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    pub version: String,
    pub config: RunConfig,
    pub config_digest: String,
    pub adapter: String,
    pub backend: String,
    pub driver: String,
    pub kernels: String,
    pub dataset: String,
    pub model: String,
    pub topology: String,
    pub algorithm: String,
    /// For each size of vector, which algorithm it was, and the predicted and measured times.
    #[serde(default)]
    pub selections: Vec<SelectionReport>,
    pub workers: usize,
    /// Steps completed since the start of the run, resumed parts included.
    pub steps: u64,
    /// Whole and begun epochs.
    pub epochs: u64,
    /// Whether the run ended before its length because it was asked to stop.
    pub interrupted: bool,
    pub train_loss: f64,
    pub test_loss: f64,
    pub test_accuracy: f64,
    /// Training samples a second over all workers, evaluation excluded.
    pub images_per_s: f64,
    /// Steps made by this process: a resumed run has more behind it.
    #[serde(default)]
    pub steps_made: u64,
    /// From the start of the process to the end of its first step.
    pub first_step_ms: f64,
    pub step_ms: Percentiles,
    /// Mean of a step.
    pub compute_ms: f64,
    /// Mean of a step: what was waited after the last bucket was read back.
    pub comm_ms: f64,
    /// Share of the communication that was hidden behind computation, 0 to 1.
    pub overlap_ratio: f64,
    /// By the node that wrote this file.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Through the busiest node: in a ring all are alike, in a star it is the first server.
    #[serde(default)]
    pub busiest_node_bytes_per_step: BytesPerStep,
    /// For how long each worker has waited for each other one: `[who][for whom]`.
    #[serde(default)]
    pub waited_ms: Vec<Vec<f64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanReport>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerReport>,
    pub views: Vec<ViewReport>,
    pub redone_steps: u64,
    pub params_sha256: String,
    pub wall_s: f64,
}

/// Sums of an epoch's or a run's steps.
#[derive(Clone, Debug, Default)]
pub struct StepTotals {
    pub steps: u64,
    pub samples: u64,
    pub loss_sum: f64,
    pub wall: Duration,
    pub compute: Duration,
    pub comm: Duration,
}

impl StepTotals {
    pub fn add(&mut self, other: &StepTotals) {
        self.steps += other.steps;
        self.samples += other.samples;
        self.loss_sum += other.loss_sum;
        self.wall += other.wall;
        self.compute += other.compute;
        self.comm += other.comm;
    }

    pub fn mean_loss(&self) -> f64 {
        self.loss_sum / self.samples.max(1) as f64
    }

    pub fn images_per_s(&self) -> f64 {
        if self.wall.is_zero() { 0.0 } else { self.samples as f64 / self.wall.as_secs_f64() }
    }

    pub fn compute_ms(&self) -> f64 {
        milliseconds(self.compute) / self.steps.max(1) as f64
    }

    pub fn comm_ms(&self) -> f64 {
        milliseconds(self.comm) / self.steps.max(1) as f64
    }
}

pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<f32> = (1..=100).rev().map(|i| i as f32).collect();
        assert_eq!(Percentiles::of(&samples), Percentiles { p50: 50.0, p99: 99.0 });
        assert_eq!(Percentiles::of(&[3.0]), Percentiles { p50: 3.0, p99: 3.0 });
        assert_eq!(Percentiles::of(&[]), Percentiles::default());
    }

    #[test]
    fn hex_keeps_leading_zeros() {
        assert_eq!(hex(&[0, 255, 16]), "00ff10");
    }
}
