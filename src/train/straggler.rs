//! A worker that is slower than the others, to see who waits for whom.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::numerics::fixed_point::FixedPoint;

use super::engine::{EngineDescription, EngineError, GradientEngine};

/// How a worker's computing is slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Slowness {
    /// By so many milliseconds in each step, however large its share is.
    Ms(u64),
    /// It takes so many times as long.
    Times(u32),
}

/// `20` are milliseconds, `4x` is a factor.
impl FromStr for Slowness {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_suffix('x') {
            Some(times) => Slowness::Times(times.parse::<std::num::NonZero<u32>>()?.get()),
            None => Slowness::Ms(text.parse()?),
        })
    }
}

impl fmt::Display for Slowness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Slowness::Ms(ms) => write!(f, "{ms}"),
            Slowness::Times(times) => write!(f, "{times}x"),
        }
    }
}

/// An engine whose steps take longer.
pub struct Straggler {
    engine: Box<dyn GradientEngine>,
    slowness: Slowness,
    /// Since when the engine has computed, as far as that was not made up for yet.
    computing_since: Instant,
}

impl Straggler {
    pub fn new(engine: Box<dyn GradientEngine>, slowness: Slowness) -> Straggler {
        Straggler { engine, slowness, computing_since: Instant::now() }
    }
}

impl GradientEngine for Straggler {
    fn begin_step(
        &mut self,
        parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), EngineError> {
        if let Slowness::Ms(ms) = self.slowness {
            std::thread::sleep(Duration::from_millis(ms));
        }
        self.computing_since = Instant::now();
        self.engine.begin_step(parameters, samples, fixed_point)
    }

    fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) -> Result<(), EngineError> {
        self.engine.finish_bucket(bucket, words)?;
        if let Slowness::Times(times) = self.slowness {
            std::thread::sleep(self.computing_since.elapsed() * (times - 1));
            self.computing_since = Instant::now();
        }
        Ok(())
    }

    fn logits(
        &mut self,
        parameters: &[f32],
        samples: Range<u32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        self.engine.logits(parameters, samples, logits)
    }

    fn description(&self) -> EngineDescription {
        self.engine.description()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowness_is_read_as_it_is_written() {
        for (text, slowness) in
            [("20", Slowness::Ms(20)), ("0", Slowness::Ms(0)), ("4x", Slowness::Times(4))]
        {
            assert_eq!(text.parse(), Ok(slowness));
            assert_eq!(slowness.to_string(), text);
        }
        for text in ["", "x", "0x", "-1", "4y", "1.5x"] {
            assert!(text.parse::<Slowness>().is_err(), "{text}");
        }
    }
}
