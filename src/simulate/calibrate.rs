//! A machine's costs, found from cells that were measured on it.
//!
//! What waiting takes longer than asked is read off the cells. The other costs are fitted by
//! coordinate descent (one after another, in smaller and smaller steps): those with which the mean
//! size of the errors' logarithms is the least. A fit must be judged by cells that it has not seen.

use super::cell::{Cell, CellSource};
use super::machine::Machine;
use super::run::{Settings, SimulateError};
use super::scenario::Compute;
use super::validate::{BUSY_MAX, Validation};

/// The step's factors, from large to small: a cost is known to 10 % at the end.
const FACTORS: [f64; 3] = [3.0, 1.5, 1.1];

/// Rounds of each factor, in which every cost is changed in turn.
const ROUNDS: usize = 3;

/// Steps of each simulated cell: the median of a few tells as much as that of many.
const STEPS: usize = 4;

/// How a cost is reached.
type Cost = fn(&mut Machine, f64);

const COSTS: [Cost; 3] = [
    |machine, factor| machine.packet_ns *= factor,
    |machine, factor| machine.byte_ns *= factor,
    |machine, factor| machine.wake_ns = (machine.wake_ns as f64 * factor) as u64,
];

/// The machine, its costs fitted to the cells.
///
/// # Errors
/// If a scenario cannot be simulated.
pub fn calibrate(cells: &[Cell], settings: &Settings) -> Result<Machine, SimulateError> {
    let mut settings = Settings { steps: STEPS, ..settings.clone() };
    if let Some(timer_ns) = timer_ns(cells) {
        settings.machine.timer_ns = timer_ns;
    }
    let mut best = misfit(cells, &settings)?;
    for factor in FACTORS {
        for _ in 0..ROUNDS {
            let before = best;
            for cost in COSTS {
                for factor in [factor, 1.0 / factor] {
                    let mut machine = settings.machine;
                    cost(&mut machine, factor);
                    let trial = Settings { machine, ..settings.clone() };
                    let misfit = misfit(cells, &trial)?;
                    if misfit < best {
                        (best, settings) = (misfit, trial);
                    }
                }
            }
            if best == before {
                break;
            }
        }
    }
    Ok(settings.machine)
}

fn misfit(cells: &[Cell], settings: &Settings) -> Result<f64, SimulateError> {
    let comparisons = Validation::of(cells, settings)?.comparisons;
    let sum: f64 = comparisons.iter().map(|c| (1.0 + c.error()).ln().abs()).sum();
    Ok(sum / comparisons.len().max(1) as f64)
}

/// By how much a step's waiting instead of computing took longer than asked: the median.
fn timer_ns(cells: &[Cell]) -> Option<u64> {
    let longer = |cell: &Cell| match cell.scenario.compute {
        Compute::Synthetic { batch } if cell.scenario.straggler.is_none() => {
            let share = 1e3 * batch.as_secs_f64() / cell.scenario.workers as f64;
            Some(1e6 * (cell.compute_ms - share).max(0.0))
        }
        _ => None,
    };
    // On a busy machine one waits for a core, too.
    let quiet = |cell: &&Cell| cell.machine_busy.is_none_or(|busy| busy <= BUSY_MAX);
    let measured = cells.iter().filter(|cell| cell.source == CellSource::Measured).filter(quiet);
    let mut all: Vec<f64> = measured.filter_map(longer).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).map(|&ns| ns as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Scenario, simulate};

    #[test]
    fn costs_are_found_that_cells_were_made_with() {
        let truth = Machine { packet_ns: 9_000.0, wake_ns: 60_000, ..Machine::local(2) };
        let cell = |topology: &str, workers| {
            let scenario = Scenario {
                workers,
                topology: topology.parse().unwrap(),
                link: "1gbit/0.1ms".parse().unwrap(),
                compute: "20ms".parse().unwrap(),
                elements: 61_706,
                straggler: None,
            };
            let settings = Settings { machine: truth, steps: STEPS, ..Settings::default() };
            Cell { source: CellSource::Measured, ..simulate(&scenario, &settings).unwrap() }
        };
        let seen = [cell("ring", 2), cell("server", 4), cell("halving-doubling", 8)];
        let start = Settings { machine: Machine::local(2), ..Settings::default() };
        let fitted = Settings { machine: calibrate(&seen, &start).unwrap(), ..start.clone() };
        let unseen = [cell("ring", 8), cell("server*2", 3)];
        let error =
            |settings| Validation::of(&unseen, settings).unwrap().median_error(|_| true).unwrap();
        assert!(error(&start) > 0.1, "there is something to find: {}", error(&start));
        assert!(error(&fitted) < 0.05, "{} with {:?}", error(&fitted), fitted.machine);
    }
}
