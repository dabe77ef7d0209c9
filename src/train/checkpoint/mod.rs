//! Checkpoints: safetensors with PyTorch's names and shapes, complete enough to go on bit for bit.
//!
//! A checkpoint holds the parameters under PyTorch's names (`conv1.weight`, ...), the optimizer's
//! vectors under `optimizer.<state>.<parameter>`, and in its metadata everything else that a step
//! depends on. A model file holds the parameters alone. Both carry a SHA-256 over their content
//! (`file`).

mod file;

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::tensor::SafeTensorError;

use crate::config::RunConfig;
use crate::data::{DataPlan, Dataset, Normalization};
use crate::model::ModelKind;
use crate::numerics::fixed_point::Maxima;
use crate::numerics::optimizer::{Optimizer, OptimizerState, state_names};

use self::file::{
    DecodedFile, FORMAT_VERSION, decode_bits, encode, encode_bits, parameter_tensors, read_file,
};
use super::metrics::hex;
use super::trainer::TrainingState;

/// What is wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{path}: {source}; check the path and its permissions", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: not a safetensors file: {source}", path = path.display())]
    Format { path: PathBuf, source: SafeTensorError },
    #[error(
        "{path}: {found}, expected {expected}; use a file that annulet has written",
        path = path.display()
    )]
    Content { path: PathBuf, found: String, expected: String },
    #[error(
        "{path}: no valid checkpoint-<step>.safetensors here{skipped}; give a checkpoint's path",
        path = path.display()
    )]
    NoneValid { path: PathBuf, skipped: String },
}

/// A checkpoint, read back.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub config: RunConfig,
    pub data: DataPlan,
    pub dataset_name: String,
    /// Lower-case hexadecimal.
    pub dataset_sha256: String,
    pub state: TrainingState,
}

/// What a file says of the run that it comes from.
#[derive(Clone, Copy, Debug)]
pub struct Provenance<'a> {
    pub config: &'a RunConfig,
    /// Loads the same images again.
    pub data: &'a DataPlan,
    pub dataset: &'a Dataset,
}

/// A trained model, as `eval` and `predict` need it; read from a checkpoint or a model file.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedModel {
    pub kind: ModelKind,
    /// The run's seed, which is also that of the synthetic digits.
    pub seed: u64,
    pub data: DataPlan,
    pub dataset_name: String,
    /// Lower-case hexadecimal.
    pub dataset_sha256: String,
    /// What the model was trained with; images must be normalised the same way.
    pub normalization: Normalization,
    /// The flat vector.
    pub parameters: Vec<f32>,
}

/// The file name of the checkpoint after `step` steps.
pub fn file_name(step: u64) -> String {
    format!("checkpoint-{step}.safetensors")
}

/// The step of a checkpoint's file name.
pub fn step_of(file_name: &str) -> Option<u64> {
    file_name.strip_prefix("checkpoint-")?.strip_suffix(".safetensors")?.parse().ok()
}

/// The bytes of a checkpoint.
pub fn encode_checkpoint(run: Provenance<'_>, state: &TrainingState) -> Vec<u8> {
    let mut tensors = parameter_tensors("", &state.parameters);
    let optimizer = state.optimizer.state();
    for (name, vector) in &optimizer.vectors {
        tensors.extend(parameter_tensors(&format!("optimizer.{name}."), vector));
    }
    let mut metadata = model_metadata(run);
    metadata.insert("config".into(), json(run.config));
    metadata.insert("step".into(), state.step.to_string());
    metadata.insert("optimizer_steps".into(), optimizer.steps.to_string());
    metadata.insert("maxima".into(), encode_bits(&state.maxima));
    encode(tensors, metadata)
}

/// The bytes of a model file: what PyTorch's `load_state_dict` takes as it is.
pub fn encode_model(run: Provenance<'_>, parameters: &[f32]) -> Vec<u8> {
    encode(parameter_tensors("", parameters), model_metadata(run))
}

/// Writes a file so that a crash leaves either the old state or the new: beside, fsync, rename.
/// Several processes may write the same one.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let mut file = fs::File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        // The rename itself is durable once the folder is; some systems cannot open folders.
        if let Ok(folder) = fs::File::open(folder) {
            let _ = folder.sync_all();
        }
    }
    Ok(())
}

/// Whether a folder holds any checkpoint, valid or not.
pub fn has_checkpoint(folder: &Path) -> bool {
    newest_first(folder).is_ok_and(|found| !found.is_empty())
}

/// Reads a checkpoint; of a run folder the newest valid one, naming those that were passed over.
pub fn read_checkpoint(path: &Path) -> Result<(PathBuf, Checkpoint), CheckpointError> {
    if !path.is_dir() {
        return Ok((path.to_owned(), decode_checkpoint(path, &read_file(path)?)?));
    }
    let mut skipped = String::new();
    for candidate in newest_first(path)? {
        match read_file(&candidate).and_then(|bytes| decode_checkpoint(&candidate, &bytes)) {
            Ok(checkpoint) => return Ok((candidate, checkpoint)),
            Err(error) => {
                tracing::warn!("passed over a checkpoint that is not valid: {error}");
                skipped.push_str(&format!("; passed over {error}"));
            }
        }
    }
    Err(CheckpointError::NoneValid { path: path.to_owned(), skipped })
}

/// Reads the model of a checkpoint or a model file, or of a run folder's newest valid checkpoint.
pub fn read_model(path: &Path) -> Result<TrainedModel, CheckpointError> {
    let path = if path.is_dir() { read_checkpoint(path)?.0 } else { path.to_owned() };
    let bytes = read_file(&path)?;
    let file = DecodedFile::parse(&path, &bytes)?;
    Ok(TrainedModel {
        kind: file.parsed("model", "a model's name", |text| {
            ModelKind::ALL.into_iter().find(|kind| kind.name() == text)
        })?,
        seed: file.parsed("seed", "a number", |text| text.parse().ok())?,
        data: file.parsed("data", "a data plan", |text| serde_json::from_str(text).ok())?,
        dataset_name: file.metadata("dataset")?.to_owned(),
        dataset_sha256: file.metadata("dataset_sha256")?.to_owned(),
        normalization: {
            let [scale, offset] = file.parsed("normalization", "two f32 as bits", decode_bits)?;
            Normalization { scale, offset }
        },
        parameters: file.parameter_vector("")?,
    })
}

fn decode_checkpoint(path: &Path, bytes: &[u8]) -> Result<Checkpoint, CheckpointError> {
    let file = DecodedFile::parse(path, bytes)?;
    let config: RunConfig =
        file.parsed("config", "a run's configuration", |text| serde_json::from_str(text).ok())?;
    let parameters = file.parameter_vector("")?;
    let number = |text: &str| text.parse::<u64>().ok();
    let vectors: Result<Vec<_>, CheckpointError> = state_names(&config.optimizer)
        .iter()
        .map(|&name| Ok((name.to_owned(), file.parameter_vector(&format!("optimizer.{name}."))?)))
        .collect();
    let state = OptimizerState {
        steps: file.parsed("optimizer_steps", "a number", number)?,
        vectors: vectors?,
    };
    let optimizer = Optimizer::restore(&config.optimizer, state)
        .map_err(|error| file.content(error.to_string(), "the optimizer's state"))?;
    let maxima: Maxima = file.parsed("maxima", "one f32 a scale as bits", decode_bits)?;
    if parameters.iter().chain(&maxima).any(|value| !value.is_finite()) {
        return Err(file.content("a value that is not finite".into(), "finite values"));
    }
    Ok(Checkpoint {
        config,
        data: file.parsed("data", "a data plan", |text| serde_json::from_str(text).ok())?,
        dataset_name: file.metadata("dataset")?.to_owned(),
        dataset_sha256: file.metadata("dataset_sha256")?.to_owned(),
        state: TrainingState {
            step: file.parsed("step", "a number", number)?,
            parameters,
            optimizer,
            maxima,
        },
    })
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("a tree of plain values serializes")
}

fn model_metadata(run: Provenance<'_>) -> HashMap<String, String> {
    let Provenance { config, data, dataset } = run;
    let normalization = [dataset.normalization.scale, dataset.normalization.offset];
    HashMap::from([
        // What PyTorch's tools look for.
        ("format".into(), "pt".into()),
        ("annulet_format".into(), FORMAT_VERSION.into()),
        ("annulet_version".into(), env!("CARGO_PKG_VERSION").into()),
        ("model".into(), config.model.name().into()),
        ("seed".into(), config.seed.to_string()),
        ("data".into(), json(data)),
        ("dataset".into(), dataset.name.clone()),
        ("dataset_sha256".into(), hex(&dataset.sha256)),
        ("normalization".into(), encode_bits(&normalization)),
    ])
}

/// The checkpoints of a run folder, by step, the newest first.
fn newest_first(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let io = |source| CheckpointError::Io { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let step = path.file_name().and_then(|name| name.to_str()).and_then(step_of);
        if let Some(step) = step {
            found.push((step, path));
        }
    }
    found.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::SafeTensors;

    use super::*;
    use crate::config::OptimizerConfig;
    use crate::model::layout::{PARAMETERS, TENSORS};
    use crate::train::trainer::parameters_sha256;

    fn dataset() -> Dataset {
        Dataset {
            name: "test".into(),
            train: Default::default(),
            test: Default::default(),
            normalization: Normalization { scale: 0.1, offset: -0.7 },
            sha256: [7; 32],
        }
    }

    fn checkpoint(config: &RunConfig, state: &TrainingState) -> Vec<u8> {
        let run = Provenance { config, data: &DataPlan::default(), dataset: &dataset() };
        encode_checkpoint(run, state)
    }

    fn state(config: &RunConfig) -> TrainingState {
        let mut state = TrainingState::initial(config);
        let gradients: Vec<f32> = (0..PARAMETERS).map(|i| (i % 13) as f32 * 0.01).collect();
        for _ in 0..3 {
            state.optimizer.step(&mut state.parameters, &gradients, 0.1).unwrap();
        }
        state.step = 3;
        state.maxima[4] = 0.123;
        state
    }

    fn configs() -> [RunConfig; 2] {
        let adamw =
            OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
        [RunConfig::default(), RunConfig { optimizer: adamw, ..RunConfig::default() }]
    }

    #[test]
    fn a_checkpoint_reads_back_as_it_was() {
        for config in configs() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(file_name(3));
            let state = state(&config);
            write_atomically(&path, &checkpoint(&config, &state)).unwrap();
            let (_, back) = read_checkpoint(&path).unwrap();
            assert_eq!(back.config, config);
            assert_eq!(back.state.step, 3);
            assert_eq!(back.state.maxima, state.maxima);
            assert_eq!(
                parameters_sha256(&back.state.parameters),
                parameters_sha256(&state.parameters)
            );
            // The next step gives the same bits, so the optimizer's state is whole.
            let gradients = vec![0.25; PARAMETERS];
            let (mut a, mut b) = (state, back.state);
            a.optimizer.step(&mut a.parameters, &gradients, 0.1).unwrap();
            b.optimizer.step(&mut b.parameters, &gradients, 0.1).unwrap();
            assert_eq!(parameters_sha256(&a.parameters), parameters_sha256(&b.parameters));
        }
    }

    #[test]
    fn the_newest_valid_checkpoint_of_a_folder_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let config = RunConfig::default();
        let mut state = state(&config);
        for step in [9, 10, 200] {
            state.step = step;
            let bytes = checkpoint(&config, &state);
            // The newest is truncated, as after a crash of another program's copy.
            let bytes = if step == 200 { &bytes[..bytes.len() - 1] } else { &bytes[..] };
            write_atomically(&folder.path().join(file_name(step)), bytes).unwrap();
        }
        let (path, checkpoint) = read_checkpoint(folder.path()).unwrap();
        assert_eq!(checkpoint.state.step, 10);
        assert!(path.ends_with("checkpoint-10.safetensors"));
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let config = RunConfig::default();
        let mut bytes = checkpoint(&config, &state(&config));
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let error = decode_checkpoint(Path::new("x"), &bytes).unwrap_err();
        assert!(error.to_string().contains("SHA-256"), "{error}");
    }

    #[test]
    fn a_model_file_holds_the_parameters_alone() {
        let config = RunConfig::default();
        let state = state(&config);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let run = Provenance { config: &config, data: &DataPlan::default(), dataset: &dataset() };
        write_atomically(&path, &encode_model(run, &state.parameters)).unwrap();
        let model = read_model(&path).unwrap();
        assert_eq!(model.parameters, state.parameters);
        assert_eq!(model.normalization, dataset().normalization);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(SafeTensors::deserialize(&bytes).unwrap().len(), TENSORS.len());
        assert!(read_checkpoint(&path).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_an_error() {
        for bytes in [&b""[..], b"12345678", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"{}"] {
            assert!(decode_checkpoint(Path::new("x"), bytes).is_err());
        }
    }
}
