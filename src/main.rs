//! The `annulet` program: parse, install tracing, dispatch, exit code.

use std::process::ExitCode;

use annulet::cli::{Cli, run};
use clap::Parser;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // wgpu and quinn warn of things that a user of this program can do nothing about.
    let filter = EnvFilter::try_from_env("ANNULET_LOG")
        .unwrap_or_else(|_| EnvFilter::new("error,annulet=warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .init();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("annulet: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
