//! The portable kernel set: looped, tiled shaders within WebGPU's default limits.
//!
//! `shaders/README.md` tells how the kernels divide the work; [`mod@stages`] lists them, [`buffers`]
//! what lies between them, and [`layout`] where in it weights and sums are.

pub mod buffers;
pub mod layout;
mod readback;
mod resources;
pub mod stages;

use std::ops::Range;
use std::time::Duration;

use bytemuck::Zeroable;

use self::buffers::{BufferId, LOGIT_ROWS, Submission, TEXTURE_ROW, TILES_PER_SUBMISSION_MAX};
use self::layout::{bucket_words, convolution_weights};
use self::readback::Readback;
use self::resources::{buffer, extent, texture};
use self::stages::{DENSE_STAGES, FORWARD_STAGES, Grid, Stage, Tuning, stages};
use super::GpuError;
use super::adapter::{AdapterKind, AdapterReport};
use super::device::Gpu;
use super::engine::{EngineSettings, KernelSet, Sums};
use super::shader::{Access, Reads};
use super::timing::{KernelTimes, Stopwatch};
use crate::data::dataset::{Dataset, Normalization};
use crate::model::layers::{CLASSES, IMAGE_PIXELS, ModelKind};
use crate::model::layout::BUCKETS;
use crate::numerics::fixed_point::{FixedPoint, TILE_SAMPLES};

/// Places in [`BUCKETS`].
const DENSE: usize = 0;
const CONVOLUTIONS: usize = 1;

/// The set on one device.
pub(super) struct PortableSet {
    gpu: Gpu,
    model: ModelKind,
    normalization: Normalization,
    train_samples: u32,
    images: usize,
    sums: Sums,
    tuning: Tuning,
    stages: Vec<Stage>,
    pipelines: Vec<wgpu::ComputePipeline>,
    bind_groups: Vec<wgpu::BindGroup>,
    /// In the order of [`BufferId::ALL`].
    buffers: Vec<wgpu::Buffer>,
    /// Likewise; empty places for buffers that no kernel reads as a texture.
    textures: Vec<Option<wgpu::Texture>>,
    /// Tiles that the buffers have room for.
    tiles: usize,
    /// A submission's samples, padded to whole tiles.
    padded_samples: Vec<u32>,
    /// The convolutions' weights as the kernels want them, and where each comes from.
    weight_sources: Vec<Option<usize>>,
    sorted_weights: Vec<f32>,
    /// One a bucket: each is there as soon as its own kernels are done.
    words: [Readback; BUCKETS.len()],
    logits: Readback,
}

impl PortableSet {
    pub(super) fn open(
        gpu: Gpu,
        settings: &EngineSettings,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<PortableSet, GpuError> {
        let dataset = settings.dataset.wait().ok_or(GpuError::NoData)?;
        let images = dataset.train.labels.len() + dataset.test.labels.len();
        check_dataset_size(&gpu, dataset, images)?;

        let model = settings.model;
        let tuning = match gpu.report().kind {
            AdapterKind::Software => Tuning::SOFTWARE,
            _ => Tuning::HARDWARE,
        };
        let tiles = tiles_for(settings.samples_per_step);
        let words = BUCKETS.map(|bucket| Readback::new(&gpu, bucket.words()));
        let logits_words = BufferId::Logits.words(model, images, TILES_PER_SUBMISSION_MAX);
        let logits = Readback::new(&gpu, logits_words);
        let weight_sources = convolution_weights();
        let mut set = PortableSet {
            model,
            normalization: dataset.normalization,
            train_samples: dataset.train.labels.len() as u32,
            images,
            sums: settings.sums,
            tuning,
            stages: stages(model, settings.sums, tuning),
            pipelines: Vec::new(),
            bind_groups: Vec::new(),
            buffers: Vec::new(),
            textures: Vec::new(),
            tiles,
            padded_samples: Vec::with_capacity(TILES_PER_SUBMISSION_MAX * TILE_SAMPLES),
            sorted_weights: vec![0.0; weight_sources.len()],
            weight_sources,
            words,
            logits,
            gpu,
        };
        for id in BufferId::ALL {
            let (buffer, texture) = set.create(id);
            set.buffers.push(buffer);
            set.textures.push(texture);
        }
        set.upload_constants(dataset);
        set.gpu.check()?;
        set.make_pipelines(progress)?;
        Ok(set)
    }

    /// A buffer for the present number of tiles, and its texture if a kernel reads one.
    fn create(&self, id: BufferId) -> (wgpu::Buffer, Option<wgpu::Texture>) {
        let words = id.words(self.model, self.images, self.tiles);
        let texture = self.is_read_as_texture(id).then(|| texture(&self.gpu, id, self.tiles));
        (buffer(&self.gpu, id, words), texture)
    }

    fn is_read_as_texture(&self, id: BufferId) -> bool {
        self.tuning.reads == Reads::Textures
            && self.stages.iter().any(|stage| {
                let mut bindings = stage.kernel.bindings();
                bindings.any(|b| b.access == Access::Source && stage.buffer(b.name) == id)
            })
    }

    fn buffer(&self, id: BufferId) -> &wgpu::Buffer {
        &self.buffers[id as usize]
    }

    fn upload_constants(&self, dataset: &Dataset) {
        let queue = &self.gpu.queue;
        for id in BufferId::ALL {
            if let Some(words) = id.constant() {
                queue.write_buffer(self.buffer(id), 0, bytemuck::cast_slice(&words));
            }
        }
        let pixels = self.buffer(BufferId::Pixels);
        queue.write_buffer(pixels, 0, &dataset.train.pixels);
        queue.write_buffer(pixels, dataset.train.pixels.len() as u64, &dataset.test.pixels);
        let labels = dataset.train.labels.iter().chain(&dataset.test.labels);
        let labels: Vec<u32> = labels.map(|&label| u32::from(label)).collect();
        queue.write_buffer(self.buffer(BufferId::Labels), 0, bytemuck::cast_slice(&labels));
    }

    /// Makes every pipeline and runs it once over no samples: some drivers compile at the first
    /// dispatch. They do so while the next pipeline is translated here. Stages with the same kernel
    /// share a pipeline.
    fn make_pipelines(&mut self, progress: &mut dyn FnMut(usize, usize)) -> Result<(), GpuError> {
        let first_use: Vec<usize> = self
            .stages
            .iter()
            .filter_map(|stage| self.stages.iter().position(|s| s.kernel == stage.kernel))
            .collect();
        let total = first_use.iter().enumerate().filter(|(stage, first)| stage == *first).count();
        let nothing = Submission::zeroed();
        let submission = self.buffer(BufferId::Submission);
        self.gpu.queue.write_buffer(submission, 0, bytemuck::bytes_of(&nothing));
        let mut submitted = Vec::with_capacity(total);
        progress(0, total);
        for (stage, first) in first_use.into_iter().enumerate() {
            let is_new = first == stage;
            let pipeline = match is_new {
                true => self.stages[stage].kernel.pipeline(&self.gpu.device),
                false => self.pipelines[first].clone(),
            };
            // A pipeline that was refused is of no further use.
            self.gpu.check()?;
            self.pipelines.push(pipeline);
            self.bind_groups.push(self.bind_group(stage));
            if is_new {
                let mut encoder = self.encoder();
                self.encode(&mut encoder, stage..stage + 1, 1, |_| [1, 1, 1]);
                submitted.push(self.gpu.queue.submit([encoder.finish()]));
            }
        }
        for (done, index) in submitted.into_iter().enumerate() {
            self.gpu.wait(Some(index))?;
            progress(done + 1, total);
        }
        Ok(())
    }

    fn bind_group(&self, index: usize) -> wgpu::BindGroup {
        let stage = &self.stages[index];
        let views: Vec<Option<wgpu::TextureView>> = self
            .textures
            .iter()
            .map(|texture| texture.as_ref().map(|texture| texture.create_view(&<_>::default())))
            .collect();
        stage.kernel.bind_group(&self.gpu.device, &self.pipelines[index], |binding| {
            let id = stage.buffer(binding.name);
            match &views[id as usize] {
                Some(view) if binding.access == Access::Source => {
                    wgpu::BindingResource::TextureView(view)
                }
                _ => self.buffer(id).as_entire_binding(),
            }
        })
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    fn encode(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        stages: Range<usize>,
        tiles: usize,
        workgroups: impl Fn(&Grid) -> [u32; 3],
    ) {
        let descriptor = wgpu::ComputePassDescriptor::default();
        if self.tuning.reads == Reads::Buffers {
            let mut pass = encoder.begin_compute_pass(&descriptor);
            stages.for_each(|index| self.dispatch(&mut pass, index, &workgroups));
            return;
        }
        for index in stages {
            self.dispatch(&mut encoder.begin_compute_pass(&descriptor), index, &workgroups);
            let stage = &self.stages[index];
            for binding in stage.kernel.bindings().filter(|b| b.access == Access::ReadWrite) {
                self.copy_to_texture(encoder, stage.buffer(binding.name), tiles);
            }
        }
    }

    /// Some of the stages of a step over so many samples.
    fn encode_step(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        stages: Range<usize>,
        samples: usize,
    ) {
        let shares = self.tile_shares(samples);
        self.encode(encoder, stages, tiles_for(samples), |grid| {
            grid.workgroups(samples as u32, shares)
        });
    }

    /// Submits the commands that complete a bucket's words, and asks for the words.
    fn submit_and_read(&mut self, mut encoder: wgpu::CommandEncoder, bucket: usize) {
        let first = bucket_words(&BUCKETS[bucket]);
        let words = self.buffer(BufferId::Words);
        self.words[bucket].encode(&mut encoder, words, first);
        let submission = self.gpu.queue.submit([encoder.finish()]);
        self.words[bucket].request(submission);
    }

    fn dispatch(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        index: usize,
        workgroups: &impl Fn(&Grid) -> [u32; 3],
    ) {
        pass.set_pipeline(&self.pipelines[index]);
        pass.set_bind_group(0, &self.bind_groups[index], &[]);
        let [x, y, z] = workgroups(&self.stages[index].grid);
        pass.dispatch_workgroups(x, y, z);
    }

    /// Copies what `tiles` tiles fill of a buffer, if any kernel reads it as a texture.
    fn copy_to_texture(&self, encoder: &mut wgpu::CommandEncoder, id: BufferId, tiles: usize) {
        let Some(texture) = &self.textures[id as usize] else { return };
        encoder.copy_buffer_to_texture(
            wgpu::TexelCopyBufferInfo {
                buffer: self.buffer(id),
                layout: wgpu::TexelCopyBufferLayout {
                    offset: 0,
                    bytes_per_row: Some(16 * TEXTURE_ROW as u32),
                    rows_per_image: None,
                },
            },
            texture.as_image_copy(),
            extent(id, tiles),
        );
    }

    /// Grows the buffers to the tiles of a step, as far as one submission goes.
    fn reserve(&mut self, samples: usize) -> Result<(), GpuError> {
        let tiles = tiles_for(samples);
        if tiles <= self.tiles {
            return Ok(());
        }
        self.tiles = tiles;
        for id in BufferId::ALL.into_iter().filter(|id| id.grows(self.model)) {
            (self.buffers[id as usize], self.textures[id as usize]) = self.create(id);
        }
        self.bind_groups = (0..self.stages.len()).map(|stage| self.bind_group(stage)).collect();
        self.gpu.check()
    }

    fn upload_parameters(&mut self, parameters: &[f32]) {
        for (sorted, source) in self.sorted_weights.iter_mut().zip(&self.weight_sources) {
            *sorted = source.map_or(0.0, |source| parameters[source]);
        }
        let queue = &self.gpu.queue;
        let weights = self.buffer(BufferId::ConvolutionWeights);
        queue.write_buffer(weights, 0, bytemuck::cast_slice(&self.sorted_weights));
        let flat = self.buffer(BufferId::Parameters);
        queue.write_buffer(flat, 0, bytemuck::cast_slice(parameters));
    }

    /// Writes what the next submission works on.
    fn upload_submission(
        &mut self,
        images: impl Iterator<Item = u32>,
        fixed_point: Option<&FixedPoint>,
    ) {
        self.padded_samples.clear();
        self.padded_samples.extend(images);
        let mut submission = Submission {
            samples: self.padded_samples.len() as u32,
            pixel_scale: self.normalization.scale,
            pixel_offset: self.normalization.offset,
            ..Submission::zeroed()
        };
        if let Some(fixed_point) = fixed_point {
            submission.set_fixed_point(fixed_point);
        }
        // The samples that fill the last quad are computed too and then left out of the sums.
        let padded = self.padded_samples.len().next_multiple_of(TILE_SAMPLES);
        self.padded_samples.resize(padded, self.padded_samples[0]);
        let queue = &self.gpu.queue;
        let bytes = bytemuck::bytes_of(&submission);
        queue.write_buffer(self.buffer(BufferId::Submission), 0, bytes);
        let bytes = bytemuck::cast_slice(&self.padded_samples);
        queue.write_buffer(self.buffer(BufferId::Samples), 0, bytes);
    }

    /// Into how many shares the tiles are dealt for the sums over them.
    fn tile_shares(&self, samples: usize) -> u32 {
        match self.sums {
            Sums::Exact => self.tuning.tile_shares_max.min(samples.div_ceil(TILE_SAMPLES) as u32),
            // Plain sums need a single writer.
            Sums::Plain => 1,
        }
    }

    /// Samples of one submission at most.
    fn samples_per_submission(&self) -> usize {
        self.tiles * TILE_SAMPLES
    }
}

impl KernelSet for PortableSet {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn report(&self) -> &AdapterReport {
        self.gpu.report()
    }

    fn begin_step(
        &mut self,
        parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), GpuError> {
        self.words.iter_mut().for_each(Readback::release);
        self.reserve(samples.len())?;
        self.upload_parameters(parameters);

        // Bounded submissions, so that no driver takes a large batch for a hang. They add to the
        // same words: exact sums do not mind being cut.
        let chunks = samples.chunks(self.samples_per_submission());
        let last = chunks.len() - 1;
        for (i, chunk) in chunks.enumerate() {
            self.upload_submission(chunk.iter().copied(), Some(fixed_point));
            let mut encoder = self.encoder();
            if i == 0 {
                encoder.clear_buffer(self.buffer(BufferId::Words), 0, None);
                self.copy_to_texture(&mut encoder, BufferId::Parameters, 0);
            }
            self.encode_step(&mut encoder, 0..DENSE_STAGES, chunk.len());
            // The host reads and reduces the first bucket while the device computes the second.
            if i == last {
                self.submit_and_read(encoder, DENSE);
                encoder = self.encoder();
            }
            self.encode_step(&mut encoder, DENSE_STAGES..self.stages.len(), chunk.len());
            if i == last {
                self.submit_and_read(encoder, CONVOLUTIONS);
            } else {
                self.gpu.queue.submit([encoder.finish()]);
            }
        }
        self.gpu.check()
    }

    fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) -> Result<(), GpuError> {
        self.words[bucket].read(&self.gpu, 0..words.len(), |bytes| {
            words.copy_from_slice(bytemuck::cast_slice(bytes));
        })
    }

    fn logits(
        &mut self,
        parameters: &[f32],
        samples: Range<u32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), GpuError> {
        self.reserve(samples.len())?;
        self.upload_parameters(parameters);
        for first in samples.clone().step_by(self.samples_per_submission()) {
            let end = samples.end.min(first + self.samples_per_submission() as u32);
            let count = (end - first) as usize;
            // The test images lie behind the training images.
            let behind = self.train_samples;
            self.upload_submission((first..end).map(|test| behind + test), None);
            let mut encoder = self.encoder();
            self.copy_to_texture(&mut encoder, BufferId::Parameters, 0);
            self.encode(&mut encoder, 0..FORWARD_STAGES, tiles_for(count), |grid| {
                grid.workgroups(count as u32, 1)
            });
            self.logits.encode(&mut encoder, self.buffer(BufferId::Logits), 0);
            self.logits.request(self.gpu.queue.submit([encoder.finish()]));
            let words = tiles_for(count) * LOGIT_ROWS * TILE_SAMPLES;
            self.logits.read(&self.gpu, 0..words, |bytes| {
                append_logits(bytemuck::cast_slice(bytes), count, logits);
            })?;
            self.logits.release();
        }
        Ok(())
    }

    fn waited(&self) -> Duration {
        self.gpu.waited()
    }

    fn time_kernels(&mut self) -> Result<KernelTimes, GpuError> {
        self.words.iter_mut().for_each(Readback::release);
        // The last submission's samples, whole tiles of them.
        let samples = self.padded_samples.len();
        let shares = self.tile_shares(samples);
        let mut stopwatch = Stopwatch::new(&self.gpu)?;
        for (index, stage) in self.stages.iter().enumerate() {
            stopwatch.time(stage.label, |encoder| {
                self.encode(encoder, index..index + 1, tiles_for(samples), |grid| {
                    grid.workgroups(samples as u32, shares)
                });
            })?;
        }
        Ok(stopwatch.finish())
    }

    fn destroy_device(&self) {
        self.gpu.device.destroy();
    }
}

/// From (T, 12, 16) to (N, 10).
fn append_logits(tiles: &[f32], samples: usize, logits: &mut Vec<f32>) {
    for sample in 0..samples {
        let tile = &tiles[sample / TILE_SAMPLES * LOGIT_ROWS * TILE_SAMPLES..];
        let classes = (0..CLASSES).map(|class| tile[class * TILE_SAMPLES + sample % TILE_SAMPLES]);
        logits.extend(classes);
    }
}

/// Tiles to reserve for a step of so many samples, as far as one submission goes.
fn tiles_for(samples: usize) -> usize {
    samples.div_ceil(TILE_SAMPLES).clamp(1, TILES_PER_SUBMISSION_MAX)
}

fn check_dataset_size(gpu: &Gpu, dataset: &Dataset, images: usize) -> Result<(), GpuError> {
    let limits = gpu.report().limits;
    let available = limits.storage_binding_bytes.min(limits.buffer_bytes);
    let needed = (images * IMAGE_PIXELS) as u64;
    if needed <= available {
        return Ok(());
    }
    let room = available / IMAGE_PIXELS as u64;
    Err(GpuError::DatasetTooLarge {
        adapter: gpu.report().label(),
        needed,
        available,
        samples: room.saturating_sub(dataset.test.labels.len() as u64),
    })
}
