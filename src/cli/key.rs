//! `annulet key`: a fresh cluster key.

use std::path::PathBuf;

use clap::Args;

use crate::net::identity::ClusterKey;

use super::CommandError;
use super::output::{note, result};

#[derive(Debug, Args)]
pub struct KeyArguments {
    /// File to write; it must not exist. Copy it to every machine and keep it secret
    #[arg(default_value = "cluster.key")]
    file: PathBuf,
}

pub fn run(arguments: KeyArguments) -> Result<(), CommandError> {
    ClusterKey::generate()?.write_new(&arguments.file)?;
    result(&format!("{}\n", arguments.file.display()))?;
    note("give every worker this file: annulet worker --cluster-key FILE");
    Ok(())
}
