//! What was simulated beside what was measured, cell by cell.

use crate::report::axis::Axis;
use crate::report::html::{Figure, LegendEntry, Panel, Table};
use crate::report::numbers::{percent, short};
use crate::report::palette::Ink;
use crate::report::plot::{Mark, Marker, Stroke, draw};
use crate::report::source::Sources;
use crate::report::sweep::{self, Condition, Pair};

use super::curves;

pub fn figure(sources: &Sources) -> Option<Figure> {
    let pairs = sweep::pairs(&sources.cells);
    let median = sweep::median_error(&pairs)?;
    let topologies = sweep::topologies(&sources.cells);
    let times = || pairs.iter().flat_map(|pair| [pair.measured, pair.simulated]);
    let axis = |name| Axis::logarithmic(name, times().map(|cell| cell.step.p50), short);
    let (x, y) = (axis("measured step, ms"), axis("simulated step, ms"));
    let (low, high) = x.ends;
    let mut marks = vec![Mark::Line {
        points: vec![(low, low), (high, high)],
        ink: Ink::Axis,
        stroke: Stroke::Dashed,
        marker: Marker::None,
    }];
    for (index, topology) in topologies.iter().enumerate() {
        let of_topology = |pair: &&Pair<'_>| pair.measured.scenario.topology == *topology;
        let place = |pair: &Pair<'_>| {
            Some((x.place(pair.measured.step.p50)?, y.place(pair.simulated.step.p50)?))
        };
        marks.push(Mark::Line {
            points: pairs.iter().filter(of_topology).filter_map(place).collect(),
            ink: Ink::Data(index),
            stroke: Stroke::None,
            marker: Marker::of(index),
        });
    }
    let mut legend: Vec<LegendEntry> = curves::legend(&topologies)
        .into_iter()
        .map(|entry| LegendEntry { stroke: Stroke::None, ..entry })
        .collect();
    legend.push(LegendEntry {
        name: "equal".into(),
        ink: Ink::Axis,
        stroke: Stroke::Dashed,
        marker: Marker::None,
    });
    let mut table = Table::new(&["topology", "workers", "link and compute"]);
    table.columns.extend(["measured, ms", "simulated, ms", "error"].map(str::to_owned));
    table.rows = pairs.iter().map(row).collect();
    Some(Figure {
        id: "agreement",
        heading: "Simulated beside measured",
        caption: format!(
            "Median step of each cell that was both measured and simulated. The middle one of {} \
             errors is {}.",
            pairs.len(),
            percent(median)
        ),
        legend,
        panels: vec![Panel {
            title: String::new(),
            description: format!(
                "Simulated over measured step times of {} cells, around the line where both are \
                 equal.",
                pairs.len()
            ),
            svg: draw(&x, &y, 340, &marks),
        }],
        table,
    })
}

fn row(pair: &Pair<'_>) -> Vec<String> {
    let scenario = &pair.measured.scenario;
    let sign = if pair.error > 0.0 { "+" } else { "" };
    vec![
        scenario.topology.to_string(),
        scenario.workers.to_string(),
        Condition::of(scenario).to_string(),
        short(pair.measured.step.p50),
        short(pair.simulated.step.p50),
        format!("{sign}{}", percent(pair.error)),
    ]
}
