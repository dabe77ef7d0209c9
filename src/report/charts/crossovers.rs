//! Who is fastest, by condition and number of workers: where the colour changes, curves cross.

use crate::report::axis::Axis;
use crate::report::html::{Figure, LegendEntry, Panel, Table};
use crate::report::numbers::{count, short};
use crate::report::palette::Ink;
use crate::report::plot::{Mark, draw};
use crate::report::source::Sources;
use crate::report::sweep::{self, Group};
use crate::simulate::cell::{Cell, CellSource};
use crate::simulate::scenario::Topology;

use super::step_time::shortened;

pub fn figure(sources: &Sources) -> Option<Figure> {
    let groups = sweep::groups(&sources.cells);
    let topologies = sweep::topologies(&sources.cells);
    let mut sizes: Vec<usize> = groups.iter().flat_map(sizes_compared).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.is_empty() {
        return None;
    }
    let titles: Vec<String> =
        groups.iter().map(|group| sweep::title(&group.condition, &groups)).collect();
    let names: Vec<String> = titles.iter().map(|title| shortened(title)).collect();
    let y = Axis::rows(&names);
    let columns: Vec<String> = sizes.iter().map(|&workers| count(workers)).collect();
    let x = Axis::columns("workers", &columns);
    let mut marks = Vec::new();
    let mut winners: Vec<Topology> = Vec::new();
    let mut table =
        Table::new(&["link", "workers", "fastest", "images/s", "next", "times the next"]);
    for (row, (group, title)) in groups.iter().zip(&titles).enumerate() {
        for (column, &workers) in sizes.iter().enumerate() {
            let Some((first, second)) = best_two(group, workers) else { continue };
            let topology = first.scenario.topology;
            if !winners.contains(&topology) {
                winners.push(topology);
            }
            let color = topologies.iter().position(|other| *other == topology).unwrap_or(0);
            let (place, middle) = (column as f64, Axis::row(groups.len(), row));
            let (from, to) = ((place + 0.04, middle - 0.42), (place + 0.96, middle + 0.42));
            marks.push(Mark::Bar { from, to, ink: Ink::Data(color) });
            table.rows.push(vec![
                title.clone(),
                count(workers),
                format!("{topology}{}", of_source(first)),
                short(first.images_per_s),
                second.scenario.topology.to_string(),
                short(first.images_per_s / second.images_per_s),
            ]);
        }
    }
    let legend = (topologies.iter().enumerate())
        .filter(|(_, topology)| winners.contains(topology))
        .map(|(index, topology)| LegendEntry::area(&topology.to_string(), Ink::Data(index)))
        .collect();
    Some(Figure {
        id: "crossovers",
        heading: "Who is fastest where",
        caption: format!(
            "Most images a second, by link and number of workers: as measured, or as simulated where \
             nothing was. {}",
            sweep::shared(&groups)
        ),
        legend,
        panels: vec![Panel {
            title: String::new(),
            description: "The fastest topology for each link and each number of workers.".into(),
            svg: draw(&x, &y, 52 + 30 * names.len() as u32, &marks),
        }],
        table,
    })
}

/// Numbers of workers, from 2, for which there are two topologies to compare.
fn sizes_compared(group: &Group) -> Vec<usize> {
    let mut sizes = group.sizes(CellSource::Measured);
    sizes.extend(group.sizes(CellSource::Simulated));
    sizes.retain(|&workers| workers > 1 && best_two(group, workers).is_some());
    sizes
}

fn best_two(group: &Group, workers: usize) -> Option<(&Cell, &Cell)> {
    [CellSource::Measured, CellSource::Simulated].into_iter().find_map(|source| {
        let ranking = group.ranking(workers, source);
        Some((*ranking.first()?, *ranking.get(1)?))
    })
}

fn of_source(cell: &Cell) -> &'static str {
    match cell.source {
        CellSource::Measured => "",
        CellSource::Simulated => " (simulated)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{cell, simulated};

    #[test]
    fn the_fastest_of_each_size_is_named() {
        let cells = vec![
            cell("ring", 1, 100.0),
            cell("ring", 2, 300.0),
            cell("server", 2, 200.0),
            simulated("server", 2, 999.0),
            simulated("ring", 64, 100.0),
            simulated("server", 64, 400.0),
            cell("ring", 16, 100.0),
        ];
        let sources = Sources { runs: Vec::new(), cells };
        let rows = figure(&sources).unwrap().table.rows;
        let fastest: Vec<[&str; 4]> =
            rows.iter().map(|row| [&*row[1], &*row[2], &*row[4], &*row[5]]).collect();
        let expected = [["2", "ring", "server", "1.5"], ["64", "server (simulated)", "ring", "4"]];
        assert_eq!(fastest, expected, "nobody is compared alone or with another source");
    }

    #[test]
    fn without_rivals_there_is_no_figure() {
        let sources = Sources { runs: Vec::new(), cells: vec![cell("ring", 2, 100.0)] };
        assert!(figure(&sources).is_none());
    }
}
