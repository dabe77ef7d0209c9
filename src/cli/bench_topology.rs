//! `annulet bench topology`: all-reduce against parameter servers, cell by cell.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::bench::BenchError;
use crate::bench::topology::folder::SweepFolder;
use crate::bench::topology::sweep::{estimate, with_one_alone};
use crate::bench::topology::{Settings, measure, table};
use crate::config::Kernels;
use crate::launch::driver_environment::set_driver_environment;
use crate::model::layout::PARAMETERS;
use crate::net::{Congestion, NetError, TransportSettings};
use crate::simulate::{Cell, Compute, Scenario};
use crate::train::synthetic::{ComputeTimes, SyntheticCompute};

use super::CommandError;
use super::compute_flag::ComputeFlag;
use super::output::{json, note, result};
use super::scenario_flags::{ScenarioFlags, SweepDefaults};

#[derive(Debug, Args)]
#[command(after_help = "What is swept unless it is named: 1, 2, 3, 4, 8 and 16 workers; ring, \
halving-doubling, server, server*4, server*workers, async, staleness=3 and backup=1; links of lan-1g, \
200mbit and 200mbit/5ms: some four minutes on two cores. Every worker and server is a thread of this process, with an endpoint and an \
emulated card of its own.")]
pub struct TopologyArguments {
    #[command(flatten)]
    sweep: ScenarioFlags,
    /// Samples of a step, over all workers: in whole tiles of 16, which the default divides among
    /// 2, 3, 4, 6, 8, 12, 16, 24 or 48
    #[arg(long, value_name = "N", default_value_t = 768,
          value_parser = clap::value_parser!(u64).range(1..=60_000))]
    batch: u64,
    /// Steps of a cell that count
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    steps: u64,
    /// Steps before those
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    warmup: u64,
    /// Seed of times that are drawn from a trace
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Congestion control: cubic, or always so many bytes in flight
    #[arg(long, value_name = "cubic|fixed:BYTES", default_value_t = Congestion::Cubic)]
    congestion: Congestion,
    /// Folder for the cells, as they are measured, and the tables; a sweep that was interrupted goes
    /// on there, and further cells are added
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the cells as JSON, with every step's time, in place of the tables
    #[arg(long)]
    json: bool,
}

/// Many nodes on few cores may be silent for long.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(60);

/// What is swept where nothing is said: a link on which messages cost little, one on which bytes cost
/// much, and one on which rounds do too; some four minutes on two cores.
const DEFAULTS: SweepDefaults = SweepDefaults {
    workers: &[1, 2, 3, 4, 8, 16],
    topologies: &[
        "ring",
        "halving-doubling",
        "server",
        "server*4",
        "server*workers",
        "async",
        "staleness=3",
        "backup=1",
    ],
    links: &["lan-1g", "200mbit", "200mbit/5ms"],
};

/// # Safety
/// No other thread may be running: the environment is changed for drivers.
pub unsafe fn run(arguments: TopologyArguments) -> Result<(), CommandError> {
    let settings = arguments.settings()?;
    if settings.synthetic.is_none() {
        // SAFETY: the caller's promise.
        unsafe { set_driver_environment(Kernels::Auto, 1) };
    }
    let scenarios = with_one_alone(arguments.scenarios(&settings)?);
    let mut store = match &arguments.out {
        Some(path) => {
            Store::Folder(Box::new(SweepFolder::open(path, &settings).map_err(BenchError::from)?))
        }
        None => Store::Memory(Vec::new()),
    };
    let missing: Vec<&Scenario> = scenarios.iter().filter(|s| !store.has(s)).collect();
    let mut progress = Progress::new(&missing, scenarios.len(), &settings);
    for scenario in &missing {
        progress.begin(scenario);
        let cell = measure(scenario, &settings)?;
        progress.end(&cell);
        store.append(cell)?;
    }
    drop(progress);
    if arguments.json {
        return json(&store.cells());
    }
    result(&table::text(store.cells()))?;
    if let Some(path) = &arguments.out {
        note(&format!("cells and tables: {}", path.display()));
    }
    Ok(())
}

impl TopologyArguments {
    fn settings(&self) -> Result<Settings, CommandError> {
        let transport = TransportSettings {
            congestion: self.congestion,
            failure_timeout: FAILURE_TIMEOUT,
            ..TransportSettings::default()
        };
        transport.validate().map_err(|error| match error {
            NetError::Settings(text) => CommandError::Usage(format!("--{text}")),
            error => error.into(),
        })?;
        Ok(Settings {
            batch: self.batch as usize,
            warmup: self.warmup as usize,
            steps: self.steps as usize,
            seed: self.seed,
            synthetic: self.sweep.compute().synthetic(),
            transport,
        })
    }

    /// What is to be measured.
    fn scenarios(&self, settings: &Settings) -> Result<Vec<Scenario>, CommandError> {
        let compute = match self.sweep.compute() {
            ComputeFlag::Plain(compute) => *compute,
            ComputeFlag::Trace(run) => {
                let trace = SyntheticCompute::Trace(run.clone());
                let times = ComputeTimes::new(&trace, settings.batch, settings.seed)
                    .map_err(BenchError::from)?;
                Compute::Trace { batch: times.batch_mean(settings.batch), digest: times.digest() }
            }
        };
        let scenarios = self.sweep.scenarios_with(compute, &DEFAULTS)?;
        if compute == Compute::Kernels && scenarios.iter().any(|s| s.elements != PARAMETERS) {
            return Err(CommandError::Usage(format!(
                "--elements: kernels compute LeNet's {PARAMETERS} gradients; leave it out, or wait \
                 instead of computing, with --compute 20ms"
            )));
        }
        Ok(scenarios)
    }
}

/// Where cells are kept.
enum Store {
    Memory(Vec<Cell>),
    Folder(Box<SweepFolder>),
}

impl Store {
    fn cells(&self) -> &[Cell] {
        match self {
            Store::Memory(cells) => cells,
            Store::Folder(folder) => folder.cells(),
        }
    }

    fn has(&self, scenario: &Scenario) -> bool {
        self.cells().iter().any(|cell| cell.scenario == *scenario)
    }

    fn append(&mut self, cell: Cell) -> Result<(), BenchError> {
        match self {
            Store::Memory(cells) => cells.push(cell),
            Store::Folder(folder) => {
                folder.append(cell)?;
                // So that there are tables of what is there, whenever the sweep ends.
                folder.write_tables()?;
            }
        }
        Ok(())
    }
}

/// How far the sweep is and how much time is left: a bar on a terminal, a line a cell elsewhere.
struct Progress {
    bar: Option<ProgressBar>,
    done: usize,
    all: usize,
    /// Of each cell that is still to be measured.
    estimates: Vec<Duration>,
    began: Instant,
}

impl Progress {
    fn new(missing: &[&Scenario], all: usize, settings: &Settings) -> Progress {
        let done = all - missing.len();
        if done > 0 {
            note(&format!("{done} of {all} cells are there already"));
        }
        let bar = std::io::stderr().is_terminal().then(|| {
            let target = ProgressDrawTarget::stderr();
            let bar = ProgressBar::with_draw_target(Some(all as u64), target);
            let style = ProgressStyle::with_template("cell {pos}/{len} [{bar:30}] {msg}");
            bar.set_style(style.expect("the template is a constant").progress_chars("=> "));
            bar.set_position(done as u64);
            bar
        });
        let estimates = missing.iter().map(|scenario| estimate(scenario, settings)).collect();
        Progress { bar, done, all, estimates, began: Instant::now() }
    }

    fn begin(&self, scenario: &Scenario) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}  {}", self.left(), name(scenario)));
        }
    }

    fn end(&mut self, cell: &Cell) {
        self.done += 1;
        match &self.bar {
            Some(bar) => bar.inc(1),
            None => note(&format!(
                "cell {}/{}: {}: {:.1} ms a step; {}",
                self.done,
                self.all,
                name(&cell.scenario),
                cell.step.p50,
                self.left()
            )),
        }
    }

    /// The estimates of what is left, corrected by how long the others really took.
    fn left(&self) -> String {
        let left = self.all - self.done;
        let (measured, to_come) = self.estimates.split_at(self.estimates.len() - left);
        let sum = |part: &[Duration]| part.iter().sum::<Duration>().as_secs_f64();
        let pace = match sum(measured) {
            0.0 => 1.0,
            estimated => self.began.elapsed().as_secs_f64() / estimated,
        };
        let seconds = (sum(to_come) * pace).round() as u64;
        format!("{}:{:02} left", seconds / 60, seconds % 60)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn name(scenario: &Scenario) -> String {
    let Scenario { workers, topology, link, elements, straggler, .. } = scenario;
    let workers = if *workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") };
    let mut text = format!("{topology}, {workers}, {link}");
    if *elements != PARAMETERS {
        text += &format!(", {elements} elements");
    }
    if let Some(straggler) = straggler {
        text += &format!(", straggler {straggler}");
    }
    text
}
