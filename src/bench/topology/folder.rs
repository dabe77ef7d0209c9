//! A sweep's folder: the cells that are measured, one line each as soon as it is, and the tables.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Settings, table};
use crate::simulate::Cell;
use crate::train::checkpoint::write_atomically;

/// The cells, with all samples, as JSON lines.
pub const CELLS: &str = "cells.jsonl";
/// What all cells have in common.
const SETTINGS: &str = "sweep.json";
const CSV: &str = "topology.csv";
const MARKDOWN: &str = "topology.md";

/// What is wrong with a sweep's folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{path}: {source}; choose a folder that can be written", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}, line {line}: {reason}; take the line out, or choose another folder",
        path = path.display())]
    Line { path: PathBuf, line: usize, reason: String },
    #[error(
        "--out {path}: its cells were measured with {name} {theirs}, not {ours}; give the same \
         flags to add cells, or choose another folder",
        path = path.display()
    )]
    Differs { path: PathBuf, name: String, theirs: String, ours: String },
    #[error("{path}: {reason}; choose another folder", path = path.display())]
    NoSweep { path: PathBuf, reason: String },
}

/// A sweep's folder.
#[derive(Debug)]
pub struct SweepFolder {
    path: PathBuf,
    cells: Vec<Cell>,
    lines: File,
}

/// What [`SETTINGS`] holds.
#[derive(Serialize, Deserialize)]
struct Header {
    version: String,
    settings: Value,
}

impl SweepFolder {
    /// Makes a folder, or goes on with one whose cells were measured with the same settings. A last
    /// line that was cut short is taken out.
    ///
    /// # Errors
    /// If the folder holds other cells, or cannot be read or written.
    pub fn open(path: &Path, settings: &Settings) -> Result<SweepFolder, FolderError> {
        let io = |source| FolderError::Io { path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(io)?;
        let settings = serde_json::to_value(settings).expect("settings serialize");
        let header_path = path.join(SETTINGS);
        match fs::read_to_string(&header_path) {
            Ok(text) => check(path, &text, &settings)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let version = env!("CARGO_PKG_VERSION").to_owned();
                let mut text = serde_json::to_string_pretty(&Header { version, settings })
                    .expect("a header serializes");
                text.push('\n');
                write_atomically(&header_path, text.as_bytes()).map_err(io)?;
            }
            Err(error) => return Err(io(error)),
        }
        let cells_path = path.join(CELLS);
        let mut lines = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&cells_path)
            .map_err(io)?;
        let text = io::read_to_string(&mut lines).map_err(io)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        lines.set_len(whole as u64).map_err(io)?;
        let cells = text[..whole]
            .lines()
            .enumerate()
            .map(|(index, line)| {
                serde_json::from_str(line).map_err(|error| FolderError::Line {
                    path: cells_path.clone(),
                    line: index + 1,
                    reason: error.to_string(),
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(SweepFolder { path: path.to_owned(), cells, lines })
    }

    /// All that are measured, in the order in which they were.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Adds a cell, which is then on disk.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn append(&mut self, cell: Cell) -> Result<(), FolderError> {
        let mut line = serde_json::to_string(&cell).expect("a cell serializes");
        line.push('\n');
        self.lines
            .write_all(line.as_bytes())
            .and_then(|()| self.lines.sync_data())
            .map_err(|source| FolderError::Io { path: self.path.join(CELLS), source })?;
        self.cells.push(cell);
        Ok(())
    }

    /// Writes the tables of all cells.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write_tables(&self) -> Result<(), FolderError> {
        for (name, text) in
            [(CSV, table::csv(&self.cells)), (MARKDOWN, table::markdown(&self.cells))]
        {
            let path = self.path.join(name);
            write_atomically(&path, text.as_bytes())
                .map_err(|source| FolderError::Io { path, source })?;
        }
        Ok(())
    }
}

/// Refuses a folder whose cells cannot be compared with those to come.
fn check(path: &Path, text: &str, ours: &Value) -> Result<(), FolderError> {
    let header: Header = serde_json::from_str(text).map_err(|error| FolderError::NoSweep {
        path: path.join(SETTINGS),
        reason: error.to_string(),
    })?;
    let theirs = &header.settings;
    let names = ours.as_object().into_iter().flat_map(|fields| fields.keys());
    match names.into_iter().find(|name| ours[*name] != theirs[*name]) {
        None => Ok(()),
        Some(name) => Err(FolderError::Differs {
            path: path.to_owned(),
            name: name.clone(),
            theirs: theirs[name].to_string(),
            ours: ours[name].to_string(),
        }),
    }
}
