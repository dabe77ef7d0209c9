//! A trained model outlives its run: `eval` repeats the accuracy, `predict` reads pictures.

mod common;

use std::fs::File;
use std::path::Path;

use annulet::data::{DatasetChoice, DatasetRequest, ImageSet};
use annulet::model::layers::IMAGE_SIDE;
use common::{annulet, train};
use serde_json::Value;

const SEED: u64 = 3;

fn synthetic_test_set() -> ImageSet {
    DatasetRequest { choice: Some(DatasetChoice::Synthetic), seed: SEED, ..Default::default() }
        .load()
        .unwrap()
        .dataset
        .test
}

/// Writes a digit as a person would scan it: dark on light, each pixel `zoom` pixels wide.
fn write_scan(path: &Path, pixels: &[u8], zoom: usize) {
    let side = IMAGE_SIDE * zoom;
    let data: Vec<u8> = (0..side * side)
        .map(|i| 255 - pixels[i / side / zoom * IMAGE_SIDE + i % side / zoom])
        .collect();
    let mut encoder = png::Encoder::new(File::create(path).unwrap(), side as u32, side as u32);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(&data).unwrap();
}

fn json(arguments: &[&str]) -> Value {
    let output = annulet().args(arguments).arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn eval_repeats_the_accuracy_and_predict_reads_scans() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let seed = SEED.to_string();
    let run = train(
        &out,
        &["--dataset", "synthetic", "--steps", "200", "--seed", &seed, "--kernels", "reference"],
    );
    let checkpoint = out.join("checkpoint-200.safetensors");
    let model = out.join("model.safetensors");
    for path in [&out, &checkpoint, &model] {
        let evaluation = json(&["eval", path.to_str().unwrap(), "--kernels", "reference"]);
        assert_eq!(evaluation["accuracy"], run["test_accuracy"]);
        let counted: u64 = evaluation["confusion"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|row| row.as_array().unwrap())
            .map(|count| count.as_u64().unwrap())
            .sum();
        assert_eq!(counted, evaluation["samples"].as_u64().unwrap());
    }

    // The adapter's kernels agree with the reference, within a borderline digit or two.
    let evaluation = json(&["eval", model.to_str().unwrap()]);
    let right = |value: &Value| value["correct"].as_u64().unwrap();
    let reference = json(&["eval", model.to_str().unwrap(), "--kernels", "reference"]);
    assert!(right(&evaluation).abs_diff(right(&reference)) <= 2);

    let test = synthetic_test_set();
    let scans: Vec<_> = (0..10)
        .map(|sample| {
            let path = folder.path().join(format!("{sample}.png"));
            write_scan(&path, test.image(sample), 3);
            path
        })
        .collect();
    let mut arguments = vec!["predict", model.to_str().unwrap()];
    arguments.extend(scans.iter().map(|path| path.to_str().unwrap()));
    let predictions = json(&arguments);
    let predictions = predictions.as_array().unwrap();
    assert_eq!(predictions.len(), 10);
    let mut agreed = 0;
    for (sample, prediction) in predictions.iter().enumerate() {
        assert_eq!(prediction["inverted"], true);
        let sum: f64 = prediction["probabilities"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p.as_f64().unwrap())
            .sum();
        assert!((sum - 1.0).abs() < 1e-9);
        agreed += usize::from(prediction["class"] == test.labels[sample]);
    }
    // The model is right on more than nine in ten.
    assert!(agreed >= 8, "{agreed} of 10: {predictions:#?}");

    let output = annulet().args(&arguments).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains('█') && shown.contains('%'), "{shown}");
}
