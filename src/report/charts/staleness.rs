//! How many versions behind gradients were when they were applied.

use crate::report::axis::Axis;
use crate::report::html::{Figure, Panel, Table};
use crate::report::numbers::{compact, short};
use crate::report::palette::Ink;
use crate::report::plot::{Mark, draw};
use crate::report::source::Sources;
use crate::report::sweep;

use super::scaling::source_shown;

/// More images than this say less; the table has them all.
const PANELS_MAX: usize = 12;

pub fn figure(sources: &Sources) -> Option<Figure> {
    let mut histograms: Vec<(String, Vec<u64>)> = (sources.runs.iter())
        .filter_map(|run| {
            let server = run.summary.as_ref()?.server.as_ref()?;
            Some((run.name.clone(), server.staleness.clone()))
        })
        .collect();
    for group in sweep::groups(&sources.cells) {
        let source = source_shown(&group);
        let Some(&largest) = group.sizes(source).last() else { continue };
        for cell in group.ranking(largest, source) {
            if let Some(staleness) = &cell.staleness {
                let link = sweep::link_name(&cell.scenario.link);
                let title = format!("{}, {largest} workers, {link}", cell.scenario.topology);
                histograms.push((title, staleness.histogram.clone()));
            }
        }
    }
    histograms.retain(|(_, counts)| counts.iter().any(|&count| count > 0));
    if histograms.is_empty() {
        return None;
    }
    let mut table = Table::new(&["", "gradients", "mean", "at most", "up to date"]);
    table.rows = histograms.iter().map(|(title, counts)| row(title, counts)).collect();
    let panels = histograms.iter().take(PANELS_MAX).map(|(title, counts)| panel(title, counts));
    Some(Figure {
        id: "staleness",
        heading: "Staleness of gradients",
        caption:
            "Share of gradients by versions that were applied between their worker's pull and \
                  their own turn, measured at each apply. A run's last bar holds all that were \
                  staler."
                .into(),
        legend: Vec::new(),
        panels: panels.collect(),
        table,
    })
}

fn mean(counts: &[u64]) -> f64 {
    let sum: f64 = (0u64..).zip(counts).map(|(behind, &count)| behind as f64 * count as f64).sum();
    sum / counts.iter().sum::<u64>().max(1) as f64
}

fn row(title: &str, counts: &[u64]) -> Vec<String> {
    let all = counts.iter().sum::<u64>();
    let largest = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
    let fresh = 100.0 * counts.first().copied().unwrap_or(0) as f64 / all.max(1) as f64;
    vec![
        title.to_owned(),
        all.to_string(),
        short(mean(counts)),
        largest.to_string(),
        format!("{} %", short(fresh)),
    ]
}

fn panel(title: &str, counts: &[u64]) -> Panel {
    let all = counts.iter().sum::<u64>().max(1) as f64;
    let last = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
    let shares: Vec<f64> = counts[..=last].iter().map(|&n| 100.0 * n as f64 / all).collect();
    let mut x = Axis::linear("versions behind", [last.max(4) as f64], true, compact);
    // Bars stand centred upon their numbers, and there are no halves between.
    x.ticks.retain(|(place, _)| place.fract() == 0.0);
    x.ends = (-0.6, last.max(4) as f64 + 0.6);
    x.ticks.retain(|(place, _)| *place <= x.ends.1);
    let y = Axis::linear("% of gradients", shares.iter().copied(), true, short);
    let bars = shares.iter().enumerate().filter(|(_, share)| **share > 0.0);
    let marks: Vec<Mark> = bars
        .map(|(behind, &share)| {
            let behind = behind as f64;
            let (from, to) = ((behind - 0.4, 0.0), (behind + 0.4, share));
            Mark::Bar { from, to, ink: Ink::Data(0) }
        })
        .collect();
    Panel {
        title: title.to_owned(),
        description: format!(
            "{} gradients, {} versions behind on average, {last} at most.",
            all,
            short(mean(counts))
        ),
        svg: draw(&x, &y, 220, &marks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_counts_gradients() {
        assert_eq!(row("a", &[1, 2, 1, 0]), ["a", "4", "1", "2", "25 %"]);
        assert_eq!(row("none", &[]), ["none", "0", "0", "0", "0 %"]);
    }
}
