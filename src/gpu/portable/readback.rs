//! What the host reads of a step.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::gpu::GpuError;
use crate::gpu::device::Gpu;

/// A buffer that the host reads, reused from step to step.
pub struct Readback {
    buffer: wgpu::Buffer,
    state: ReadbackState,
    /// Set by the map's callback if the map failed.
    failed: Arc<AtomicBool>,
}

enum ReadbackState {
    Idle,
    Requested(wgpu::SubmissionIndex),
    Mapped,
}

impl Readback {
    pub fn new(gpu: &Gpu, words: usize) -> Readback {
        Readback {
            buffer: gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("readback"),
                size: 4 * words as u64,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            }),
            state: ReadbackState::Idle,
            failed: Arc::default(),
        }
    }

    /// Copies `source` from the given word on, as far as there is room and content.
    pub fn encode(&self, encoder: &mut wgpu::CommandEncoder, source: &wgpu::Buffer, first: usize) {
        let first = 4 * first as u64;
        let size = self.buffer.size().min(source.size() - first);
        encoder.copy_buffer_to_buffer(source, first, &self.buffer, 0, size);
    }

    /// Asks for the map of what `submission` writes.
    pub fn request(&mut self, submission: wgpu::SubmissionIndex) {
        let failed = self.failed.clone();
        failed.store(false, Ordering::Relaxed);
        self.buffer.map_async(wgpu::MapMode::Read, .., move |result| {
            failed.store(result.is_err(), Ordering::Relaxed);
        });
        self.state = ReadbackState::Requested(submission);
    }

    /// Waits for the map if need be, then shows a range of words as bytes.
    pub fn read(
        &mut self,
        gpu: &Gpu,
        words: Range<usize>,
        show: impl FnOnce(&[u8]),
    ) -> Result<(), GpuError> {
        if let ReadbackState::Requested(submission) = &self.state {
            gpu.wait(Some(submission.clone()))?;
            if self.failed.load(Ordering::Relaxed) {
                return Err(gpu.refused("a result could not be mapped"));
            }
            self.state = ReadbackState::Mapped;
        }
        let view = self.buffer.get_mapped_range(..).map_err(|error| gpu.refused(error))?;
        show(&view[4 * words.start..4 * words.end]);
        Ok(())
    }

    /// Gives the buffer back to the GPU.
    pub fn release(&mut self) {
        if !matches!(self.state, ReadbackState::Idle) {
            self.buffer.unmap();
            self.state = ReadbackState::Idle;
        }
    }
}
