//! The wgpu shell: adapters, kernels, the gradient engine.
//!
//! An [`Engine`] runs one of two kernel sets on the [adapter] that an [`AdapterChoice`]
//! takes: [`portable`] for GPUs, [`lane`] for adapters that compute on the CPU. [`shader`] is the
//! table of the WGSL files.

pub mod adapter;
pub mod device;
pub mod engine;
pub mod lane;
pub mod portable;
pub mod shader;
pub mod timing;

pub use adapter::{AdapterChoice, AdapterKind, AdapterReport, adapters_for, list_adapters};
pub use device::Gpu;
pub use engine::{Engine, EngineSettings, Sums};

/// A GPU's failure.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GpuError {
    #[error(
        "no adapter found (backends tried: {tried}); install a driver: on Debian, mesa-vulkan-drivers \
         serves AMD and Intel GPUs and brings a software adapter for machines without one"
    )]
    NoAdapter { tried: String },
    #[error("--adapter {choice}: {reason}; present: {present}")]
    NoSuchAdapter { choice: String, reason: String, present: String },
    #[error("--adapter {text:?}: {reason}")]
    AdapterSyntax { text: String, reason: &'static str },
    #[error(
        "{adapter}: its limit {limit} is {offered}, annulet needs {needed}; choose another with \
         --adapter (`annulet devices` lists them)"
    )]
    LimitTooLow { adapter: String, limit: &'static str, offered: u64, needed: u64 },
    #[error("{adapter}: the device could not be opened: {reason}")]
    Open { adapter: String, reason: String },
    #[error(
        "the data set takes {needed} bytes, but {adapter} binds buffers of at most {available} \
         bytes; keep at most {samples} training samples with --train-limit {samples}"
    )]
    DatasetTooLarge { adapter: String, needed: u64, available: u64, samples: u64 },
    #[error(
        "{adapter} is out of memory: {reason}; use a smaller --batch or --train-limit, or another \
         --adapter"
    )]
    OutOfMemory { adapter: String, reason: String },
    #[error("{adapter} was lost: {reason}; see the system's log for its driver")]
    Lost { adapter: String, reason: String },
    #[error("{adapter} did not finish its work within {seconds} s; see the system's log")]
    Timeout { adapter: String, seconds: u64 },
    #[error("{adapter} refused a command: {reason}; this is a defect of annulet or the driver")]
    Refused { adapter: String, reason: String },
    #[error("there is no data set to compute on")]
    NoData,
    #[error("--kernels {kernels}: computes without a GPU, the GPU engine does not serve it")]
    NotAGpuKernelSet { kernels: &'static str },
}

impl GpuError {
    /// A lost device, with what the driver says of it: often several lines, sometimes nothing.
    pub fn lost(adapter: String, said: &str) -> GpuError {
        let mut reason = said.split_whitespace().collect::<Vec<_>>().join(" ");
        if reason.is_empty() {
            reason = "the driver gives no reason".to_owned();
        }
        GpuError::Lost { adapter, reason }
    }
}
