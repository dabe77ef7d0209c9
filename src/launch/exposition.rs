//! A run's progress in the words of Prometheus.

use std::fmt;
use std::sync::{Arc, Mutex};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};

use crate::train::event::{Event, Observer, Started};
use crate::train::progress::{Progress, STEP_SECONDS};

/// What the text's `Content-Type` is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is known of a run, shared between whoever observes it and whoever serves it.
#[derive(Clone, Debug, Default)]
pub struct Exposition(Arc<Mutex<Known>>);

#[derive(Clone, Debug, Default)]
struct Known {
    started: Option<Started>,
    progress: Progress,
}

impl Exposition {
    /// Passes events on, and keeps what is served of them.
    pub fn observing<'a>(&self, observer: &'a mut dyn Observer) -> Exposing<'a> {
        Exposing { exposition: self.clone(), observer }
    }

    /// In the OpenMetrics text format, which Prometheus reads.
    pub fn text(&self) -> String {
        let mut registry = Registry::with_prefix("annulet");
        registry.register_collector(Box::new(self.known()));
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("a string takes any text");
        text
    }

    fn known(&self) -> Known {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

/// An observer between a run and its display.
pub struct Exposing<'a> {
    exposition: Exposition,
    observer: &'a mut dyn Observer,
}

impl Observer for Exposing<'_> {
    fn event(&mut self, event: Event) {
        let mut known = self.exposition.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match &event {
            Event::Started(started) => known.started = Some(started.clone()),
            Event::Progress(progress) => known.progress = (**progress).clone(),
            _ => {}
        }
        drop(known);
        self.observer.event(event);
    }
}

impl Collector for Known {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let progress = &self.progress;
        if let Some(Started { engine, dataset, .. }) = &self.started {
            let info = Info::new(vec![
                ("version", env!("CARGO_PKG_VERSION").to_owned()),
                ("adapter", engine.adapter.clone()),
                ("backend", engine.backend.clone()),
                ("kernels", engine.kernels.clone()),
                ("dataset", dataset.clone()),
            ]);
            describe(&mut encoder, "run", "What computes, and on which data", None, &info)?;
        }
        let mut counter = |name, help, unit: Option<&Unit>, value: f64| {
            describe(&mut encoder, name, help, unit, &ConstCounter::new(value))
        };
        let (seconds, bytes) = (Some(&Unit::Seconds), Some(&Unit::Bytes));
        let sums = &progress.traffic;
        counter("steps", "Steps completed by this process", None, progress.steps as f64)?;
        counter("samples", "Samples trained on, over all workers", None, progress.samples as f64)?;
        counter("redone_steps", "Steps made anew", None, progress.redone_steps as f64)?;
        counter("compute", "Computing gradients", seconds, progress.compute_seconds)?;
        counter("communication", "Waiting for others", seconds, progress.comm_seconds)?;
        counter("sent", "Sent by this node", bytes, sums.bytes_sent as f64)?;
        counter("received", "Received by this node", bytes, sums.bytes_received as f64)?;

        let mut gauge = |name, help, unit: Option<&Unit>, value: f64| {
            describe(&mut encoder, name, help, unit, &ConstGauge::new(value))
        };
        gauge("loss", "Mean cross-entropy of the last step", None, progress.loss)?;
        gauge("learning_rate", "Of the last step", None, f64::from(progress.lr))?;
        gauge("epoch", "The last step's, from 1", None, progress.epoch as f64)?;
        gauge("images_per_second", "All workers', last step", None, progress.images_per_s)?;
        gauge("workers", "Workers that take part", None, progress.workers as f64)?;
        gauge("view_generation", "Of the workers' view", None, f64::from(progress.generation))?;
        if let (Some(loss), Some(accuracy)) = (progress.test_loss, progress.test_accuracy) {
            gauge("test_loss", "Of the last evaluation", None, loss)?;
            gauge("test_accuracy_ratio", "Right answers, of 1", None, accuracy)?;
        }
        describe(&mut encoder, "step", "Of each step", seconds, &StepTimes(progress))
    }
}

fn describe(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    metric: &impl EncodeMetric,
) -> Result<(), fmt::Error> {
    metric.encode(encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
}

/// The histogram of step times.
struct StepTimes<'a>(&'a Progress);

impl EncodeMetric for StepTimes<'_> {
    fn encode(
        &self,
        mut encoder: prometheus_client::encoding::MetricEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let ends = STEP_SECONDS.into_iter().chain([f64::INFINITY]);
        let classes: Vec<(f64, u64)> = ends.zip(self.0.step_counts).collect();
        encoder.encode_histogram::<NoLabelSet>(self.0.step_seconds, self.0.steps, &classes, None)
    }

    fn metric_type(&self) -> MetricType {
        <Self as TypedMetric>::TYPE
    }
}

impl TypedMetric for StepTimes<'_> {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_in_the_format_of_prometheus() {
        let exposition = Exposition::default();
        let mut step_counts = [0; STEP_SECONDS.len() + 1];
        (step_counts[4], step_counts[5]) = (2, 1);
        let progress = Progress {
            steps: 3,
            samples: 192,
            step_counts,
            step_seconds: 0.05,
            loss: 0.5,
            test_loss: Some(0.4),
            test_accuracy: Some(0.75),
            workers: 3,
            generation: 2,
            ..Progress::default()
        };
        let mut passed = 0;
        let mut count = |_: Event| passed += 1;
        exposition.observing(&mut count).event(Event::Progress(Box::new(progress)));
        assert_eq!(passed, 1, "the display sees all events");
        let text = exposition.text();
        for line in [
            "# TYPE annulet_steps counter",
            "annulet_steps_total 3.0",
            "annulet_samples_total 192.0",
            "annulet_loss 0.5",
            "annulet_test_accuracy_ratio 0.75",
            "annulet_workers 3.0",
            "annulet_view_generation 2.0",
            "# TYPE annulet_step_seconds histogram",
            "annulet_step_seconds_sum 0.05",
            "annulet_step_seconds_count 3",
            "annulet_step_seconds_bucket{le=\"0.016\"} 2",
            "annulet_step_seconds_bucket{le=\"0.032\"} 3",
            "annulet_step_seconds_bucket{le=\"+Inf\"} 3",
            "# TYPE annulet_compute_seconds counter",
            "# UNIT annulet_sent_bytes bytes",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
