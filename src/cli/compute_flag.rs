//! What `--compute` takes.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::train::synthetic::SyntheticCompute;

/// How workers compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComputeFlag {
    Kernels,
    Synthetic(SyntheticCompute),
}

impl FromStr for ComputeFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "kernels" {
            return Ok(ComputeFlag::Kernels);
        }
        if let Some(run) = text.strip_prefix("trace:").filter(|run| !run.is_empty()) {
            return Ok(ComputeFlag::Synthetic(SyntheticCompute::Trace(PathBuf::from(run))));
        }
        let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
        units
            .iter()
            .find_map(|(unit, seconds)| {
                let number = text.strip_suffix(unit)?.parse::<f64>().ok()? * seconds;
                (0.0..=SECONDS_MAX).contains(&number).then(|| Duration::from_secs_f64(number))
            })
            .map(|time| ComputeFlag::Synthetic(SyntheticCompute::Batch(time)))
            .ok_or_else(|| "write kernels, a time such as 20ms, or trace:RUN_FOLDER".to_owned())
    }
}

/// Longer steps are a mistake.
const SECONDS_MAX: f64 = 3_600.0;

impl ComputeFlag {
    /// None for real kernels.
    pub fn synthetic(self) -> Option<SyntheticCompute> {
        match self {
            ComputeFlag::Kernels => None,
            ComputeFlag::Synthetic(compute) => Some(compute),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compute_is_kernels_a_time_or_a_trace() {
        let ms = |ms| ComputeFlag::Synthetic(SyntheticCompute::Batch(Duration::from_millis(ms)));
        assert_eq!("20ms".parse(), Ok(ms(20)));
        assert_eq!("0.5s".parse(), Ok(ms(500)));
        assert_eq!("kernels".parse(), Ok(ComputeFlag::Kernels));
        let trace = SyntheticCompute::Trace("runs/a".into());
        assert_eq!("trace:runs/a".parse(), Ok(ComputeFlag::Synthetic(trace)));
        for text in ["", "20", "trace:", "-1ms", "2h", "9999s", "nanms"] {
            assert!(text.parse::<ComputeFlag>().is_err(), "{text}");
        }
    }
}
