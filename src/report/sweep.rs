//! A sweep put in order: which cells are compared with each other, and what follows from them.
//! Without IO.

use std::fmt;

use crate::protocol::link::{LinkProfile, PRESETS};
use crate::simulate::cell::{Cell, CellSource};
use crate::simulate::scenario::{Compute, Scenario, Slowdown, Topology};

use super::numbers;

/// Everything but workers and topology: within it, cells are compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub link: LinkProfile,
    pub compute: Compute,
    pub elements: usize,
    pub straggler: Option<Slowdown>,
}

impl Condition {
    pub fn of(scenario: &Scenario) -> Condition {
        Condition {
            link: scenario.link,
            compute: scenario.compute,
            elements: scenario.elements,
            straggler: scenario.straggler,
        }
    }

    pub fn is_synthetic(&self) -> bool {
        matches!(self.compute, Compute::Synthetic { .. } | Compute::Trace { .. })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&link_name(&self.link))?;
        let bytes = numbers::bytes(4.0 * self.elements as f64);
        write!(f, ", {}, gradient of {bytes}", compute_name(self.compute))?;
        if let Some(Slowdown { rank, delay }) = self.straggler {
            write!(f, ", worker {rank} slower by {} ms", delay.as_millis())?;
        }
        Ok(())
    }
}

/// What tells this condition from those of the other groups: its link, and whatever else differs.
pub fn title(condition: &Condition, groups: &[Group]) -> String {
    let differs = |same: fn(&Condition, &Condition) -> bool| {
        groups.iter().any(|other| !same(&other.condition, condition))
    };
    let mut title = link_name(&condition.link);
    if let Some(Slowdown { rank, delay }) = condition.straggler {
        title += &format!(" with worker {rank} slower by {} ms", delay.as_millis());
    }
    if differs(|a, b| a.elements == b.elements) {
        title += &format!(" with gradients of {}", numbers::bytes(4.0 * condition.elements as f64));
    }
    if differs(|a, b| a.compute == b.compute) {
        title += &format!(" with {}", compute_name(condition.compute));
    }
    title
}

/// What all groups have in common beside the link, in a sentence.
pub fn shared(groups: &[Group]) -> String {
    let Some(Group { condition: first, .. }) = groups.first() else { return String::new() };
    let all = |same: fn(&Condition, &Condition) -> bool| {
        groups.iter().all(|other| same(&other.condition, first))
    };
    let mut parts = Vec::new();
    if all(|a, b| a.elements == b.elements) {
        parts.push(format!("a gradient of {}", numbers::bytes(4.0 * first.elements as f64)));
    }
    if all(|a, b| a.compute == b.compute) {
        parts.push(compute_name(first.compute));
    }
    let mut sentence = match parts.as_slice() {
        [] => String::new(),
        parts => format!("Everywhere: {}.", parts.join(", ")),
    };
    if groups.iter().any(|group| group.condition.is_synthetic()) {
        sentence += " Synthetic compute: workers wait that long instead of computing, so that many \
                     fit one machine.";
    }
    sentence
}

fn compute_name(compute: Compute) -> String {
    match compute {
        Compute::Kernels => "real compute".to_owned(),
        Compute::Synthetic { batch } => {
            let ms = numbers::short(batch.as_secs_f64() * 1e3);
            format!("synthetic compute of {ms} ms a batch")
        }
        Compute::Trace { batch, .. } => {
            let ms = numbers::short(batch.as_secs_f64() * 1e3);
            format!("synthetic compute as recorded, {ms} ms a batch")
        }
    }
}

/// The preset's name, or the figures without those at the end that are 0.
pub fn link_name(link: &LinkProfile) -> String {
    match PRESETS.iter().find(|(_, preset)| preset == link) {
        Some((name, _)) => (*name).to_owned(),
        None => {
            let text = link.to_string();
            let text = text.strip_suffix("/0%").unwrap_or(&text);
            text.strip_suffix("/0ms").unwrap_or(text).to_owned()
        }
    }
}

/// Cells under one condition.
#[derive(Clone, Debug)]
pub struct Group {
    pub condition: Condition,
    pub cells: Vec<Cell>,
}

/// Cells by condition, each in the order of their first appearance.
pub fn groups(cells: &[Cell]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for cell in cells {
        let condition = Condition::of(&cell.scenario);
        match groups.iter_mut().find(|group| group.condition == condition) {
            Some(group) => group.cells.push(cell.clone()),
            None => groups.push(Group { condition, cells: vec![cell.clone()] }),
        }
    }
    groups
}

/// All topologies of the cells, in the order of their first appearance: their colours follow.
pub fn topologies(cells: &[Cell]) -> Vec<Topology> {
    let mut topologies: Vec<Topology> = Vec::new();
    for cell in cells {
        if !topologies.contains(&cell.scenario.topology) {
            topologies.push(cell.scenario.topology);
        }
    }
    topologies
}

impl Group {
    /// Of this topology and source, by number of workers.
    pub fn series(&self, topology: Topology, source: CellSource) -> Vec<&Cell> {
        let of_both = |cell: &&Cell| cell.scenario.topology == topology && cell.source == source;
        let mut cells: Vec<&Cell> = self.cells.iter().filter(of_both).collect();
        cells.sort_by_key(|cell| cell.scenario.workers);
        cells
    }

    /// Of this size and source, the fastest first.
    pub fn ranking(&self, workers: usize, source: CellSource) -> Vec<&Cell> {
        let of_both = |cell: &&Cell| cell.scenario.workers == workers && cell.source == source;
        let mut cells: Vec<&Cell> = self.cells.iter().filter(of_both).collect();
        cells.sort_by(|a, b| b.images_per_s.total_cmp(&a.images_per_s));
        cells
    }

    /// Numbers of workers, ascending.
    pub fn sizes(&self, source: CellSource) -> Vec<usize> {
        let of_source = self.cells.iter().filter(|cell| cell.source == source);
        let mut sizes: Vec<usize> = of_source.map(|cell| cell.scenario.workers).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// One worker, who has nobody to wait for: of this topology, or else the fastest.
    pub fn alone(&self, topology: Topology, source: CellSource) -> Option<&Cell> {
        let ranking = self.ranking(1, source);
        ranking.iter().find(|cell| cell.scenario.topology == topology).or(ranking.first()).copied()
    }

    /// How much faster than one worker, with messages and without.
    pub fn speed_up(&self, cell: &Cell) -> Option<SpeedUp> {
        let alone = self.alone(cell.scenario.topology, cell.source)?;
        let with_messages =
            ratio(cell.images_per_s, alone.images_per_s).filter(|&ratio| ratio > 0.0)?;
        Some(SpeedUp {
            with_messages,
            without_messages: ratio(compute_ms(alone), compute_ms(cell))?,
            efficiency: with_messages / cell.scenario.workers as f64,
        })
    }
}

/// How much faster than one worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedUp {
    pub with_messages: f64,
    /// As if whatever a worker waits for took no time: "ignoring message-passing costs".
    pub without_messages: f64,
    /// The share of the ideal.
    pub efficiency: f64,
}

/// Milliseconds of a mean step.
pub fn step_ms(cell: &Cell) -> f64 {
    ratio(1e3 * cell.batch as f64, cell.images_per_s).unwrap_or(0.0)
}

/// Milliseconds of a step if messages cost nothing.
pub fn compute_ms(cell: &Cell) -> f64 {
    // Cells of old sweeps do not say it.
    if cell.compute_ms > 0.0 { cell.compute_ms } else { own_compute_ms(cell) }
}

/// Milliseconds for which a worker computes in a mean step.
pub fn own_compute_ms(cell: &Cell) -> f64 {
    (step_ms(cell) - cell.waited_ms).max(0.0)
}

/// None where that is no number.
fn ratio(over: f64, under: f64) -> Option<f64> {
    let ratio = over / under;
    (under > 0.0 && ratio.is_finite()).then_some(ratio)
}

/// A measured cell and what the simulation says of it.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub measured: &'a Cell,
    pub simulated: &'a Cell,
    /// Of the median step: how much longer it is simulated than measured, as a share.
    pub error: f64,
}

/// Each measured cell that was simulated as well.
pub fn pairs(cells: &[Cell]) -> Vec<Pair<'_>> {
    let of = |source| cells.iter().filter(move |cell| cell.source == source);
    of(CellSource::Measured)
        .filter_map(|measured| {
            let simulated =
                of(CellSource::Simulated).find(|cell| cell.scenario == measured.scenario)?;
            let error = ratio(simulated.step.p50, measured.step.p50)? - 1.0;
            Some(Pair { measured, simulated, error })
        })
        .collect()
}

/// The middle one of the errors' sizes; none without pairs.
pub fn median_error(pairs: &[Pair<'_>]) -> Option<f64> {
    let mut sizes: Vec<f64> = pairs.iter().map(|pair| pair.error.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    let middle = sizes.len() / 2;
    match sizes.len() {
        0 => None,
        length if length % 2 == 1 => Some(sizes[middle]),
        _ => Some((sizes[middle - 1] + sizes[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{cell, simulated};

    #[test]
    fn cells_are_compared_under_one_condition_alone() {
        let mut other = cell("ring", 2, 10.0);
        other.scenario.link = "lan-1g".parse().unwrap();
        let cells = [cell("ring", 2, 10.0), other, cell("server", 2, 20.0)];
        let groups = groups(&cells);
        assert_eq!(groups.iter().map(|group| group.cells.len()).collect::<Vec<_>>(), [2, 1]);
        assert!(groups[1].condition.to_string().starts_with("lan-1g, synthetic compute of 20 ms"));
        let fastest: Vec<String> = groups[0]
            .ranking(2, CellSource::Measured)
            .iter()
            .map(|cell| cell.scenario.topology.to_string())
            .collect();
        assert_eq!(fastest, ["server", "ring"]);
    }

    #[test]
    fn speed_up_is_told_with_messages_and_without() {
        // Alone 64 images in 20 ms; three compute in a third of it and wait for the rest.
        let cells =
            [cell("ring", 1, 3_200.0), cell("ring", 3, 6_400.0), cell("server", 3, 1_600.0)];
        let group = &groups(&cells)[0];
        let speed_up = group.speed_up(&cells[1]).unwrap();
        assert!((speed_up.with_messages - 2.0).abs() < 1e-9, "{speed_up:?}");
        assert!((speed_up.without_messages - 3.0).abs() < 1e-9, "{speed_up:?}");
        assert!((speed_up.efficiency - 2.0 / 3.0).abs() < 1e-9, "{speed_up:?}");
        // The server's own single worker was not measured: any other is as alone as that.
        assert!((group.speed_up(&cells[2]).unwrap().with_messages - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_cell_that_stood_still_has_no_speed_up() {
        let cells = [cell("ring", 1, 3_200.0), Cell { images_per_s: 0.0, ..cell("ring", 2, 1.0) }];
        let group = &groups(&cells)[0];
        assert_eq!(step_ms(&cells[1]), 0.0);
        assert_eq!(group.speed_up(&cells[1]), None);
    }

    #[test]
    fn measured_cells_meet_their_simulations() {
        let cells = [
            cell("ring", 2, 100.0),
            cell("ring", 4, 100.0),
            simulated("ring", 2, 80.0),
            simulated("ring", 8, 100.0),
        ];
        let pairs = pairs(&cells);
        assert_eq!(pairs.len(), 1);
        assert!((pairs[0].error - 0.25).abs() < 1e-9, "{pairs:?}");
        assert!((median_error(&pairs).unwrap() - 0.25).abs() < 1e-9);
        assert_eq!(median_error(&[]), None);
    }
}
