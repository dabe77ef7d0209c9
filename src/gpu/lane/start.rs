//! The start: devices opened and kernels compiled side by side, none of them twice.
//!
//! lavapipe compiles a kernel when it first runs, in a tenth to half of a second, and keeps the
//! result in a cache on disk. The data set may be read meanwhile: a single image stands in for it.
//! Whoever compiles a kernel, be it a device of this worker or another worker of the machine, holds
//! the kernel's lock; the others go on with the next kernel and come back when the cache has it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;

use super::instance::Instance;
use super::kernels::{Kernel, Sources, Variant};
use super::layout::LANES;
use super::resources::{Fixed, Images, Room, images_per_row};
use crate::gpu::GpuError;
use crate::gpu::device::Gpu;
use crate::gpu::engine::EngineSettings;

/// What the kernels use if it is there.
pub const FEATURES: wgpu::Features = wgpu::Features::SUBGROUP;

/// The kernels in the order in which they are compiled: those that take longest first, so that
/// the devices finish at about the same time.
const COMPILE_ORDER: [Kernel; Kernel::ALL.len()] = [
    Kernel::Conv2BackwardWeights,
    Kernel::Conv2Forward,
    Kernel::DenseBackwardWeights,
    Kernel::Conv1BackwardWeights,
    Kernel::DenseBackwardInput,
    Kernel::Conv2BackwardInput,
    Kernel::DenseForward,
    Kernel::Conv1Forward,
    Kernel::Head,
    Kernel::SumTiles,
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
    let report = gpu.report().clone();
    let (sender, ready) = mpsc::channel();
    thread::scope(|scope| {
        let report = &report;
        let mut first = Some(gpu);
        let threads: Vec<_> = (0..cores)
            .map(|_| {
                let (gpu, ready) = (first.take(), sender.clone());
                scope.spawn(move || {
                    let gpu = gpu.map_or_else(|| Gpu::open_again(report, FEATURES), Ok)?;
                    open_device(gpu, settings, tiles, &ready)
                })
            })
            .collect();
        drop(sender);
        for (count, ()) in ready.iter().enumerate() {
            progress(count + 1, COMPILE_ORDER.len() * cores);
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn open_device(
    gpu: Gpu,
    settings: &EngineSettings,
    tiles: u32,
    ready: &mpsc::Sender<()>,
) -> Result<Instance, GpuError> {
    let variant = Variant {
        model: settings.model,
        sums: settings.sums,
        subgroup_size: subgroup_size(&gpu),
        images_per_row: images_per_row(&gpu),
    };
    let sources = Sources::new(variant);
    let (fixed, images) = (Fixed::new(&gpu), Images::placeholder(&gpu, variant)?);
    let room = Room::new(&gpu, settings.model, tiles);
    let mut instance = Instance::new(gpu, fixed, room, images);

    let mut compile = |kernel| {
        if settings.dataset.is_broken() {
            return Err(GpuError::NoData);
        }
        instance.compile(kernel, &sources)?;
        // Whoever opens the devices listens until the last one is ready.
        let _ = ready.send(());
        Ok(())
    };
    let mut postponed = Vec::new();
    for kernel in COMPILE_ORDER {
        match KernelLock::try_take(kernel) {
            Some(_lock) => compile(kernel)?,
            None => postponed.push(kernel),
        }
    }
    for kernel in postponed {
        let _lock = KernelLock::take(kernel);
        compile(kernel)?;
    }
    let dataset = settings.dataset.wait().ok_or(GpuError::NoData)?;
    let images = Images::new(instance.gpu(), variant, dataset)?;
    instance.show(images);
    Ok(instance)
}

/// Held while a kernel is compiled. Where no lock can be had, for want of a folder or of file
/// locks, kernels are compiled more than once and all is well otherwise.
struct KernelLock {
    _file: Option<File>,
}

impl KernelLock {
    /// The lock, unless somebody holds it.
    fn try_take(kernel: Kernel) -> Option<KernelLock> {
        let file = KernelLock::open(kernel);
        match file.as_ref().map(File::try_lock) {
            Some(Err(fs::TryLockError::WouldBlock)) => None,
            _ => Some(KernelLock { _file: file }),
        }
    }

    /// Waits for the lock.
    fn take(kernel: Kernel) -> KernelLock {
        KernelLock { _file: KernelLock::open(kernel).filter(|file| file.lock().is_ok()) }
    }

    fn open(kernel: Kernel) -> Option<File> {
        let folder = lock_folder()?;
        fs::create_dir_all(&folder).ok()?;
        let path = folder.join(kernel.name()).with_extension("lock");
        File::options().create(true).truncate(false).write(true).open(path).ok()
    }
}

/// In the user's own cache, as Mesa's cache is: others' locks are none of our concern.
fn lock_folder() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("annulet").join("locks"))
}

/// The lanes that share values by a broadcast: what every subgroup has, if it divides a tile.
fn subgroup_size(gpu: &Gpu) -> u32 {
    let report = gpu.report();
    let size = report.subgroup_size_min;
    let fits = size == report.subgroup_size_max && size >= 4 && (LANES as u32).is_multiple_of(size);
    if fits && gpu.device.features().contains(wgpu::Features::SUBGROUP) { size } else { 0 }
}
