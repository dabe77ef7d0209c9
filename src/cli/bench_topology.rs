//! `annulet bench topology`: all-reduce against parameter servers, cell by cell.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::bench::BenchError;
use crate::bench::topology::folder::SweepFolder;
use crate::bench::topology::sweep::{Axes, estimate};
use crate::bench::topology::{Settings, measure, table};
use crate::config::Kernels;
use crate::launch::driver_environment::set_driver_environment;
use crate::model::layout::PARAMETERS;
use crate::net::{Congestion, NetError, TransportSettings};
use crate::protocol::link::LinkProfile;
use crate::simulate::{Cell, Compute, Scenario, Slowdown, Topology};
use crate::train::synthetic::{ComputeTimes, SyntheticCompute};

use super::CommandError;
use super::compute_flag::ComputeFlag;
use super::output::{json, note, result};

#[derive(Debug, Args)]
pub struct TopologyArguments {
    /// Workers, each a thread with an endpoint and an emulated card of its own
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,3,4,8,16",
          value_parser = clap::value_parser!(u64).range(1..=256))]
    workers: Vec<u64>,
    /// ring, halving-doubling, direct, auto, or servers: server, async, staleness=S, backup=K, each
    /// with *N or *workers for several, such as server*4
    #[arg(
        long,
        value_name = "TOPOLOGY,...",
        value_delimiter = ',',
        default_value = "ring,halving-doubling,server,server*4,server*workers,async,staleness=3,backup=1"
    )]
    topologies: Vec<Topology>,
    /// The card and link of each worker and server: RATE/LATENCY/LOSS, such as 1gbit/0.5ms/0.1%,
    /// then jitter=TIME or queue=PACKETS; or loopback (none), lan-1g (1gbit, 0.1 ms), lan-10g
    /// (10gbit, 0.05 ms), wifi (200mbit, 2 ms, 0.1%), wan (100mbit, 10 ms, 0.01%)
    #[arg(
        long,
        visible_alias = "link",
        value_name = "LINK,...",
        value_delimiter = ',',
        default_value = "200mbit,200mbit/5ms"
    )]
    links: Vec<LinkProfile>,
    /// Wait so long for a batch by one worker instead of computing, each worker for its share
    /// (synthetic compute); or as long as a recorded run's steps, with their jitter; or compute
    /// with real kernels
    #[arg(long, value_name = "TIME|trace:RUN|kernels", default_value = "20ms")]
    compute: ComputeFlag,
    /// Elements of the gradient, 4 bytes each [default: LeNet's 61706]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u64).range(1..=ELEMENTS_MAX))]
    elements: Vec<u64>,
    /// Make one worker slower, by so much in each step; none: no worker
    #[arg(long, value_name = "none|RANK:MS,...", value_delimiter = ',', default_value = "none",
          value_parser = straggler)]
    straggler: Vec<Straggler>,
    /// Samples of a step, over all workers: in whole tiles of 16, which the default divides among
    /// 2, 3, 4, 6, 8, 12, 16, 24 or 48
    #[arg(long, value_name = "N", default_value_t = 768,
          value_parser = clap::value_parser!(u64).range(1..=60_000))]
    batch: u64,
    /// Steps of a cell that count
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    steps: u64,
    /// Steps before those
    #[arg(long, value_name = "N", default_value_t = 5,
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

/// 1 GiB: larger gradients of several workers do not fit one machine.
const ELEMENTS_MAX: u64 = 1 << 28;

/// Many nodes on few cores may be silent for long.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(60);

/// A worker that is slower, or none.
#[derive(Clone, Copy, Debug)]
struct Straggler(Option<Slowdown>);

fn straggler(text: &str) -> Result<Straggler, String> {
    match text {
        "none" => Ok(Straggler(None)),
        text => text.parse().map(|slowdown| Straggler(Some(slowdown))),
    }
}

/// # Safety
/// No other thread may be running: the environment is changed for drivers.
pub unsafe fn run(arguments: TopologyArguments) -> Result<(), CommandError> {
    let settings = arguments.settings()?;
    if settings.synthetic.is_none() {
        if arguments.elements.iter().any(|&elements| elements != PARAMETERS as u64) {
            return Err(CommandError::Usage(format!(
                "--elements: real kernels compute LeNet's {PARAMETERS}; leave it out, or wait \
                 instead of computing, with --compute 20ms"
            )));
        }
        // SAFETY: the caller's promise.
        unsafe { set_driver_environment(Kernels::Auto, 1) };
    }
    let compute = compute(&settings)?;
    let scenarios = arguments.axes().scenarios(compute);
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
            synthetic: self.compute.clone().synthetic(),
            transport,
        })
    }

    fn axes(&self) -> Axes {
        let counts =
            |values: &[u64]| -> Vec<usize> { values.iter().map(|&n| n as usize).collect() };
        Axes {
            workers: counts(&self.workers),
            topologies: self.topologies.clone(),
            links: self.links.clone(),
            elements: match self.elements.is_empty() {
                true => vec![PARAMETERS],
                false => counts(&self.elements),
            },
            stragglers: self.straggler.iter().map(|straggler| straggler.0).collect(),
        }
    }
}

/// How the cells tell what was computed.
fn compute(settings: &Settings) -> Result<Compute, BenchError> {
    Ok(match &settings.synthetic {
        None => Compute::Kernels,
        Some(SyntheticCompute::Batch(batch)) => Compute::Synthetic { batch: *batch },
        Some(trace @ SyntheticCompute::Trace(_)) => {
            let times = ComputeTimes::new(trace, settings.batch, settings.seed)?;
            Compute::Trace { batch: times.batch_mean(settings.batch), digest: times.digest() }
        }
    })
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
