//! The `annulet` program: parse, install tracing, dispatch, exit code.

use std::io::Write;
use std::process::ExitCode;

use annulet::cli::{Cli, run};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse_arguments();
    // wgpu and quinn warn of things that a user of this program can do nothing about.
    let filter = EnvFilter::try_from_env("ANNULET_LOG")
        .unwrap_or_else(|_| EnvFilter::new("error,annulet=warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .init();
    // SAFETY: no thread was started yet.
    match unsafe { run(cli) } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "annulet: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
