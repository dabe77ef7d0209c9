//! Promise P1, end to end: the trained bits do not depend on how many workers computed them.

mod common;

use common::{annulet, params_sha256, train};

/// Few steps are enough: one differing bit in any of them stays.
const DATA: &[&str] = &["--dataset", "synthetic", "--train-limit", "700", "--test-limit", "100"];

fn digests(batch: &str, steps: &str, workers: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    workers
        .iter()
        .map(|workers| {
            let out = folder.path().join(workers);
            let mut arguments = DATA.to_vec();
            arguments.extend(["--batch", batch, "--steps", steps, "--workers", workers]);
            let run = train(&out, &arguments);
            assert_eq!(run["workers"].as_u64().unwrap().to_string(), **workers);
            assert_eq!(run["steps"].as_u64().unwrap().to_string(), steps);
            params_sha256(&run).to_owned()
        })
        .collect()
}

fn assert_all_equal(digests: &[String]) {
    assert!(digests.iter().all(|d| *d == digests[0]), "{digests:#?}");
}

#[test]
fn batch_128() {
    assert_all_equal(&digests("128", "8", &["1", "2", "3", "4", "7"]));
}

#[test]
fn batch_100() {
    // 700 samples: the eighth step begins the second epoch.
    assert_all_equal(&digests("100", "8", &["1", "2", "3", "4", "7"]));
}

#[test]
fn batch_1() {
    assert_all_equal(&digests("1", "5", &["1", "2", "3", "4", "7"]));
}

#[test]
fn another_seed_is_another_result() {
    let folder = tempfile::tempdir().unwrap();
    let run = |seed: &str| {
        let mut arguments = DATA.to_vec();
        arguments.extend(["--steps", "2", "--seed", seed]);
        params_sha256(&train(&folder.path().join(seed), &arguments)).to_owned()
    };
    assert_ne!(run("1"), run("2"));
}

#[test]
fn five_samples_for_four_workers() {
    let folder = tempfile::tempdir().unwrap();
    let run = |workers: &str| {
        train(
            &folder.path().join(workers),
            &[
                "--dataset",
                "synthetic",
                "--train-limit",
                "5",
                "--test-limit",
                "3",
                "--epochs",
                "3",
                "--workers",
                workers,
            ],
        )
    };
    let (one, four) = (run("1"), run("4"));
    assert_eq!(params_sha256(&one), params_sha256(&four));
    assert_eq!(one["test_accuracy"], four["test_accuracy"]);
    assert_eq!(one["test_loss"], four["test_loss"]);
    assert_eq!(one["train_loss"], four["train_loss"]);
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    for extra in
        [&["--optimizer", "sgd"][..], &["--optimizer", "adamw", "--model", "lenet5-classic"]]
    {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("whole");
        let mut arguments = DATA.to_vec();
        arguments.extend(["--epochs", "2", "--batch", "100"]);
        arguments.extend(extra);
        let mut checkpointed = arguments.clone();
        checkpointed.extend(["--checkpoint-every", "5"]);
        let uninterrupted = train(&whole, &checkpointed);

        // From the middle of the first epoch and with other workers, into another folder.
        let checkpoint = whole.join("checkpoint-5.safetensors");
        let mut resumed = DATA.to_vec();
        resumed.extend(["--workers", "3", "--resume", checkpoint.to_str().unwrap()]);
        let resumed = train(&folder.path().join("resumed"), &resumed);
        assert_eq!(params_sha256(&resumed), params_sha256(&uninterrupted));
        assert_eq!(resumed["test_loss"], uninterrupted["test_loss"]);
        assert_eq!(resumed["steps"], uninterrupted["steps"]);
    }
}

#[test]
fn resuming_with_another_batch_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut arguments = DATA.to_vec();
    arguments.extend(["--steps", "1"]);
    train(&out, &arguments);
    let output = annulet()
        .args(["train", "--batch", "64", "--resume"])
        .arg(&out)
        .args(DATA)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("batch 128") && text.contains("64"), "{text}");
}
