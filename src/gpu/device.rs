//! A device whose failures are errors.

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::GpuError;
use super::adapter::{
    AdapterChoice, AdapterReport, NATIVE_BACKENDS, enumerate, enumerate_for, reports,
};

/// Longest wait for work handed to a device. A submission is bounded to well under a second of
/// work on a slow adapter; what takes this long does not come back.
const WAIT_SECONDS_MAX: u64 = 120;

/// A device with its queue. What goes wrong on it becomes a [`GpuError`], never a panic: the first
/// failure is kept, and [`Gpu::check`] returns it from then on.
#[derive(Debug)]
pub struct Gpu {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    report: AdapterReport,
    fault: Arc<Mutex<Option<GpuError>>>,
    waited: Cell<Duration>,
}

impl Gpu {
    /// Opens the chosen adapter with WebGPU's default limits, save that buffers may be as large as
    /// the adapter has them, and with those of `optional_features` that it has.
    ///
    /// # Errors
    /// Without an adapter, if none fits the choice, or if the adapter's limits do not reach.
    pub fn open(
        choice: &AdapterChoice,
        optional_features: wgpu::Features,
    ) -> Result<Gpu, GpuError> {
        let adapters = enumerate_for(choice);
        let report = choice.choose(&reports(&adapters))?.clone();
        Gpu::open_adapter(&adapters[report.index], report, optional_features)
    }

    /// Opens the adapter of a report once more, through a connection to the driver of its own:
    /// software adapters compute on one device of a connection at a time.
    ///
    /// # Errors
    /// As [`Gpu::open`], and if the adapter is gone.
    pub fn open_again(
        report: &AdapterReport,
        optional_features: wgpu::Features,
    ) -> Result<Gpu, GpuError> {
        let backend = NATIVE_BACKENDS.into_iter().find(|b| b.to_str() == report.backend);
        let adapters = enumerate(backend.map_or(wgpu::Backends::all(), wgpu::Backends::from));
        let same = |adapter: &&wgpu::Adapter| {
            AdapterReport { index: report.index, ..AdapterReport::new(0, adapter) } == *report
        };
        let adapter = adapters.iter().find(same).ok_or_else(|| GpuError::Open {
            adapter: report.label(),
            reason: "it is no longer there".to_owned(),
        })?;
        Gpu::open_adapter(adapter, report.clone(), optional_features)
    }

    fn open_adapter(
        adapter: &wgpu::Adapter,
        report: AdapterReport,
        optional_features: wgpu::Features,
    ) -> Result<Gpu, GpuError> {
        let offered = adapter.limits();
        check_limits(&report, &offered)?;
        let needed = wgpu::Limits::default();
        let required_limits = wgpu::Limits {
            max_buffer_size: offered.max_buffer_size,
            max_storage_buffer_binding_size: offered.max_storage_buffer_binding_size,
            max_storage_buffers_per_shader_stage: needed.max_storage_buffers_per_shader_stage,
            max_compute_workgroup_storage_size: needed.max_compute_workgroup_storage_size,
            max_uniform_buffer_binding_size: needed.max_uniform_buffer_binding_size,
            ..wgpu::Limits::downlevel_defaults()
        }
        .using_resolution(offered);
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("annulet"),
            required_features: adapter.features() & optional_features,
            required_limits,
            ..Default::default()
        };
        let (device, queue) =
            pollster::block_on(adapter.request_device(&descriptor)).map_err(|error| {
                GpuError::Open { adapter: report.label(), reason: error.to_string() }
            })?;

        let fault = Arc::new(Mutex::new(None));
        keep_first_fault(&device, &report, &fault);
        Ok(Gpu { device, queue, report, fault, waited: Cell::default() })
    }

    /// The adapter behind the device.
    pub fn report(&self) -> &AdapterReport {
        &self.report
    }

    /// The first failure since the device was opened.
    pub fn check(&self) -> Result<(), GpuError> {
        match &*self.fault.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }

    /// Waits until a submission, or all of them, has run and its callbacks were called.
    pub fn wait(&self, submission: Option<wgpu::SubmissionIndex>) -> Result<(), GpuError> {
        let start = Instant::now();
        let polled = self.device.poll(wgpu::PollType::Wait {
            submission_index: submission,
            timeout: Some(Duration::from_secs(WAIT_SECONDS_MAX)),
        });
        self.waited.set(self.waited.get() + start.elapsed());
        // A fault tells more than the failed wait that follows from it.
        if polled.is_err() {
            self.hear_of_loss();
        }
        self.check()?;
        match polled {
            Ok(_) => Ok(()),
            Err(wgpu::PollError::Timeout) => {
                Err(GpuError::Timeout { adapter: self.report.label(), seconds: WAIT_SECONDS_MAX })
            }
            Err(error) => Err(self.refused(error)),
        }
    }

    /// A lost device takes no commands without a word, and wgpu tells of the loss while it polls.
    fn hear_of_loss(&self) {
        // An error here says no more than what has failed before.
        let _ = self.device.poll(wgpu::PollType::Poll);
    }

    /// Time spent in [`Gpu::wait`].
    pub fn waited(&self) -> Duration {
        self.waited.get()
    }

    /// The error for a command that the device would not take: what went wrong before, if anything
    /// did, since a lost device takes none.
    pub fn refused(&self, reason: impl fmt::Display) -> GpuError {
        self.hear_of_loss();
        if let Err(fault) = self.check() {
            return fault;
        }
        GpuError::Refused { adapter: self.report.label(), reason: reason.to_string() }
    }
}

fn check_limits(report: &AdapterReport, offered: &wgpu::Limits) -> Result<(), GpuError> {
    let needed = wgpu::Limits::default();
    let checks = [
        (
            "max_storage_buffers_per_shader_stage",
            u64::from(offered.max_storage_buffers_per_shader_stage),
            u64::from(needed.max_storage_buffers_per_shader_stage),
        ),
        (
            "max_compute_workgroup_storage_size",
            u64::from(offered.max_compute_workgroup_storage_size),
            u64::from(needed.max_compute_workgroup_storage_size),
        ),
        (
            "max_compute_invocations_per_workgroup",
            u64::from(offered.max_compute_invocations_per_workgroup),
            u64::from(needed.max_compute_invocations_per_workgroup),
        ),
        (
            "max_uniform_buffer_binding_size",
            offered.max_uniform_buffer_binding_size,
            needed.max_uniform_buffer_binding_size,
        ),
        (
            "max_storage_buffer_binding_size",
            offered.max_storage_buffer_binding_size,
            needed.max_storage_buffer_binding_size,
        ),
    ];
    match checks.into_iter().find(|(_, offered, needed)| offered < needed) {
        Some((limit, offered, needed)) => {
            Err(GpuError::LimitTooLow { adapter: report.label(), limit, offered, needed })
        }
        None => Ok(()),
    }
}

fn keep_first_fault(
    device: &wgpu::Device,
    report: &AdapterReport,
    fault: &Arc<Mutex<Option<GpuError>>>,
) {
    let keep = |fault: &Mutex<Option<GpuError>>, error: GpuError| {
        fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    };
    let (cell, adapter) = (fault.clone(), report.label());
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        let adapter = adapter.clone();
        keep(
            &cell,
            match error {
                wgpu::Error::OutOfMemory { source } => {
                    GpuError::OutOfMemory { adapter, reason: source.to_string() }
                }
                wgpu::Error::Validation { description, .. }
                | wgpu::Error::Internal { description, .. } => {
                    GpuError::Refused { adapter, reason: description }
                }
            },
        );
    }));
    let (cell, adapter) = (fault.clone(), report.label());
    device.set_device_lost_callback(move |_, message| {
        // Where the device was only dropped, nobody is left to ask.
        keep(&cell, GpuError::lost(adapter.clone(), &message));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_command_becomes_an_error_that_stays() {
        let gpu = Gpu::open(&AdapterChoice::Best, wgpu::Features::empty()).unwrap();
        gpu.check().unwrap();
        let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("not mappable"),
            size: 4,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        });
        // Storage alone cannot be the target of a copy.
        gpu.queue.write_buffer(&buffer, 0, &[0; 4]);
        assert!(matches!(gpu.check(), Err(GpuError::Refused { .. })));
        assert!(matches!(gpu.wait(None), Err(GpuError::Refused { .. })));
    }
}
