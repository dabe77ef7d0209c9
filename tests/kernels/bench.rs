//! Runs single stages of the portable set.

use std::cell::RefCell;
use std::collections::HashMap;

use annulet::gpu::portable::buffers::{BufferId, Submission, TEXTURE_ROW};
use annulet::gpu::portable::stages::{Stage, Tuning, stages};
use annulet::gpu::shader::{Access, Reads};
use annulet::gpu::{AdapterChoice, Gpu, Sums};
use annulet::model::ModelKind;
use annulet::numerics::fixed_point::{FixedPoint, TILE_SAMPLES};
use bytemuck::Zeroable;

/// A device with the stages of a model.
pub struct Bench {
    gpu: Gpu,
    model: ModelKind,
    tuning: Tuning,
    stages: Vec<Stage>,
    pipelines: RefCell<HashMap<&'static str, wgpu::ComputePipeline>>,
}

impl Bench {
    pub fn open(choice: &AdapterChoice, model: ModelKind, tuning: Tuning) -> Bench {
        Bench {
            gpu: Gpu::open(choice, wgpu::Features::empty()).unwrap(),
            model,
            tuning,
            stages: stages(model, Sums::Exact, tuning),
            pipelines: RefCell::default(),
        }
    }

    pub fn tuning(&self) -> Tuning {
        self.tuning
    }

    /// Runs a stage over `samples` samples with these contents in its buffers, zeros elsewhere, and
    /// returns a buffer.
    pub fn run(
        &self,
        label: &str,
        samples: usize,
        fixed_point: &FixedPoint,
        contents: &[(BufferId, &[f32])],
        output: BufferId,
    ) -> Vec<f32> {
        let mut submission = Submission {
            samples: samples as u32,
            pixel_scale: PIXEL_SCALE,
            pixel_offset: PIXEL_OFFSET,
            ..Submission::zeroed()
        };
        submission.set_fixed_point(fixed_point);

        let stage = self.stages.iter().find(|stage| stage.label == label).unwrap();
        let tiles = samples.div_ceil(TILE_SAMPLES);
        let buffers: HashMap<BufferId, wgpu::Buffer> =
            stage.buffers.iter().map(|&(_, id)| (id, self.buffer(id, tiles))).collect();
        for &id in buffers.keys() {
            if let Some(words) = id.constant() {
                self.gpu.queue.write_buffer(&buffers[&id], 0, bytemuck::cast_slice(&words));
            }
        }
        for (id, content) in contents {
            self.gpu.queue.write_buffer(&buffers[id], 0, bytemuck::cast_slice(content));
        }
        let bytes = bytemuck::bytes_of(&submission);
        self.gpu.queue.write_buffer(&buffers[&BufferId::Submission], 0, bytes);

        let mut encoder = self.gpu.device.create_command_encoder(&<_>::default());
        let views: HashMap<BufferId, wgpu::TextureView> = stage
            .kernel
            .bindings()
            .filter(|binding| {
                binding.access == Access::Source && self.tuning.reads == Reads::Textures
            })
            .map(|binding| {
                let id = stage.buffer(binding.name);
                (id, self.texture(&mut encoder, &buffers[&id], id.texture_rows(tiles).unwrap()))
            })
            .collect();
        let mut pipelines = self.pipelines.borrow_mut();
        let pipeline =
            pipelines.entry(stage.label).or_insert_with(|| stage.kernel.pipeline(&self.gpu.device));
        let bind_group = stage.kernel.bind_group(&self.gpu.device, pipeline, |binding| {
            let id = stage.buffer(binding.name);
            match views.get(&id) {
                Some(view) if binding.access == Access::Source => {
                    wgpu::BindingResource::TextureView(view)
                }
                _ => buffers[&id].as_entire_binding(),
            }
        });
        {
            let mut pass = encoder.begin_compute_pass(&<_>::default());
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &bind_group, &[]);
            let shares = self.tuning.tile_shares_max.min(tiles as u32);
            let [x, y, z] = stage.grid.workgroups(samples as u32, shares);
            pass.dispatch_workgroups(x, y, z);
        }
        self.read(encoder, &buffers[&output])
    }

    fn buffer(&self, id: BufferId, tiles: usize) -> wgpu::Buffer {
        let usage = match id {
            BufferId::ConvolutionWeights => wgpu::BufferUsages::UNIFORM,
            _ => wgpu::BufferUsages::STORAGE,
        };
        self.gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 4 * id.words(self.model, IMAGES, tiles) as u64,
            usage: usage | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        })
    }

    fn texture(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        buffer: &wgpu::Buffer,
        rows: usize,
    ) -> wgpu::TextureView {
        let size = wgpu::Extent3d {
            width: TEXTURE_ROW as u32,
            height: rows as u32,
            depth_or_array_layers: 1,
        };
        let texture = self.gpu.device.create_texture(&wgpu::TextureDescriptor {
            label: None,
            size,
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format: wgpu::TextureFormat::Rgba32Float,
            usage: wgpu::TextureUsages::STORAGE_BINDING | wgpu::TextureUsages::COPY_DST,
            view_formats: &[],
        });
        let layout = wgpu::TexelCopyBufferLayout {
            offset: 0,
            bytes_per_row: Some(16 * TEXTURE_ROW as u32),
            rows_per_image: None,
        };
        encoder.copy_buffer_to_texture(
            wgpu::TexelCopyBufferInfo { buffer, layout },
            texture.as_image_copy(),
            size,
        );
        texture.create_view(&<_>::default())
    }

    fn read(&self, mut encoder: wgpu::CommandEncoder, buffer: &wgpu::Buffer) -> Vec<f32> {
        let copy = self.gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: buffer.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        encoder.copy_buffer_to_buffer(buffer, 0, &copy, 0, buffer.size());
        let submission = self.gpu.queue.submit([encoder.finish()]);
        copy.map_async(wgpu::MapMode::Read, .., |_| ());
        self.gpu.wait(Some(submission)).unwrap();
        bytemuck::pod_collect_to_vec(&copy.get_mapped_range(..).unwrap())
    }
}

/// Images of the data set that single stages gather from.
pub const IMAGES: usize = 40;
pub const PIXEL_SCALE: f32 = 0.0131;
pub const PIXEL_OFFSET: f32 = -0.81;
