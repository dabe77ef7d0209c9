//! The portable kernel set: looped, workgroup-tiled shaders within WebGPU's default limits.

use std::ops::Range;

use super::GpuError;
use super::device::{AdapterReport, Gpu};
use super::engine::{EngineSettings, KernelSet};
use crate::numerics::fixed_point::FixedPoint;

pub(super) struct PortableSet {
    gpu: Gpu,
}

impl PortableSet {
    pub(super) fn open(
        settings: &EngineSettings,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<PortableSet, GpuError> {
        let gpu = Gpu::open(&settings.adapter, wgpu::Features::empty())?;
        progress(0, 0);
        Ok(PortableSet { gpu })
    }
}

impl KernelSet for PortableSet {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn report(&self) -> &AdapterReport {
        self.gpu.report()
    }

    fn begin_step(&mut self, _: &[f32], _: &[u32], _: &FixedPoint) -> Result<(), GpuError> {
        Err(self.gpu.refused("not built yet"))
    }

    fn finish_bucket(&mut self, _: usize, _: &mut [u32]) -> Result<(), GpuError> {
        Err(self.gpu.refused("not built yet"))
    }

    fn logits(&mut self, _: &[f32], _: Range<u32>, _: &mut Vec<f32>) -> Result<(), GpuError> {
        Err(self.gpu.refused("not built yet"))
    }
}
