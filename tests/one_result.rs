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

/// On a software adapter the matrix above runs on the lane kernels; GPUs run the portable ones.
#[test]
fn every_kernel_set_and_both_models() {
    let folder = tempfile::tempdir().unwrap();
    for kernels in ["portable", "lane", "reference"] {
        for model in ["lenet5", "lenet5-classic"] {
            let results: Vec<_> = ["1", "3"]
                .iter()
                .map(|workers| {
                    let mut arguments = DATA.to_vec();
                    arguments.extend(["--batch", "100", "--steps", "4", "--workers", workers]);
                    arguments.extend(["--kernels", kernels, "--model", model]);
                    arguments.extend(["--rebalance", "1", "--straggler", "0:10x"]);
                    train(&folder.path().join(format!("{kernels}-{model}-{workers}")), &arguments)
                })
                .collect();
            let [one, three] = &results[..] else { unreachable!("two runs") };
            assert_eq!(one["kernels"], kernels);
            assert_eq!(params_sha256(one), params_sha256(three), "{kernels} {model}");
            assert_eq!(one["test_loss"], three["test_loss"], "{kernels} {model}");
        }
    }
}

/// A share changes hands where one worker computes slower than the others, and no bit with it.
#[test]
fn shares_that_follow_the_workers_speeds() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &[&str]| {
        let fixed = ["--batch", "128", "--steps", "20", "--kernels", "reference"];
        train(&folder.path().join(name), &[DATA, &fixed, more].concat())
    };
    let alone = run("alone", &["--workers", "1"]);
    // Slower by far more than other programs on the machine make a worker.
    let slow = ["--workers", "3", "--straggler", "1:10x"];
    let equal = run("equal", &[&slow[..], &["--rebalance", "off"]].concat());
    let shared = run("shared", &[&slow[..], &["--rebalance", "3"]].concat());
    assert_eq!(params_sha256(&alone), params_sha256(&equal));
    assert_eq!(params_sha256(&alone), params_sha256(&shared));
    assert_eq!(equal["plan"]["tiles"], serde_json::json!([3, 3, 2]));
    assert_eq!(equal["plan"]["changes"], 0);
    let tiles: Vec<u64> =
        shared["plan"]["tiles"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
    assert_eq!(tiles.iter().sum::<u64>(), 8);
    assert!(tiles[1] < tiles[0] && tiles[1] < tiles[2], "{}", shared["plan"]);
    assert!(shared["plan"]["changes"].as_u64().unwrap() > 0);
}

#[test]
fn sums_of_16_bits_are_as_exact() {
    let folder = tempfile::tempdir().unwrap();
    let run = |wire: &str, workers: &str| {
        let mut arguments = DATA.to_vec();
        arguments.extend(["--batch", "100", "--steps", "8", "--kernels", "reference"]);
        // A fixed algorithm, so that no probe adds bytes of its own.
        arguments.extend(["--wire", wire, "--algorithm", "ring", "--workers", workers]);
        train(&folder.path().join(format!("{wire}-{workers}")), &arguments)
    };
    let (one, two, three) = (run("i16", "1"), run("i16", "2"), run("i16", "3"));
    assert_eq!(params_sha256(&one), params_sha256(&two));
    assert_eq!(params_sha256(&one), params_sha256(&three));
    let wide = run("i32", "2");
    assert_ne!(params_sha256(&one), params_sha256(&wide), "rounding is coarser");
    // Headers, the evaluation and the digests do not shrink; the gradients are nearly all.
    let bytes = |run: &serde_json::Value| run["bytes_sent"].as_f64().unwrap();
    let ratio = bytes(&two) / bytes(&wide);
    assert!((0.5..0.6).contains(&ratio), "{ratio}");
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
        let resumed = train(
            &folder.path().join("resumed"),
            &["--workers", "3", "--resume", checkpoint.to_str().unwrap()],
        );
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
    let output = annulet().args(["train", "--batch", "64", "--resume"]).arg(&out).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("batch 128") && text.contains("64"), "{text}");
}

#[test]
fn algorithms_and_overlap_are_no_part_of_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let run = |workers: &str, network: &[&str]| {
        let out = folder.path().join(network.join("") + workers);
        let mut arguments = DATA.to_vec();
        arguments.extend(["--kernels", "reference", "--steps", "3", "--workers", workers]);
        arguments.extend(network);
        train(&out, &arguments)
    };
    let alone = run("1", &[]);
    for algorithm in ["ring", "halving-doubling", "direct"] {
        let run = run("3", &["--algorithm", algorithm]);
        assert_eq!(run["algorithm"], algorithm);
        assert_eq!(params_sha256(&run), params_sha256(&alone), "{algorithm}");
        for selection in run["selections"].as_array().unwrap() {
            assert_eq!(selection["algorithm"], algorithm);
            assert!(selection["measured_us"].as_f64().unwrap() > 0.0);
        }
    }
    let apart = run("3", &["--no-overlap", "--gso", "off", "--mtu", "1200"]);
    assert_eq!(apart["algorithm"], "auto");
    assert_eq!(params_sha256(&apart), params_sha256(&alone));
    let predicted = apart["selections"].as_array().unwrap();
    assert!(predicted.iter().all(|selection| selection["predicted_us"].as_f64().unwrap() > 0.0));
}

#[test]
fn resuming_never_destroys_what_a_run_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut arguments = DATA.to_vec();
    arguments.extend(["--steps", "4", "--checkpoint-every", "2", "--kernels", "reference"]);
    train(&out, &arguments);
    let summary = std::fs::read(out.join("run.json")).unwrap();

    // A finished run has nothing left to train; its summary stays.
    let output = annulet().args(["train", "--resume"]).arg(&out).output().unwrap();
    assert!(output.status.success());
    assert_eq!(std::fs::read(out.join("run.json")).unwrap(), summary);

    // From an older checkpoint the run would leave two histories in one folder.
    let older = out.join("checkpoint-2.safetensors");
    let output = annulet().args(["train", "--resume"]).arg(&older).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("checkpoint-4"));

    // Another run's folder is not taken.
    let other = folder.path().join("other");
    let mut arguments = DATA.to_vec();
    arguments.extend(["--steps", "1", "--kernels", "reference"]);
    train(&other, &arguments);
    let output = annulet()
        .args(["train", "--resume"])
        .arg(&older)
        .arg("--out")
        .arg(&other)
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("choose another folder"));
}
