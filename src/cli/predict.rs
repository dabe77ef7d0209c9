//! `annulet predict`: what the model sees in images, shown in the terminal.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::config::Kernels;
use crate::data::class_names::class_name;
use crate::data::dataset::{Dataset, ImageSet};
use crate::data::image::read_png;
use crate::model::layers::{IMAGE_PIXELS, IMAGE_SIDE};
use crate::train::checkpoint::read_model;
use crate::train::evaluate::{for_each_answer, predicted_class, probabilities};

use super::CommandError;
use super::model_engine::forward_engine;
use super::output::{json, result};

/// Probabilities shown for an image.
const BEST_SHOWN: usize = 3;

#[derive(Debug, Args)]
pub struct PredictArguments {
    /// A checkpoint, a model file, or a run folder
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    /// PNG files of any size; dark on light is inverted
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<PathBuf>,
    /// Adapter: index, part of the name, or PCI id [default: the best]
    #[arg(long, env = "ANNULET_ADAPTER", value_name = "INDEX|NAME|PCI")]
    adapter: Option<String>,
    /// Kernel set
    #[arg(long, env = "ANNULET_KERNELS", value_enum, default_value_t)]
    kernels: Kernels,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints for an image.
#[derive(Serialize)]
struct Prediction {
    file: PathBuf,
    class: u8,
    name: String,
    probabilities: Vec<f64>,
    inverted: bool,
}

/// # Safety
/// No other thread may be running: the environment is changed for drivers.
pub unsafe fn run(arguments: PredictArguments) -> Result<(), CommandError> {
    let model = read_model(&arguments.checkpoint)?;
    let mut pixels = Vec::with_capacity(arguments.images.len() * IMAGE_PIXELS);
    let mut inverted = Vec::new();
    for path in &arguments.images {
        let image = read_png(path)?;
        pixels.extend_from_slice(&image.pixels);
        inverted.push(image.inverted);
    }
    let labels = vec![0; arguments.images.len()];
    let dataset = Dataset {
        name: model.dataset_name.clone(),
        train: ImageSet::default(),
        test: ImageSet { pixels: pixels.clone(), labels },
        normalization: model.normalization,
        sha256: [0; 32],
    };
    let count = arguments.images.len();
    // SAFETY: the caller's promise.
    let engine = unsafe { forward_engine(&model, dataset, arguments.adapter, arguments.kernels) };
    let mut engine = engine?;
    let mut predictions = Vec::with_capacity(count);
    for_each_answer(engine.as_mut(), &model.parameters, 0..count, |sample, logits| {
        let class = predicted_class(logits);
        predictions.push(Prediction {
            file: arguments.images[sample].clone(),
            class,
            name: class_name(&model.dataset_name, usize::from(class)).to_owned(),
            probabilities: probabilities(logits),
            inverted: inverted[sample],
        });
    })?;
    if arguments.json {
        return json(&predictions);
    }
    let mut text = String::new();
    for (prediction, pixels) in predictions.iter().zip(pixels.chunks_exact(IMAGE_PIXELS)) {
        text.push_str(&picture(pixels));
        text.push_str(&verdict(prediction, &model.dataset_name));
    }
    result(&text)
}

/// The image as 14 lines of 28 characters: half blocks, two rows of pixels a line.
fn picture(pixels: &[u8]) -> String {
    const SHADES: [&str; 4] = [" ", "▀", "▄", "█"];
    let lit = |row: usize, column: usize| pixels[row * IMAGE_SIDE + column] >= 96;
    let mut text = String::new();
    for row in (0..IMAGE_SIDE).step_by(2) {
        for column in 0..IMAGE_SIDE {
            let shade = usize::from(lit(row, column)) + 2 * usize::from(lit(row + 1, column));
            text.push_str(SHADES[shade]);
        }
        text.push('\n');
    }
    text
}

fn verdict(prediction: &Prediction, dataset_name: &str) -> String {
    let mut order: Vec<usize> = (0..prediction.probabilities.len()).collect();
    order.sort_by(|&a, &b| prediction.probabilities[b].total_cmp(&prediction.probabilities[a]));
    let mut text = prediction.file.display().to_string();
    text.push(':');
    for class in order.into_iter().take(BEST_SHOWN) {
        let share = 100.0 * prediction.probabilities[class];
        let name = class_name(dataset_name, class);
        let space = if name.is_empty() { "" } else { " " };
        let _ = write!(text, "  {class}{space}{name} {share:.1} %");
    }
    if prediction.inverted {
        text.push_str("  (inverted: dark on light)");
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_fourteen_lines() {
        let mut pixels = [0u8; IMAGE_PIXELS];
        pixels[0] = 255;
        pixels[IMAGE_SIDE + 1] = 255;
        let text = picture(&pixels);
        assert_eq!(text.lines().count(), 14);
        assert!(text.starts_with("▀▄ "));
    }
}
