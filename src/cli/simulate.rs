//! `annulet simulate`: what topologies would do on machines that are not here.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use crate::bench::topology::folder::CELLS;
use crate::bench::topology::table;
use crate::simulate::calibrate::calibrate;
use crate::simulate::crossover::crossovers;
use crate::simulate::validate::{BUSY_MAX, Comparison};
use crate::simulate::{
    Axis, Cell, Crossover, Machine, Scenario, Settings, Topology, Validation, simulate,
};
use crate::train::checkpoint::write_atomically;

use super::CommandError;
use super::output::{json, note, result};
use super::scenario_flags::{ScenarioFlags, SweepDefaults};

#[derive(Debug, Args)]
#[command(
    after_help = "What is simulated unless it is named: 1, 2, 4, 8 and so on to 1024 workers; \
ring, halving-doubling, server, server*8, async and backup=1; links of lan-1g, lan-10g and wan. Each \
node is a machine of its own, with packets of 1452 bytes. With --against and --calibrate all nodes share \
this machine's cores and have emulated cards; --against alone fits what processors cost to every other \
cell, and tells the errors of those and of the cells between."
)]
pub struct SimulateArguments {
    #[command(flatten)]
    sweep: ScenarioFlags,
    /// Samples of a step, over all workers
    #[arg(long, value_name = "N", default_value_t = 768,
          value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    batch: u64,
    /// Steps of a cell that count [default: up to 20, fewer where one has many packets]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    steps: Option<u64>,
    /// Seed of jitter and losses
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Computing takes up to so many percent longer, at random
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    compute_jitter: f64,
    /// Cores that all nodes share; 0 if each node is a machine of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    cores: Option<u16>,
    /// A full packet's bytes
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1_200..=65_527))]
    mtu: Option<u32>,
    /// What nodes' processors cost, as written by --calibrate
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Simulate the cells that `annulet bench topology` measured on this machine, and compare; fits
    /// what processors cost to half of them, unless --machine or --calibrate tells
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// Fit what processors cost to cells that were measured on this machine; judge it with
    /// --against by others
    #[arg(long, value_name = "DIR")]
    calibrate: Option<PathBuf>,
    /// Find where one topology stops being faster than another: by workers, bandwidth, latency and
    /// the gradient's size, around each scenario of the sweep
    #[arg(long, conflicts_with_all = ["against", "calibrate"])]
    crossovers: bool,
    /// Folder for what is found: cells.jsonl with tables, crossovers.json, validation.json and
    /// machine.json
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON in place of tables
    #[arg(long)]
    json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.0..=1_000.0).contains(&percent) => Ok(percent),
        _ => Err("write a number of percent from 0 to 1000".to_owned()),
    }
}

const DEFAULTS: SweepDefaults = SweepDefaults {
    workers: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024],
    topologies: &["ring", "halving-doubling", "server", "server*8", "async", "backup=1"],
    links: &["lan-1g", "lan-10g", "wan"],
};

/// Between two lines that tell how far it is.
const NOTE_INTERVAL: Duration = Duration::from_secs(2);

/// The surroundings of crossovers.
const CROSSOVER_DEFAULTS: SweepDefaults =
    SweepDefaults { workers: &[16], topologies: &["ring"], links: &["lan-1g", "lan-10g", "wan"] };

/// Who is compared with whom: a ring with all that may beat it, and the server with those who do not
/// wait for it.
const PAIRS: [[&str; 2]; 5] = [
    ["ring", "halving-doubling"],
    ["ring", "server*8"],
    ["ring", "server"],
    ["ring", "async"],
    ["server", "async"],
];

pub fn run(arguments: SimulateArguments) -> Result<(), CommandError> {
    let mut settings = arguments.settings()?;
    if let Some(folder) = &arguments.calibrate {
        settings.machine = calibrate(&read_cells(folder)?, &settings).map_err(usage)?;
        arguments.write("machine.json", &pretty(&settings.machine))?;
        if arguments.against.is_none() {
            return json(&settings.machine);
        }
        note(&format!("fitted to {}: {:?}", folder.display(), settings.machine));
    }
    if let Some(folder) = &arguments.against {
        let measured = read_cells(folder)?;
        let validation = if arguments.calibrate.is_some() || arguments.machine.is_some() {
            Validation::of(&measured, &settings).map_err(usage)?
        } else {
            let (machine, validation) = Validation::fitted(&measured, &settings).map_err(usage)?;
            arguments.write("machine.json", &pretty(&machine))?;
            validation
        };
        arguments.write("validation.json", &pretty(&validation))?;
        arguments.write_cells(&validation.cells)?;
        return if arguments.json { json(&validation) } else { result(&compared(&validation)) };
    }
    if arguments.crossovers {
        let found = arguments.find_crossovers(&settings)?;
        arguments.write("crossovers.json", &pretty(&found))?;
        return if arguments.json { json(&found) } else { result(&crossed(&found)) };
    }
    let scenarios = arguments.sweep.scenarios(&DEFAULTS)?;
    let mut cells: Vec<Cell> = Vec::with_capacity(scenarios.len());
    let mut told = Instant::now();
    for (index, scenario) in scenarios.iter().enumerate() {
        let cell = simulate(scenario, &settings).map_err(usage)?;
        if told.elapsed() >= NOTE_INTERVAL {
            told = Instant::now();
            note(&format!(
                "cell {}/{}: {:.2} ms a step",
                index + 1,
                scenarios.len(),
                cell.step.p50
            ));
        }
        cells.push(cell);
    }
    arguments.write_cells(&cells)?;
    if arguments.json { json(&cells) } else { result(&table::text(&cells)) }
}

impl SimulateArguments {
    fn settings(&self) -> Result<Settings, CommandError> {
        let is_local = self.against.is_some() || self.calibrate.is_some();
        let mut machine = match &self.machine {
            Some(path) => read_machine(path)?,
            None if is_local => {
                Machine::local(std::thread::available_parallelism().map_or(1, usize::from))
            }
            None => Machine::default(),
        };
        machine.cores = self.cores.map_or(machine.cores, usize::from);
        machine.mtu = self.mtu.unwrap_or(machine.mtu);
        Ok(Settings {
            batch: self.batch as usize,
            steps: self.steps.map_or(0, |steps| steps as usize),
            seed: self.seed,
            jitter: self.compute_jitter / 100.0,
            kernels: None,
            machine,
            ..Settings::default()
        })
    }

    fn find_crossovers(&self, settings: &Settings) -> Result<Vec<Crossover>, CommandError> {
        let bases = self.sweep.scenarios(&CROSSOVER_DEFAULTS)?;
        let parse = |text: &str| text.parse::<Topology>().expect("a constant");
        let pairs = PAIRS.map(|pair| pair.map(parse));
        let told = Mutex::new(Instant::now());
        let tell = |done: usize, all: usize| {
            let mut told = told.lock().expect("nobody panics with it");
            if told.elapsed() >= NOTE_INTERVAL {
                *told = Instant::now();
                note(&format!("{done} of {all} places are known"));
            }
        };
        crossovers(&Axis::ALL, &bases, &pairs, settings, &tell).map_err(usage)
    }

    /// Cells and their tables, into the folder.
    fn write_cells(&self, cells: &[Cell]) -> Result<(), CommandError> {
        let lines: String = (cells.iter())
            .map(|cell| serde_json::to_string(cell).expect("a cell serializes") + "\n")
            .collect();
        self.write(CELLS, &lines)?;
        self.write("topology.csv", &table::csv(cells))?;
        self.write("topology.md", &table::markdown(cells))
    }

    /// Into the folder, if there is one.
    fn write(&self, name: &str, text: &str) -> Result<(), CommandError> {
        let Some(folder) = &self.out else { return Ok(()) };
        let path = folder.join(name);
        fs::create_dir_all(folder)
            .map_err(|error| error.to_string())
            .and_then(|()| {
                write_atomically(&path, text.as_bytes()).map_err(|error| error.to_string())
            })
            .map_err(|reason| {
                let path = path.display();
                CommandError::Usage(format!("--out: {path}: {reason}; choose another folder"))
            })
    }
}

/// What cannot be simulated follows from flags.
fn usage(error: impl std::error::Error) -> CommandError {
    CommandError::Usage(error.to_string())
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("a result serializes") + "\n"
}

fn read(path: &Path) -> Result<String, CommandError> {
    fs::read_to_string(path).map_err(|error| {
        CommandError::Usage(format!("{}: {error}; check the path", path.display()))
    })
}

fn read_machine(path: &Path) -> Result<Machine, CommandError> {
    serde_json::from_str(&read(path)?).map_err(|error| {
        let path = path.display();
        CommandError::Usage(format!("--machine {path}: {error}; write one with --calibrate"))
    })
}

/// The cells of a sweep's folder, or of the file in it.
fn read_cells(path: &Path) -> Result<Vec<Cell>, CommandError> {
    let file = if path.is_dir() { path.join(CELLS) } else { path.to_owned() };
    let parse = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| {
            let (file, line) = (file.display(), index + 1);
            CommandError::Usage(format!("{file}, line {line}: {error}; it holds no cells"))
        })
    };
    read(&file)?.lines().enumerate().map(parse).collect()
}

/// Measured beside simulated, for people.
fn compared(validation: &Validation) -> String {
    let mut text = format!(
        "{:<17} {:>7}  {:<24} {:>12} {:>12} {:>8} {:>5} {:>4}\n",
        "topology", "workers", "link", "measured ms", "simulated ms", "error", "busy", "fit"
    );
    for comparison in &validation.comparisons {
        let Scenario { workers, topology, link, straggler, .. } = &comparison.scenario;
        let straggler = straggler.map_or(String::new(), |slow| format!(" straggler {slow}"));
        let _ = writeln!(
            text,
            "{topology:<17} {workers:>7}  {:<24} {:>12.2} {:>12.2} {:>+7.1}% {:>5} {:>4}",
            link.to_string() + &straggler,
            comparison.measured_ms,
            comparison.simulated_ms,
            100.0 * comparison.error(),
            comparison.machine_busy.map_or(String::new(), |busy| format!("{busy:.2}")),
            if comparison.fitted { "yes" } else { "" },
        );
    }
    let median = |counts: fn(&Comparison) -> bool| {
        let median = validation.median_error(counts);
        median.map_or("unknown".to_owned(), |error| format!("{:.1} %", 100.0 * error))
    };
    let _ = writeln!(
        text,
        "median error: {} of cells that the model was not fitted to, {} of all cells, {} of those whose \
         machine was at most {BUSY_MAX} busy",
        median(|one| !one.fitted),
        median(|_| true),
        median(Comparison::is_link_bound)
    );
    if validation.skipped > 0 {
        let _ = writeln!(text, "{} cells computed by kernels were left out", validation.skipped);
    }
    text
}

/// Crossovers, for people.
fn crossed(found: &[Crossover]) -> String {
    let mut text = String::new();
    let mut surroundings = None;
    for crossover in found {
        let Scenario { workers, link, compute, elements, .. } = &crossover.scenario;
        let own = format!("{workers} workers, {link}, {compute} for a batch, {elements} elements");
        if surroundings.as_ref() != Some(&own) {
            let _ = writeln!(text, "# around {own}");
            surroundings = Some(own);
        }
        let against = format!("{} or {}", crossover.from, crossover.against);
        let _ = writeln!(text, "{:<10} {against:<28} {crossover}", crossover.axis);
    }
    text
}
