//! Loss over steps: of the batches trained on, and of the test set.

use crate::report::axis::Axis;
use crate::report::html::{Figure, LegendEntry, Panel, Table};
use crate::report::numbers::{compact, short};
use crate::report::palette::Ink;
use crate::report::plot::{Mark, Marker, Stroke, draw};
use crate::report::source::{Run, Sources};

/// Points of a curve; more are averaged, since no screen shows them.
const POINTS_MAX: usize = 300;

pub fn figure(sources: &Sources) -> Option<Figure> {
    let curves: Vec<Curve> = sources.runs.iter().map(Curve::of).collect();
    let points = || curves.iter().flat_map(|curve| curve.train.iter().chain(&curve.test));
    points().next()?;
    let x = Axis::linear("steps", points().map(|point| point.0), true, compact);
    let y = Axis::linear("cross-entropy", points().map(|point| point.1), true, short);
    let (mut marks, mut legend) = (Vec::new(), Vec::new());
    let mut table = Table::new(&["run", "epoch", "steps", "train loss", "test loss"]);
    for (index, (run, curve)) in sources.runs.iter().zip(curves).enumerate() {
        let (ink, marker) = (Ink::Data(index), Marker::of(index));
        let entry = |name, stroke, marker| LegendEntry { name, ink, stroke, marker };
        if !curve.train.is_empty() {
            let (stroke, none) = (Stroke::Solid, Marker::None);
            legend.push(entry(format!("{}, batches", run.name), stroke, none));
            marks.push(Mark::Line { points: curve.train, ink, stroke, marker: none });
        }
        if !curve.test.is_empty() {
            let stroke = Stroke::Dashed;
            legend.push(entry(format!("{}, test set", run.name), stroke, marker));
            marks.push(Mark::Line { points: curve.test, ink, stroke, marker });
        }
        table.rows.extend(run.epochs.iter().map(|epoch| {
            let figures = [epoch.train_loss, epoch.test_loss].map(|loss| format!("{loss:.4}"));
            let [train, test] = figures;
            vec![run.name.clone(), epoch.epoch.to_string(), epoch.step.to_string(), train, test]
        }));
    }
    let names: Vec<&str> = sources.runs.iter().map(|run| run.name.as_str()).collect();
    Some(Figure {
        id: "loss",
        heading: "Loss",
        caption: "Solid: of the batches trained on. Dashed, with a mark an epoch: of the test set."
            .into(),
        legend,
        panels: vec![Panel {
            title: String::new(),
            description: format!("Loss over steps of {}.", names.join(", ")),
            svg: draw(&x, &y, 280, &marks),
        }],
        table,
    })
}

/// Steps and losses.
struct Curve {
    train: Vec<(f64, f64)>,
    test: Vec<(f64, f64)>,
}

impl Curve {
    fn of(run: &Run) -> Curve {
        let train: Vec<_> = run.steps.iter().map(|s| (s.step as f64, s.loss)).collect();
        let test = run.epochs.iter().map(|epoch| (epoch.step as f64, epoch.test_loss));
        Curve { train: thinned(&train), test: test.collect() }
    }
}

/// Means of so many neighbours that few enough points are left.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let together = points.len().div_ceil(POINTS_MAX).max(1);
    let mean = |neighbours: &[(f64, f64)]| {
        let count = neighbours.len() as f64;
        let sum = neighbours.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
        (sum.0 / count, sum.1 / count)
    };
    points.chunks(together).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_curves_are_averaged_and_short_ones_left() {
        let line: Vec<_> = (0..1_000).map(|i| (f64::from(i), 2.0 * f64::from(i))).collect();
        let thin = thinned(&line);
        assert_eq!(thin.len(), 250);
        assert_eq!(thin[0], (1.5, 3.0));
        assert_eq!(thinned(&line[..3]), line[..3]);
        assert!(thinned(&[]).is_empty());
    }
}
