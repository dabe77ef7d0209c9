//! Accuracy over steps, and over the time that they took.

use crate::report::axis::Axis;
use crate::report::html::{Figure, LegendEntry, Panel, Table};
use crate::report::numbers::{compact, short};
use crate::report::palette::Ink;
use crate::report::plot::{Mark, Marker, Stroke, draw};
use crate::report::source::Sources;
use crate::train::metrics::EpochReport;

pub fn figure(sources: &Sources) -> Option<Figure> {
    let epochs = || sources.runs.iter().flat_map(|run| &run.epochs);
    epochs().next()?;
    let y = Axis::linear("right answers, %", epochs().map(percent), false, short);
    let over = |x: Axis, title: &str, place: fn(&EpochReport) -> f64| {
        let marks: Vec<Mark> = (sources.runs.iter().enumerate())
            .filter(|(_, run)| !run.epochs.is_empty())
            .map(|(index, run)| Mark::Line {
                points: run.epochs.iter().map(|epoch| (place(epoch), percent(epoch))).collect(),
                ink: Ink::Data(index),
                stroke: Stroke::Solid,
                marker: Marker::of(index),
            })
            .collect();
        Panel {
            title: title.into(),
            description: format!("Test accuracy of each run, {title}."),
            svg: draw(&x, &y, 280, &marks),
        }
    };
    let (steps, seconds) = (|e: &EpochReport| e.step as f64, |e: &EpochReport| e.wall_s);
    let panels = vec![
        over(Axis::linear("steps", epochs().map(steps), true, compact), "over steps", steps),
        over(Axis::linear("seconds", epochs().map(seconds), true, compact), "over time", seconds),
    ];
    let mut table = Table::new(&["run", "epoch", "seconds", "accuracy", "images/s"]);
    let mut legend = Vec::new();
    for (index, run) in sources.runs.iter().enumerate() {
        legend.push(LegendEntry {
            name: run.name.clone(),
            ink: Ink::Data(index),
            stroke: Stroke::Solid,
            marker: Marker::of(index),
        });
        table.rows.extend(run.epochs.iter().map(|epoch| {
            let accuracy = format!("{:.2} %", percent(epoch));
            let speed = short(epoch.images_per_s);
            vec![
                run.name.clone(),
                epoch.epoch.to_string(),
                format!("{:.1}", epoch.wall_s),
                accuracy,
                speed,
            ]
        }));
    }
    Some(Figure {
        id: "accuracy",
        heading: "Accuracy",
        caption:
            "Over the whole test set, at the end of each epoch. Runs of one configuration have \
                  the same curve over steps, however many workers made them; over time they differ."
                .into(),
        legend,
        panels,
        table,
    })
}

fn percent(epoch: &EpochReport) -> f64 {
    100.0 * epoch.test_accuracy
}
