//! `annulet eval`: a checkpoint's accuracy, class by class.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::config::Kernels;
use crate::data::DataPlan;
use crate::data::class_names::class_name;
use crate::model::layers::CLASSES;
use crate::train::checkpoint::read_model;
use crate::train::evaluate::{for_each_answer, predicted_class};
use crate::train::metrics::hex;

use super::CommandError;
use super::model_engine::forward_engine;
use super::output::{json, note, result};

#[derive(Debug, Args)]
pub struct EvalArguments {
    /// A checkpoint, a model file, or a run folder
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    /// Data set [default: the one it was trained with]
    #[arg(long, env = "ANNULET_DATASET", value_name = "DIR|NAME")]
    dataset: Option<String>,
    /// Take the first N test samples [default: as in training]
    #[arg(long, env = "ANNULET_TEST_LIMIT", value_name = "N")]
    test_limit: Option<usize>,
    /// Adapter: index, part of the name, or PCI id [default: the best]
    #[arg(long, env = "ANNULET_ADAPTER", value_name = "INDEX|NAME|PCI")]
    adapter: Option<String>,
    /// Kernel set
    #[arg(long, env = "ANNULET_KERNELS", value_enum, default_value_t)]
    kernels: Kernels,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// With --json: the logits of the first N test images too, to compare with another program's
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        requires = "json",
        hide_default_value = true
    )]
    logits: usize,
}

/// What `--json` prints.
#[derive(Serialize)]
struct EvalResult {
    accuracy: f64,
    correct: u64,
    samples: u64,
    /// Rows are labels, columns are predictions.
    confusion: [[u64; CLASSES]; CLASSES],
    /// Of the first images, as many as were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logits: Vec<Vec<f32>>,
}

/// # Safety
/// No other thread may be running: the environment is changed for drivers.
pub unsafe fn run(arguments: EvalArguments) -> Result<(), CommandError> {
    let model = read_model(&arguments.checkpoint)?;
    let as_trained = arguments.dataset.is_none() && arguments.test_limit.is_none();
    let plan = DataPlan {
        dataset: arguments.dataset.or(model.data.dataset.clone()),
        train_limit: model.data.train_limit,
        test_limit: arguments.test_limit.or(model.data.test_limit),
    };
    let mut dataset = plan.load(model.seed)?.dataset;
    if as_trained && hex(&dataset.sha256) != model.dataset_sha256 {
        note("the data set has changed since the model was trained");
    }
    dataset.normalization = model.normalization;
    let labels = dataset.test.labels.clone();
    let dataset_name = dataset.name.clone();
    // SAFETY: the caller's promise.
    let engine = unsafe { forward_engine(&model, dataset, arguments.adapter, arguments.kernels) };
    let mut engine = engine?;

    let mut confusion = [[0u64; CLASSES]; CLASSES];
    let mut first_logits = Vec::new();
    for_each_answer(engine.as_mut(), &model.parameters, 0..labels.len(), |sample, logits| {
        let (label, answer) = (labels[sample], predicted_class(logits));
        confusion[usize::from(label)][usize::from(answer)] += 1;
        if sample < arguments.logits {
            first_logits.push(logits.to_vec());
        }
    })?;
    let correct: u64 = (0..CLASSES).map(|class| confusion[class][class]).sum();
    let samples = labels.len() as u64;
    let accuracy = correct as f64 / samples.max(1) as f64;
    if arguments.json {
        let evaluation = EvalResult { accuracy, correct, samples, confusion, logits: first_logits };
        return json(&evaluation);
    }
    result(&format!(
        "accuracy {:.2} % ({correct} of {samples})\n{}",
        100.0 * accuracy,
        table(&confusion, &dataset_name)
    ))
}

/// The confusion matrix with the classes' names and each class's share of right answers.
fn table(confusion: &[[u64; CLASSES]; CLASSES], dataset_name: &str) -> String {
    let mut text = format!("\n{:>14}", "label \\ answer");
    for class in 0..CLASSES {
        let _ = write!(text, "{class:>6}");
    }
    text.push_str("   right\n");
    for (class, row) in confusion.iter().enumerate() {
        let _ = write!(
            text,
            "{:>14}",
            format!("{class} {}", class_name(dataset_name, class)).trim_end()
        );
        for count in row {
            let _ = write!(text, "{count:>6}");
        }
        let total: u64 = row.iter().sum();
        let share = 100.0 * row[class] as f64 / total.max(1) as f64;
        let _ = writeln!(text, "{share:>6.1} %");
    }
    text
}
