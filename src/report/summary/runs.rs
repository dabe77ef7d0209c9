//! Sentences about runs beside each other.

use crate::report::numbers::short;
use crate::report::source::Run;
use crate::train::metrics::RunSummary;

use super::counted;

pub fn sentences(runs: &[Run]) -> Vec<String> {
    let finished: Vec<(&str, &RunSummary)> =
        (runs.iter()).filter_map(|run| Some((run.name.as_str(), run.summary.as_ref()?))).collect();
    let mut sentences: Vec<String> = match finished.as_slice() {
        [] => Vec::new(),
        [(name, run)] => vec![alone(name, run)],
        several => compared(several),
    };
    sentences.extend(same_bits(&finished));
    let unfinished: Vec<&str> =
        runs.iter().filter(|run| run.summary.is_none()).map(|run| run.name.as_str()).collect();
    if !unfinished.is_empty() {
        sentences
            .push(format!("Without an end, and so without a summary: {}.", unfinished.join(", ")));
    }
    sentences
}

fn alone(name: &str, run: &RunSummary) -> String {
    format!(
        "{name} reached {} of the test set right after {} in {} s, at {} images/s with {}{}.",
        accuracy(run),
        counted(run.steps as usize, "step"),
        short(run.wall_s),
        short(run.images_per_s),
        counted(run.workers, "worker"),
        interrupted(run),
    )
}

fn compared(runs: &[(&str, &RunSummary)]) -> Vec<String> {
    let by_speed = |a: &&(&str, &RunSummary), b: &&(&str, &RunSummary)| {
        a.1.images_per_s.total_cmp(&b.1.images_per_s)
    };
    let by_accuracy = |a: &&(&str, &RunSummary), b: &&(&str, &RunSummary)| {
        a.1.test_accuracy.total_cmp(&b.1.test_accuracy)
    };
    let mut sentences = Vec::new();
    if let (Some(fast), Some(slow)) = (runs.iter().max_by(by_speed), runs.iter().min_by(by_speed)) {
        let mut text = format!(
            "{} is the fastest of {} runs: {} images/s with {}",
            fast.0,
            runs.len(),
            short(fast.1.images_per_s),
            counted(fast.1.workers, "worker"),
        );
        if slow.1.images_per_s > 0.0 {
            text +=
                &format!(", {} times {}", short(fast.1.images_per_s / slow.1.images_per_s), slow.0);
        }
        sentences.push(text + ".");
    }
    if let (Some(best), Some(worst)) =
        (runs.iter().max_by(by_accuracy), runs.iter().min_by(by_accuracy))
    {
        sentences.push(if best.1.test_accuracy == worst.1.test_accuracy {
            format!("All end with {} of the test set right.", accuracy(best.1))
        } else {
            format!(
                "{} ends with the most of the test set right, {}; {} with the least, {}.",
                best.0,
                accuracy(best.1),
                worst.0,
                accuracy(worst.1),
            )
        });
    }
    sentences
}

/// Runs of one configuration must end with the same bits.
fn same_bits(runs: &[(&str, &RunSummary)]) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut told: Vec<(&str, u64)> = Vec::new();
    for (_, run) in runs {
        // A straggler's or a server's mode is no part of the configuration, and asynchronous ones
        // change the result.
        let like = |(_, other): &&(&str, &RunSummary)| {
            other.config_digest == run.config_digest
                && other.steps == run.steps
                && waits_for_all(other)
        };
        let key = (run.config_digest.as_str(), run.steps);
        if told.contains(&key) || !waits_for_all(run) {
            continue;
        }
        told.push(key);
        let alike: Vec<&(&str, &RunSummary)> = runs.iter().filter(like).collect();
        if alike.len() < 2 {
            continue;
        }
        let names: Vec<&str> = alike.iter().map(|(name, _)| *name).collect();
        let same = alike.iter().all(|(_, other)| other.params_sha256 == run.params_sha256);
        sentences.push(if same {
            format!("{} have one configuration, and end with the same bits.", names.join(", "))
        } else {
            format!(
                "{} have one configuration, but end with different bits: other kinds of adapters or \
                 drivers may round differently.",
                names.join(", ")
            )
        });
    }
    sentences
}

/// Its result does not depend on who was quick and who was late.
fn waits_for_all(run: &RunSummary) -> bool {
    use crate::protocol::parameter_server::Mode;
    run.server.as_ref().is_none_or(|server| server.plan.mode == Mode::Sync)
}

fn accuracy(run: &RunSummary) -> String {
    format!("{:.2} %", 100.0 * run.test_accuracy)
}

fn interrupted(run: &RunSummary) -> &'static str {
    if run.interrupted { "; it was interrupted" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::run;

    #[test]
    fn one_run_is_described() {
        let text = sentences(&[run("a", 3, 1_500.0, 0.9)]).join("\n");
        let expected = "a reached 90.00 % of the test set right after 100 steps in 12.5 s, at 1,500 \
                        images/s with 3 workers.";
        assert_eq!(text, expected);
    }

    #[test]
    fn several_runs_are_compared_and_their_bits_too() {
        let mut runs = [run("a", 1, 500.0, 0.9), run("b", 3, 1_500.0, 0.9)];
        let text = sentences(&runs).join("\n");
        assert!(
            text.contains("b is the fastest of 2 runs: 1,500 images/s with 3 workers, 3 times a."),
            "{text}"
        );
        assert!(text.contains("All end with 90.00 %"), "{text}");
        assert!(
            text.contains("a, b have one configuration, and end with the same bits."),
            "{text}"
        );

        runs[1].summary.as_mut().unwrap().params_sha256 = "other".into();
        let text = sentences(&runs).join("\n");
        assert!(text.contains("but end with different bits"), "{text}");
    }

    #[test]
    fn a_run_without_an_end_is_named() {
        let mut unfinished = run("a", 1, 500.0, 0.9);
        unfinished.summary = None;
        let text = sentences(&[unfinished]).join("\n");
        assert_eq!(text, "Without an end, and so without a summary: a.");
    }
}
