//! Simulated cells beside measured ones: how far off the model is.

use serde::{Deserialize, Serialize};

use super::calibrate::calibrate;
use super::cell::{Cell, CellSource};
use super::machine::Machine;
use super::parallel;
use super::run::{Settings, SimulateError, simulate};
use super::scenario::{Compute, Scenario};

/// One scenario, measured and simulated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub scenario: Scenario,
    /// Medians of a step in milliseconds.
    pub measured_ms: f64,
    pub simulated_ms: f64,
    /// Of the machine that measured: above [`BUSY_MAX`] its processor is what was measured.
    pub machine_busy: Option<f64>,
    /// The model's constants were fitted to this cell, among others: it says less about the model.
    #[serde(default)]
    pub fitted: bool,
}

impl Comparison {
    /// By how much the simulated step is longer, as a share of the measured one.
    pub fn error(&self) -> f64 {
        self.simulated_ms / self.measured_ms - 1.0
    }

    /// Whether the link was the limit and not the machine's processor.
    pub fn is_link_bound(&self) -> bool {
        self.machine_busy.is_none_or(|busy| busy <= BUSY_MAX)
    }
}

/// Share of a machine's cores above which its nodes wait for a core.
pub const BUSY_MAX: f64 = 0.7;

/// All comparisons of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    pub comparisons: Vec<Comparison>,
    /// Cells that were computed by real kernels, whose time on the scenario's share of this machine
    /// is not known.
    pub skipped: usize,
    /// What was simulated, by comparison.
    #[serde(skip)]
    pub cells: Vec<Cell>,
}

impl Validation {
    /// Simulates what was measured.
    ///
    /// # Errors
    /// If a scenario cannot be simulated.
    pub fn of(cells: &[Cell], settings: &Settings) -> Result<Validation, SimulateError> {
        let (kept, skipped) = comparable(cells);
        let simulated = |cell: &&Cell| {
            let settings = Settings { batch: cell.batch, ..settings.clone() };
            simulate(&cell.scenario, &settings)
        };
        let simulated: Result<Vec<Cell>, SimulateError> =
            parallel::map(&kept, simulated, &|_| {}).into_iter().collect();
        let cells = simulated?;
        let compare = |(measured, simulated): (&&Cell, &Cell)| Comparison {
            scenario: measured.scenario.clone(),
            measured_ms: measured.step.p50,
            simulated_ms: simulated.step.p50,
            machine_busy: measured.machine_busy,
            fitted: false,
        };
        let comparisons = kept.iter().zip(&cells).map(compare).collect();
        Ok(Validation { comparisons, skipped, cells })
    }

    /// As [`of`](Validation::of), with a machine whose costs are [fitted](calibrate) to every other
    /// cell; the cells between judge it.
    ///
    /// # Errors
    /// If a scenario cannot be simulated.
    pub fn fitted(
        cells: &[Cell],
        settings: &Settings,
    ) -> Result<(Machine, Validation), SimulateError> {
        let (kept, skipped) = comparable(cells);
        let seen: Vec<Cell> = kept.into_iter().step_by(2).cloned().collect();
        let machine = calibrate(&seen, settings)?;
        let settings = Settings { machine, ..settings.clone() };
        let mut validation = Validation { skipped, ..Validation::of(cells, &settings)? };
        validation.comparisons.iter_mut().step_by(2).for_each(|one| one.fitted = true);
        Ok((machine, validation))
    }

    /// The median of the errors' sizes, of those comparisons that count.
    pub fn median_error(&self, counts: impl Fn(&Comparison) -> bool) -> Option<f64> {
        let mut errors: Vec<f64> = (self.comparisons.iter())
            .filter(|comparison| counts(comparison))
            .map(|comparison| comparison.error().abs())
            .collect();
        errors.sort_by(f64::total_cmp);
        let (lower, upper) = (errors.get(errors.len().saturating_sub(1) / 2), errors.len() / 2);
        Some((lower? + errors.get(upper)?) / 2.0)
    }
}

/// The measured cells whose computing time is known, and how many others there are.
fn comparable(cells: &[Cell]) -> (Vec<&Cell>, usize) {
    let measured = cells.iter().filter(|cell| cell.source == CellSource::Measured);
    let (kept, left): (Vec<&Cell>, Vec<&Cell>) =
        measured.partition(|cell| cell.scenario.compute != Compute::Kernels);
    (kept, left.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(measured_ms: f64, simulated_ms: f64, busy: f64) -> Comparison {
        let scenario = Scenario {
            workers: 2,
            topology: "ring".parse().unwrap(),
            link: "lan-1g".parse().unwrap(),
            compute: "20ms".parse().unwrap(),
            elements: 10,
            straggler: None,
        };
        Comparison {
            scenario,
            measured_ms,
            simulated_ms,
            machine_busy: Some(busy),
            fitted: busy < 0.2,
        }
    }

    #[test]
    fn the_median_is_of_the_errors_sizes() {
        let of = |comparisons: &[Comparison]| Validation {
            comparisons: comparisons.to_vec(),
            ..Validation::default()
        };
        let rows = [
            comparison(10.0, 12.0, 0.1),
            comparison(10.0, 9.0, 0.1),
            comparison(10.0, 15.0, 0.9),
            comparison(10.0, 10.0, 0.5),
        ];
        let close = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-9;
        assert!(close(of(&rows).median_error(|_| true), 0.15));
        assert!(close(of(&rows).median_error(Comparison::is_link_bound), 0.1));
        assert!(close(of(&rows[..1]).median_error(|_| true), 0.2));
        assert!(close(of(&rows).median_error(|one| !one.fitted), 0.25));
        assert_eq!(of(&[]).median_error(|_| true), None);
    }

    #[test]
    fn a_simulated_cell_is_no_measurement() {
        let settings = Settings::default();
        let cell = simulate(&comparison(1.0, 1.0, 0.0).scenario, &settings).unwrap();
        assert_eq!(Validation::of(std::slice::from_ref(&cell), &settings).unwrap().comparisons, []);
        let measured = Cell { source: CellSource::Measured, ..cell };
        let validation = Validation::of(&[measured], &settings).unwrap();
        assert_eq!(validation.median_error(|_| true), Some(0.0));
    }
}
