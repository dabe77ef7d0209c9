//! Parameter servers: the ring's bits where they are synchronous, and sane runs where they are not.

mod common;

use std::path::Path;

use annulet::config::{Kernels, Length, OptimizerConfig, RunConfig, Wire};
use annulet::data::DataPlan;
use annulet::launch::engines::StragglerPlan;
use annulet::launch::threads::train_in_threads;
use annulet::launch::worker::{FolderPlan, NetworkPlan, WorkerPlan};
use annulet::protocol::parameter_server::Mode;
use annulet::train::checkpoint::{Provenance, encode_checkpoint};
use annulet::train::event::Silent;
use annulet::train::metrics::{MetricsLine, RunSummary};
use annulet::train::server::{ServerPlan, StalenessLr};
use annulet::train::straggler::Slowness;
use annulet::train::trainer::TrainingState;

/// 100 samples in batches of 48: the last step of an epoch is short, and its shares are unequal.
const SAMPLES: usize = 100;
const STEPS: u64 = 5;

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
        timeline: None,
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

#[test]
fn sums_of_16_bits_are_the_rings_too() {
    let narrow = |mut plan: WorkerPlan, workers| {
        plan.config.wire = Wire::I16;
        result(&train(&plan, workers))
    };
    let expected = narrow(plan(None), 1);
    assert_eq!(narrow(served(Mode::Sync, 2), 3), expected);
    assert_ne!(expected, result(&train(&plan(None), 1)));
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
            keep: None,
            is_own: false,
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
            keep: None,
            is_own: false,
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
    plan.network.straggler = Some(StragglerPlan { rank: 1, slowness: Slowness::Ms(400) });
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
    let straggler = Some(StragglerPlan { rank: 1, slowness: Slowness::Ms(60) });
    let waits = |mut plan: WorkerPlan| {
        plan.network.straggler = straggler;
        train(&plan, 2).waited_ms
    };
    for plan in [served(Mode::Sync, 1), plan(None)] {
        let waits = waits(plan);
        assert_eq!((waits.len(), waits[0].len()), (2, 2));
        // It would take a delay as long as the straggler's, in each step, to hide it.
        assert!(waits[0][1] > 0.0 && waits[0][0] == 0.0, "{waits:?}");
    }
}

/// Processes that are killed on the way.
#[cfg(unix)]
mod faults {
    use std::io::Read;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Stdio};
    use std::time::{Duration, Instant};

    use super::common::{annulet, params_sha256};

    /// No test waits longer.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A variable that the children inherit, by which they are found.
    const MARK: &str = "TEST_MARK";

    /// A run that does not outlive its test, even one that fails.
    struct Run {
        launcher: Child,
        mark: &'static str,
        out: PathBuf,
    }

    impl Drop for Run {
        fn drop(&mut self) {
            let _ = self.launcher.kill();
            let _ = self.launcher.wait();
        }
    }

    fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < PATIENCE, "waited too long for {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    impl Run {
        /// Starts a run with 2 workers and waits until it trains.
        fn start(folder: &Path, mark: &'static str, arguments: &[&str]) -> Run {
            let out = folder.join("run");
            let launcher = annulet()
                .env(MARK, mark)
                .args(["train", "--workers", "2", "--topology", "ps", "--dataset", "synthetic"])
                .args(["--train-limit", "640", "--test-limit", "10", "--batch", "32"])
                .args(["--kernels", "reference", "--out"])
                .arg(&out)
                .args(arguments)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let run = Run { launcher, mark, out };
            let metrics = run.out.join("metrics.jsonl");
            wait_for("the first steps", || {
                std::fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 2)
            });
            run
        }

        /// Kills the child that was started in this place: workers first, then servers. The children
        /// are started one after another, so their process ids grow, but for a wrap-around.
        fn kill(&self, place: usize) {
            let needle = format!("{MARK}={}\0", self.mark);
            let read = |pid: &u32, name: &str| {
                std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default()
            };
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            let mut children: Vec<u32> = std::fs::read_dir("/proc")
                .unwrap()
                .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
                .filter(|pid| text(read(pid, "cmdline")).contains("--launched"))
                .filter(|pid| format!("{}\0", text(read(pid, "environ"))).contains(&needle))
                .collect();
            children.sort_unstable();
            let pid = children[place].to_string();
            assert!(
                std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success()
            );
        }

        /// Waits for the end: the exit code, and what was said.
        fn end(&mut self) -> (Option<i32>, String) {
            let mut status = None;
            wait_for("the launcher's end", || {
                status = self.launcher.try_wait().unwrap();
                status.is_some()
            });
            let mut text = String::new();
            self.launcher.stderr.take().unwrap().read_to_string(&mut text).unwrap();
            (status.and_then(|status| status.code()), text)
        }

        fn checkpoints(&self) -> usize {
            let files = std::fs::read_dir(&self.out).unwrap();
            let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
            files.map(name).filter(|name| name.to_string_lossy().starts_with("checkpoint-")).count()
        }
    }

    const LONG: [&str; 2] = ["--epochs", "100000"];

    #[test]
    fn a_lost_worker_ends_a_synchronous_run_by_name_with_a_whole_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = Run::start(folder.path(), "ps-sync", &LONG);
        run.kill(1);
        let (code, text) = run.end();
        assert_eq!(code, Some(5), "{text}");
        assert!(text.contains("worker 1: ended without a word (signal: 9"), "{text}");
        // No checkpoint was asked for, and yet nothing is lost.
        assert_eq!(run.checkpoints(), 1);
        let output =
            annulet().args(["eval", "--kernels", "reference"]).arg(&run.out).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn asynchronous_workers_go_on_without_a_lost_one() {
        let folder = tempfile::tempdir().unwrap();
        // Long enough that the loss is noticed before the end, which waits for it.
        let arguments = ["--ps-mode", "async", "--epochs", "3", "--straggler", "0:100"];
        let mut run = Run::start(folder.path(), "ps-async", &arguments);
        run.kill(1);
        let (code, text) = run.end();
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("the others go on"), "{text}");
        let summary = std::fs::read(run.out.join("run.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
        assert_eq!(summary["server"]["lost_workers"], serde_json::json!([1]));
        assert_eq!(summary["steps"], 60);
    }

    #[test]
    fn a_lost_server_is_named_and_the_run_resumed_from_its_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let arguments = ["--epochs", "100000", "--servers", "2", "--checkpoint-every", "5"];
        let mut run = Run::start(folder.path(), "ps-server", &arguments);
        wait_for("a checkpoint", || run.checkpoints() > 0);
        run.kill(3);
        let (code, text) = run.end();
        assert_eq!(code, Some(5), "{text}");
        assert!(text.contains("server 1: ended without a word (signal: 9"), "{text}");

        // Where the run stands is known only now; it goes on for a step, around servers or not.
        let newest = std::fs::read_dir(&run.out)
            .unwrap()
            .filter_map(|entry| {
                let name = entry.unwrap().file_name().to_string_lossy().into_owned();
                let step = name.strip_prefix("checkpoint-")?.strip_suffix(".safetensors")?;
                step.parse::<u64>().ok()
            })
            .max()
            .unwrap();
        let steps = (newest + 1).to_string();
        let resume = |name: &str, arguments: &[&str]| {
            let mut all = vec!["--resume", run.out.to_str().unwrap(), "--steps", &steps];
            all.extend(arguments);
            super::common::train(&folder.path().join(name), &all)
        };
        let served = resume("served", &["--workers", "2", "--topology", "ps", "--servers", "3"]);
        let alone = resume("alone", &[]);
        assert_eq!(served["topology"], "parameter-server");
        assert_eq!(params_sha256(&served), params_sha256(&alone));
    }

    #[test]
    fn no_staleness_is_the_ring() {
        let folder = tempfile::tempdir().unwrap();
        let train = |name: &str, arguments: &[&str]| {
            let mut all = vec!["--dataset", "synthetic", "--train-limit", "200"];
            all.extend(["--test-limit", "20", "--kernels", "reference", "--steps", "3"]);
            all.extend(["--workers", "2"]);
            all.extend(arguments);
            super::common::train(&folder.path().join(name), &all)
        };
        let ring = train("ring", &[]);
        let served = train("ps", &["--topology", "ps", "--staleness", "0", "--servers", "2"]);
        assert_eq!(ring["topology"], "ring");
        assert_eq!(served["algorithm"], "sync");
        assert_eq!(params_sha256(&ring), params_sha256(&served));
    }
}
