//! Worker processes: none is left behind, and a death is named.

#![cfg(unix)]

mod common;

use std::io::Read;
use std::path::Path;

use common::processes::{self, Launcher, exit_code, signal, stderr_of, wait_for, workers};

/// Starts a long run with 3 workers and waits until it trains.
fn start(out: &Path, mark: &str) -> Launcher {
    processes::start(out, mark, &["--workers", "3", "--epochs", "100000", "--test-limit", "10"])
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
