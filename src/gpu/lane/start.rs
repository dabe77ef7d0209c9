//! The start: devices opened and kernels compiled side by side, none of them twice.
//!
//! lavapipe compiles a kernel when it first runs, in a tenth to half of a second, and keeps the
//! result in a cache on disk. So each kernel is first compiled on one device only, the devices
//! taking kernels from one list; afterwards every device reads the others' from the cache.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use super::instance::Instance;
use super::kernels::{Kernel, Sources, Variant};
use super::layout::LANES;
use super::resources::{Fixed, Room, images_per_row};
use crate::gpu::GpuError;
use crate::gpu::device::Gpu;
use crate::gpu::engine::EngineSettings;

/// The kernels in the order in which they are compiled: those that take longest first, so that
/// the devices finish at about the same time.
const COMPILE_ORDER: [Kernel; Kernel::ALL.len()] = [
    Kernel::DenseBackwardWeights,
    Kernel::Conv2BackwardWeights,
    Kernel::Conv2BackwardInput,
    Kernel::Conv2Forward,
    Kernel::DenseBackwardInput,
    Kernel::Conv1BackwardWeights,
    Kernel::DenseForward,
    Kernel::Conv1Forward,
    Kernel::Head,
    Kernel::Conv2SumTiles,
    Kernel::Conv1SumTiles,
];

/// Opens a device for each core, the first being `gpu`, with room for so many tiles each; every
/// kernel is ready on every device. `progress` is told (kernels ready, kernels in all).
pub(super) fn open_devices(
    gpu: Gpu,
    settings: &EngineSettings,
    cores: usize,
    tiles: u32,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Instance>, GpuError> {
    let total = COMPILE_ORDER.len() * cores;
    let mut ready = 0;
    let mut tell = |done: mpsc::Receiver<()>| {
        for () in done {
            ready += 1;
            progress(ready, total);
        }
    };
    let report = gpu.report().clone();
    let next = AtomicUsize::new(0);

    let (sender, done) = mpsc::channel();
    let mut opening: Vec<Opening> = thread::scope(|scope| {
        let (report, next) = (&report, &next);
        let mut first = Some(gpu);
        let threads: Vec<_> = (0..cores)
            .map(|_| {
                let (gpu, done) = (first.take(), sender.clone());
                scope.spawn(move || {
                    let gpu = gpu.map_or_else(|| Gpu::open_again(report, FEATURES), Ok)?;
                    let mut opening = Opening::new(gpu, settings, tiles)?;
                    while let Some(&kernel) =
                        COMPILE_ORDER.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        opening.compile(kernel, &done)?;
                    }
                    Ok(opening)
                })
            })
            .collect();
        drop(sender);
        tell(done);
        threads.into_iter().map(join).collect::<Result<_, GpuError>>()
    })?;

    let (sender, done) = mpsc::channel();
    thread::scope(|scope| {
        let threads: Vec<_> = opening
            .iter_mut()
            .map(|opening| {
                let done = sender.clone();
                scope.spawn(move || opening.compile_rest(&done))
            })
            .collect();
        drop(sender);
        tell(done);
        threads.into_iter().try_for_each(join)
    })?;
    Ok(opening.into_iter().map(|opening| opening.instance).collect())
}

/// What the kernels use if it is there.
pub const FEATURES: wgpu::Features = wgpu::Features::SUBGROUP;

/// A device whose kernels are being compiled.
struct Opening {
    instance: Instance,
    sources: Sources,
    compiled: Vec<Kernel>,
}

impl Opening {
    fn new(gpu: Gpu, settings: &EngineSettings, tiles: u32) -> Result<Opening, GpuError> {
        let variant = Variant {
            model: settings.model,
            sums: settings.sums,
            subgroup_size: subgroup_size(&gpu),
            images_per_row: images_per_row(&gpu),
        };
        let fixed = Fixed::new(&gpu, variant, &settings.dataset)?;
        let room = Room::new(&gpu, settings.model, tiles);
        let train_samples = settings.dataset.train.labels.len() as u32;
        Ok(Opening {
            instance: Instance::new(gpu, fixed, room, train_samples),
            sources: Sources::new(variant),
            compiled: Vec::new(),
        })
    }

    fn compile(&mut self, kernel: Kernel, done: &mpsc::Sender<()>) -> Result<(), GpuError> {
        self.instance.compile(kernel, &self.sources)?;
        self.compiled.push(kernel);
        // The receiver outlives the thread; if it did not, nobody would want to know.
        let _ = done.send(());
        Ok(())
    }

    fn compile_rest(&mut self, done: &mpsc::Sender<()>) -> Result<(), GpuError> {
        for kernel in COMPILE_ORDER {
            if !self.compiled.contains(&kernel) {
                self.compile(kernel, done)?;
            }
        }
        Ok(())
    }
}

/// The lanes that share values by a broadcast: what every subgroup has, if it divides a tile.
fn subgroup_size(gpu: &Gpu) -> u32 {
    let report = gpu.report();
    let size = report.subgroup_size_min;
    let fits = size == report.subgroup_size_max && size >= 4 && LANES as u32 % size == 0;
    if fits && gpu.device.features().contains(wgpu::Features::SUBGROUP) { size } else { 0 }
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
