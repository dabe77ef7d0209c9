//! Images a second over workers, beside what would be ideal; and all figures of all cells.

use crate::report::html::{Figure, LegendEntry, Panel, Table};
use crate::report::numbers::{bytes, percent, short};
use crate::report::palette::Ink;
use crate::report::plot::{Marker, Stroke};
use crate::report::source::Sources;
use crate::report::sweep::{self, Group};
use crate::simulate::cell::{Cell, CellSource};

use super::curves::{HOW_DRAWN, curves, legend};

pub fn figure(sources: &Sources) -> Option<Figure> {
    let topologies = sweep::topologies(&sources.cells);
    let groups = sweep::groups(&sources.cells);
    if groups.is_empty() {
        return None;
    }
    let mut legend = legend(&topologies);
    legend.push(LegendEntry {
        name: "ideal: as many times one worker".into(),
        ink: Ink::Axis,
        stroke: Stroke::Dashed,
        marker: Marker::None,
    });
    let panels = groups.iter().map(|group| Panel {
        title: sweep::title(&group.condition, &groups),
        description: description(group),
        svg: curves(group, &topologies, "images/s", |cell| cell.images_per_s, &ideal(group)),
    });
    Some(Figure {
        id: "scaling",
        heading: "Images a second over workers",
        caption: format!(
            "All workers together; both axes are logarithmic. {HOW_DRAWN} {}",
            sweep::shared(&groups)
        ),
        legend,
        panels: panels.collect(),
        table: table(&groups),
    })
}

/// As many times one worker, as far as that is of the cells' order of magnitude.
fn ideal(group: &Group) -> Vec<(f64, f64)> {
    let sources = [CellSource::Measured, CellSource::Simulated];
    let alone = sources.into_iter().find_map(|source| group.ranking(1, source).first().copied());
    let Some(alone) = alone else { return Vec::new() };
    let largest = group.cells.iter().map(|cell| cell.scenario.workers).max().unwrap_or(1) as f64;
    let fastest = group.cells.iter().map(|cell| cell.images_per_s).fold(0.0, f64::max);
    let until = largest.min(2.0 * fastest / alone.images_per_s.max(f64::MIN_POSITIVE)).max(1.0);
    [1.0, until].map(|workers| (workers, workers * alone.images_per_s)).to_vec()
}

fn description(group: &Group) -> String {
    let source = source_shown(group);
    let Some(&largest) = group.sizes(source).last() else { return String::new() };
    let fastest: Vec<String> = (group.ranking(largest, source).iter())
        .map(|cell| format!("{} {}", cell.scenario.topology, short(cell.images_per_s)))
        .collect();
    format!("Images a second with {largest} workers: {}.", fastest.join(", "))
}

/// What was measured, if anything was.
pub fn source_shown(group: &Group) -> CellSource {
    match group.sizes(CellSource::Measured).is_empty() {
        true => CellSource::Simulated,
        false => CellSource::Measured,
    }
}

fn table(groups: &[Group]) -> Table {
    let mut table = Table::new(&[
        "topology",
        "workers",
        "link and compute",
        "source",
        "step p50, ms",
        "step p99, ms",
        "images/s",
        "speed-up",
        "ignoring message-passing costs",
        "efficiency",
        "busiest node in, a step",
        "busiest node out, a step",
        "waited, ms a step",
        "staleness",
        "machine busy",
    ]);
    for group in groups {
        table.rows.extend(group.cells.iter().map(|cell| row(group, cell)));
    }
    table
}

fn row(group: &Group, cell: &Cell) -> Vec<String> {
    let none = || "–".to_owned();
    let speed_up = group.speed_up(cell);
    vec![
        cell.scenario.topology.to_string(),
        cell.scenario.workers.to_string(),
        group.condition.to_string(),
        match cell.source {
            CellSource::Measured => "measured".into(),
            CellSource::Simulated => "simulated".into(),
        },
        short(cell.step.p50),
        short(cell.step.p99),
        short(cell.images_per_s),
        speed_up.map_or_else(none, |speed_up| short(speed_up.with_messages)),
        speed_up.map_or_else(none, |speed_up| short(speed_up.without_messages)),
        speed_up.map_or_else(none, |speed_up| percent(speed_up.efficiency)),
        bytes(cell.busiest_node.received),
        bytes(cell.busiest_node.sent),
        short(cell.waited_ms),
        cell.staleness.as_ref().map_or_else(none, |staleness| {
            format!("{} (at most {})", short(staleness.mean), staleness.max)
        }),
        cell.machine_busy.map_or_else(none, percent),
    ]
}
