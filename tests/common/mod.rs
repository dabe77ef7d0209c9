//! Runs of the real program, for the end-to-end tests.

// Each test program uses a part of this.
#![allow(dead_code)]

#[cfg(unix)]
pub mod processes;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The program, with nothing of this environment that could change a run.
pub fn annulet() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulet"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANNULET_")) {
        command.env_remove(name);
    }
    command
}

/// `annulet train` into `out` with these arguments; returns its `run.json`.
///
/// # Panics
/// If the program fails or what it prints differs from what it left in the folder.
pub fn train(out: &Path, arguments: &[&str]) -> Value {
    let output = train_output(out, arguments);
    assert!(
        output.status.success(),
        "annulet train {arguments:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let left: Value =
        serde_json::from_slice(&std::fs::read(out.join("run.json")).unwrap()).unwrap();
    assert_eq!(printed, left);
    printed
}

/// `annulet train --json` into `out`, whatever comes of it.
pub fn train_output(out: &Path, arguments: &[&str]) -> Output {
    annulet().args(["train", "--json", "--out"]).arg(out).args(arguments).output().unwrap()
}

/// The run's result bits.
pub fn params_sha256(run: &Value) -> &str {
    run["params_sha256"].as_str().unwrap()
}
