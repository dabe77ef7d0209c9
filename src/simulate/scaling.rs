//! What more workers bring, with and without what messages cost.

use super::cell::Cell;
use super::scenario::{Scenario, Topology};

/// A cell compared with one worker alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// Samples a second over those of one worker alone.
    pub speedup: f64,
    /// The same if messages cost nothing.
    pub speedup_without_messages: f64,
    /// Speed-up over workers.
    pub efficiency: f64,
}

impl Scaling {
    /// The cell's, if the one worker alone is among `cells`: from the same source, with the same
    /// compute.
    pub fn of(cell: &Cell, cells: &[Cell]) -> Option<Scaling> {
        let alone = cells.iter().find(|other| {
            other.source == cell.source
                && other.batch == cell.batch
                && is_alone(&other.scenario)
                && other.scenario.compute == cell.scenario.compute
                && other.scenario.elements == cell.scenario.elements
        })?;
        let speedup = cell.images_per_s / alone.images_per_s;
        Some(Scaling {
            speedup,
            speedup_without_messages: alone.compute_ms / cell.compute_ms,
            efficiency: speedup / cell.scenario.workers as f64,
        })
    }
}

/// Whether it is one worker that has nobody to speak to; the link does not count then.
fn is_alone(scenario: &Scenario) -> bool {
    scenario.workers == 1
        && matches!(scenario.topology, Topology::AllReduce(_))
        && scenario.straggler.is_none()
}
