//! The textures and buffers of a device.

use super::kernels::Variant;
use super::layout::{
    CONV_MAXIMA, CONV_SUMS, CONV1_MAXIMA, CONV1_SUMS, CONV1_UNITS, CONV2_MAXIMA, CONV2_SUMS,
    DENSE_MAXIMA, DENSE_SUMS, DENSE_TILES, DENSE1, DENSE2, DENSE3, DenseShape, LANES,
    PARAMETER_COLUMNS, PARAMETER_ROWS, PLACES,
};
use crate::data::dataset::{Dataset, ImageSet, Normalization};
use crate::gpu::GpuError;
use crate::gpu::device::Gpu;
use crate::model::layers::{IMAGE_PIXELS, IMAGE_SIDE, ModelKind};
use crate::model::layout::SCALE_COUNT;

/// Bytes of a texel or vector of four values.
pub(super) const TEXEL_BYTES: u64 = 16;
/// Texels of an image with its border: 8x8 blocks of 4x4 pixels.
const IMAGE_TEXELS: u32 = 64;
/// A copy's rows are multiples of this; a row of lanes is exactly that.
const _: () = assert!(LANES as u64 * TEXEL_BYTES == wgpu::COPY_BYTES_PER_ROW_ALIGNMENT as u64);

/// Activations or gradients: kernels write a buffer, which is copied to a texture, which kernels
/// read. On lavapipe a texel is read in a tenth of the time that a vector of a buffer takes.
pub(super) struct Plane {
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
        let texture = texture(gpu, label, format, columns, odd_height(rows));
        let view = texture.create_view(&wgpu::TextureViewDescriptor::default());
        Plane { buffer, texture, view, columns, rows_per_tile: rows_per_tile as u32 }
    }

    /// As a kernel's output.
    pub fn written(&self) -> wgpu::BindingResource<'_> {
        self.buffer.as_entire_binding()
    }

    /// As a kernel's input.
    pub fn read(&self) -> wgpu::BindingResource<'_> {
        wgpu::BindingResource::TextureView(&self.view)
    }

    /// Makes the buffer's first tiles readable as texels.
    pub fn copy(&self, encoder: &mut wgpu::CommandEncoder, tiles: u32) {
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

/// The data set on a device.
pub(super) struct Images {
    pub images: wgpu::TextureView,
    pub labels: wgpu::Buffer,
    pub normalization: wgpu::Buffer,
    /// Images of the training set; those of the test set follow.
    pub train_samples: u32,
}

impl Images {
    pub fn new(gpu: &Gpu, variant: Variant, dataset: &Dataset) -> Result<Images, GpuError> {
        let sets = [&dataset.train, &dataset.test];
        let labels: Vec<u32> =
            sets.iter().flat_map(|set| &set.labels).map(|&label| u32::from(label)).collect();
        let normalization = [dataset.normalization.scale, dataset.normalization.offset];
        Ok(Images {
            images: image_texture(gpu, variant, sets)?,
            labels: filled(gpu, "labels", bytemuck::cast_slice(&labels)),
            normalization: filled(gpu, "normalization", bytemuck::cast_slice(&normalization)),
            train_samples: dataset.train.labels.len() as u32,
        })
    }

    /// One black image, for kernels that are compiled before there are others.
    pub fn placeholder(gpu: &Gpu, variant: Variant) -> Result<Images, GpuError> {
        let train = ImageSet { pixels: vec![0; IMAGE_PIXELS], labels: vec![0] };
        let dataset = Dataset {
            name: String::new(),
            train,
            test: ImageSet::default(),
            normalization: Normalization { scale: 1.0, offset: 0.0 },
            sha256: [0; 32],
        };
        Images::new(gpu, variant, &dataset)
    }
}

/// What does not depend on how many tiles there is room for.
pub(super) struct Fixed {
    pub scales: wgpu::Buffer,
    pub tiles: wgpu::Buffer,
    /// The shapes of the fully connected layers.
    pub dense: [wgpu::Buffer; 3],
    pub parameters: wgpu::Texture,
    pub parameters_view: wgpu::TextureView,
    pub dense_sums: wgpu::Buffer,
    pub dense_maxima: wgpu::Buffer,
    pub conv2_sums: wgpu::Buffer,
    pub conv2_maxima: wgpu::Buffer,
    pub conv1_sums: wgpu::Buffer,
    pub conv1_maxima: wgpu::Buffer,
    pub conv_readback: wgpu::Buffer,
}

/// What does.
pub(super) struct Room {
    pub tiles: u32,
    /// Mapped whenever no step is under way.
    pub upload: wgpu::Buffer,
    pub samples: wgpu::Buffer,
    pub pooled1: Plane,
    pub slopes1: Plane,
    pub pooled2: Plane,
    pub slopes2: Plane,
    pub hidden1: Plane,
    pub hidden2: Plane,
    pub d_logits: Plane,
    pub d_hidden2: Plane,
    pub d_hidden1: Plane,
    pub d_pooled2: Plane,
    pub d_pooled1: Plane,
    pub partials1: Plane,
    pub logits: wgpu::Buffer,
    pub statistics: wgpu::Buffer,
    pub dense_readback: wgpu::Buffer,
    pub logits_readback: wgpu::Buffer,
}

impl Fixed {
    pub fn new(gpu: &Gpu) -> Fixed {
        let label = "parameters";
        let (columns, rows) = (PARAMETER_COLUMNS as u32, PARAMETER_ROWS as u32);
        let parameters = texture(gpu, label, wgpu::TextureFormat::Rgba32Float, columns, rows);
        let parameters_view = parameters.create_view(&wgpu::TextureViewDescriptor::default());
        let conv_bytes = CONV_SUMS as u64 * TEXEL_BYTES + CONV_MAXIMA as u64 * 4;
        Fixed {
            scales: storage(gpu, "scales", SCALE_COUNT as u64 * 4),
            tiles: storage(gpu, "tiles", 4),
            dense: [&DENSE1, &DENSE2, &DENSE3].map(|shape: &DenseShape| {
                filled(gpu, "dense layer", bytemuck::cast_slice(&shape.words()))
            }),
            parameters,
            parameters_view,
            dense_sums: storage(gpu, "dense sums", DENSE_SUMS as u64 * TEXEL_BYTES),
            dense_maxima: storage(gpu, "dense maxima", DENSE_MAXIMA as u64 * 4),
            conv2_sums: storage(gpu, "conv2 sums", CONV2_SUMS as u64 * TEXEL_BYTES),
            conv2_maxima: storage(gpu, "conv2 maxima", CONV2_MAXIMA as u64 * 4),
            conv1_sums: storage(gpu, "conv1 sums", CONV1_SUMS as u64 * TEXEL_BYTES),
            conv1_maxima: storage(gpu, "conv1 maxima", CONV1_MAXIMA as u64 * 4),
            conv_readback: readback(gpu, "conv readback", conv_bytes),
        }
    }
}

impl Room {
    pub fn new(gpu: &Gpu, model: ModelKind, tiles: u32) -> Room {
        let tiles = tiles.next_multiple_of(DENSE_TILES as u32);
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
            upload: gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("upload"),
                size: upload_bytes(tiles),
                usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: true,
            }),
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
            partials1: values("partials 1", PLACES, CONV1_UNITS),
            logits: storage(gpu, "logits", logits_bytes(tiles)),
            statistics: storage(gpu, "statistics", lanes * TEXEL_BYTES),
            dense_readback: readback(gpu, "dense readback", dense_bytes(lanes as usize)),
            logits_readback: readback(gpu, "logits readback", logits_bytes(tiles)),
        }
    }

    /// Everything that is copied from a buffer to a texture.
    pub fn planes(&self) -> impl Iterator<Item = &Plane> {
        [
            &self.pooled1,
            &self.slopes1,
            &self.pooled2,
            &self.slopes2,
            &self.hidden1,
            &self.hidden2,
            &self.d_logits,
            &self.d_hidden2,
            &self.d_hidden1,
            &self.d_pooled2,
            &self.d_pooled1,
            &self.partials1,
        ]
        .into_iter()
    }
}

/// Room for at least so many rows: lavapipe compiles a kernel anew for a texture that differs from
/// the last in whether its sides are powers of two.
fn odd_height(rows: u32) -> u32 {
    (rows | 1).max(3)
}

/// Bytes of the statistics of whole tiles that hold so many samples.
pub(super) const fn statistics_bytes(samples: usize) -> u64 {
    samples.next_multiple_of(LANES) as u64 * TEXEL_BYTES
}

/// Bytes of a dense submission's result.
pub(super) const fn dense_bytes(samples: usize) -> u64 {
    DENSE_SUMS as u64 * TEXEL_BYTES + DENSE_MAXIMA as u64 * 4 + statistics_bytes(samples)
}

/// Bytes of an upload: parameters, samples, scales, number of tiles.
const fn upload_bytes(tiles: u32) -> u64 {
    let parameters = (PARAMETER_ROWS * PARAMETER_COLUMNS) as u64 * TEXEL_BYTES;
    parameters + tiles as u64 * LANES as u64 * 4 + SCALE_COUNT as u64 * 4 + 4
}

pub(super) const fn logits_bytes(tiles: u32) -> u64 {
    tiles as u64 * (3 * LANES) as u64 * TEXEL_BYTES
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
        usage: wgpu::TextureUsages::STORAGE_BINDING | wgpu::TextureUsages::COPY_DST,
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

/// Images go to the device through a buffer of about so many bytes that is used again and again: one
/// as large as the data set would double the memory that the system has to find and clear, which
/// took a tenth of the time to the first step.
const IMAGE_UPLOAD_BYTES: usize = 4 << 20;

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
    let (width, height) = (per_row as u32 * IMAGE_TEXELS, odd_height(rows as u32));
    let texture = texture(gpu, "images", wgpu::TextureFormat::Rgba32Uint, width, height);
    let mut images = sets.iter().flat_map(|set| set.pixels.chunks_exact(IMAGE_PIXELS));
    let mut bytes = vec![0; row_bytes];
    let rows_per_copy = (IMAGE_UPLOAD_BYTES / row_bytes).clamp(1, rows);
    let upload = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("image upload"),
        size: (rows_per_copy * row_bytes) as u64,
        usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: true,
    });
    for first in (0..rows).step_by(rows_per_copy) {
        let count = rows_per_copy.min(rows - first);
        let mut view = upload.get_mapped_range_mut(..).map_err(|error| gpu.refused(error))?;
        for row in 0..count {
            // The border's bytes are never written and stay 0.
            for texels in bytes.chunks_exact_mut(row_bytes / per_row) {
                let Some(image) = images.next() else { break };
                pack_image(image, texels);
            }
            view.slice(row * row_bytes..(row + 1) * row_bytes).copy_from_slice(&bytes);
        }
        drop(view);
        upload.unmap();
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_texture(
            wgpu::TexelCopyBufferInfo {
                buffer: &upload,
                layout: wgpu::TexelCopyBufferLayout {
                    offset: 0,
                    bytes_per_row: Some(row_bytes as u32),
                    rows_per_image: None,
                },
            },
            wgpu::TexelCopyTextureInfo {
                origin: wgpu::Origin3d { x: 0, y: first as u32, z: 0 },
                ..texture.as_image_copy()
            },
            wgpu::Extent3d { width, height: count as u32, depth_or_array_layers: 1 },
        );
        let copy = gpu.queue.submit([encoder.finish()]);
        upload.map_async(wgpu::MapMode::Write, .., |_| {});
        gpu.wait(Some(copy))?;
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
