//! The folder a run leaves behind. Its files are written as the run goes, each complete or absent.

use std::fs;
use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use super::checkpoint::{
    Provenance, encode_checkpoint, encode_model, file_name, read_checkpoint, step_of,
    write_atomically,
};
use super::metrics::{MetricsLine, RunSummary, StepReport};
use super::tensorboard::EventFile;
use super::trainer::TrainingState;

/// Between two step lines of `metrics.jsonl`: enough for a curve, little beside the training.
const STEP_SAMPLE_INTERVAL: u64 = 10;

const METRICS: &str = "metrics.jsonl";
const SUMMARY: &str = "run.json";

/// A run folder's failure.
#[derive(Debug, thiserror::Error)]
pub enum RunFolderError {
    #[error("{path}: {source}; choose another --out or make it writable", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(
        "--out {path}: holds a finished or begun run ({found}); choose another folder, or go on \
         with --resume {path}",
        path = path.display()
    )]
    Occupied { path: PathBuf, found: String },
    #[error(
        "--resume from step {step}: {path} holds {newer}, which is newer; resume that one, or \
         choose another --out",
        path = path.display()
    )]
    Newer { path: PathBuf, step: u64, newer: String },
}

/// An open run folder.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    metrics: fs::File,
    events: EventFile,
}

impl RunFolder {
    /// Refuses a folder that holds a run; one that is not there yet is free.
    pub fn check_free(path: &Path) -> Result<(), RunFolderError> {
        let found = names(path)?
            .into_iter()
            .find(|name| name == SUMMARY || name == METRICS || name.starts_with("checkpoint-"));
        match found {
            Some(found) => Err(RunFolderError::Occupied { path: path.to_owned(), found }),
            None => Ok(()),
        }
    }

    /// Refuses a folder that holds the result of a run.
    pub fn check_unfinished(path: &Path) -> Result<(), RunFolderError> {
        if path.join(SUMMARY).exists() {
            return Err(RunFolderError::Occupied { path: path.to_owned(), found: SUMMARY.into() });
        }
        Ok(())
    }

    /// Makes the folder for a new run and writes `config.toml`; refuses one that holds a run.
    pub fn create(path: &Path, config_toml: &str) -> Result<RunFolder, RunFolderError> {
        RunFolder::check_free(path)?;
        fs::create_dir_all(path).map_err(|source| io(path, source))?;
        RunFolder::open(path, config_toml, 0)
    }

    /// Opens the run's own folder to go on after `step` steps: what was logged later is about to be
    /// repeated and is taken out of `metrics.jsonl`. Refuses a folder that has a newer checkpoint,
    /// which the next run to be resumed would take for its own; one that cannot be read is set aside.
    pub fn resume(path: &Path, config_toml: &str, step: u64) -> Result<RunFolder, RunFolderError> {
        let is_newer = |name: &String| step_of(name).is_some_and(|other| other > step);
        for newer in names(path)?.into_iter().filter(is_newer) {
            let file = path.join(&newer);
            if read_checkpoint(&file).is_ok() {
                return Err(RunFolderError::Newer { path: path.to_owned(), step, newer });
            }
            // Set aside, so that it is there to be looked at and never in the way.
            let damaged = path.join(format!("{newer}.damaged"));
            fs::rename(&file, &damaged).map_err(|source| io(&file, source))?;
        }
        keep_metrics(path, |line| match line {
            MetricsLine::Step(report) => report.step <= step,
            MetricsLine::Epoch(report) => report.step <= step,
        })?;
        RunFolder::open(path, config_toml, step)
    }

    /// Opens the folder of a run under way, whose writer is lost, to write on after `step` steps. A
    /// checkpoint that the lost one may have written later is the same run's, and will be written
    /// again with the same bits. On another machine there is no such folder yet.
    pub fn take_over(
        path: &Path,
        config_toml: &str,
        step: u64,
    ) -> Result<RunFolder, RunFolderError> {
        // The new writer knows best whether the epoch behind this step was reported.
        keep_metrics(path, |line| match line {
            MetricsLine::Step(report) => report.step <= step,
            MetricsLine::Epoch(report) => report.step < step,
        })?;
        RunFolder::open_beside(path, config_toml, step)
    }

    /// Opens a folder to which others may be writing, to leave a checkpoint in it.
    pub fn open_beside(
        path: &Path,
        config_toml: &str,
        step: u64,
    ) -> Result<RunFolder, RunFolderError> {
        fs::create_dir_all(path).map_err(|source| io(path, source))?;
        if path.join("config.toml").exists() {
            return RunFolder::open_metrics(path, step);
        }
        RunFolder::open(path, config_toml, step)
    }

    fn open(path: &Path, config_toml: &str, step: u64) -> Result<RunFolder, RunFolderError> {
        let config = path.join("config.toml");
        write_atomically(&config, config_toml.as_bytes()).map_err(|source| io(&config, source))?;
        RunFolder::open_metrics(path, step)
    }

    fn open_metrics(path: &Path, step: u64) -> Result<RunFolder, RunFolderError> {
        let metrics = path.join(METRICS);
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&metrics)
            .map_err(|source| io(&metrics, source))?;
        let events = EventFile::create(path, step).map_err(|source| io(path, source))?;
        Ok(RunFolder { path: path.to_owned(), metrics: file, events })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends the step to `metrics.jsonl` if it is one of those that are sampled: each tenth, the
    /// first, and every redone one.
    pub fn sample_step(&mut self, report: &StepReport) -> Result<(), RunFolderError> {
        let sampled = report.step.is_multiple_of(STEP_SAMPLE_INTERVAL);
        if sampled || report.step == 1 || report.redone > 0 {
            self.append(&MetricsLine::Step(report.clone()))?;
        }
        Ok(())
    }

    /// Appends a line to `metrics.jsonl`, and its scalars to the event file.
    pub fn append(&mut self, line: &MetricsLine) -> Result<(), RunFolderError> {
        let mut text = serde_json::to_string(line).expect("a report serializes");
        text.push('\n');
        self.metrics
            .write_all(text.as_bytes())
            .map_err(|source| io(&self.path.join(METRICS), source))?;
        self.events.line(line).map_err(|source| io(&self.path, source))
    }

    /// Writes `checkpoint-<step>.safetensors` and `model.safetensors`, each atomically.
    ///
    /// The model is left as it is where the folder holds a checkpoint of a later step: a worker that
    /// stood still or was cut off may share it with those that have gone on, and what it has is old.
    pub fn write_checkpoint(
        &self,
        run: Provenance<'_>,
        state: &TrainingState,
    ) -> Result<PathBuf, RunFolderError> {
        let path = self.path.join(file_name(state.step));
        let bytes = encode_checkpoint(run, state);
        write_atomically(&path, &bytes).map_err(|source| io(&path, source))?;
        let is_newer = |name: &String| step_of(name).is_some_and(|step| step > state.step);
        if !names(&self.path)?.iter().any(is_newer) {
            let model = self.path.join("model.safetensors");
            let bytes = encode_model(run, &state.parameters);
            write_atomically(&model, &bytes).map_err(|source| io(&model, source))?;
        }
        Ok(path)
    }

    /// Removes all checkpoints but that of `step` and the newest before it, `kept` in all.
    pub fn remove_checkpoints_before(
        &self,
        step: u64,
        kept: NonZero<usize>,
    ) -> Result<(), RunFolderError> {
        let mut steps: Vec<u64> = names(&self.path)?
            .iter()
            .filter_map(|name| step_of(name))
            .filter(|&other| other <= step)
            .collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        for old in steps.into_iter().skip(kept.get()) {
            let path = self.path.join(file_name(old));
            fs::remove_file(&path).map_err(|source| io(&path, source))?;
        }
        Ok(())
    }

    /// Writes `run.json`.
    pub fn write_summary(&self, summary: &RunSummary) -> Result<(), RunFolderError> {
        let path = self.path.join(SUMMARY);
        let mut text = serde_json::to_string_pretty(summary).expect("a summary serializes");
        text.push('\n');
        write_atomically(&path, text.as_bytes()).map_err(|source| io(&path, source))
    }
}

/// Takes everything out of `metrics.jsonl` that is not to be kept, and what was cut short by a crash.
fn keep_metrics(path: &Path, keep: impl Fn(&MetricsLine) -> bool) -> Result<(), RunFolderError> {
    let metrics = path.join(METRICS);
    if metrics.exists() {
        let text = fs::read_to_string(&metrics).map_err(|source| io(&metrics, source))?;
        let kept: String = text
            .lines()
            .filter(|line| serde_json::from_str(line).is_ok_and(|line| keep(&line)))
            .flat_map(|line| [line, "\n"])
            .collect();
        write_atomically(&metrics, kept.as_bytes()).map_err(|source| io(&metrics, source))?;
    }
    Ok(())
}

/// The names in a folder; none where there is no folder.
fn names(path: &Path) -> Result<Vec<String>, RunFolderError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(io(path, source)),
    };
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<_>>()
        .map_err(|source| io(path, source))
}

fn io(path: &Path, source: std::io::Error) -> RunFolderError {
    RunFolderError::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunConfig;
    use crate::data::DataPlan;
    use crate::data::dataset::{Dataset, ImageSet, Normalization};

    fn report(step: u64) -> StepReport {
        StepReport {
            step,
            epoch: 1,
            loss: 2.0,
            lr: 0.1,
            step_ms: 1.0,
            compute_ms: 1.0,
            comm_ms: 0.0,
            redone: 0,
            server: None,
        }
    }

    #[test]
    fn a_folder_with_a_run_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        RunFolder::create(folder.path(), "").unwrap();
        let error = RunFolder::create(folder.path(), "").unwrap_err();
        assert!(error.to_string().contains("--resume"), "{error}");
    }

    #[test]
    fn resuming_drops_what_is_about_to_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = RunFolder::create(folder.path(), "").unwrap();
        for step in 1..=40 {
            run.sample_step(&report(step)).unwrap();
        }
        drop(run);
        let metrics = folder.path().join(METRICS);
        let mut text = fs::read_to_string(&metrics).unwrap();
        text.push_str("{\"kind\":\"st");
        fs::write(&metrics, text).unwrap();
        drop(RunFolder::resume(folder.path(), "", 25).unwrap());
        let steps: Vec<u64> = fs::read_to_string(&metrics)
            .unwrap()
            .lines()
            .map(|line| match serde_json::from_str(line).unwrap() {
                MetricsLine::Step(report) => report.step,
                MetricsLine::Epoch(report) => report.step,
            })
            .collect();
        assert_eq!(steps, [1, 10, 20]);
    }

    #[test]
    fn the_newest_checkpoints_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::create(folder.path(), "").unwrap();
        for step in [5, 10, 100, 20] {
            fs::write(folder.path().join(file_name(step)), "").unwrap();
        }
        run.remove_checkpoints_before(20, NonZero::new(2).unwrap()).unwrap();
        let kept = [5, 10, 20, 100].map(|step| folder.path().join(file_name(step)).exists());
        // That of a later step is none of this run's so far.
        assert_eq!(kept, [false, true, true, true]);
    }

    #[test]
    fn whoever_takes_a_folder_over_repeats_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = RunFolder::create(folder.path(), "name = 1").unwrap();
        (1..=40).for_each(|step| run.sample_step(&report(step)).unwrap());
        fs::write(folder.path().join(file_name(31)), "").unwrap();
        RunFolder::take_over(folder.path(), "name = 1", 30)
            .unwrap()
            .sample_step(&report(40))
            .unwrap();
        let text = fs::read_to_string(folder.path().join(METRICS)).unwrap();
        assert_eq!(text.lines().count(), 5, "{text}");
        assert_eq!(fs::read_to_string(folder.path().join("config.toml")).unwrap(), "name = 1");
    }

    #[test]
    fn a_folder_with_a_newer_checkpoint_is_not_set_back() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::create(folder.path(), "").unwrap();
        let config = RunConfig::default();
        let dataset = Dataset {
            name: "none".into(),
            train: ImageSet { pixels: Vec::new(), labels: Vec::new() },
            test: ImageSet { pixels: Vec::new(), labels: Vec::new() },
            normalization: Normalization { scale: 1.0, offset: 0.0 },
            sha256: [0; 32],
        };
        let provenance =
            Provenance { config: &config, data: &DataPlan::default(), dataset: &dataset };
        let state = TrainingState { step: 200, ..TrainingState::initial(&config) };
        run.write_checkpoint(provenance, &state).unwrap();
        // Whoever was left behind leaves its checkpoint, and the model of those that went on.
        let model = || fs::read(folder.path().join("model.safetensors")).unwrap();
        let newest = model();
        let mut old = TrainingState { step: 24, ..TrainingState::initial(&config) };
        old.parameters.fill(0.5);
        run.write_checkpoint(provenance, &old).unwrap();
        assert!(folder.path().join(file_name(24)).exists());
        assert!(model() == newest);
        run.write_checkpoint(provenance, &TrainingState { step: 200, ..old }).unwrap();
        assert!(model() != newest);

        let error = RunFolder::resume(folder.path(), "", 25).unwrap_err();
        assert!(error.to_string().contains("checkpoint-200"), "{error}");
        assert!(RunFolder::resume(folder.path(), "", 200).is_ok());
        // A damaged one is no reason, and in nobody's way.
        let newest = folder.path().join(file_name(200));
        let half = fs::read(&newest).unwrap().len() / 2;
        fs::write(&newest, &fs::read(&newest).unwrap()[..half]).unwrap();
        assert!(RunFolder::resume(folder.path(), "", 25).is_ok());
        assert!(!newest.exists());
    }
}
