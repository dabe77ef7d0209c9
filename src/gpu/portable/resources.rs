//! The buffers on the device, and the textures that some of them are read as.

use super::buffers::{BufferId, TEXTURE_ROW};
use crate::gpu::device::Gpu;

/// A buffer of so many words, none of which is set.
pub fn buffer(gpu: &Gpu, id: BufferId, words: usize) -> wgpu::Buffer {
    let usage = match id {
        BufferId::ConvolutionWeights => wgpu::BufferUsages::UNIFORM,
        _ => wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
    };
    gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 4 * words.max(1) as u64,
        usage: usage | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

/// The texture of a buffer of vec4, for `tiles` tiles.
pub fn texture(gpu: &Gpu, id: BufferId, tiles: usize) -> wgpu::Texture {
    gpu.device.create_texture(&wgpu::TextureDescriptor {
        label: None,
        size: texture_size(id, tiles),
        mip_level_count: 1,
        sample_count: 1,
        dimension: wgpu::TextureDimension::D2,
        format: wgpu::TextureFormat::Rgba32Float,
        usage: wgpu::TextureUsages::STORAGE_BINDING | wgpu::TextureUsages::COPY_DST,
        view_formats: &[],
    })
}

/// An odd height, 3 or more: Mesa compiles a shader anew for a texture that differs from the last
/// in whether its sides are powers of two.
fn texture_size(id: BufferId, tiles: usize) -> wgpu::Extent3d {
    let extent = extent(id, tiles);
    wgpu::Extent3d { height: extent.height.max(2) | 1, ..extent }
}

/// The part of a buffer's texture that `tiles` tiles fill.
pub fn extent(id: BufferId, tiles: usize) -> wgpu::Extent3d {
    let rows = id.texture_rows(tiles).expect("only buffers of vec4 are read as textures");
    wgpu::Extent3d { width: TEXTURE_ROW as u32, height: rows as u32, depth_or_array_layers: 1 }
}
