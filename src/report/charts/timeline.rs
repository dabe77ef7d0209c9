//! What each worker did when, in a few steps.

use crate::report::axis::Axis;
use crate::report::html::{Figure, LegendEntry, Panel, Table};
use crate::report::numbers::short;
use crate::report::palette::Ink;
use crate::report::plot::{Mark, draw};
use crate::report::source::{Run, Sources};
use crate::train::timeline::{Trace, TraceEvent};

/// Steps that are shown, from about this one on: the first ones are slow.
const STEPS_SHOWN: u64 = 3;
const FIRST_SHOWN: u64 = 10;

/// More workers have no room.
const WORKERS_MAX: usize = 8;

/// Categories, with the name and colour of each.
const KINDS: [(&str, &str, Ink); 4] = [
    ("compute", "compute", Ink::Data(0)),
    ("communication", "a bucket on its way", Ink::Data(1)),
    ("waiting", "waiting for others", Ink::Data(3)),
    ("optimizer", "optimizer", Ink::Data(2)),
];

pub fn figure(sources: &Sources) -> Option<Figure> {
    let shown: Vec<Excerpt<'_>> = sources.runs.iter().filter_map(Excerpt::of).collect();
    if shown.is_empty() {
        return None;
    }
    let mut table = Table::new(&["run", "worker", "of the shown steps", "ms", "% of the time"]);
    table.rows = shown.iter().flat_map(Excerpt::rows).collect();
    Some(Figure {
        id: "timeline",
        heading: "A few steps across workers",
        caption:
            "Two rows a worker: what it computes or waits for, and the buckets of its gradient \
                  that are on their way meanwhile. The whole trace is in the run's timeline.json, \
                  for ui.perfetto.dev or chrome://tracing."
                .into(),
        legend: KINDS.map(|(_, name, ink)| LegendEntry::area(name, ink)).to_vec(),
        panels: shown.iter().map(Excerpt::panel).collect(),
        table,
    })
}

/// The spans of some steps.
struct Excerpt<'a> {
    run: &'a str,
    steps: (u64, u64),
    spans: Vec<&'a TraceEvent>,
    /// Ascending.
    workers: Vec<u64>,
    /// Microseconds.
    began: f64,
    ended: f64,
}

impl Excerpt<'_> {
    fn of(run: &Run) -> Option<Excerpt<'_>> {
        let (first, last) = steps(run.timeline.as_ref()?)?;
        let in_steps = |event: &&TraceEvent| {
            event.ph == "X" && event.args.step.is_some_and(|step| (first..=last).contains(&step))
        };
        let spans: Vec<&TraceEvent> =
            run.timeline.as_ref()?.trace_events.iter().filter(in_steps).collect();
        let mut workers: Vec<u64> = spans.iter().map(|span| span.pid).collect();
        workers.sort_unstable();
        workers.dedup();
        workers.truncate(WORKERS_MAX);
        let began = spans.iter().map(|span| span.ts).fold(f64::INFINITY, f64::min);
        let ended = spans.iter().map(|span| span.ts + span.dur).fold(f64::NEG_INFINITY, f64::max);
        (ended > began).then_some(Excerpt {
            run: &run.name,
            steps: (first, last),
            spans,
            workers,
            began,
            ended,
        })
    }

    fn panel(&self) -> Panel {
        let of_row = |worker: &u64| [format!("worker {worker}"), "network".to_owned()];
        let rows: Vec<String> = self.workers.iter().flat_map(of_row).collect();
        let ms = |us: f64| (us - self.began) / 1e3;
        let x = Axis::linear("ms", [ms(self.ended)], true, short);
        let y = Axis::rows(&rows);
        let mut marks = Vec::new();
        for span in &self.spans {
            let Some(worker) = self.workers.iter().position(|&worker| worker == span.pid) else {
                continue;
            };
            let kind = KINDS.iter().find(|(category, _, _)| *category == span.cat);
            let Some((category, _, ink)) = kind else { continue };
            let on_its_way = *category == "communication";
            let middle = Axis::row(rows.len(), 2 * worker + usize::from(on_its_way));
            // Buckets travel at once: one above the other.
            let (below, above) = match (on_its_way, span.tid % 2) {
                (false, _) => (0.4, 0.4),
                (true, 1) => (-0.02, 0.4),
                (true, _) => (0.4, -0.02),
            };
            marks.push(Mark::Bar {
                from: (ms(span.ts), middle - below),
                to: (ms(span.ts + span.dur), middle + above),
                ink: *ink,
            });
        }
        let (first, last) = self.steps;
        Panel {
            title: format!("{}, steps {first} to {last}", self.run),
            description: format!(
                "{} workers in steps {first} to {last}, which took {} ms.",
                self.workers.len(),
                short(ms(self.ended))
            ),
            svg: draw(&x, &y, 52 + 20 * rows.len() as u32, &marks),
        }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let all = self.ended - self.began;
        let row = |worker: u64, category: &str, name: &str| {
            let spans = self.spans.iter();
            let of_both = spans.filter(|span| span.pid == worker && span.cat == category);
            let us: f64 = of_both.map(|span| span.dur).sum();
            let share = short(100.0 * us / all);
            vec![self.run.to_owned(), worker.to_string(), name.to_owned(), short(us / 1e3), share]
        };
        let kinds =
            |&worker: &u64| KINDS.map(|(category, name, _)| row(worker, category, name)).to_vec();
        self.workers.iter().flat_map(kinds).collect()
    }
}

/// The first and the last step that are shown: of all steps with spans, some early ones in a row.
fn steps(trace: &Trace) -> Option<(u64, u64)> {
    let mut steps: Vec<u64> = trace.trace_events.iter().filter_map(|e| e.args.step).collect();
    steps.sort_unstable();
    steps.dedup();
    let late = steps.iter().find(|&&step| step >= steps[0].saturating_add(FIRST_SHOWN));
    let first = *late.or(steps.first())?;
    Some((first, first.saturating_add(STEPS_SHOWN - 1)))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::report::testing::run;
    use crate::train::timeline::{Timeline, Track};

    fn traced(steps: std::ops::Range<u64>) -> Trace {
        Trace::joined((0..2).map(|worker| {
            let timeline = Timeline::recording();
            for step in steps.clone() {
                let began = timeline.span(Track::Compute(0), step, Instant::now());
                timeline.span(Track::Communication(0), step, began);
            }
            timeline.trace(worker)
        }))
    }

    #[test]
    fn some_early_steps_are_shown() {
        assert_eq!(steps(&traced(0..40)), Some((11, 13)));
        assert_eq!(steps(&traced(20..22)), Some((21, 23)), "short runs from their start");
        assert_eq!(steps(&Trace::default()), None);
    }

    #[test]
    fn each_worker_has_its_rows() {
        let mut sources = Sources { runs: vec![run("a", 2, 1.0, 0.5)], cells: Vec::new() };
        assert!(figure(&sources).is_none());
        sources.runs[0].timeline = Some(traced(0..40));
        let figure = figure(&sources).unwrap();
        assert_eq!(figure.table.rows.len(), 2 * KINDS.len());
        assert_eq!(figure.panels.len(), 1);
        assert!(figure.panels[0].svg.contains("worker 1"), "{}", figure.panels[0].svg);
        assert!(figure.panels[0].title.contains("steps 11 to 13"));
    }
}
