//! The wgpu shell: adapters, kernels, the gradient engine.

/// A GPU's failure.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {}
