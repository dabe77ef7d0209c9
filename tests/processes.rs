//! Worker processes: none is left behind, and a death is named.

#![cfg(unix)]

mod common;

use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::annulet;

/// No test waits longer; what it waits for takes a second or two on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A variable that the children inherit, by which they are found.
const MARK: &str = "TEST_MARK";

/// A launcher that does not outlive its test, even one that fails.
struct Launcher(Child);

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a long run with 3 workers and waits until it trains.
fn start(out: &Path, mark: &str) -> Launcher {
    let child = annulet()
        .env(MARK, mark)
        .args(["train", "--workers", "3", "--dataset", "synthetic", "--kernels", "reference"])
        .args(["--epochs", "100000", "--test-limit", "10", "--out"])
        .arg(out)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let child = Launcher(child);
    let metrics = out.join("metrics.jsonl");
    wait_for("the first steps", || {
        std::fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 2)
    });
    child
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Process ids of the workers that carry the mark (not the launcher).
fn workers(mark: &str) -> Vec<u32> {
    let needle = format!("{MARK}={mark}\0");
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let read =
                |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let command = String::from_utf8_lossy(&read("cmdline")).into_owned();
            let environment = String::from_utf8_lossy(&read("environ")).into_owned();
            command.contains("--launched") && format!("{environment}\0").contains(&needle)
        })
        .collect()
}

fn signal(pid: u32, name: &str) {
    let status =
        std::process::Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

fn stderr_of(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

/// Waits for the end and returns the exit code.
fn exit_code(child: &mut Child) -> Option<i32> {
    let mut status = None;
    wait_for("the launcher's end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.and_then(|status| status.code())
}

#[test]
fn ctrl_c_ends_the_run_at_a_step_with_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut launcher = start(&out, "interrupt");
    assert_eq!(workers("interrupt").len(), 3);
    signal(launcher.0.id(), "INT");
    assert_eq!(exit_code(&mut launcher.0), Some(130));
    let text = stderr_of(&mut launcher.0);
    assert!(text.contains("--resume"), "{text}");
    wait_for("the workers' end", || workers("interrupt").is_empty());
    let run: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("run.json")).unwrap()).unwrap();
    let step = run["steps"].as_u64().unwrap();
    assert!(out.join(format!("checkpoint-{step}.safetensors")).exists());
    assert_eq!(run["interrupted"], true);
}

#[test]
fn a_killed_launcher_leaves_no_worker() {
    let folder = tempfile::tempdir().unwrap();
    let mut launcher = start(&folder.path().join("run"), "orphan");
    assert_eq!(workers("orphan").len(), 3);
    signal(launcher.0.id(), "KILL");
    launcher.0.wait().unwrap();
    wait_for("the workers' end", || workers("orphan").is_empty());
}

#[test]
fn a_killed_worker_is_named_and_takes_the_others_along() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut launcher = start(&out, "victim");
    // The highest process id is not rank 0's, whose files are looked at below.
    let victim = workers("victim").into_iter().max().unwrap();
    signal(victim, "KILL");
    assert_eq!(exit_code(&mut launcher.0), Some(5));
    let text = stderr_of(&mut launcher.0);
    assert!(text.contains("signal: 9"), "{text}");
    wait_for("the workers' end", || workers("victim").is_empty());
    // What was trained is not lost, though no checkpoint was asked for.
    let checkpoints = std::fs::read_dir(&out)
        .unwrap()
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with("checkpoint-")
        })
        .count();
    assert_eq!(checkpoints, 1);
}

#[test]
fn two_interrupts_end_the_run_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut launcher = start(&folder.path().join("run"), "twice");
    // SIGTERM asks for the same as Ctrl-C. A stopped worker cannot reach the end of its step.
    signal(workers("twice")[2], "STOP");
    signal(launcher.0.id(), "TERM");
    let mut stderr = launcher.0.stderr.take().unwrap();
    read_until(&mut stderr, "once more to stop at once");
    signal(launcher.0.id(), "INT");
    assert_eq!(exit_code(&mut launcher.0), Some(130));
    wait_for("the workers' end", || workers("twice").is_empty());
}

fn read_until(stderr: &mut impl Read, text: &str) {
    let mut read = Vec::new();
    let mut byte = [0];
    while stderr.read(&mut byte).unwrap() > 0 {
        read.push(byte[0]);
        if String::from_utf8_lossy(&read).contains(text) {
            return;
        }
    }
    panic!("never said {text:?}: {}", String::from_utf8_lossy(&read));
}
