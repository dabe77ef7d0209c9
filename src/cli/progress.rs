//! The one display of a run: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::train::engine::EngineDescription;
use crate::train::event::{Event, Observer, Started};
use crate::train::metrics::{EpochReport, RunSummary};
use crate::train::synthetic::SYNTHETIC;

use super::output::{note, result};

/// Between two plain lines where there is no terminal.
const PLAIN_INTERVAL: Duration = Duration::from_secs(2);

/// Shows a run's events: epochs as lines on stdout, everything else on stderr.
pub struct Display {
    /// With `--json` stdout belongs to the summary, so epochs go to stderr.
    json: bool,
    bar: Option<ProgressBar>,
    terminal: bool,
    started: Option<Started>,
    last_plain: Instant,
}

impl Display {
    pub fn new(json: bool) -> Display {
        Display {
            json,
            bar: None,
            terminal: std::io::stderr().is_terminal(),
            started: None,
            last_plain: Instant::now(),
        }
    }

    fn started(&mut self, started: Started) {
        let EngineDescription { adapter, backend, kernels, .. } = &started.engine;
        let computes = match kernels.as_str() {
            SYNTHETIC => SYNTHETIC.to_owned(),
            _ => format!("{adapter} ({backend}, {kernels} kernels)"),
        };
        self.note(&format!(
            "{computes}, {}: {} training and {} test images, {} {}",
            started.dataset,
            grouped(started.train_samples as u64),
            grouped(started.test_samples as u64),
            started.workers,
            if started.workers == 1 { "worker" } else { "workers" },
        ));
        if self.terminal {
            let bar = self.bar(started.total_steps);
            bar.set_style(style(
                "step {pos}/{len} [{bar:30}] {msg}  {elapsed} elapsed, {eta} left",
            ));
            bar.set_position(started.first_step);
            bar.reset_eta();
        }
        self.started = Some(started);
    }

    fn pipelines(&mut self, done: usize, total: usize) {
        if self.terminal {
            let bar = self.bar(total as u64);
            bar.set_style(style("compiling kernels {pos}/{len} [{bar:30}]"));
            bar.set_position(done as u64);
        } else if done == total {
            self.note(&format!("compiled {total} kernels"));
        }
    }

    fn bar(&mut self, length: u64) -> &ProgressBar {
        let bar = self.bar.get_or_insert_with(|| {
            ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr())
        });
        bar.set_length(length);
        bar
    }

    fn epoch(&mut self, report: &EpochReport) {
        let epochs = self
            .started
            .as_ref()
            .map_or(0, |started| started.total_steps.div_ceil(started.steps_per_epoch.max(1)));
        let tested = format!(
            "test loss {:.4}  accuracy {:.2} %",
            report.test_loss,
            100.0 * report.test_accuracy
        );
        let line = match report.images_per_s > 0.0 {
            true => format!(
                "epoch {:>3}/{epochs}  loss {:.4}  {tested}  {:>7} images/s  compute {:.2} ms  \
                 comm {:.2} ms  {:.1} s",
                report.epoch,
                report.train_loss,
                grouped(report.images_per_s as u64),
                report.compute_ms,
                report.comm_ms,
                report.wall_s,
            ),
            // A run that was over when it was resumed: tested once more, and nothing trained.
            false => format!("epoch {:>3}/{epochs}  {tested}", report.epoch),
        };
        if self.json { self.note(&line) } else { self.result(&line) }
    }

    fn finished(&mut self, summary: &RunSummary) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        if !self.json {
            let synthetic = match summary.kernels == SYNTHETIC {
                true => format!(", {SYNTHETIC}"),
                false => String::new(),
            };
            let speed = match summary.images_per_s > 0.0 {
                true => format!("{} images/s", grouped(summary.images_per_s as u64)),
                false => "none of them now".to_owned(),
            };
            self.result(&format!(
                "{} steps in {:.1} s, {speed}, accuracy {:.2} %, params_sha256 {}{synthetic}",
                grouped(summary.steps),
                summary.wall_s,
                100.0 * summary.test_accuracy,
                summary.params_sha256,
            ));
        }
        wait_table(summary).iter().for_each(|line| self.note(line));
    }

    /// A line on stderr, above the bar.
    fn note(&self, line: &str) {
        self.above_bar(|| note(line));
    }

    /// A line on stdout, above the bar.
    fn result(&self, line: &str) {
        self.above_bar(|| {
            // A full disk is no reason to end a run whose results are also in its folder.
            let _ = result(&format!("{line}\n"));
        });
    }

    fn above_bar(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Observer for Display {
    fn event(&mut self, event: Event) {
        match event {
            Event::Notice { text } => self.note(&text),
            Event::Pipelines { done, total } => self.pipelines(done, total),
            Event::Started(started) => self.started(started),
            Event::Step(report) => {
                let message = format!("loss {:.4}  {:.1} ms a step", report.loss, report.step_ms);
                if let Some(bar) = &self.bar {
                    bar.set_position(report.step);
                    bar.set_message(message);
                } else if self.last_plain.elapsed() >= PLAIN_INTERVAL {
                    self.last_plain = Instant::now();
                    let total = self.started.as_ref().map_or(0, |s| s.total_steps);
                    self.note(&format!("step {}/{total}  {message}", report.step));
                }
            }
            Event::Progress(_) => {}
            Event::Epoch(report) => self.epoch(&report),
            Event::Checkpoint { path, .. } => {
                tracing::info!("wrote {}", path.display());
            }
            Event::Finished(summary) => self.finished(&summary),
        }
    }
}

/// Workers whose waits are shown; beyond, `run.json` has them.
const WAITERS_SHOWN: usize = 16;

/// Who waited for whom, and how stale gradients were: a line a worker.
fn wait_table(summary: &RunSummary) -> Vec<String> {
    if summary.workers < 2 {
        return Vec::new();
    }
    let steps = summary.steps_made.max(1) as f64;
    let mut lines: Vec<String> = (summary.waited_ms.iter().enumerate())
        .take(WAITERS_SHOWN)
        .map(|(rank, waits)| {
            let mut whom: Vec<(usize, f64)> =
                waits.iter().map(|ms| ms / steps).enumerate().filter(|(_, ms)| *ms > 0.0).collect();
            whom.sort_by(|a, b| b.1.total_cmp(&a.1));
            // `sum` of nothing is -0.0, which is printed with its sign.
            let all = whom.iter().fold(0.0, |all, (_, ms)| all + ms);
            let whom: Vec<String> = whom
                .iter()
                .take(3)
                .map(|(other, ms)| format!("{ms:.1} for worker {other}"))
                .collect();
            let whom =
                if whom.is_empty() { String::new() } else { format!(": {}", whom.join(", ")) };
            format!("worker {rank} waited {all:.1} ms a step for others{whom}")
        })
        .collect();
    if let Some(server) = &summary.server {
        let all = server.staleness.iter().sum::<u64>().max(1) as f64;
        let shares: Vec<String> = (server.staleness.iter().enumerate())
            .filter(|(_, count)| **count > 0)
            .map(|(staleness, &count)| format!("{staleness}: {:.1} %", 100.0 * count as f64 / all))
            .collect();
        lines.push(format!("staleness of gradients: {}", shares.join("  ")));
        if server.dropped > 0 {
            lines.push(format!("{} gradients came too late to count", server.dropped));
        }
    }
    lines
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .expect("the templates are constants")
        .progress_chars("=> ")
}

/// A count with commas between groups of three digits.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
    }
}
