//! The command line: one file a subcommand.
//!
//! Results go to stdout, everything else to stderr. A value is taken from its flag, else from its
//! `ANNULET_*` variable, else from the `--config` file, else from the defaults.

mod bench;
mod bench_topology;
mod compute_flag;
mod devices;
mod error;
mod eval;
mod group_flags;
mod interrupt;
mod key;
mod model_engine;
mod network_flags;
mod output;
mod plan_flags;
mod predict;
mod progress;
mod report;
mod run_flags;
mod scenario_flags;
mod server;
mod simulate;
mod topology_flags;
mod train;
mod watch_flags;
mod worker;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

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
    /// Train with local workers: one process each, no server among them
    Train(train::TrainArguments),
    /// Be one worker of a group over several machines
    Worker(worker::WorkerArguments),
    /// Be a parameter server of a group over several machines, for comparison with the ring
    Server(server::ServerArguments),
    /// Repeat a checkpoint's accuracy and show its confusion matrix
    Eval(eval::EvalArguments),
    /// Classify PNG images
    Predict(predict::PredictArguments),
    /// Measure what this machine can do
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Make a page with charts of runs and sweeps
    Report(report::ReportArguments),
    /// Predict what topologies would do on machines that are not here: 1 to thousands of workers
    Simulate(Box<simulate::SimulateArguments>),
    /// List the adapters: backend, kind, driver, the limits that matter
    Devices(devices::DevicesArguments),
    /// Make a cluster key: what lets workers on several machines trust each other
    Key(key::KeyArguments),
}

impl Cli {
    /// Parses the program's arguments; on a mistake, or for help, it prints and ends the program.
    pub fn parse_arguments() -> Cli {
        let matches = Cli::command().get_matches();
        let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        if let Some((_, matches)) = matches.subcommand() {
            match &mut cli.command {
                Command::Train(arguments) => arguments.plan.run.settle_length(matches),
                Command::Worker(arguments) => arguments.plan.run.settle_length(matches),
                Command::Server(arguments) => arguments.plan.run.settle_length(matches),
                _ => {}
            }
        }
        cli
    }
}

/// Runs a parsed command line.
///
/// # Safety
/// For a program's main thread, before it starts others: what drivers read from the environment is
/// set here, and reading and changing the environment at once is undefined.
pub unsafe fn run(cli: Cli) -> Result<(), CommandError> {
    // SAFETY: the caller's promise, for each of them.
    match cli.command {
        Command::Train(arguments) => unsafe { train::run(arguments) },
        Command::Worker(arguments) => unsafe { worker::run(arguments) },
        Command::Server(arguments) => server::run(arguments),
        Command::Eval(arguments) => unsafe { eval::run(arguments) },
        Command::Predict(arguments) => unsafe { predict::run(arguments) },
        Command::Bench(command) => unsafe { bench::run(command) },
        Command::Report(arguments) => report::run(arguments),
        Command::Simulate(arguments) => simulate::run(*arguments),
        Command::Devices(arguments) => unsafe { devices::run(arguments) },
        Command::Key(arguments) => key::run(arguments),
    }
}
