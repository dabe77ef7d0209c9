//! What is said of a set of measurements.

use serde::{Deserialize, Serialize};

/// Mean, median and 99th percentile of some durations, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
}

impl Summary {
    /// Of these samples; the percentiles are samples themselves (nearest rank). Zeros when there
    /// are none.
    pub fn of(samples: &[f64]) -> Summary {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let rank = |share: f64| {
            let index = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        let mean = samples.iter().sum::<f64>() / samples.len().max(1) as f64;
        Summary { mean, p50: rank(0.5), p99: rank(0.99) }
    }
}

/// Column by column, the mean over rows of equal length: an iteration's time over all workers.
pub fn mean_over_rows(rows: &[Vec<f64>]) -> Vec<f64> {
    let columns = rows.iter().map(Vec::len).min().unwrap_or(0);
    (0..columns).map(|at| rows.iter().map(|row| row[at]).sum::<f64>() / rows.len() as f64).collect()
}

/// Gigabytes (10^9) a second.
pub fn gigabytes_per_s(bytes: u64, microseconds: f64) -> f64 {
    if microseconds > 0.0 { bytes as f64 / microseconds / 1e3 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(Summary::of(&samples), Summary { mean: 100.5, p50: 100.0, p99: 198.0 });
        assert_eq!(Summary::of(&[3.0]), Summary { mean: 3.0, p50: 3.0, p99: 3.0 });
        assert_eq!(Summary::of(&[]), Summary::default());
    }

    #[test]
    fn workers_are_averaged_iteration_by_iteration() {
        assert_eq!(mean_over_rows(&[vec![1.0, 2.0], vec![3.0, 6.0]]), [2.0, 4.0]);
        assert_eq!(mean_over_rows(&[]), [0.0; 0]);
    }

    #[test]
    fn a_thousand_bytes_a_microsecond_are_a_gigabyte_a_second() {
        assert_eq!(gigabytes_per_s(1_000, 1.0), 1.0);
        assert_eq!(gigabytes_per_s(1_000, 0.0), 0.0);
    }
}
