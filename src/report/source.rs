//! What a report is made of: run folders, and sweeps' cells.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::simulate::cell::Cell;
use crate::train::metrics::{EpochReport, MetricsLine, RunSummary, StepReport};
use crate::train::timeline::{self, Trace};

/// A folder that no report can be made of.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error(
        "{path}: no run and no sweep; name a folder that annulet train or annulet bench topology \
         wrote",
        path = path.display()
    )]
    Nothing { path: PathBuf },
    #[error("{path}: {source}; check the path and who may read it", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "{path}, line {line}: {reason}; was it written by another version of annulet?",
        path = path.display()
    )]
    Syntax { path: PathBuf, line: usize, reason: String },
}

/// Everything that was named on the command line.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub runs: Vec<Run>,
    /// Of all sweeps; of two alike the later one counts.
    pub cells: Vec<Cell>,
}

/// What a run folder holds.
#[derive(Clone, Debug)]
pub struct Run {
    pub name: String,
    /// None if the run did not come to its end.
    pub summary: Option<RunSummary>,
    pub steps: Vec<StepReport>,
    pub epochs: Vec<EpochReport>,
    /// With --timeline.
    pub timeline: Option<Trace>,
}

/// A run's summary, and a sweep's cells.
const SUMMARY: &str = "run.json";
const METRICS: &str = "metrics.jsonl";
const CELLS: &str = "cells.jsonl";

impl Sources {
    /// Reads folders, in the order in which they are shown.
    pub fn read(folders: &[PathBuf]) -> Result<Sources, ReportError> {
        let mut sources = Sources::default();
        for folder in folders {
            let cells = read_lines::<Cell>(&folder.join(CELLS))?;
            let run = read_run(folder)?;
            if cells.is_none() && run.is_none() {
                return Err(ReportError::Nothing { path: folder.clone() });
            }
            sources.runs.extend(run);
            for cell in cells.into_iter().flatten() {
                sources.add(cell);
            }
        }
        distinguish(&mut sources.runs, folders);
        Ok(sources)
    }

    /// A sweep that was interrupted may have measured a cell again.
    fn add(&mut self, cell: Cell) {
        let same =
            |other: &&mut Cell| other.source == cell.source && other.scenario == cell.scenario;
        match self.cells.iter_mut().find(same) {
            Some(older) => *older = cell,
            None => self.cells.push(cell),
        }
    }
}

fn read_run(folder: &Path) -> Result<Option<Run>, ReportError> {
    let summary = read_json::<RunSummary>(&folder.join(SUMMARY))?;
    let lines = read_lines::<MetricsLine>(&folder.join(METRICS))?;
    if summary.is_none() && lines.is_none() {
        return Ok(None);
    }
    let (mut steps, mut epochs) = (Vec::new(), Vec::new());
    for line in lines.into_iter().flatten() {
        match line {
            MetricsLine::Step(report) => steps.push(report),
            MetricsLine::Epoch(report) => epochs.push(report),
        }
    }
    let timeline = timeline::read(folder)
        .map_err(|source| ReportError::Read { path: folder.join(timeline::TIMELINE), source })?;
    Ok(Some(Run { name: name_of(folder), summary, steps, epochs, timeline }))
}

/// The folder's own name; the whole path where it has none.
fn name_of(folder: &Path) -> String {
    let full = folder.canonicalize();
    let name = full.as_deref().unwrap_or(folder).file_name();
    name.map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Runs whose folders have the same name are called by their paths.
fn distinguish(runs: &mut [Run], folders: &[PathBuf]) {
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for (index, run) in runs.iter_mut().enumerate() {
        let among = &names[..index];
        if names.iter().filter(|name| **name == run.name).count() > 1 {
            let before = among.iter().filter(|name| **name == run.name).count();
            let mut paths = folders.iter().filter(|folder| name_of(folder) == run.name);
            run.name = paths.nth(before).map_or_else(
                || format!("{} {}", run.name, before + 1),
                |p| p.display().to_string(),
            );
        }
    }
}

/// A file's text; none if there is no such file.
fn read_text(path: &Path) -> Result<Option<String>, ReportError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        // A path through a file that is no folder leads nowhere, too.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(source) => Err(ReportError::Read { path: path.to_owned(), source }),
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ReportError> {
    let parse = |text: String| {
        serde_json::from_str(&text).map_err(|error| syntax(path, error.line(), &error))
    };
    read_text(path)?.map(parse).transpose()
}

/// A value a line. The last one may be cut off where a writer was: it is left out.
fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Option<Vec<T>>, ReportError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    let complete = text.ends_with('\n');
    let lines: Vec<&str> = text.lines().collect();
    let mut values = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(value) => values.push(value),
            Err(_) if line.trim().is_empty() || (!complete && index + 1 == lines.len()) => {}
            Err(error) => return Err(syntax(path, index + 1, &error)),
        }
    }
    Ok(Some(values))
}

fn syntax(path: &Path, line: usize, error: &serde_json::Error) -> ReportError {
    ReportError::Syntax { path: path.to_owned(), line, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::cell;

    fn write(folder: &Path, name: &str, text: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(name), text).unwrap();
    }

    fn line(cell: &Cell) -> String {
        serde_json::to_string(cell).unwrap() + "\n"
    }

    #[test]
    fn a_cell_that_was_measured_again_counts_once() {
        let root = tempfile::tempdir().unwrap();
        let (first, again) = (cell("ring", 2, 100.0), cell("ring", 2, 120.0));
        let other = cell("ring", 4, 200.0);
        write(root.path(), CELLS, &(line(&first) + &line(&other) + &line(&again)));
        let sources = Sources::read(&[root.path().to_owned()]).unwrap();
        assert_eq!(sources.cells, [again, other]);
    }

    #[test]
    fn a_line_that_was_cut_off_is_left_out_and_any_other_mistake_is_named() {
        let root = tempfile::tempdir().unwrap();
        let good = line(&cell("ring", 2, 100.0));
        write(root.path(), CELLS, &format!("{good}{}", &good[..20]));
        assert_eq!(Sources::read(&[root.path().to_owned()]).unwrap().cells.len(), 1);
        write(root.path(), CELLS, &format!("{good}{}\n", &good[..20]));
        let error = Sources::read(&[root.path().to_owned()]).unwrap_err().to_string();
        assert!(error.contains("cells.jsonl, line 2"), "{error}");
    }

    #[test]
    fn what_is_no_run_is_refused() {
        let root = tempfile::tempdir().unwrap();
        for path in [root.path().to_owned(), root.path().join("nowhere")] {
            let error = Sources::read(std::slice::from_ref(&path)).unwrap_err();
            assert!(matches!(&error, ReportError::Nothing { path: p } if *p == path), "{error}");
        }
    }

    #[test]
    fn runs_of_the_same_name_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let folders = ["a/run", "b/run", "b/other"].map(|name| root.path().join(name));
        folders.iter().for_each(|folder| write(folder, METRICS, ""));
        let names: Vec<String> =
            Sources::read(&folders).unwrap().runs.into_iter().map(|run| run.name).collect();
        assert!(names[0].ends_with("a/run") && names[1].ends_with("b/run"), "{names:?}");
        assert_eq!(names[2], "other");
    }
}
