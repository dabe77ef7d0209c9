//! `annulet bench topology`, and `--compute` of `annulet train`: small runs of the real program.

mod common;

use std::fs;
use std::path::Path;
use std::process::Output;

use common::{annulet, params_sha256, train};
use serde_json::Value;

/// A sweep of a few seconds into a folder.
fn sweep(out: &Path, more: &[&str]) -> Output {
    annulet()
        .args(["bench", "topology", "--workers", "2", "--topologies", "ring,server*2"])
        .args(["--links", "1gbit/0.1ms", "--compute", "2ms", "--elements", "1000"])
        .args(["--steps", "5", "--warmup", "1", "--batch", "64", "--out"])
        .arg(out)
        .args(more)
        .output()
        .unwrap()
}

/// What a sweep that must succeed prints on stdout and on stderr.
fn swept(out: &Path, more: &[&str]) -> (String, String) {
    let output = sweep(out, more);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    (String::from_utf8(output.stdout).unwrap(), stderr)
}

fn cells(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("cells.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn an_interrupted_sweep_goes_on_at_the_missing_cells() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("sweep");
    let (table, told) = swept(&out, &[]);
    assert!(table.contains("synthetic compute 2ms"), "{table}");
    assert!(told.contains("cell 3/3: server*2, 2 workers, 1gbit"), "{told}");
    assert!(told.contains(" left"), "{told}");
    let first = cells(&out);
    // The one worker alone, with which the others are compared, comes by itself.
    let names: Vec<_> = first
        .iter()
        .map(|cell| (cell["scenario"]["workers"].as_u64().unwrap(), cell["source"].clone()))
        .collect();
    assert_eq!(names, [(1, "measured".into()), (2, "measured".into()), (2, "measured".into())]);
    for cell in &first {
        let workers = cell["scenario"]["workers"].as_u64().unwrap() as usize;
        let samples = cell["step"]["samples"].as_array().unwrap();
        // A worker around servers may have had its parameters a moment after the last one counted.
        assert!(((5 - 1) * workers..=(5 + 1) * workers).contains(&samples.len()), "{cell}");
        assert_eq!(cell["scenario"]["elements"], 1_000);
    }

    // As if it had ended while the last line was written.
    let text = fs::read_to_string(out.join("cells.jsonl")).unwrap();
    let cut = text.trim_end().rfind('\n').unwrap() + 20;
    fs::write(out.join("cells.jsonl"), &text[..cut]).unwrap();
    let (_, told) = swept(&out, &[]);
    assert!(told.contains("2 of 3 cells are there already"), "{told}");
    assert!(told.contains("cell 3/3: ") && !told.contains("cell 2/3: "), "{told}");
    let again = cells(&out);
    assert_eq!(again[..2], first[..2]);
    assert_eq!(again[2]["scenario"], first[2]["scenario"]);
    assert_ne!(again[2], first[2], "it was measured anew");

    // More of the same adds cells; other settings are refused, and nothing is touched.
    let (_, told) = swept(&out, &["--straggler", "none,1:3"]);
    assert!(told.contains("3 of 5 cells are there already"), "{told}");
    assert_eq!(cells(&out)[..3], again);
    let refused = sweep(&out, &["--seed", "7"]);
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("measured with seed 0, not 7"), "{text}");
    assert_eq!(cells(&out).len(), 5);
}

#[test]
fn tables_have_a_column_for_every_figure() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("sweep");
    let (printed, _) = swept(&out, &["--json", "--topologies", "async"]);
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(*printed.as_array().unwrap(), cells(&out));

    let csv = fs::read_to_string(out.join("topology.csv")).unwrap();
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    assert_eq!(
        head,
        [
            "link",
            "compute",
            "elements",
            "straggler",
            "topology",
            "workers",
            "servers",
            "step_p50_ms",
            "step_p99_ms",
            "images_per_s",
            "speedup",
            "speedup_ignoring_messages",
            "efficiency",
            "compute_ms",
            "waited_ms",
            "busiest_sent_bytes",
            "busiest_received_bytes",
            "staleness_mean",
            "staleness_max",
            "machine_busy"
        ]
    );
    let column = |name: &str| head.iter().position(|other| *other == name).unwrap();
    let rows: Vec<_> = lines.collect();
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.len() == head.len()));
    let [alone, ring, _, around] = &rows[..] else { panic!("{csv}") };
    assert_eq!(alone[column("speedup")], "1.00");
    assert_eq!(alone[column("busiest_sent_bytes")], "0");
    assert_eq!(ring[column("topology")], "ring");
    // Half of the vector twice, and what names it.
    let sent: f64 = ring[column("busiest_sent_bytes")].parse().unwrap();
    assert!((4_000.0..4_500.0).contains(&sent), "{sent}");
    assert_eq!(ring[column("staleness_mean")], "");
    assert_eq!(around[column("topology")], "async");
    assert_ne!(around[column("staleness_mean")], "");

    let markdown = fs::read_to_string(out.join("topology.md")).unwrap();
    let rows: Vec<_> = markdown.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), 2 + 4, "{markdown}");
    let bars = |row: &str| row.matches('|').count();
    assert!(rows.iter().all(|row| bars(row) == head.len() - 4 + 1), "{markdown}");
    assert!(markdown.contains("synthetic compute 2ms for a batch of 64, 1000 elements"));
}

#[test]
fn synthetic_compute_gives_one_result_and_every_output_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &[&str]| {
        let mut arguments = vec!["--dataset", "synthetic", "--train-limit", "320"];
        arguments.extend(["--test-limit", "40", "--batch", "80", "--steps", "21"]);
        arguments.extend(more);
        train(&folder.path().join(name), &arguments)
    };
    let alone = run("alone", &["--compute", "1ms"]);
    assert_eq!(alone["kernels"], "synthetic compute");
    assert_eq!(alone["config"]["kernels"], "synthetic");
    let config = fs::read_to_string(folder.path().join("alone/config.toml")).unwrap();
    assert!(config.contains("compute = \"1ms\""), "{config}");
    // Neither who computes nor for how long decides the bits.
    let ring = run("ring", &["--compute", "2ms", "--workers", "3"]);
    let star = run("star", &["--compute", "1ms", "--workers", "2", "--topology", "ps"]);
    let trace = format!("trace:{}", folder.path().join("ring").display());
    let recorded = run("recorded", &["--compute", &trace, "--workers", "2"]);
    for other in [&ring, &star, &recorded] {
        assert_eq!(params_sha256(other), params_sha256(&alone));
        assert_eq!(other["kernels"], "synthetic compute");
    }
    // The run on stdout.
    let output = annulet()
        .args(["train", "--dataset", "synthetic", "--train-limit", "80", "--test-limit", "40"])
        .args(["--steps", "2", "--compute", "1ms", "--out"])
        .arg(folder.path().join("shown"))
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.trim_end().ends_with(", synthetic compute"), "{stdout}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("synthetic compute, "), "{stderr}");
}
