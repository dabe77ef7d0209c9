//! A worker that is slower than the others, to see who waits for whom.

use std::ops::Range;
use std::time::Duration;

use crate::numerics::fixed_point::FixedPoint;

use super::engine::{EngineDescription, EngineError, GradientEngine};

/// An engine whose steps take longer by a fixed time.
pub struct Straggler {
    pub engine: Box<dyn GradientEngine>,
    pub delay: Duration,
}

impl GradientEngine for Straggler {
    fn begin_step(
        &mut self,
        parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), EngineError> {
        std::thread::sleep(self.delay);
        self.engine.begin_step(parameters, samples, fixed_point)
    }

    fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) -> Result<(), EngineError> {
        self.engine.finish_bucket(bucket, words)
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
