//! Cells and runs for tests.

use std::time::Duration;

use crate::config::RunConfig;
use crate::simulate::cell::{Cell, CellSource, NodeBytes, StepTimes};
use crate::simulate::scenario::{Compute, Scenario};
use crate::train::collective::Traffic;
use crate::train::metrics::{BytesPerStep, EpochReport, Percentiles, RunSummary, StepReport};

use super::source::Run;

/// A measured cell over 200 Mbit/s with 20 ms of synthetic compute for a batch of 64.
pub fn cell(topology: &str, workers: usize, images_per_s: f64) -> Cell {
    let batch = 64;
    let step_ms = batch as f64 / images_per_s * 1e3;
    let compute_ms = 20.0 / workers as f64;
    Cell {
        scenario: Scenario {
            workers,
            topology: topology.parse().unwrap(),
            link: "200mbit".parse().unwrap(),
            compute: Compute::Synthetic { batch: Duration::from_millis(20) },
            elements: 61_706,
            straggler: None,
        },
        source: CellSource::Measured,
        batch,
        wall_s: 10.0 * step_ms / 1e3,
        images_per_s,
        step: StepTimes { p50: step_ms, p99: 1.2 * step_ms, samples: Vec::new() },
        busiest_node: NodeBytes { sent: 250_000.0, received: 250_000.0 },
        waited_ms: (step_ms - compute_ms).max(0.0),
        compute_ms,
        staleness: None,
        machine_busy: None,
    }
}

/// The same cell as a simulation has it.
pub fn simulated(topology: &str, workers: usize, images_per_s: f64) -> Cell {
    Cell { source: CellSource::Simulated, ..cell(topology, workers, images_per_s) }
}

/// A finished run of 100 steps.
pub fn run(name: &str, workers: usize, images_per_s: f64, test_accuracy: f64) -> Run {
    let config = RunConfig { batch: 64, ..RunConfig::default() };
    let epoch = EpochReport {
        epoch: 1,
        step: 100,
        train_loss: 0.5,
        test_loss: 0.4,
        test_accuracy,
        images_per_s,
        compute_ms: 20.0,
        comm_ms: 5.0,
        wall_s: 12.5,
    };
    let step = |step: u64| StepReport {
        step,
        epoch: 1,
        loss: 2.0 / step as f64,
        lr: 0.1,
        step_ms: 26.0,
        compute_ms: 20.0,
        comm_ms: 5.0,
        redone: 0,
        server: None,
    };
    let summary = RunSummary {
        version: "0.1.0".into(),
        config_digest: "c0ffee".into(),
        adapter: "llvmpipe".into(),
        backend: "vulkan".into(),
        driver: String::new(),
        kernels: "portable".into(),
        dataset: "synthetic digits".into(),
        model: config.model.name().into(),
        topology: if workers == 1 { "solo" } else { "ring" }.into(),
        algorithm: "ring".into(),
        selections: Vec::new(),
        workers,
        steps: 100,
        epochs: 1,
        interrupted: false,
        train_loss: 0.5,
        test_loss: 0.4,
        test_accuracy,
        images_per_s,
        steps_made: 100,
        first_step_ms: 300.0,
        step_ms: Percentiles { p50: 26.0, p99: 30.0 },
        compute_ms: 20.0,
        comm_ms: 5.0,
        overlap_ratio: 0.5,
        traffic: Traffic::default(),
        busiest_node_bytes_per_step: BytesPerStep::default(),
        waited_ms: vec![vec![0.0; workers]; workers],
        plan: None,
        server: None,
        views: Vec::new(),
        redone_steps: 0,
        params_sha256: "5eed".into(),
        wall_s: 12.5,
        config,
    };
    Run {
        name: name.into(),
        summary: Some(summary),
        steps: [1, 10, 50, 100].map(step).to_vec(),
        epochs: vec![epoch],
        timeline: None,
    }
}
