//! Where the time of a step goes, kernel by kernel.

use serde::{Deserialize, Serialize};

use super::GpuError;
use super::device::Gpu;

/// What timestamps need; without them the host's clock has to do.
pub(super) const FEATURES: wgpu::Features =
    wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);

/// Each figure is the median of so many runs.
const RUNS: usize = 9;

/// How long each kernel takes, alone on one device, over its share of the last step's samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelTimes {
    pub clock: Clock,
    /// In the order in which they run.
    pub kernels: Vec<KernelTime>,
}

/// What the times were taken with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// The adapter's timestamps around the kernel.
    Timestamps,
    /// The host's clock around a submission of the kernel alone, less that of an empty one.
    Submissions,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelTime {
    pub name: String,
    pub ms: f64,
}

/// Times commands on one device.
pub(super) struct Stopwatch<'a> {
    gpu: &'a Gpu,
    timestamps: Option<Timestamps>,
    /// Milliseconds of an empty submission by the host's clock.
    nothing_ms: f64,
    times: KernelTimes,
}

struct Timestamps {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    readback: wgpu::Buffer,
}

impl<'a> Stopwatch<'a> {
    pub fn new(gpu: &'a Gpu) -> Result<Stopwatch<'a>, GpuError> {
        let timestamps =
            gpu.device.features().contains(FEATURES).then(|| Timestamps::new(&gpu.device));
        let clock = if timestamps.is_some() { Clock::Timestamps } else { Clock::Submissions };
        let times = KernelTimes { clock, kernels: Vec::new() };
        let mut stopwatch = Stopwatch { gpu, timestamps, nothing_ms: 0.0, times };
        stopwatch.nothing_ms = stopwatch.median_ms(&|_| ())?;
        Ok(stopwatch)
    }

    /// Times commands that may be repeated without harm.
    pub fn time(
        &mut self,
        name: impl Into<String>,
        encode: impl Fn(&mut wgpu::CommandEncoder),
    ) -> Result<(), GpuError> {
        let ms = (self.median_ms(&encode)? - self.nothing_ms).max(0.0);
        self.times.kernels.push(KernelTime { name: name.into(), ms });
        Ok(())
    }

    pub fn finish(self) -> KernelTimes {
        self.times
    }

    fn median_ms(&self, encode: &dyn Fn(&mut wgpu::CommandEncoder)) -> Result<f64, GpuError> {
        let mut times = [0.0; RUNS];
        for time in &mut times {
            *time = self.once_ms(encode)?;
        }
        times.sort_by(f64::total_cmp);
        Ok(times[RUNS / 2])
    }

    fn once_ms(&self, encode: &dyn Fn(&mut wgpu::CommandEncoder)) -> Result<f64, GpuError> {
        let gpu = self.gpu;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let Some(timestamps) = &self.timestamps else {
            encode(&mut encoder);
            let commands = encoder.finish();
            let start = std::time::Instant::now();
            gpu.wait(Some(gpu.queue.submit([commands])))?;
            return Ok(start.elapsed().as_secs_f64() * 1e3);
        };
        let Timestamps { queries, resolved, readback } = timestamps;
        encoder.write_timestamp(queries, 0);
        encode(&mut encoder);
        encoder.write_timestamp(queries, 1);
        encoder.resolve_query_set(queries, 0..2, resolved, 0);
        encoder.copy_buffer_to_buffer(resolved, 0, readback, 0, readback.size());
        let submission = gpu.queue.submit([encoder.finish()]);
        readback.map_async(wgpu::MapMode::Read, .., |_| {});
        gpu.wait(Some(submission))?;
        let view = readback.get_mapped_range(..).map_err(|error| gpu.refused(error))?;
        let ticks: [u64; 2] = bytemuck::pod_read_unaligned(&view);
        drop(view);
        readback.unmap();
        let ns = ticks[1].wrapping_sub(ticks[0]) as f64;
        Ok(ns * f64::from(gpu.queue.get_timestamp_period()) / 1e6)
    }
}

impl Timestamps {
    fn new(device: &wgpu::Device) -> Timestamps {
        let buffer = |usage| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("timestamps"),
                size: 16,
                usage: usage | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        Timestamps {
            queries: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            }),
            resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
            readback: buffer(wgpu::BufferUsages::MAP_READ),
        }
    }
}
