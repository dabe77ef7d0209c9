use annulet::gpu::portable::stages::*;
use annulet::gpu::shader::*;
use annulet::gpu::*;
use annulet::model::*;
use annulet::numerics::fixed_point::*;
use std::time::Instant;
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = s.rsplit(')').next().unwrap().split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) * 10.0
}
fn main() {
    let n: usize = std::env::args().nth(1).map_or(128, |a| a.parse().unwrap());
    let reps: usize = std::env::args().nth(2).map_or(20, |a| a.parse().unwrap());
    let filter = std::env::args().nth(3).unwrap_or_default();
    let model = if std::env::var("CLASSIC").is_ok() { ModelKind::LeNet5Classic } else { ModelKind::LeNet5 };
    let gpu = Gpu::open(&std::env::var("ADAPTER").unwrap_or("best".into()).parse().unwrap(), wgpu::Features::empty()).unwrap();
    let quads = n.div_ceil(16);
    let images = 2048;
    let tuning = if std::env::var("BUFFERS").is_ok() { Tuning::HARDWARE } else { Tuning::SOFTWARE };
    let reads = tuning.reads;
    let stages = stages(model, Sums::Exact, tuning);
    let ids: Vec<_> = BufferId::ALL.iter().map(|id| gpu.device.create_buffer(&wgpu::BufferDescriptor { label: None, size: 4 * id.words(model, images, quads) as u64, usage: if *id == BufferId::ConvolutionWeights { wgpu::BufferUsages::UNIFORM } else { wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC } | wgpu::BufferUsages::COPY_DST, mapped_at_creation: false })).collect();
    let texs: Vec<_> = BufferId::ALL.iter().map(|id| id.texture_rows(quads).map(|h| gpu.device.create_texture(&wgpu::TextureDescriptor { label: None, size: wgpu::Extent3d { width: 1024, height: h as u32, depth_or_array_layers: 1 }, mip_level_count: 1, sample_count: 1, dimension: wgpu::TextureDimension::D2, format: wgpu::TextureFormat::Rgba32Float, usage: wgpu::TextureUsages::STORAGE_BINDING | wgpu::TextureUsages::COPY_DST, view_formats: &[] }))).collect();
    for id in BufferId::ALL { if let Some(w) = id.constant() { gpu.queue.write_buffer(&ids[id as usize], 0, bytemuck::cast_slice(&w)); } }
    let p = annulet::model::initial::initial_parameters(1);
    gpu.queue.write_buffer(&ids[BufferId::Parameters as usize], 0, bytemuck::cast_slice(&p));
    let px: Vec<u8> = (0..images * 784).map(|i| (i * 2654435761usize >> 7) as u8).collect();
    gpu.queue.write_buffer(&ids[BufferId::Pixels as usize], 0, &px);
    let idx: Vec<u32> = (0..quads as u32 * 16).map(|i| i % 2000).collect();
    gpu.queue.write_buffer(&ids[BufferId::Samples as usize], 0, bytemuck::cast_slice(&idx));
    let fp = FixedPoint::for_batch(n, &[8.0; 11]);
    let mut sub = Submission { samples: n as u32, pixel_scale: 0.01, pixel_offset: -0.8, factors: [0.0; 11], limits: [0.0; 11] };
    sub.set_fixed_point(&fp);
    gpu.queue.write_buffer(&ids[BufferId::Submission as usize], 0, bytemuck::bytes_of(&sub));
    let mut total = 0.0;
    let mut compile = 0.0;
    for s in &stages {
        if !s.label.contains(&filter) { continue; }
        let t = Instant::now();
        let c = cpu();
        let pipe = s.kernel.pipeline(&gpu.device);
        let made = t.elapsed().as_secs_f64() * 1e3;
        let bg = s.kernel.bind_group(&gpu.device, &pipe, |b| { let id = s.buffer(b.name); match &texs[id as usize] { Some(t) if b.access == Access::Source && reads == Reads::Textures => { wgpu::BindingResource::TextureView(Box::leak(Box::new(t.create_view(&Default::default())))) } _ => ids[id as usize].as_entire_binding() } });
        let run = |reps: usize, one: bool| {
            let mut e = gpu.device.create_command_encoder(&Default::default());
            { let mut pass = e.begin_compute_pass(&Default::default());
              for _ in 0..reps { pass.set_pipeline(&pipe); pass.set_bind_group(0, &bg, &[]);
                let [x, y, z] = if one { [1, 1, 1] } else { s.grid.workgroups(n as u32, 1) }; pass.dispatch_workgroups(x, y, z); } }
            gpu.queue.submit([e.finish()]); gpu.wait(None).unwrap();
        };
        run(1, true);
        let cw = t.elapsed().as_secs_f64() * 1e3;
        let ccpu = cpu() - c;
        compile += cw;
        run(1, false);
        let c = cpu(); let t = Instant::now();
        run(reps, false);
        let us = (cpu() - c) * 1e3 / reps as f64 / n as f64;
        let wus = t.elapsed().as_secs_f64() * 1e6 / reps as f64 / n as f64;
        total += us;
        println!("{:18} made {made:6.1} ready {cw:7.1} ms (cpu {ccpu:5.0})   {us:7.2} us/image cpu, {wus:7.2} wall", s.label);
    }
    println!("compile {compile:.0} ms, {total:.1} us/image cpu -> {:.0} images/s on two cores", 2e6 / total);
}
