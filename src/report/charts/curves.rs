//! Curves over workers, one a topology, with what was measured and what was simulated.

use crate::report::axis::Axis;
use crate::report::html::LegendEntry;
use crate::report::numbers::compact;
use crate::report::palette::Ink;
use crate::report::plot::{Mark, Marker, Stroke, draw};
use crate::report::sweep::Group;
use crate::simulate::cell::{Cell, CellSource};
use crate::simulate::scenario::Topology;

/// Solid lines with marks are measured, dashed ones simulated.
pub const HOW_DRAWN: &str = "Solid, with marks: measured. Dashed: simulated.";

/// Of each topology in its colour, `value` over workers, both axes logarithmic. `beside` is drawn
/// behind them in grey.
pub fn curves(
    group: &Group,
    topologies: &[Topology],
    value_name: &str,
    value: fn(&Cell) -> f64,
    beside: &[(f64, f64)],
) -> String {
    let workers = group.cells.iter().map(|cell| cell.scenario.workers as f64);
    let x = Axis::at_values("workers", workers);
    let values = group.cells.iter().map(value).chain(beside.iter().map(|point| point.1));
    let y = Axis::logarithmic(value_name, values, compact);
    let placed = |(workers, value): (f64, f64)| Some((x.place(workers)?, y.place(value)?));
    let mut marks = vec![Mark::Line {
        points: beside.iter().copied().filter_map(placed).collect(),
        ink: Ink::Axis,
        stroke: Stroke::Dashed,
        marker: Marker::None,
    }];
    for (index, &topology) in topologies.iter().enumerate() {
        for (source, stroke, marker) in [
            (CellSource::Simulated, Stroke::Dashed, Marker::None),
            (CellSource::Measured, Stroke::Solid, Marker::of(index)),
        ] {
            let cells = group.series(topology, source);
            let points = cells.iter().map(|cell| (cell.scenario.workers as f64, value(cell)));
            let points: Vec<_> = points.filter_map(placed).collect();
            // A line of one point would not be seen.
            let marker = if points.len() == 1 { Marker::of(index) } else { marker };
            marks.push(Mark::Line { points, ink: Ink::Data(index), stroke, marker });
        }
    }
    draw(&x, &y, 300, &marks)
}

/// An entry a topology.
pub fn legend(topologies: &[Topology]) -> Vec<LegendEntry> {
    let entry = |(index, topology): (usize, &Topology)| LegendEntry {
        name: topology.to_string(),
        ink: Ink::Data(index),
        stroke: Stroke::Solid,
        marker: Marker::of(index),
    };
    topologies.iter().enumerate().map(entry).collect()
}
