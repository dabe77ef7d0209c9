//! One device of the lane set: its kernels and the commands of a step.

use std::ops::Range;

use super::kernels::{Kernel, Sources};
use super::layout::{
    CONV_SUMS, CONV1_MAXIMA, CONV1_SUMS, CONV2_MAXIMA, CONV2_SUMS, DENSE_MAXIMA, DENSE_SUMS,
    DENSE_TILES, LANES, PARAMETER_COLUMNS, PARAMETER_ROWS,
};
use super::resources::{
    Fixed, Images, Room, TEXEL_BYTES, dense_bytes, logits_bytes, statistics_bytes,
};
use super::stage::{Stage, resources};
use crate::gpu::GpuError;
use crate::gpu::device::Gpu;
use crate::gpu::timing::{KernelTimes, Stopwatch};
use crate::model::layout::SCALE_COUNT;
use crate::numerics::fixed_point::FixedPoint;

/// A lane without a sample.
const NO_SAMPLE: u32 = u32::MAX;

/// The words that a dense submission leaves, in vectors of four: sums, maxima, statistics.
pub(super) struct DenseResult<'a> {
    pub sums: &'a [[u32; 4]],
    pub maxima: &'a [u32],
    /// Of each sample: loss in fixed point, right, bits of |loss|, 1.
    pub statistics: &'a [[u32; 4]],
}

struct BoundStage {
    pipeline: wgpu::ComputePipeline,
    bindings: wgpu::BindGroup,
}

/// The commands of a step, in two submissions.
struct Recorded {
    samples: usize,
    halves: [wgpu::CommandBuffer; 2],
}

pub(super) struct Instance {
    gpu: Gpu,
    fixed: Fixed,
    room: Room,
    /// By [`Stage`]; all are there once every kernel is compiled.
    stages: [Option<BoundStage>; Stage::ALL.len()],
    /// Samples of the submission and the tiles that they fill.
    samples: usize,
    tiles: u32,
    sample_words: Vec<u32>,
    images: Images,
    /// The commands of the next step, if it has as many samples as the last one.
    recorded: Option<Recorded>,
    /// The commands of the step's second half.
    second_half: Option<wgpu::CommandBuffer>,
    /// The submissions under way, by what they leave.
    dense: Option<wgpu::SubmissionIndex>,
    conv: Option<wgpu::SubmissionIndex>,
    logits: Option<wgpu::SubmissionIndex>,
}

impl Instance {
    /// A device with its resources. Every kernel must be compiled before the first step.
    pub fn new(gpu: Gpu, fixed: Fixed, room: Room, images: Images) -> Instance {
        Instance {
            gpu,
            fixed,
            room,
            stages: [const { None }; Stage::ALL.len()],
            samples: 0,
            tiles: 0,
            sample_words: Vec::new(),
            images,
            recorded: None,
            second_half: None,
            dense: None,
            conv: None,
            logits: None,
        }
    }

    /// Makes a kernel's pipeline and runs one workgroup of each stage: only then does lavapipe
    /// compile it.
    pub fn compile(&mut self, kernel: Kernel, sources: &Sources) -> Result<(), GpuError> {
        let module = self.gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(kernel.name()),
            source: wgpu::ShaderSource::Wgsl(sources.wgsl(kernel).into()),
        });
        let pipeline = self.gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(kernel.name()),
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        self.gpu.check()?;
        for &stage in Stage::of(kernel) {
            let bindings = self.bind(stage, &pipeline);
            self.stages[stage as usize] = Some(BoundStage { pipeline: pipeline.clone(), bindings });
        }
        let mut encoder = self.encoder();
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for &stage in Stage::of(kernel) {
            self.dispatch(&mut pass, stage, (1, 1));
        }
        drop(pass);
        let submission = self.gpu.queue.submit([encoder.finish()]);
        self.gpu.wait(Some(submission))
    }

    /// Puts the images in the place of those that the kernels were compiled with.
    pub fn show(&mut self, images: Images) {
        self.images = images;
        for stage in Stage::ALL {
            if let Some(BoundStage { pipeline, .. }) = &self.stages[stage as usize] {
                let bindings = self.bind(stage, pipeline);
                let pipeline = pipeline.clone();
                self.stages[stage as usize] = Some(BoundStage { pipeline, bindings });
            }
        }
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Most tiles of a submission.
    pub fn tiles_max(&self) -> u32 {
        self.room.tiles
    }

    /// Submits the first half of a step over training samples, at most [`Instance::tiles_max`]
    /// tiles: the forward pass and the fully connected layers' backward pass.
    pub fn begin(
        &mut self,
        texels: &[[f32; 4]],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), GpuError> {
        self.upload(texels, samples.iter().copied(), Some(fixed_point))?;
        let fitting = self.recorded.take().filter(|recorded| recorded.samples == self.samples);
        let [first_half, second_half] = fitting.unwrap_or_else(|| self.record()).halves;
        self.second_half = Some(second_half);
        self.dense = Some(self.gpu.queue.submit([first_half]));
        let bytes = dense_bytes(self.samples);
        self.room.dense_readback.map_async(wgpu::MapMode::Read, ..bytes, |_| {});
        self.room.upload.map_async(wgpu::MapMode::Write, .., |_| {});
        Ok(())
    }

    /// Records the commands of another step with as many samples, while the device computes.
    pub fn prepare(&mut self) {
        if self.dense.is_some() && self.recorded.is_none() {
            self.recorded = Some(self.record());
        }
    }

    fn record(&self) -> Recorded {
        let mut first_half = self.encoder();
        self.encode_upload(&mut first_half);
        self.encode_forward(&mut first_half);
        self.encode_dense_backward(&mut first_half);
        let mut second_half = self.encoder();
        self.encode_conv_backward(&mut second_half);
        Recorded {
            samples: self.samples,
            halves: [first_half, second_half].map(wgpu::CommandEncoder::finish),
        }
    }

    /// Waits for the first half of a step, if it is under way, and submits the second: the
    /// convolutions' backward pass.
    ///
    /// Submitted together with the first, it would make lavapipe block until that has run, and
    /// another device's work would have to wait for its turn: wgpu chains submissions by binary
    /// semaphores, and the driver takes a wait for one only when it has been signalled.
    pub fn continue_step(&mut self) -> Result<(), GpuError> {
        let (Some(dense), Some(second_half)) = (&self.dense, self.second_half.take()) else {
            return Ok(());
        };
        self.gpu.wait(Some(dense.clone()))?;
        self.conv = Some(self.gpu.queue.submit([second_half]));
        self.fixed.conv_readback.map_async(wgpu::MapMode::Read, .., |_| {});
        Ok(())
    }

    /// Submits the forward pass over test samples.
    pub fn begin_logits(
        &mut self,
        texels: &[[f32; 4]],
        samples: Range<u32>,
    ) -> Result<(), GpuError> {
        let first = self.images.train_samples;
        self.upload(texels, samples.map(|sample| first + sample), None)?;
        let mut encoder = self.encoder();
        self.encode_upload(&mut encoder);
        self.encode_forward(&mut encoder);
        let bytes = logits_bytes(self.tiles);
        encoder.copy_buffer_to_buffer(&self.room.logits, 0, &self.room.logits_readback, 0, bytes);
        self.logits = Some(self.gpu.queue.submit([encoder.finish()]));
        self.room.logits_readback.map_async(wgpu::MapMode::Read, ..bytes, |_| {});
        self.room.upload.map_async(wgpu::MapMode::Write, .., |_| {});
        Ok(())
    }

    /// Waits for the fully connected layers' sums, if any are under way, and hands them to `read`.
    pub fn finish_dense(&mut self, read: impl FnOnce(DenseResult<'_>)) -> Result<(), GpuError> {
        let Some(submission) = self.dense.take() else { return Ok(()) };
        self.read(submission, &self.room.dense_readback, dense_bytes(self.samples), |words| {
            let (sums, words) = words.split_at(DENSE_SUMS);
            let (maxima, statistics) = words.split_at(DENSE_MAXIMA / 4);
            read(DenseResult { sums, maxima: maxima.as_flattened(), statistics });
        })
    }

    /// Waits for the convolutions' sums, if any are under way, and hands them, then their maxima,
    /// to `read`.
    pub fn finish_conv(&mut self, read: impl FnOnce(&[[u32; 4]], &[u32])) -> Result<(), GpuError> {
        let Some(submission) = self.conv.take() else { return Ok(()) };
        let readback = &self.fixed.conv_readback;
        self.read(submission, readback, readback.size(), |words| {
            let (sums, maxima) = words.split_at(CONV_SUMS);
            read(sums, maxima.as_flattened());
        })
    }

    /// Waits for the logits, if any are under way, and hands them to `read`: (tile, three quads,
    /// lane), and the number of samples.
    pub fn finish_logits(&mut self, read: impl FnOnce(&[[u32; 4]], usize)) -> Result<(), GpuError> {
        let Some(submission) = self.logits.take() else { return Ok(()) };
        let bytes = logits_bytes(self.tiles);
        self.read(submission, &self.room.logits_readback, bytes, |quads| read(quads, self.samples))
    }

    /// Times each stage alone over the last step's samples, and the copies between them.
    pub fn time_stages(&mut self) -> Result<KernelTimes, GpuError> {
        let mut stopwatch = Stopwatch::new(&self.gpu)?;
        for stage in Stage::ALL {
            stopwatch.time(stage.name(), |encoder| self.run(encoder, &[stage]))?;
        }
        stopwatch.time("copies to textures", |encoder| {
            self.room.planes().for_each(|plane| plane.copy(encoder, self.tiles));
        })?;
        Ok(stopwatch.finish())
    }

    /// Waits for a submission whose result is being mapped, and hands the result to `read`.
    fn read(
        &self,
        submission: wgpu::SubmissionIndex,
        readback: &wgpu::Buffer,
        bytes: u64,
        read: impl FnOnce(&[[u32; 4]]),
    ) -> Result<(), GpuError> {
        self.gpu.wait(Some(submission))?;
        let view = readback.get_mapped_range(..bytes).map_err(|error| self.gpu.refused(error))?;
        read(bytemuck::cast_slice(&view));
        drop(view);
        readback.unmap();
        Ok(())
    }

    /// Puts what changed for a submission where its commands fetch it: parameters, samples, scales.
    fn upload(
        &mut self,
        texels: &[[f32; 4]],
        samples: impl ExactSizeIterator<Item = u32>,
        fixed_point: Option<&FixedPoint>,
    ) -> Result<(), GpuError> {
        // A step that was begun but not finished still holds its buffers; its second half is
        // never computed.
        self.second_half = None;
        self.finish_dense(|_| {})?;
        self.finish_conv(|_, _| {})?;
        self.finish_logits(|_, _| {})?;

        self.samples = samples.len();
        self.tiles = self.samples.div_ceil(LANES) as u32;
        assert!(self.tiles <= self.room.tiles, "the caller keeps to tiles_max");
        self.sample_words.clear();
        self.sample_words.extend(samples);
        self.sample_words.resize(self.lanes(), NO_SAMPLE);
        let scales: [f32; SCALE_COUNT] =
            std::array::from_fn(|k| fixed_point.map_or(0.0, |fixed| fixed.factor(k)));

        let upload = &self.room.upload;
        let mut view = upload.get_mapped_range_mut(..).map_err(|error| self.gpu.refused(error))?;
        let mut place = 0;
        for bytes in [
            bytemuck::cast_slice(texels),
            bytemuck::cast_slice(&self.sample_words),
            bytemuck::cast_slice(&scales),
            bytemuck::bytes_of(&self.tiles),
        ] {
            let bytes: &[u8] = bytes;
            view.slice(place..place + bytes.len()).copy_from_slice(bytes);
            place += bytes.len();
        }
        drop(view);
        upload.unmap();
        Ok(())
    }

    /// Lanes of a submission. The fully connected kernels take several tiles at once: those behind
    /// the last are empty.
    fn lanes(&self) -> usize {
        (self.tiles as usize).next_multiple_of(DENSE_TILES) * LANES
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.gpu.device.create_command_encoder(&Default::default())
    }

    /// Fetches what [`Instance::upload`] has put there.
    fn encode_upload(&self, encoder: &mut wgpu::CommandEncoder) {
        let upload = &self.room.upload;
        encoder.copy_buffer_to_texture(
            wgpu::TexelCopyBufferInfo {
                buffer: upload,
                layout: wgpu::TexelCopyBufferLayout {
                    offset: 0,
                    bytes_per_row: Some(PARAMETER_COLUMNS as u32 * TEXEL_BYTES as u32),
                    rows_per_image: None,
                },
            },
            self.fixed.parameters.as_image_copy(),
            self.fixed.parameters.size(),
        );
        let mut place = (PARAMETER_ROWS * PARAMETER_COLUMNS) as u64 * TEXEL_BYTES;
        for (buffer, bytes) in [
            (&self.room.samples, self.lanes() as u64 * 4),
            (&self.fixed.scales, self.fixed.scales.size()),
            (&self.fixed.tiles, self.fixed.tiles.size()),
        ] {
            encoder.copy_buffer_to_buffer(upload, place, buffer, 0, bytes);
            place += bytes;
        }
    }

    fn encode_forward(&self, encoder: &mut wgpu::CommandEncoder) {
        let Room { pooled1, slopes1, pooled2, slopes2, hidden1, hidden2, .. } = &self.room;
        let tiles = self.tiles;
        self.run(encoder, &[Stage::Conv1Forward]);
        pooled1.copy(encoder, tiles);
        slopes1.copy(encoder, tiles);
        self.run(encoder, &[Stage::Conv2Forward]);
        pooled2.copy(encoder, tiles);
        slopes2.copy(encoder, tiles);
        self.run(encoder, &[Stage::Dense1Forward]);
        hidden1.copy(encoder, tiles);
        self.run(encoder, &[Stage::Dense2Forward]);
        hidden2.copy(encoder, tiles);
        self.run(encoder, &[Stage::Head]);
    }

    fn encode_dense_backward(&self, encoder: &mut wgpu::CommandEncoder) {
        let Room { d_logits, d_hidden2, d_hidden1, statistics, dense_readback, .. } = &self.room;
        let tiles = self.tiles;
        d_logits.copy(encoder, tiles);
        self.run(encoder, &[Stage::Dense3BackwardInput, Stage::Dense3BackwardWeights]);
        d_hidden2.copy(encoder, tiles);
        self.run(encoder, &[Stage::Dense2BackwardInput, Stage::Dense2BackwardWeights]);
        d_hidden1.copy(encoder, tiles);
        self.run(encoder, &[Stage::Dense1BackwardWeights]);

        let parts = [
            (&self.fixed.dense_sums, DENSE_SUMS as u64 * TEXEL_BYTES),
            (&self.fixed.dense_maxima, DENSE_MAXIMA as u64 * 4),
            (statistics, statistics_bytes(self.samples)),
        ];
        gather(encoder, &parts, dense_readback);
    }

    fn encode_conv_backward(&self, encoder: &mut wgpu::CommandEncoder) {
        let Room { d_pooled2, d_pooled1, partials1, .. } = &self.room;
        let tiles = self.tiles;
        self.run(encoder, &[Stage::Dense1BackwardInput]);
        d_pooled2.copy(encoder, tiles);
        self.run(encoder, &[Stage::Conv2BackwardInput, Stage::Conv2BackwardWeights]);
        d_pooled1.copy(encoder, tiles);
        self.run(encoder, &[Stage::Conv1BackwardWeights]);
        partials1.copy(encoder, tiles);
        self.run(encoder, &[Stage::Conv1SumTiles]);

        let parts = [
            (&self.fixed.conv2_sums, CONV2_SUMS as u64 * TEXEL_BYTES),
            (&self.fixed.conv1_sums, CONV1_SUMS as u64 * TEXEL_BYTES),
            (&self.fixed.conv2_maxima, CONV2_MAXIMA as u64 * 4),
            (&self.fixed.conv1_maxima, CONV1_MAXIMA as u64 * 4),
        ];
        gather(encoder, &parts, &self.fixed.conv_readback);
    }

    /// One pass: stages that do not depend on each other.
    fn run(&self, encoder: &mut wgpu::CommandEncoder, stages: &[Stage]) {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for &stage in stages {
            self.dispatch(&mut pass, stage, stage.groups(self.tiles));
        }
    }

    fn dispatch(&self, pass: &mut wgpu::ComputePass<'_>, stage: Stage, (x, y): (u32, u32)) {
        let BoundStage { pipeline, bindings } =
            self.stages[stage as usize].as_ref().expect("every kernel is compiled at the start");
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, bindings, &[]);
        pass.dispatch_workgroups(x, y, 1);
    }

    fn bind(&self, stage: Stage, pipeline: &wgpu::ComputePipeline) -> wgpu::BindGroup {
        let entries: Vec<wgpu::BindGroupEntry<'_>> =
            resources(stage, &self.fixed, &self.room, &self.images)
                .into_iter()
                .enumerate()
                .map(|(i, resource)| wgpu::BindGroupEntry { binding: i as u32, resource })
                .collect();
        self.gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        })
    }
}

/// Copies buffers one behind the other.
fn gather(
    encoder: &mut wgpu::CommandEncoder,
    parts: &[(&wgpu::Buffer, u64)],
    target: &wgpu::Buffer,
) {
    let mut place = 0;
    for &(buffer, bytes) in parts {
        encoder.copy_buffer_to_buffer(buffer, 0, target, place, bytes);
        place += bytes;
    }
}
