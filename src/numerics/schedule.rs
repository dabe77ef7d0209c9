//! The learning rate over a run.

use crate::config::{RunConfig, Schedule};

/// The learning rate of `step` (from 0) in a run of `total_steps`.
///
/// It rises linearly over the warm-up, `lr * (step + 1) / warmup_steps` (Goyal et al. 2017), then
/// follows the schedule. The cosine spans the steps after the warm-up and would reach 0 at step
/// `total_steps`; the drops of [`Schedule::Step`] are counted over the whole run. Computed in `f64`
/// with the `libm` crate's cosine and rounded once, so every machine gets the same bits.
pub fn learning_rate(config: &RunConfig, step: u64, total_steps: u64) -> f32 {
    let warmup = config.warmup_steps;
    let factor = if step < warmup {
        (step + 1) as f64 / warmup as f64
    } else {
        match config.schedule {
            Schedule::Constant => 1.0,
            Schedule::Cosine => {
                let progress = fraction(step - warmup, total_steps.saturating_sub(warmup));
                0.5 * (1.0 + libm::cos(std::f64::consts::PI * progress))
            }
            Schedule::Step => match fraction(step, total_steps) {
                progress if progress < 0.5 => 1.0,
                progress if progress < 0.75 => 0.1,
                _ => 0.01,
            },
        }
    };
    (f64::from(config.lr) * factor) as f32
}

/// `part / whole`, at most 1.
fn fraction(part: u64, whole: u64) -> f64 {
    if part < whole { part as f64 / whole as f64 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(schedule: Schedule, warmup_steps: u64, total_steps: u64) -> Vec<f32> {
        let config = RunConfig { lr: 0.5, schedule, warmup_steps, ..RunConfig::default() };
        (0..total_steps).map(|step| learning_rate(&config, step, total_steps)).collect()
    }

    #[test]
    fn constant_with_warmup() {
        let expected = [0.125, 0.25, 0.375, 0.5, 0.5, 0.5];
        assert_eq!(rates(Schedule::Constant, 4, 6), expected);
    }

    #[test]
    fn step_drops_after_half_and_three_quarters() {
        assert_eq!(rates(Schedule::Step, 0, 8), [0.5, 0.5, 0.5, 0.5, 0.05, 0.05, 0.005, 0.005]);
        assert_eq!(rates(Schedule::Step, 0, 5), [0.5, 0.5, 0.5, 0.05, 0.005]);
    }

    #[test]
    fn cosine_is_pytorchs() {
        // What CosineAnnealingLR gives with T_max = 8.
        let expected = [
            0.5,
            0.480_969_88,
            0.426_776_7,
            0.345_670_86,
            0.25,
            0.154_329_14,
            0.073_223_3,
            0.019_030_117,
        ];
        for (rate, expected) in rates(Schedule::Cosine, 0, 8).into_iter().zip(expected) {
            // Both are rounded once to f32, from doubles that may differ in their last digits.
            assert!((rate - expected).abs() <= f32::EPSILON * expected, "{rate} {expected}");
        }
    }

    #[test]
    fn cosine_begins_at_the_peak_after_the_warmup() {
        let rates = rates(Schedule::Cosine, 2, 10);
        assert_eq!(rates[..3], [0.25, 0.5, 0.5]);
        assert_eq!(rates[6], 0.25);
    }

    #[test]
    fn a_warmup_longer_than_the_run_stays_a_warmup() {
        assert_eq!(rates(Schedule::Cosine, 10, 3), [0.05, 0.1, 0.15]);
    }
}
