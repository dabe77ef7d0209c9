//! Where a step's time goes: computing, communication that nothing hides, waiting for others.

use crate::report::axis::Axis;
use crate::report::html::{Figure, LegendEntry, Panel, Table};
use crate::report::numbers::short;
use crate::report::palette::Ink;
use crate::report::plot::{Mark, draw};
use crate::report::source::Sources;
use crate::report::sweep;
use crate::train::metrics::RunSummary;

use super::scaling::source_shown;

/// The parts of a step, with their colours.
const PARTS: [(&str, Ink); 4] = [
    ("compute", Ink::Data(0)),
    ("exposed communication", Ink::Data(1)),
    ("waiting for others", Ink::Data(3)),
    ("rest", Ink::Axis),
];

/// Bars of one panel.
struct Bars {
    title: String,
    rows: Vec<(String, [f64; PARTS.len()])>,
}

pub fn figure(sources: &Sources) -> Option<Figure> {
    let runs: Vec<_> = (sources.runs.iter())
        .filter_map(|run| Some((run.name.clone(), split(run.summary.as_ref()?))))
        .collect();
    let mut panels = Vec::new();
    if !runs.is_empty() {
        panels.push(Bars { title: "runs".into(), rows: runs });
    }
    let groups = sweep::groups(&sources.cells);
    for group in &groups {
        let source = source_shown(group);
        let Some(&largest) = group.sizes(source).last() else { continue };
        let rows = (group.ranking(largest, source).iter())
            .map(|cell| {
                let (own, all) = (sweep::own_compute_ms(cell), sweep::compute_ms(cell));
                let messages = (sweep::step_ms(cell) - all).clamp(0.0, cell.waited_ms);
                let parts = [own, messages, cell.waited_ms - messages, 0.0];
                (cell.scenario.topology.to_string(), parts)
            })
            .collect();
        let condition = sweep::title(&group.condition, &groups);
        let title = format!("{largest} workers, {condition}");
        panels.push(Bars { title, rows });
    }
    if panels.is_empty() {
        return None;
    }
    let mut table = Table::new(&["step of", "", "compute, ms", "communication, ms", "waiting, ms"]);
    table.columns.push("rest, ms".into());
    for bars in &panels {
        table.rows.extend(bars.rows.iter().map(|(name, parts)| {
            let figures = parts.iter().map(|&ms| short(ms));
            [name.clone(), bars.title.clone()].into_iter().chain(figures).collect()
        }));
    }
    let used = |part: usize| panels.iter().flat_map(|bars| &bars.rows).any(|row| row.1[part] > 0.0);
    Some(Figure {
        id: "step-time",
        heading: "Where a step's time goes",
        caption: format!(
            "Mean milliseconds of a step. Exposed is what no computation hides; waiting is what \
             others computed longer. {}",
            sweep::shared(&groups)
        ),
        legend: (PARTS.iter().enumerate())
            .filter(|(part, _)| used(*part))
            .map(|(_, (name, ink))| LegendEntry::area(name, *ink))
            .collect(),
        panels: panels.iter().map(Bars::panel).collect(),
        table,
    })
}

/// Milliseconds of a run's mean step by part.
fn split(summary: &RunSummary) -> [f64; PARTS.len()] {
    let all = 1e3 * summary.config.batch as f64 / summary.images_per_s.max(f64::MIN_POSITIVE);
    // The summary is rank 0's; a server's is about all workers.
    let rows = if summary.server.is_some() { summary.waited_ms.len() } else { 1 };
    let waited: f64 = summary.waited_ms.iter().take(rows).flatten().sum();
    let waited = waited / rows.max(1) as f64 / summary.steps_made.max(1) as f64;
    let waited = waited.clamp(0.0, summary.comm_ms.max(0.0));
    let rest = (all - summary.compute_ms - summary.comm_ms).max(0.0);
    [summary.compute_ms, summary.comm_ms - waited, waited, rest]
}

impl Bars {
    fn panel(&self) -> Panel {
        let totals = self.rows.iter().map(|(_, parts)| parts.iter().sum::<f64>());
        let longest = totals.clone().fold(0.0, f64::max);
        let x = Axis::linear("ms a step", [longest * 1.12], true, short);
        let names: Vec<String> = self.rows.iter().map(|(name, _)| shortened(name)).collect();
        let y = Axis::rows(&names);
        let mut marks = Vec::new();
        for (index, (_, parts)) in self.rows.iter().enumerate() {
            let middle = Axis::row(names.len(), index);
            let mut at = 0.0;
            for (ms, (_, ink)) in parts.iter().zip(PARTS) {
                let (from, to) = ((at, middle - 0.32), (at + ms, middle + 0.32));
                if *ms > 0.0 {
                    marks.push(Mark::Bar { from, to, ink });
                }
                at += ms;
            }
            marks.push(Mark::Text { at: (at + longest * 0.015, middle), text: short(at) });
        }
        let sentence: Vec<String> = self
            .rows
            .iter()
            .zip(totals)
            .map(|(row, ms)| format!("{} {}", row.0, short(ms)))
            .collect();
        Panel {
            title: self.title.clone(),
            description: format!("Milliseconds of a step: {}.", sentence.join(", ")),
            svg: draw(&x, &y, 52 + 28 * names.len() as u32, &marks),
        }
    }
}

/// A name that leaves room for the bars.
pub fn shortened(name: &str) -> String {
    const LETTERS_MAX: usize = 20;
    match name.chars().count() {
        count if count > LETTERS_MAX => {
            let head: String = name.chars().take(LETTERS_MAX - 1).collect();
            format!("{head}…")
        }
        _ => name.to_owned(),
    }
}
