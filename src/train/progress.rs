//! How far a run has come: sums since the process began, for whoever looks on from outside.

use serde::{Deserialize, Serialize};

use super::collective::Traffic;
use super::metrics::{EpochReport, StepReport};

/// Upper ends of the step times' classes, seconds: from a fast adapter's step to one that hangs,
/// each about twice the one before.
pub const STEP_SECONDS: [f64; 16] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0,
    32.0,
];

/// Sums over the steps that this process has completed, and the newest figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub steps: u64,
    /// Samples trained on, over all workers.
    pub samples: u64,
    pub redone_steps: u64,
    /// How many steps were as long as each class of [`STEP_SECONDS`] says, and how many longer.
    pub step_counts: [u64; STEP_SECONDS.len() + 1],
    pub step_seconds: f64,
    pub compute_seconds: f64,
    /// What was waited for others.
    pub comm_seconds: f64,
    pub traffic: Traffic,
    /// Of the view.
    pub generation: u32,
    pub workers: usize,
    /// Of the last step.
    pub epoch: u64,
    pub loss: f64,
    pub lr: f32,
    /// Samples a second in the last step.
    pub images_per_s: f64,
    /// Of the last evaluation.
    pub test_loss: Option<f64>,
    pub test_accuracy: Option<f64>,
}

impl Progress {
    /// Adds a step over so many samples.
    pub fn step(&mut self, report: &StepReport, samples: u32) {
        let seconds = report.step_ms / 1e3;
        let class = STEP_SECONDS.iter().position(|&end| seconds <= end);
        self.step_counts[class.unwrap_or(STEP_SECONDS.len())] += 1;
        self.steps += 1;
        self.samples += u64::from(samples);
        self.redone_steps += u64::from(report.redone);
        self.step_seconds += seconds;
        self.compute_seconds += report.compute_ms / 1e3;
        self.comm_seconds += report.comm_ms / 1e3;
        (self.epoch, self.loss, self.lr) = (report.epoch, report.loss, report.lr);
        self.images_per_s = if seconds > 0.0 { f64::from(samples) / seconds } else { 0.0 };
    }

    /// Takes an evaluation's figures.
    pub fn epoch(&mut self, report: &EpochReport) {
        self.test_loss = Some(report.test_loss);
        self.test_accuracy = Some(report.test_accuracy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_falls_into_one_class() {
        let mut progress = Progress::default();
        for step_ms in [1.0, 1.5, 3.0, 100_000.0] {
            let report = StepReport {
                step: 1,
                epoch: 1,
                loss: 0.5,
                lr: 0.1,
                step_ms,
                compute_ms: 0.5,
                comm_ms: 0.25,
                redone: 0,
                server: None,
            };
            progress.step(&report, 64);
        }
        assert_eq!(progress.step_counts[..4], [1, 1, 1, 0]);
        assert_eq!(progress.step_counts.last(), Some(&1));
        assert_eq!((progress.steps, progress.samples), (4, 256));
        assert!((progress.step_seconds - 100.0055).abs() < 1e-9, "{progress:?}");
    }
}
