//! A worker whose device is lost, to see that the run survives it.

use std::ops::Range;

use crate::gpu::GpuError;
use crate::numerics::fixed_point::FixedPoint;

use super::engine::{EngineDescription, EngineError, GradientEngine};

/// An engine that loses its device after a number of steps, and stays lost.
pub struct DeviceLoss {
    engine: Box<dyn GradientEngine>,
    steps_left: u64,
}

impl DeviceLoss {
    pub fn new(engine: Box<dyn GradientEngine>, steps: u64) -> DeviceLoss {
        DeviceLoss { engine, steps_left: steps }
    }
}

impl GradientEngine for DeviceLoss {
    fn begin_step(
        &mut self,
        parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), EngineError> {
        match self.steps_left.checked_sub(1) {
            Some(left) => self.steps_left = left,
            None if self.engine.destroy_device() => {}
            // There is none that could be destroyed: then this is how it looks.
            None => self.engine = Box::new(LostEngine(self.engine.description())),
        }
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

/// In the place of an engine whose device is gone, until there is another one.
pub struct LostEngine(pub EngineDescription);

impl LostEngine {
    fn error(&self) -> EngineError {
        GpuError::lost(self.0.adapter.clone(), "it is no longer in use").into()
    }
}

impl GradientEngine for LostEngine {
    fn begin_step(&mut self, _: &[f32], _: &[u32], _: &FixedPoint) -> Result<(), EngineError> {
        Err(self.error())
    }

    fn finish_bucket(&mut self, _: usize, _: &mut [u32]) -> Result<(), EngineError> {
        Err(self.error())
    }

    fn logits(&mut self, _: &[f32], _: Range<u32>, _: &mut Vec<f32>) -> Result<(), EngineError> {
        Err(self.error())
    }

    fn description(&self) -> EngineDescription {
        self.0.clone()
    }
}
