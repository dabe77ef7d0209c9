//! Bytes through the busiest node over workers: flat in a ring, linear at a server.

use crate::report::html::{Figure, Panel, Table};
use crate::report::numbers::bytes;
use crate::report::source::Sources;
use crate::report::sweep::{self, Group};
use crate::simulate::cell::Cell;

use super::curves::{HOW_DRAWN, curves, legend};
use super::scaling::source_shown;

pub fn figure(sources: &Sources) -> Option<Figure> {
    let topologies = sweep::topologies(&sources.cells);
    // Bytes do not depend on links and compute: gradients of one size are shown once.
    let mut groups: Vec<Group> = Vec::new();
    for group in sweep::groups(&sources.cells) {
        let same = |other: &Group| other.condition.elements == group.condition.elements;
        match groups.iter_mut().find(|other| same(other)) {
            Some(first) if first.cells.len() >= group.cells.len() => {}
            Some(first) => *first = group,
            None => groups.push(group),
        }
    }
    if groups.is_empty() {
        return None;
    }
    let panels = groups.iter().map(|group| Panel {
        title: format!("gradient of {}", bytes(4.0 * group.condition.elements as f64)),
        description: "Kilobytes sent and received a step by the busiest node, over workers.".into(),
        svg: curves(group, &topologies, "kB a step, in and out", kilobytes, &[]),
    });
    let mut table = Table::new(&["topology", "workers", "gradient", "in", "out"]);
    for group in &groups {
        let source = source_shown(group);
        for cell in group.cells.iter().filter(|cell| cell.source == source) {
            table.rows.push(vec![
                cell.scenario.topology.to_string(),
                cell.scenario.workers.to_string(),
                bytes(4.0 * group.condition.elements as f64),
                bytes(cell.busiest_node.received),
                bytes(cell.busiest_node.sent),
            ]);
        }
    }
    Some(Figure {
        id: "busiest-node",
        heading: "Bytes of the busiest node",
        caption: format!(
            "Sent and received a step by the node through which most goes; both axes are \
             logarithmic. Alone nothing is sent in a ring. {HOW_DRAWN}"
        ),
        legend: legend(&topologies),
        panels: panels.collect(),
        table,
    })
}

fn kilobytes(cell: &Cell) -> f64 {
    (cell.busiest_node.sent + cell.busiest_node.received) / 1e3
}
