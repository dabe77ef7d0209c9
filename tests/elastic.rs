//! Runs that lose workers: the others go on, and the result is that of the quiet run.

#![cfg(unix)]

mod common;
#[path = "elastic/schedules.rs"]
mod schedules;

use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

use common::processes::{Launcher, exit_code, logged_steps, signal, stderr_of, wait_for, workers};
use common::{params_sha256, train, train_output};

/// A few seconds of training, so that the run is still under way when something happens to it.
const RUN: &[&str] = &["--train-limit", "320", "--test-limit", "20", "--batch", "32"];
const STEPS: &str = "240";

/// Enough for a worker to come while the others still train.
const LONG_STEPS: &str = "700";

/// The result of a run to which nothing happens, by a single worker.
fn quiet_sha256() -> &'static str {
    static QUIET: OnceLock<String> = OnceLock::new();
    QUIET.get_or_init(|| sha256_after(STEPS))
}

fn long_sha256() -> &'static str {
    static LONG: OnceLock<String> = OnceLock::new();
    LONG.get_or_init(|| sha256_after(LONG_STEPS))
}

fn sha256_after(steps: &str) -> String {
    sha256_of(&["--kernels", "reference", "--steps", steps])
}

/// The result of a run by a single worker.
fn sha256_of(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let fixed = ["--dataset", "synthetic"];
    let run = train(&folder.path().join("run"), &[&fixed, RUN, arguments].concat());
    params_sha256(&run).to_owned()
}

/// The launcher tells deaths at once. Where nobody stands still, a timeout as long as this one keeps
/// a busy machine from being taken for a dead worker.
const PATIENT: [&str; 2] = ["--failure-timeout", "60"];

/// Starts a run with so many workers and waits until it has made some steps.
fn start(out: &Path, mark: &str, workers: usize, more: &[&str]) -> Launcher {
    let count = workers.to_string();
    let fixed = ["--workers", &count, "--steps", STEPS];
    common::processes::start(out, mark, &[&fixed, RUN, more].concat())
}

fn run_json(out: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(out.join("run.json")).unwrap()).unwrap()
}

/// Waits for the run's end, which must be that of the quiet run, and returns `run.json`.
fn finish(launcher: &mut Launcher, out: &Path) -> Value {
    let code = exit_code(&mut launcher.0);
    let text = stderr_of(&mut launcher.0);
    assert_eq!(code, Some(0), "{text}");
    let run = run_json(out);
    assert_eq!(params_sha256(&run), quiet_sha256(), "{text}");
    run
}

/// Signals the workers of these first ranks, a few steps into a run, and sees it through.
fn survive(mark: &str, count: usize, ranks: &[usize], name: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut launcher = start(&out, mark, count, &PATIENT);
    let all = workers(mark);
    assert_eq!(all.len(), count);
    ranks.iter().for_each(|&rank| signal(all[rank], name));
    let run = finish(&mut launcher, &out);
    assert_eq!(run["workers"], count - ranks.len());
    // The writer may have changed: each epoch is there once, and in order.
    let metrics = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let epochs: Vec<u64> = metrics
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["kind"] == "epoch")
        .map(|line| line["epoch"].as_u64().unwrap())
        .collect();
    assert_eq!(epochs, (1..=24).collect::<Vec<_>>());
    run
}

#[test]
fn any_worker_may_be_killed() {
    for rank in 0..3 {
        let run = survive(&format!("any-{rank}"), 3, &[rank], "KILL");
        let view = run["views"].as_array().unwrap().last().unwrap();
        assert_eq!(view["generation"], 1);
        assert_eq!(view["members"].as_array().unwrap().len(), 2);
        assert_eq!(view["changes"][0]["id"], rank);
        assert_eq!(view["changes"][0]["kind"], "left");
        assert!(view["changes"][0]["why"].as_str().unwrap().contains("signal: 9"), "{view}");
        assert!(view["stood_still_ms"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn two_may_be_killed_at_once() {
    survive("two", 4, &[0, 2], "KILL");
}

#[test]
fn the_last_one_goes_on() {
    survive("last", 3, &[0, 1], "KILL");
}

#[test]
fn a_terminated_worker_leaves_as_planned() {
    for rank in [0, 2] {
        let run = survive(&format!("terminated-{rank}"), 3, &[rank], "TERM");
        let view = run["views"].as_array().unwrap().last().unwrap();
        assert_eq!(view["changes"][0]["id"], rank);
        assert_eq!(view["changes"][0]["why"], "it was asked to leave");
    }
}

#[test]
fn a_worker_that_stood_still_comes_again() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let more = ["--workers", "3", "--steps", LONG_STEPS, "--failure-timeout", "3"];
    let mut launcher = common::processes::start(&out, "still", &[&more, RUN].concat());
    // The writer of the folder.
    let victim = workers("still")[0];
    signal(victim, "STOP");
    let logged = logged_steps(&out);
    wait_for("the others to go on", || logged_steps(&out) > logged + 3);
    signal(victim, "CONT");
    let code = exit_code(&mut launcher.0);
    let text = stderr_of(&mut launcher.0);
    assert_eq!(code, Some(0), "{text}");
    let run = run_json(&out);
    assert_eq!(params_sha256(&run), long_sha256(), "{text}");
    assert_eq!(run["workers"], 3, "{text}");
    assert_eq!(kinds_of_changes(&run), ["left", "came"], "{run}");
}

#[test]
fn with_too_few_left_the_run_stops_and_can_be_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut launcher = start(&out, "few", 3, &["--min-workers", "3", "--failure-timeout", "60"]);
    signal(workers("few")[1], "KILL");
    assert_eq!(exit_code(&mut launcher.0), Some(5));
    let text = stderr_of(&mut launcher.0);
    assert!(text.contains("worker 1: ended without a word (signal: 9"), "{text}");
    wait_for("the workers' end", || workers("few").is_empty());
    let resumed = ["--resume", "auto", "--keep", "1", "--workers", "2"];
    assert_eq!(params_sha256(&train(&out, &resumed)), quiet_sha256());
    let checkpoints = std::fs::read_dir(&out).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with("checkpoint-")
    });
    assert_eq!(checkpoints.count(), 1);
}

#[test]
fn a_lost_worker_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let more = ["--workers", "3", "--steps", LONG_STEPS, "--restart", "1"];
    let mut launcher = common::processes::start(&out, "restart", &[&more, RUN, &PATIENT].concat());
    signal(workers("restart")[0], "KILL");
    let code = exit_code(&mut launcher.0);
    let text = stderr_of(&mut launcher.0);
    assert_eq!(code, Some(0), "{text}");
    let run = run_json(&out);
    assert_eq!(params_sha256(&run), long_sha256(), "{text}");
    assert_eq!(run["workers"], 3, "{text}");
    // In two views, or in one if the new worker was quick.
    assert_eq!(kinds_of_changes(&run), ["left", "came"], "{run}");
}

/// Whether members left or came, in the order of the views.
fn kinds_of_changes(run: &Value) -> Vec<&str> {
    let views = run["views"].as_array().unwrap().iter();
    let changes = views.flat_map(|view| view["changes"].as_array().unwrap());
    changes.map(|change| change["kind"].as_str().unwrap()).collect()
}

#[test]
fn a_worker_that_loses_its_device_comes_again() {
    for rank in [0, 1] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let loss = format!("{rank}:60");
        let more = ["--workers", "3", "--steps", LONG_STEPS, "--lose-device", &loss];
        let arguments = [&more, RUN, &PATIENT].concat();
        let mut launcher = common::processes::start(&out, &format!("device-{rank}"), &arguments);
        let code = exit_code(&mut launcher.0);
        let text = stderr_of(&mut launcher.0);
        assert_eq!(code, Some(0), "{text}");
        let lost = format!("[worker {rank}] ");
        assert!(text.lines().any(|l| l.contains(&lost) && l.contains("cpu was lost")), "{text}");
        // The others know why it left.
        let left = format!("worker {rank} left (cpu was lost: it is no longer in use; ");
        assert!(text.contains(&left), "{text}");
        let run = run_json(&out);
        assert_eq!(params_sha256(&run), long_sha256(), "{text}");
        assert_eq!(run["workers"], 3, "{text}");
        assert_eq!(kinds_of_changes(&run), ["left", "came"], "{run}");
    }
}

#[test]
fn a_lone_worker_that_loses_its_device_redoes_the_step() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &[&str]| {
        let fixed = ["--dataset", "synthetic", "--kernels", "reference", "--steps", "20"];
        train(&folder.path().join(name), &[&fixed, RUN, more].concat())
    };
    let (quiet, lost) = (run("quiet", &[]), run("lost", &["--lose-device", "0:9"]));
    assert_eq!(params_sha256(&lost), params_sha256(&quiet));
    let redone = |run: &Value| run["redone_steps"].as_u64().unwrap();
    assert_eq!(redone(&lost), redone(&quiet) + 1);
}

#[test]
fn all_may_be_killed_at_once_and_a_damaged_checkpoint_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut launcher =
        start(&out, "all", 3, &["--checkpoint-every", "20", "--failure-timeout", "60"]);
    let checkpoints = || -> Vec<u64> {
        let names = std::fs::read_dir(&out).unwrap().filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let step = name.strip_prefix("checkpoint-")?.strip_suffix(".safetensors")?;
            step.parse().ok()
        });
        names.collect()
    };
    wait_for("two checkpoints", || checkpoints().len() >= 2);
    let all: Vec<u32> = [launcher.0.id()].into_iter().chain(workers("all")).collect();
    assert_eq!(all.len(), 4);
    all.into_iter().for_each(|process| signal(process, "KILL"));
    launcher.0.wait().unwrap();
    wait_for("the workers' end", || workers("all").is_empty());
    let newest = checkpoints().into_iter().max().unwrap();
    let damaged = format!("checkpoint-{newest}.safetensors");
    let bytes = std::fs::read(out.join(&damaged)).unwrap();
    std::fs::write(out.join(&damaged), &bytes[..bytes.len() / 2]).unwrap();
    let resumed = train_output(&out, &["--resume", "auto", "--workers", "2"]);
    let text = String::from_utf8_lossy(&resumed.stderr);
    assert!(resumed.status.success(), "{text}");
    assert!(text.contains(&damaged) && text.contains("passed over"), "{text}");
    assert_eq!(params_sha256(&run_json(&out)), quiet_sha256(), "{text}");
}
