//! Parameter servers: the ring's bits where they are synchronous, and sane runs where they are not.

mod common;

use std::path::Path;

use annulet::config::{Kernels, Length, OptimizerConfig, RunConfig};
use annulet::data::DataPlan;
use annulet::launch::threads::train_in_threads;
use annulet::launch::worker::{FolderPlan, NetworkPlan, StragglerPlan, WorkerPlan};
use annulet::protocol::parameter_server::Mode;
use annulet::train::checkpoint::{Provenance, encode_checkpoint};
use annulet::train::event::Silent;
use annulet::train::metrics::{MetricsLine, RunSummary};
use annulet::train::server::{ServerPlan, StalenessLr};
use annulet::train::trainer::TrainingState;

/// 200 samples in batches of 48: the last step of an epoch is short, and its shares are unequal.
const SAMPLES: usize = 200;
const STEPS: u64 = 7;

fn plan(servers: Option<ServerPlan>) -> WorkerPlan {
    WorkerPlan {
        config: RunConfig {
            length: Length::Steps(STEPS),
            batch: 48,
            kernels: Kernels::Reference,
            ..RunConfig::default()
        },
        data: DataPlan {
            dataset: Some("synthetic".into()),
            train_limit: Some(SAMPLES),
            test_limit: Some(30),
        },
        network: NetworkPlan { servers, ..NetworkPlan::default() },
        adapter: None,
        cores: 1,
        resume: None,
        folder: None,
    }
}

fn served(mode: Mode, servers: usize) -> WorkerPlan {
    plan(Some(ServerPlan { mode, servers, staleness_lr: StalenessLr::Constant }))
}

fn train(plan: &WorkerPlan, workers: usize) -> RunSummary {
    train_in_threads(plan, workers, &mut Silent).unwrap()
}

/// What must be equal for two runs to have had one result.
fn result(run: &RunSummary) -> (String, f64, f64, f64, u64) {
    (run.params_sha256.clone(), run.train_loss, run.test_loss, run.test_accuracy, run.steps)
}

#[test]
fn synchronous_servers_have_the_rings_bits() {
    let expected = result(&train(&plan(None), 1));
    for workers in 1..=4 {
        assert_eq!(result(&train(&plan(None), workers)), expected, "ring of {workers}");
        for servers in 1..=3 {
            let run = train(&served(Mode::Sync, servers), workers);
            assert_eq!(result(&run), expected, "{workers} workers, {servers} servers");
            assert_eq!((run.topology.as_str(), run.workers), ("parameter-server", workers));
            assert_eq!(run.server.unwrap().staleness, [STEPS * workers as u64]);
        }
    }
}

/// Trains on from a state with these maxima, with AdamW.
fn train_from(maximum: f32, folder: &Path, mut plan: WorkerPlan, workers: usize) -> RunSummary {
    plan.config.optimizer =
        OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.1 };
    plan.config.lr = 0.002;
    let dataset = plan.data.load(plan.config.seed).unwrap().dataset;
    let state = TrainingState { maxima: [maximum; 11], ..TrainingState::initial(&plan.config) };
    let run = Provenance { config: &plan.config, data: &plan.data, dataset: &dataset };
    let path = folder.join("start.safetensors");
    std::fs::write(&path, encode_checkpoint(run, &state)).unwrap();
    plan.resume = Some(path);
    train(&plan, workers)
}

#[test]
fn a_step_that_does_not_fit_is_redone_by_all_servers_alike() {
    let folder = tempfile::tempdir().unwrap();
    // Far too small: the first step is redone.
    let expected = train_from(1e-9, folder.path(), plan(None), 2);
    assert_eq!(expected.redone_steps, 1);
    for servers in 1..=3 {
        let run = train_from(1e-9, folder.path(), served(Mode::Sync, servers), 2);
        assert_eq!(run.redone_steps, 1);
        assert_eq!(result(&run), result(&expected), "{servers} servers");
    }
    // Elsewhere each worker makes its own gradients fit.
    let run = train_from(1e-9, folder.path(), served(Mode::Async { bound: None }, 2), 2);
    assert_eq!((run.steps, run.redone_steps), (STEPS, 0));
    assert!(run.train_loss.is_finite());
}

#[test]
fn a_servers_checkpoint_goes_on_in_a_ring_and_the_other_way_round() {
    let folder = tempfile::tempdir().unwrap();
    let expected = result(&train(&plan(None), 1));
    for (first, then, name) in [
        (served(Mode::Sync, 3), plan(None), "to-ring"),
        (plan(None), served(Mode::Sync, 2), "from-ring"),
    ] {
        let out = folder.path().join(name);
        let mut first = first;
        first.folder = Some(FolderPlan {
            path: out.clone(),
            config: toml::Table::new(),
            checkpoint_every: Some(3),
        });
        assert_eq!(result(&train(&first, 2)), expected);
        let then = WorkerPlan { resume: Some(out.join("checkpoint-3.safetensors")), ..then };
        let resumed = train(&then, 3);
        // The first epoch's loss differs: a part of it lies before the checkpoint.
        assert_eq!(resumed.params_sha256, expected.0, "{name}");
        assert_eq!(resumed.test_loss, expected.2, "{name}");
    }
}

#[test]
fn asynchronous_modes_apply_every_gradient_once() {
    let workers = 3;
    for (mode, servers) in [
        (Mode::Async { bound: None }, 1),
        (Mode::Async { bound: None }, 3),
        (Mode::Async { bound: Some(1) }, 1),
        (Mode::Async { bound: Some(2) }, 2),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = served(mode, servers);
        plan.folder = Some(FolderPlan {
            path: folder.path().join("run"),
            config: toml::Table::new(),
            checkpoint_every: Some(2),
        });
        let run = train(&plan, workers);
        assert_eq!(run.steps, STEPS);
        let report = run.server.unwrap();
        assert_eq!(report.staleness.iter().sum::<u64>(), STEPS * workers as u64);
        if let Mode::Async { bound: Some(bound) } = mode {
            // While one gradient is computed, another worker makes at most 2 S + 1 of its own.
            let most = (workers - 1) * (2 * bound as usize + 1);
            assert!(report.staleness.len() <= most + 1, "{mode:?}: {:?}", report.staleness);
        }
        let metrics = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
        let series = metrics.lines().filter(|line| {
            let line: MetricsLine = serde_json::from_str(line).unwrap();
            matches!(line, MetricsLine::Step(step) if step.server.is_some())
        });
        assert!(series.count() > 0);
        assert!(folder.path().join("run/checkpoint-4.safetensors").exists());
    }
}

#[test]
fn backup_workers_do_not_wait_for_the_slowest() {
    let mut plan = served(Mode::Backup { spare: 1 }, 2);
    // Long beside the computing of 16 samples: it never comes in time.
    plan.network.straggler = Some(StragglerPlan { rank: 1, ms: 400 });
    let run = train(&plan, 3);
    assert_eq!(run.steps, STEPS);
    let report = run.server.unwrap();
    // Two gradients of each step count; which ones may differ.
    assert_eq!(report.staleness, [2 * STEPS]);
    assert!(report.dropped <= STEPS);
}

/// Who a straggler makes wait is written down, in a ring too.
#[test]
fn waits_are_written_down() {
    let straggler = Some(StragglerPlan { rank: 1, ms: 60 });
    let waits = |mut plan: WorkerPlan| {
        plan.network.straggler = straggler;
        train(&plan, 2).waited_ms
    };
    for plan in [served(Mode::Sync, 1), plan(None)] {
        let waits = waits(plan);
        assert_eq!((waits.len(), waits[0].len()), (2, 2));
        assert!(waits[0][1] > waits[1][0], "{waits:?}");
    }
}
