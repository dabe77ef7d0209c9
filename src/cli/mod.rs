//! The command line: one file a subcommand.
//!
//! Results go to stdout, everything else to stderr. A value is taken from its flag, else from its
//! `ANNULET_*` variable, else from the `--config` file, else from the defaults.

mod devices;
mod error;
mod eval;
mod key;
mod model_engine;
mod predict;
mod progress;
mod run_flags;
mod train;
mod worker;

use clap::{Parser, Subcommand};

pub use error::CommandError;

/// Trains LeNet on any GPU, many workers at once, with no server in the middle.
#[derive(Debug, Parser)]
#[command(name = "annulet", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train with local workers: one process each, a ring among them
    Train(train::TrainArguments),
    /// Be one worker of a ring over several machines
    Worker(worker::WorkerArguments),
    /// Repeat a checkpoint's accuracy and show its confusion matrix
    Eval(eval::EvalArguments),
    /// Classify PNG images
    Predict(predict::PredictArguments),
    /// List the adapters: backend, kind, driver, the limits that matter
    Devices(devices::DevicesArguments),
    /// Make a cluster key: what lets workers on several machines trust each other
    Key(key::KeyArguments),
}

/// Runs a parsed command line. For a program's main thread, before it starts others: drivers are
/// told through the environment.
pub fn run(cli: Cli) -> Result<(), CommandError> {
    match cli.command {
        Command::Train(arguments) => train::run(arguments),
        Command::Worker(arguments) => worker::run(arguments),
        Command::Eval(arguments) => eval::run(arguments),
        Command::Predict(arguments) => predict::run(arguments),
        Command::Devices(arguments) => devices::run(arguments),
        Command::Key(arguments) => key::run(arguments),
    }
}
