//! `annulet bench`: its rows and its JSON.

mod common;

use common::annulet;
use serde_json::Value;

fn bench(arguments: &[&str]) -> (String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bench.json");
    let output = annulet()
        .args(["bench", "collective", "-n", "3", "-w", "1", "-J"])
        .arg(&file)
        .args(arguments)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    let json = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    (String::from_utf8(output.stdout).unwrap(), json)
}

#[test]
fn each_size_has_a_row_with_every_result_checked() {
    for algorithm in ["auto", "ring", "halving-doubling", "direct"] {
        let (table, json) =
            bench(&["--workers", "3", "-b", "0", "-e", "4K", "-f", "32", "--algorithm", algorithm]);
        let lines: Vec<&str> = table.lines().filter(|line| !line.starts_with('#')).collect();
        let rows = json["rows"].as_array().unwrap();
        let sizes: Vec<_> = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [0, 4, 128, 4_096]);
        assert_eq!(lines.len(), rows.len());
        for (line, row) in lines.iter().zip(rows) {
            let cells: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(cells.len(), 15, "{line}");
            assert_eq!(cells[0], row["bytes"].to_string());
            assert_eq!(row["wrong"], 0);
            assert_eq!(row["times_us"].as_array().unwrap().len(), 3);
            assert!(row["predicted_us"].as_f64().unwrap() > 0.0);
            if algorithm != "auto" {
                assert_eq!(row["algorithm"], algorithm);
            }
        }
        assert_eq!(json["workers"], 3);
    }
}

#[test]
fn one_worker_needs_no_peers() {
    let (table, json) = bench(&["--workers", "1", "-b", "1K", "-e", "3K", "-i", "1K"]);
    assert_eq!(table.lines().filter(|line| !line.starts_with('#')).count(), 3);
    assert_eq!(json["rows"][0]["busbw_gb_s"], 0.0);
}

#[test]
fn the_settings_of_the_transport_work_at_their_limits() {
    for settings in [
        ["--mtu", "1200", "--gso", "on"],
        ["--mtu", "65527", "--gso", "off"],
        ["--congestion", "fixed:78000", "--gso", "off"],
    ] {
        let mut arguments = vec!["--workers", "2", "-b", "1M", "-e", "1M"];
        arguments.extend(settings);
        assert_eq!(bench(&arguments).1["rows"][0]["wrong"], 0);
    }
}

#[test]
fn a_step_is_taken_apart_by_phase_and_by_kernel() {
    let arguments = ["bench", "step", "--batches", "20,48", "--instances", "1,2", "--steps", "3"];
    let run = |more: &[&str]| {
        let output = annulet().args(arguments).args(more).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{more:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    };
    for kernels in ["lane", "portable"] {
        let json: Value = serde_json::from_str(&run(&["--kernels", kernels, "--json"])).unwrap();
        assert_eq!(json["kernels"], kernels);
        assert_eq!(json["multiply_adds_per_image"], 1_131_960);
        let rows = json["rows"].as_array().unwrap();
        let number = |row: &Value, name: &str| row[name].as_u64().unwrap();
        let sizes: Vec<_> =
            rows.iter().map(|row| (number(row, "instances"), number(row, "batch"))).collect();
        assert_eq!(sizes, [(1, 20), (1, 48), (2, 20), (2, 48)]);
        for row in rows {
            assert_eq!(row["steps_ms"].as_array().unwrap().len(), 3);
            // The phases are all there is of a step.
            let phases = row["phases_ms"].as_object().unwrap();
            let sum: f64 = phases.values().map(|ms| ms.as_f64().unwrap()).sum();
            let mean = row["step_ms"]["mean"].as_f64().unwrap();
            assert!((sum - mean).abs() <= 1e-6 * mean, "{sum} {mean}");
            let kernels = row["kernels"]["kernels"].as_array().unwrap();
            assert!(kernels.len() > 10);
            assert!(kernels.iter().all(|kernel| kernel["ms"].as_f64().unwrap() >= 0.0));
        }
    }
    let table = run(&[]);
    assert_eq!(table.lines().filter(|line| line.contains('|')).count(), 1 + 4);
    assert!(table.contains("conv2 backward weights"));
}

#[test]
fn a_soak_checks_everything() {
    let output = annulet()
        .args(["bench", "collective", "--workers", "3", "--soak", "1", "--soak-seed", "7"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("3 local processes, 1 s, seed 7: "), "{text}");
    assert!(text.contains(" 0 wrong words"), "{text}");
}
