//! `annulet report`: runs and sweeps in pictures.

use std::path::PathBuf;

use clap::Args;

use crate::report::{Sources, page};
use crate::train::checkpoint::write_atomically;

use super::CommandError;
use super::output::result;

#[derive(Debug, Args)]
pub struct ReportArguments {
    /// Folders that train wrote (--out), or bench topology or simulate (cells.jsonl); several are
    /// overlaid
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Page to write; an older one is replaced
    #[arg(
        long,
        short = 'o',
        env = "ANNULET_REPORT",
        value_name = "FILE",
        default_value = "report.html"
    )]
    output: PathBuf,
}

pub fn run(arguments: ReportArguments) -> Result<(), CommandError> {
    let ReportArguments { runs, output } = arguments;
    let html = page(&Sources::read(&runs)?);
    write_atomically(&output, html.as_bytes())
        .map_err(|source| CommandError::Write { path: output.clone(), source })?;
    result(&format!("{}\n", output.display()))
}
