//! The command line: exit codes, error texts, and help by snapshots.

mod common;

use common::annulet;

/// Exit code, stdout and stderr of a command.
fn output(arguments: &[&str]) -> (i32, String, String) {
    let output = annulet().args(arguments).output().unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn help_of(arguments: &[&str]) -> String {
    let (code, stdout, _) = output(arguments);
    assert_eq!(code, 0);
    stdout
}

#[test]
fn help_is_as_it_was() {
    insta::assert_snapshot!("help", help_of(&["--help"]));
    insta::assert_snapshot!("help_train", help_of(&["train", "--help"]));
    insta::assert_snapshot!("help_worker", help_of(&["worker", "--help"]));
    insta::assert_snapshot!("help_server", help_of(&["server", "--help"]));
    insta::assert_snapshot!("help_eval", help_of(&["eval", "--help"]));
    insta::assert_snapshot!("help_predict", help_of(&["predict", "--help"]));
    insta::assert_snapshot!("help_bench_collective", help_of(&["bench", "collective", "--help"]));
    insta::assert_snapshot!("help_bench_step", help_of(&["bench", "step", "--help"]));
    insta::assert_snapshot!("help_report", help_of(&["report", "--help"]));
    insta::assert_snapshot!("help_bench_topology", help_of(&["bench", "topology", "--help"]));
    insta::assert_snapshot!("help_devices", help_of(&["devices", "--help"]));
    insta::assert_snapshot!("help_key", help_of(&["key", "--help"]));
}

/// The failure's exit code and text, with nothing on stdout.
fn failure(arguments: &[&str]) -> String {
    let (code, stdout, stderr) = output(arguments);
    assert_eq!(stdout, "", "results go to stdout, failures do not");
    format!("exit code {code}\n{stderr}")
}

#[test]
fn failures_say_what_to_do_next() {
    insta::assert_snapshot!("failure_negative_lr", failure(&["train", "--lr", "-1"]));
    insta::assert_snapshot!("failure_empty_batch", failure(&["train", "--batch", "0"]));
    insta::assert_snapshot!(
        "failure_adamw_momentum",
        failure(&["train", "--optimizer", "adamw", "--momentum", "0.5"])
    );
    insta::assert_snapshot!(
        "failure_no_such_dataset",
        failure(&["train", "--dataset", "/nonexistent"])
    );
    insta::assert_snapshot!(
        "failure_no_such_checkpoint",
        failure(&["train", "--resume", "/nonexistent.safetensors"])
    );
    insta::assert_snapshot!(
        "failure_no_such_config",
        failure(&["train", "--config", "/nonexistent.toml"])
    );
    insta::assert_snapshot!(
        "failure_rank_out_of_range",
        failure(&[
            "worker",
            "--rank",
            "2",
            "--peers",
            "a:1,b:2",
            "--cluster-key",
            "/nonexistent.key"
        ])
    );
    insta::assert_snapshot!("failure_staleness_in_a_ring", failure(&["train", "--staleness", "1"]));
    insta::assert_snapshot!(
        "failure_all_workers_spare",
        failure(&["train", "--topology", "ps", "--workers", "2", "--backup-workers", "2"])
    );
    insta::assert_snapshot!(
        "failure_straggler_out_of_range",
        failure(&["train", "--workers", "2", "--straggler", "2:20"])
    );
    insta::assert_snapshot!(
        "failure_eval_no_such_checkpoint",
        failure(&["eval", "/nonexistent.safetensors"])
    );
    insta::assert_snapshot!("failure_mtu_with_gso", failure(&["train", "--mtu", "9000"]));
    insta::assert_snapshot!(
        "failure_small_window",
        failure(&["train", "--congestion", "fixed:1000"])
    );
    insta::assert_snapshot!(
        "failure_bench_without_size",
        failure(&["bench", "collective", "-b", "2K", "-e", "1K"])
    );
}

#[test]
fn an_adapter_that_is_not_there_is_exit_code_3() {
    let (code, stdout, stderr) =
        output(&["train", "--dataset", "synthetic", "--adapter", "no such"]);
    assert_eq!((code, stdout.as_str()), (3, ""));
    assert!(stderr.contains("--adapter no such") && stderr.contains("present: 0:"), "{stderr}");
}

#[test]
fn a_group_reports_its_workers_failure_once() {
    let (code, stdout, stderr) = output(&["train", "--workers", "3", "--dataset", "/nonexistent"]);
    assert_eq!(code, 4);
    assert_eq!(stdout, "");
    assert_eq!(stderr.matches("/nonexistent").count(), 1, "{stderr}");
}

#[test]
fn a_diverging_run_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let (code, _, stderr) = output(&[
        "train",
        "--dataset",
        "synthetic",
        "--train-limit",
        "256",
        "--lr",
        "1e30",
        "--out",
        out.to_str().unwrap(),
    ]);
    assert_eq!(code, 1);
    assert!(stderr.contains("diverged at step") && stderr.contains("--lr"), "{stderr}");
}

#[test]
fn a_variable_stands_in_for_a_flag_and_a_flag_wins() {
    let folder = tempfile::tempdir().unwrap();
    let batch = |out: &str, flag: &[&str]| {
        let output = annulet()
            .env("ANNULET_BATCH", "50")
            .env("ANNULET_DATASET", "synthetic")
            .args(["train", "--json", "--train-limit", "100", "--test-limit", "1", "--steps", "1"])
            .args(flag)
            .arg("--out")
            .arg(folder.path().join(out))
            .output()
            .unwrap();
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        run["config"]["batch"].as_u64().unwrap()
    };
    assert_eq!(batch("variable", &[]), 50);
    assert_eq!(batch("flag", &["--batch", "25"]), 25);
}

#[test]
fn a_length_on_the_command_line_wins_over_one_in_a_variable() {
    let folder = tempfile::tempdir().unwrap();
    let output = annulet()
        .env("ANNULET_EPOCHS", "50")
        .args(["train", "--json", "--dataset", "synthetic", "--train-limit", "64"])
        .args(["--test-limit", "1", "--steps", "1", "--kernels", "reference", "--out"])
        .arg(folder.path().join("run"))
        .output()
        .unwrap();
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(run["config"]["length"]["steps"], 1);
}

#[test]
fn a_runs_config_file_repeats_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    let run = common::train(
        &first,
        &[
            "--dataset",
            "synthetic",
            "--train-limit",
            "300",
            "--test-limit",
            "10",
            "--steps",
            "4",
            "--lr",
            "0.03",
            "--schedule",
            "step",
            "--nesterov",
            "--seed",
            "9",
        ],
    );
    let again = common::train(
        &folder.path().join("again"),
        &["--config", first.join("config.toml").to_str().unwrap()],
    );
    assert_eq!(run["config"], again["config"]);
    assert_eq!(run["config_digest"], again["config_digest"]);
    assert_eq!(common::params_sha256(&run), common::params_sha256(&again));
}

#[test]
fn a_key_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster.key");
    let path = path.to_str().unwrap();
    assert_eq!(output(&["key", path]).0, 0);
    let (code, _, stderr) = output(&["key", path]);
    assert_eq!(code, 1);
    assert!(stderr.contains(path), "{stderr}");
}
