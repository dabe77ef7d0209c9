//! One device of the lane set: its copy of the images, its kernels, and the commands of a step.

use std::ops::Range;

use super::kernels::{DENSE_TILES, Kernel, Sources, Variant};
use super::layout::{
    CONV_MAXIMA, CONV_SUMS, CONV1_MAXIMA_FIRST, CONV1_UNITS, CONV2_UNITS, DENSE_MAXIMA, DENSE_SUMS,
    DENSE1, DENSE2, DENSE3, DenseShape, LANES, PARAMETER_COLUMNS, PARAMETER_ROWS, PLACES,
};
use crate::gpu::GpuError;
use crate::gpu::device::Gpu;
use crate::data::dataset::{Dataset, ImageSet};
use crate::model::layers::{IMAGE_PIXELS, IMAGE_SIDE, ModelKind};
use crate::model::layout::SCALE_COUNT;
use crate::numerics::fixed_point::FixedPoint;

/// A lane without a sample.
const NO_SAMPLE: u32 = u32::MAX;
/// Texels of an image with its border: 8x8 blocks of 4x4 pixels.
const IMAGE_TEXELS: u32 = 64;
/// Vectors of four values that a texel of rgba32 holds.
const TEXEL_BYTES: u64 = 16;
/// Sizes of a copy's rows are multiples of this.
const _: () = assert!(LANES as u64 * TEXEL_BYTES == wgpu::COPY_BYTES_PER_ROW_ALIGNMENT as u64);

/// The words that a dense submission leaves, in vectors of four: sums, maxima, statistics.
pub(super) struct DenseResult<'a> {
    pub sums: &'a [[u32; 4]],
    pub maxima: &'a [u32],
    /// Of each sample: loss in fixed point, right, bits of |loss|, 1.
    pub statistics: &'a [[u32; 4]],
}

/// Activations or gradients: kernels write a buffer, which is copied to a texture, which kernels
/// read. On lavapipe a texel is read in a tenth of the time that a vector of a buffer takes.
struct Plane {
    buffer: wgpu::Buffer,
    texture: wgpu::Texture,
    view: wgpu::TextureView,
    columns: u32,
    rows_per_tile: u32,
}

impl Plane {
    fn new(
        gpu: &Gpu,
        label: &'static str,
        format: wgpu::TextureFormat,
        texels_per_row: usize,
        rows_per_tile: usize,
        tiles: u32,
    ) -> Plane {
        let columns = (texels_per_row * LANES) as u32;
        let rows = rows_per_tile as u32 * tiles;
        let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: u64::from(columns) * u64::from(rows) * TEXEL_BYTES,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let texture = texture(gpu, label, format, columns, rows);
        let view = texture.create_view(&wgpu::TextureViewDescriptor::default());
        Plane { buffer, texture, view, columns, rows_per_tile: rows_per_tile as u32 }
    }

    fn copy(&self, encoder: &mut wgpu::CommandEncoder, tiles: u32) {
        encoder.copy_buffer_to_texture(
            wgpu::TexelCopyBufferInfo {
                buffer: &self.buffer,
                layout: wgpu::TexelCopyBufferLayout {
                    offset: 0,
                    bytes_per_row: Some(self.columns * TEXEL_BYTES as u32),
                    rows_per_image: None,
                },
            },
            self.texture.as_image_copy(),
            wgpu::Extent3d {
                width: self.columns,
                height: self.rows_per_tile * tiles,
                depth_or_array_layers: 1,
            },
        );
    }
}

/// What does not depend on how many tiles there is room for.
struct Fixed {
    images: wgpu::TextureView,
    labels: wgpu::Buffer,
    normalization: wgpu::Buffer,
    scales: wgpu::Buffer,
    tiles: wgpu::Buffer,
    parameters: wgpu::Texture,
    parameters_view: wgpu::TextureView,
    dense_sums: wgpu::Buffer,
    dense_maxima: wgpu::Buffer,
    conv_sums: wgpu::Buffer,
    conv_maxima: wgpu::Buffer,
    conv_readback: wgpu::Buffer,
}

/// What does.
struct Room {
    tiles: u32,
    samples: wgpu::Buffer,
    pooled1: Plane,
    slopes1: Plane,
    pooled2: Plane,
    slopes2: Plane,
    hidden1: Plane,
    hidden2: Plane,
    d_logits: Plane,
    d_hidden2: Plane,
    d_hidden1: Plane,
    d_pooled2: Plane,
    d_pooled1: Plane,
    partials2: Plane,
    partials1: Plane,
    logits: wgpu::Buffer,
    statistics: wgpu::Buffer,
    dense_readback: wgpu::Buffer,
    logits_readback: wgpu::Buffer,
}

struct Pipeline {
    pipeline: wgpu::ComputePipeline,
    bindings: wgpu::BindGroup,
}

pub(super) struct Instance {
    gpu: Gpu,
    variant: Variant,
    fixed: Fixed,
    room: Room,
    /// In the order of [`Kernel::ALL`].
    pipelines: Vec<Pipeline>,
    sample_words: Vec<u32>,
    /// Samples of the submission and the tiles that they fill.
    samples: usize,
    tiles: u32,
    train_samples: u32,
    /// The submissions under way: the fully connected layers' sums or logits, the convolutions'.
    dense: Option<wgpu::SubmissionIndex>,
    conv: Option<wgpu::SubmissionIndex>,
}

impl Instance {
    pub fn open(gpu: Gpu, variant: Variant, dataset: &Dataset, tiles: u32) -> Result<Instance, GpuError> {
        let fixed = Fixed::new(&gpu, variant, dataset)?;
        let room = Room::new(&gpu, variant.model, tiles);
        let train_samples = dataset.train.labels.len() as u32;
        let sources = Sources::new(variant);
        let mut instance = Instance {
            gpu,
            variant,
            fixed,
            room,
            pipelines: Vec::new(),
            sample_words: Vec::new(),
            samples: 0,
            tiles: 0,
            train_samples,
            dense: None,
            conv: None,
        };
        for kernel in Kernel::ALL {
            let module = instance.gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some(kernel.name()),
                source: wgpu::ShaderSource::Wgsl(sources.wgsl(kernel).into()),
            });
            let pipeline =
                instance.gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                    label: Some(kernel.name()),
                    layout: None,
                    module: &module,
                    entry_point: Some("main"),
                    compilation_options: wgpu::PipelineCompilationOptions::default(),
                    cache: None,
                });
            instance.gpu.check()?;
            let bindings = instance.bindings(kernel, &pipeline);
            instance.pipelines.push(Pipeline { pipeline, bindings });
        }
        Ok(instance)
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Most tiles of a submission.
    pub fn tiles_max(&self) -> u32 {
        self.room.tiles
    }

    /// Submits forward and backward over training samples; at most [`Instance::tiles_max`] tiles.
    pub fn begin(&mut self, texels: &[[f32; 4]], samples: &[u32], fixed_point: &FixedPoint) {
        self.upload(texels, samples.iter().copied());
        let scales: [[f32; 2]; SCALE_COUNT] =
            std::array::from_fn(|k| [fixed_point.factor(k), fixed_point.limits[k]]);
        self.gpu.queue.write_buffer(&self.fixed.scales, 0, bytemuck::cast_slice(&scales));

        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        self.encode_forward(&mut encoder);
        self.encode_dense_backward(&mut encoder);
        self.dense = Some(self.gpu.queue.submit([encoder.finish()]));
        let statistics = u64::from(self.tiles) * LANES as u64;
        self.room
            .dense_readback
            .map_async(wgpu::MapMode::Read, ..dense_bytes(statistics), |_| {});

        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        self.encode_conv_backward(&mut encoder);
        self.conv = Some(self.gpu.queue.submit([encoder.finish()]));
        self.fixed.conv_readback.map_async(wgpu::MapMode::Read, .., |_| {});
    }

    /// Waits for the fully connected layers' sums, if any are under way, and hands them to `read`.
    pub fn finish_dense(&mut self, read: impl FnOnce(DenseResult<'_>)) -> Result<(), GpuError> {
        let Some(submission) = self.dense.take() else { return Ok(()) };
        self.gpu.wait(Some(submission))?;
        let statistics = self.tiles as usize * LANES;
        {
            let view = self.room.dense_readback.get_mapped_range(..dense_bytes(statistics as u64));
            let view = view.map_err(|error| self.gpu.refused(error))?;
            let words: &[[u32; 4]] = bytemuck::cast_slice(&view);
            let (sums, words) = words.split_at(DENSE_SUMS);
            let (maxima, statistics) = words.split_at(DENSE_MAXIMA / 4);
            read(DenseResult { sums, maxima: maxima.as_flattened(), statistics });
        }
        self.room.dense_readback.unmap();
        Ok(())
    }

    /// Waits for the convolutions' sums, if any are under way, and hands them, then their maxima, to `read`.
    pub fn finish_conv(&mut self, read: impl FnOnce(&[[u32; 4]], &[u32])) -> Result<(), GpuError> {
        let Some(submission) = self.conv.take() else { return Ok(()) };
        self.gpu.wait(Some(submission))?;
        {
            let view = self.fixed.conv_readback.get_mapped_range(..);
            let view = view.map_err(|error| self.gpu.refused(error))?;
            let words: &[[u32; 4]] = bytemuck::cast_slice(&view);
            let (sums, maxima) = words.split_at(CONV_SUMS);
            read(sums, maxima.as_flattened());
        }
        self.fixed.conv_readback.unmap();
        Ok(())
    }

    /// Submits the forward pass over test samples.
    pub fn begin_logits(&mut self, texels: &[[f32; 4]], samples: Range<u32>) {
        let first = self.train_samples;
        self.upload(texels, samples.map(|sample| first + sample));
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        self.encode_forward(&mut encoder);
        let bytes = logits_bytes(self.tiles);
        encoder.copy_buffer_to_buffer(&self.room.logits, 0, &self.room.logits_readback, 0, bytes);
        self.dense = Some(self.gpu.queue.submit([encoder.finish()]));
        self.room.logits_readback.map_async(wgpu::MapMode::Read, ..bytes, |_| {});
    }

    /// Waits for the logits, if any are under way, and hands them to `read`: (tile, three quads,
    /// lane), and the number of samples.
    pub fn finish_logits(
        &mut self,
        read: impl FnOnce(&[[f32; 4]], usize),
    ) -> Result<(), GpuError> {
        let Some(submission) = self.dense.take() else { return Ok(()) };
        self.gpu.wait(Some(submission))?;
        {
            let view = self.room.logits_readback.get_mapped_range(..logits_bytes(self.tiles));
            let view = view.map_err(|error| self.gpu.refused(error))?;
            read(bytemuck::cast_slice(&view), self.samples);
        }
        self.room.logits_readback.unmap();
        Ok(())
    }

    fn upload(&mut self, texels: &[[f32; 4]], samples: impl ExactSizeIterator<Item = u32>) {
        self.samples = samples.len();
        self.tiles = self.samples.div_ceil(LANES) as u32;
        assert!(self.tiles <= self.room.tiles, "the caller keeps to tiles_max");
        // The fully connected kernels take several tiles at once: those behind the last are empty.
        let tiles = self.tiles.next_multiple_of(DENSE_TILES);
        self.sample_words.clear();
        self.sample_words.extend(samples);
        self.sample_words.resize(tiles as usize * LANES, NO_SAMPLE);
        let queue = &self.gpu.queue;
        queue.write_buffer(&self.room.samples, 0, bytemuck::cast_slice(&self.sample_words));
        queue.write_buffer(&self.fixed.tiles, 0, bytemuck::bytes_of(&self.tiles));
        queue.write_texture(
            self.fixed.parameters.as_image_copy(),
            bytemuck::cast_slice(texels),
            wgpu::TexelCopyBufferLayout {
                offset: 0,
                bytes_per_row: Some(PARAMETER_COLUMNS as u32 * TEXEL_BYTES as u32),
                rows_per_image: None,
            },
            self.fixed.parameters.size(),
        );
    }

    fn encode_forward(&self, encoder: &mut wgpu::CommandEncoder) {
        let Room { pooled1, slopes1, pooled2, slopes2, hidden1, hidden2, .. } = &self.room;
        let tiles = self.tiles;
        let pairs = tiles.div_ceil(DENSE_TILES);
        self.dispatch(encoder, &[(Kernel::Conv1Forward, 49, tiles)]);
        pooled1.copy(encoder, tiles);
        slopes1.copy(encoder, tiles);
        self.dispatch(encoder, &[(Kernel::Conv2Forward, 20, tiles)]);
        pooled2.copy(encoder, tiles);
        slopes2.copy(encoder, tiles);
        self.dispatch(encoder, &[(Kernel::Dense1Forward, forward_groups(&DENSE1), pairs)]);
        hidden1.copy(encoder, tiles);
        self.dispatch(encoder, &[(Kernel::Dense2Forward, forward_groups(&DENSE2), pairs)]);
        hidden2.copy(encoder, tiles);
        self.dispatch(encoder, &[(Kernel::Head, tiles, 1)]);
    }

    fn encode_dense_backward(&self, encoder: &mut wgpu::CommandEncoder) {
        let Room { d_logits, d_hidden2, d_hidden1, statistics, dense_readback, .. } = &self.room;
        let tiles = self.tiles;
        let pairs = tiles.div_ceil(DENSE_TILES);
        let weights = |kernel, shape: &DenseShape| {
            let groups = shape.output_quads() / shape.weight_quads;
            (kernel, shape.weight_groups() as u32, groups as u32)
        };
        d_logits.copy(encoder, tiles);
        self.dispatch(
            encoder,
            &[
                (Kernel::Dense3BackwardInput, backward_groups(&DENSE3), pairs),
                weights(Kernel::Dense3BackwardWeights, &DENSE3),
            ],
        );
        d_hidden2.copy(encoder, tiles);
        self.dispatch(
            encoder,
            &[
                (Kernel::Dense2BackwardInput, backward_groups(&DENSE2), pairs),
                weights(Kernel::Dense2BackwardWeights, &DENSE2),
            ],
        );
        d_hidden1.copy(encoder, tiles);
        self.dispatch(encoder, &[weights(Kernel::Dense1BackwardWeights, &DENSE1)]);

        let parts = [
            (&self.fixed.dense_sums, DENSE_SUMS as u64 * TEXEL_BYTES),
            (&self.fixed.dense_maxima, DENSE_MAXIMA as u64 * 4),
            (statistics, u64::from(tiles) * LANES as u64 * TEXEL_BYTES),
        ];
        gather(encoder, &parts, dense_readback);
    }

    fn encode_conv_backward(&self, encoder: &mut wgpu::CommandEncoder) {
        let Room { d_pooled2, d_pooled1, partials2, partials1, .. } = &self.room;
        let tiles = self.tiles;
        let pairs = tiles.div_ceil(DENSE_TILES);
        self.dispatch(encoder, &[(Kernel::Dense1BackwardInput, backward_groups(&DENSE1), pairs)]);
        d_pooled2.copy(encoder, tiles);
        self.dispatch(
            encoder,
            &[
                (Kernel::Conv2BackwardInput, 14, tiles),
                (Kernel::Conv2BackwardWeights, CONV2_UNITS as u32, tiles),
            ],
        );
        d_pooled1.copy(encoder, tiles);
        partials2.copy(encoder, tiles);
        self.dispatch(
            encoder,
            &[
                (Kernel::Conv1BackwardWeights, CONV1_UNITS as u32, tiles),
                (Kernel::Conv2SumTiles, CONV1_MAXIMA_FIRST as u32 / LANES as u32, 1),
            ],
        );
        partials1.copy(encoder, tiles);
        let groups = (CONV_MAXIMA - CONV1_MAXIMA_FIRST) / LANES;
        self.dispatch(encoder, &[(Kernel::Conv1SumTiles, groups as u32, 1)]);

        let parts = [
            (&self.fixed.conv_sums, CONV_SUMS as u64 * TEXEL_BYTES),
            (&self.fixed.conv_maxima, CONV_MAXIMA as u64 * 4),
        ];
        gather(encoder, &parts, &self.fixed.conv_readback);
    }

    /// One pass: kernels that do not depend on each other, with their workgroups.
    fn dispatch(&self, encoder: &mut wgpu::CommandEncoder, kernels: &[(Kernel, u32, u32)]) {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for &(kernel, x, y) in kernels {
            let Pipeline { pipeline, bindings } = &self.pipelines[kernel as usize];
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, bindings, &[]);
            pass.dispatch_workgroups(x, y, 1);
        }
    }

    /// The kernel's resources, in the order of its bindings.
    fn bindings(&self, kernel: Kernel, pipeline: &wgpu::ComputePipeline) -> wgpu::BindGroup {
        let (fixed, room) = (&self.fixed, &self.room);
        let buffer = wgpu::Buffer::as_entire_binding;
        fn read(plane: &Plane) -> wgpu::BindingResource<'_> {
            wgpu::BindingResource::TextureView(&plane.view)
        }
        fn written(plane: &Plane) -> wgpu::BindingResource<'_> {
            plane.buffer.as_entire_binding()
        }
        let samples = buffer(&room.samples);
        let images = wgpu::BindingResource::TextureView(&fixed.images);
        let parameters = wgpu::BindingResource::TextureView(&fixed.parameters_view);
        let normalization = buffer(&fixed.normalization);
        let (scales, tiles) = (buffer(&fixed.scales), buffer(&fixed.tiles));
        let dense_weights = |inputs, d_outputs| {
            let (sums, maxima) = (buffer(&fixed.dense_sums), buffer(&fixed.dense_maxima));
            vec![buffer(&fixed.scales), buffer(&fixed.tiles), inputs, d_outputs, sums, maxima]
        };
        let resources = match kernel {
            Kernel::Conv1Forward => vec![
                samples,
                images,
                normalization,
                parameters,
                written(&room.pooled1),
                written(&room.slopes1),
            ],
            Kernel::Conv2Forward => vec![
                parameters,
                read(&room.pooled1),
                written(&room.pooled2),
                written(&room.slopes2),
            ],
            Kernel::Dense1Forward => {
                vec![parameters, read(&room.pooled2), written(&room.hidden1)]
            }
            Kernel::Dense2Forward => {
                vec![parameters, read(&room.hidden1), written(&room.hidden2)]
            }
            Kernel::Head => vec![
                samples,
                buffer(&fixed.labels),
                scales,
                parameters,
                read(&room.hidden2),
                buffer(&room.logits),
                written(&room.d_logits),
                buffer(&room.statistics),
            ],
            Kernel::Dense3BackwardInput => vec![
                parameters,
                read(&room.d_logits),
                written(&room.d_hidden2),
                read(&room.hidden2),
            ],
            Kernel::Dense2BackwardInput => vec![
                parameters,
                read(&room.d_hidden2),
                written(&room.d_hidden1),
                read(&room.hidden1),
            ],
            Kernel::Dense1BackwardInput => {
                vec![parameters, read(&room.d_hidden1), written(&room.d_pooled2)]
            }
            Kernel::Dense3BackwardWeights => {
                dense_weights(read(&room.hidden2), read(&room.d_logits))
            }
            Kernel::Dense2BackwardWeights => {
                dense_weights(read(&room.hidden1), read(&room.d_hidden2))
            }
            Kernel::Dense1BackwardWeights => {
                dense_weights(read(&room.pooled2), read(&room.d_hidden1))
            }
            Kernel::Conv2BackwardInput => vec![
                parameters,
                read(&room.d_pooled2),
                read(&room.slopes2),
                written(&room.d_pooled1),
            ],
            Kernel::Conv2BackwardWeights => vec![
                read(&room.pooled1),
                read(&room.d_pooled2),
                read(&room.slopes2),
                written(&room.partials2),
            ],
            Kernel::Conv1BackwardWeights => vec![
                samples,
                images,
                normalization,
                read(&room.d_pooled1),
                read(&room.slopes1),
                written(&room.partials1),
            ],
            Kernel::Conv2SumTiles | Kernel::Conv1SumTiles => vec![
                scales,
                tiles,
                read(if kernel == Kernel::Conv2SumTiles {
                    &room.partials2
                } else {
                    &room.partials1
                }),
                buffer(&fixed.conv_sums),
                buffer(&fixed.conv_maxima),
            ],
        };
        let entries: Vec<wgpu::BindGroupEntry<'_>> = resources
            .into_iter()
            .enumerate()
            .map(|(i, resource)| wgpu::BindGroupEntry { binding: i as u32, resource })
            .collect();
        self.gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.name()),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        })
    }
}

impl Fixed {
    fn new(gpu: &Gpu, variant: Variant, dataset: &Dataset) -> Result<Fixed, GpuError> {
        let label = "parameters";
        let (columns, rows) = (PARAMETER_COLUMNS as u32, PARAMETER_ROWS as u32);
        let parameters = texture(gpu, label, wgpu::TextureFormat::Rgba32Float, columns, rows);
        let parameters_view = parameters.create_view(&wgpu::TextureViewDescriptor::default());
        let normalization = [dataset.normalization.scale, dataset.normalization.offset];
        let sets = [&dataset.train, &dataset.test];
        let labels: Vec<u32> =
            sets.iter().flat_map(|set| &set.labels).map(|&label| u32::from(label)).collect();
        let conv_bytes = CONV_SUMS as u64 * TEXEL_BYTES + CONV_MAXIMA as u64 * 4;
        Ok(Fixed {
            images: image_texture(gpu, variant, sets)?,
            labels: filled(gpu, "labels", bytemuck::cast_slice(&labels)),
            normalization: filled(gpu, "normalization", bytemuck::cast_slice(&normalization)),
            scales: storage(gpu, "scales", SCALE_COUNT as u64 * 8),
            tiles: storage(gpu, "tiles", 4),
            parameters,
            parameters_view,
            dense_sums: storage(gpu, "dense sums", DENSE_SUMS as u64 * TEXEL_BYTES),
            dense_maxima: storage(gpu, "dense maxima", DENSE_MAXIMA as u64 * 4),
            conv_sums: storage(gpu, "conv sums", CONV_SUMS as u64 * TEXEL_BYTES),
            conv_maxima: storage(gpu, "conv maxima", CONV_MAXIMA as u64 * 4),
            conv_readback: readback(gpu, "conv readback", conv_bytes),
        })
    }
}

impl Room {
    fn new(gpu: &Gpu, model: ModelKind, tiles: u32) -> Room {
        let tiles = tiles.next_multiple_of(DENSE_TILES);
        let values = |label, texels_per_row, rows_per_tile| {
            let format = wgpu::TextureFormat::Rgba32Float;
            Plane::new(gpu, label, format, texels_per_row, rows_per_tile, tiles)
        };
        let (slopes1, slopes2) = match model {
            ModelKind::LeNet5 => {
                let codes = |label, texels_per_row| {
                    let format = wgpu::TextureFormat::Rgba32Uint;
                    Plane::new(gpu, label, format, texels_per_row, 1, tiles)
                };
                (codes("codes 1", 49), codes("codes 2", 20))
            }
            ModelKind::LeNet5Classic => {
                (values("slopes 1", 4 * 49, 6), values("slopes 2", 4 * 100, 1))
            }
        };
        let lanes = u64::from(tiles) * LANES as u64;
        Room {
            tiles,
            samples: storage(gpu, "samples", lanes * 4),
            pooled1: values("pooled 1", 49, 6),
            slopes1,
            pooled2: values("pooled 2", DENSE1.input_quads(), 1),
            slopes2,
            hidden1: values("hidden 1", DENSE2.input_quads(), 1),
            hidden2: values("hidden 2", DENSE3.input_quads(), 1),
            d_logits: values("d logits", DENSE3.output_quads(), 1),
            d_hidden2: values("d hidden 2", DENSE2.output_quads(), 1),
            d_hidden1: values("d hidden 1", DENSE1.output_quads(), 1),
            d_pooled2: values("d pooled 2", DENSE1.input_quads(), 1),
            d_pooled1: values("d pooled 1", 49, 6),
            partials2: values("partials 2", PLACES, CONV2_UNITS),
            partials1: values("partials 1", PLACES, CONV1_UNITS),
            logits: storage(gpu, "logits", logits_bytes(tiles)),
            statistics: storage(gpu, "statistics", lanes * TEXEL_BYTES),
            dense_readback: readback(gpu, "dense readback", dense_bytes(lanes)),
            logits_readback: readback(gpu, "logits readback", logits_bytes(tiles)),
        }
    }
}

/// Bytes of a dense submission's result with so many samples' statistics.
const fn dense_bytes(statistics: u64) -> u64 {
    (DENSE_SUMS as u64 + statistics) * TEXEL_BYTES + DENSE_MAXIMA as u64 * 4
}

const fn logits_bytes(tiles: u32) -> u64 {
    tiles as u64 * (3 * LANES) as u64 * TEXEL_BYTES
}

const fn forward_groups(shape: &DenseShape) -> u32 {
    shape.layer.outputs.div_ceil(shape.forward_outputs) as u32
}

const fn backward_groups(shape: &DenseShape) -> u32 {
    shape.input_quads().div_ceil(shape.backward_quads) as u32
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

fn texture(
    gpu: &Gpu,
    label: &str,
    format: wgpu::TextureFormat,
    width: u32,
    height: u32,
) -> wgpu::Texture {
    gpu.device.create_texture(&wgpu::TextureDescriptor {
        label: Some(label),
        size: wgpu::Extent3d { width, height, depth_or_array_layers: 1 },
        mip_level_count: 1,
        sample_count: 1,
        dimension: wgpu::TextureDimension::D2,
        format,
        usage: wgpu::TextureUsages::TEXTURE_BINDING | wgpu::TextureUsages::COPY_DST,
        view_formats: &[],
    })
}

fn storage(gpu: &Gpu, label: &str, bytes: u64) -> wgpu::Buffer {
    gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some(label),
        size: bytes,
        usage: wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

fn filled(gpu: &Gpu, label: &str, bytes: &[u8]) -> wgpu::Buffer {
    let buffer = storage(gpu, label, bytes.len() as u64);
    gpu.queue.write_buffer(&buffer, 0, bytes);
    buffer
}

fn readback(gpu: &Gpu, label: &str, bytes: u64) -> wgpu::Buffer {
    gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some(label),
        size: bytes,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

/// Images that fit side by side in a texture of the device.
pub(super) fn images_per_row(gpu: &Gpu) -> u32 {
    gpu.device.limits().max_texture_dimension_2d / IMAGE_TEXELS
}

/// All images, the training set first, each with a border of 2 zero pixels.
fn image_texture(
    gpu: &Gpu,
    variant: Variant,
    sets: [&ImageSet; 2],
) -> Result<wgpu::TextureView, GpuError> {
    let per_row = variant.images_per_row as usize;
    let count: usize = sets.iter().map(|set| set.labels.len()).sum();
    let rows = count.div_ceil(per_row).max(1);
    let row_bytes = per_row * IMAGE_TEXELS as usize * TEXEL_BYTES as usize;
    let rows_max = gpu.device.limits().max_texture_dimension_2d as usize;
    if rows > rows_max {
        return Err(GpuError::DatasetTooLarge {
            adapter: gpu.report().label(),
            needed: (rows * row_bytes) as u64,
            available: (rows_max * row_bytes) as u64,
            samples: (rows_max * per_row).saturating_sub(sets[1].labels.len()) as u64,
        });
    }
    let (width, height) = (per_row as u32 * IMAGE_TEXELS, rows as u32);
    let texture = texture(gpu, "images", wgpu::TextureFormat::Rgba32Uint, width, height);
    let mut images = sets.iter().flat_map(|set| set.pixels.chunks_exact(IMAGE_PIXELS));
    let mut bytes = vec![0; row_bytes];
    for row in 0..height {
        // The border's bytes are never written and stay 0.
        for texels in bytes.chunks_exact_mut(row_bytes / per_row) {
            let Some(image) = images.next() else { break };
            pack_image(image, texels);
        }
        gpu.queue.write_texture(
            wgpu::TexelCopyTextureInfo {
                origin: wgpu::Origin3d { x: 0, y: row, z: 0 },
                ..texture.as_image_copy()
            },
            &bytes,
            wgpu::TexelCopyBufferLayout {
                offset: 0,
                bytes_per_row: Some(row_bytes as u32),
                rows_per_image: None,
            },
            wgpu::Extent3d { width, height: 1, depth_or_array_layers: 1 },
        );
    }
    Ok(texture.create_view(&wgpu::TextureViewDescriptor::default()))
}

/// An image as 8x8 texels of 4x4 bytes; the image begins in row and column 2.
fn pack_image(image: &[u8], texels: &mut [u8]) {
    for (y, line) in image.chunks_exact(IMAGE_SIDE).enumerate() {
        for (x, &pixel) in line.iter().enumerate() {
            let (row, column) = (y + 2, x + 2);
            let texel = row / 4 * 8 + column / 4;
            texels[texel * 16 + row % 4 * 4 + column % 4] = pixel;
        }
    }
}
