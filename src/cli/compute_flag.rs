//! What `--compute` takes.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::simulate::Compute;
use crate::train::synthetic::SyntheticCompute;

/// How workers compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ComputeFlag {
    /// By kernels, or by waiting for a fixed time.
    Plain(Compute),
    /// By waiting for the times of a recorded run, whose folder this is.
    Trace(PathBuf),
}

impl FromStr for ComputeFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(run) = text.strip_prefix("trace:").filter(|run| !run.is_empty()) {
            return Ok(ComputeFlag::Trace(PathBuf::from(run)));
        }
        let plain = text.parse().map(ComputeFlag::Plain);
        plain.map_err(|_| "write kernels, a time such as 20ms, or trace:RUN_FOLDER".to_owned())
    }
}

/// As it is parsed.
impl fmt::Display for ComputeFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.synthetic()) {
            (ComputeFlag::Trace(run), _) => write!(f, "trace:{}", run.display()),
            (_, Some(SyntheticCompute::Batch(time))) => write!(f, "{}ms", 1e3 * time.as_secs_f64()),
            _ => f.write_str("kernels"),
        }
    }
}

impl TryFrom<String> for ComputeFlag {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ComputeFlag> for String {
    fn from(flag: ComputeFlag) -> String {
        flag.to_string()
    }
}

impl ComputeFlag {
    /// What is waited for; none for kernels.
    pub fn synthetic(&self) -> Option<SyntheticCompute> {
        match self {
            ComputeFlag::Plain(Compute::Synthetic { batch } | Compute::Trace { batch, .. }) => {
                Some(SyntheticCompute::Batch(*batch))
            }
            ComputeFlag::Plain(Compute::Kernels) => None,
            ComputeFlag::Trace(run) => Some(SyntheticCompute::Trace(run.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn compute_is_kernels_a_time_or_a_trace() {
        let synthetic = |text: &str| text.parse::<ComputeFlag>().map(|flag| flag.synthetic());
        let half = SyntheticCompute::Batch(Duration::from_millis(500));
        assert_eq!(synthetic("0.5s"), Ok(Some(half)));
        assert_eq!(synthetic("kernels"), Ok(None));
        let trace = SyntheticCompute::Trace("runs/a".into());
        assert_eq!(synthetic("trace:runs/a"), Ok(Some(trace)));
        for text in ["500ms", "kernels", "trace:runs/a"] {
            assert_eq!(text.parse::<ComputeFlag>().unwrap().to_string(), text);
        }
        for text in ["", "20", "trace:", "-1ms", "2h", "nanms"] {
            assert!(synthetic(text).is_err(), "{text}");
        }
    }
}
