use annulet::gpu::*;
use std::time::Instant;
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = s.rsplit(')').next().unwrap().split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) * 10.0
}
fn main() {
    let gpu = Gpu::open(&"best".parse().unwrap(), wgpu::Features::empty()).unwrap();
    let buf = |u| gpu.device.create_buffer(&wgpu::BufferDescriptor { label: None, size: 16384, usage: u, mapped_at_creation: false });
    let s = buf(wgpu::BufferUsages::STORAGE); let u = buf(wgpu::BufferUsages::UNIFORM); let o = buf(wgpu::BufferUsages::STORAGE);
    let tex = gpu.device.create_texture(&wgpu::TextureDescriptor { label: None, size: wgpu::Extent3d { width: 64, height: 64, depth_or_array_layers: 1 }, mip_level_count: 1, sample_count: 1, dimension: wgpu::TextureDimension::D2, format: wgpu::TextureFormat::Rgba32Float, usage: wgpu::TextureUsages::TEXTURE_BINDING | wgpu::TextureUsages::STORAGE_BINDING, view_formats: &[] });
    let view = tex.create_view(&Default::default());
    let tests: &[(&str, &str, &str)] = &[
        ("ssbo vec4", "@group(0) @binding(1) var<storage, read> a: array<vec4f>;", "acc += a[(i*7u + lane) % 4096u];"),
        ("ssbo vec4 nomod", "@group(0) @binding(1) var<storage, read> a: array<vec4f>;", "acc += a[i + lane];"),
        ("ssbo f32", "@group(0) @binding(1) var<storage, read> a: array<f32>;", "acc += vec4f(a[i + lane]);"),
        ("ubo vec4", "@group(0) @binding(2) var<uniform> a: array<vec4f, 1024>;", "acc += a[i + lane];"),
        ("ubo vec4 uniform", "@group(0) @binding(2) var<uniform> a: array<vec4f, 1024>;", "acc += a[i];"),
        ("ubo 4x vec4", "@group(0) @binding(2) var<uniform> a: array<vec4f, 1024>;", "acc += a[i+lane]; acc += a[i+lane+100u];acc += a[i+lane+200u];acc += a[i+lane+300u];"),
        ("shared vec4", "var<workgroup> a: array<vec4f, 1024>;", "acc += a[i + lane];"),
        ("tex vec4", "@group(0) @binding(3) var a: texture_2d<f32>;", "acc += textureLoad(a, vec2u(lane, i & 63u), 0);"),
        ("tex 4x", "@group(0) @binding(3) var a: texture_2d<f32>;", "acc += textureLoad(a, vec2u(lane, i & 63u), 0);acc += textureLoad(a, vec2u(lane, (i+1u) & 63u), 0);acc += textureLoad(a, vec2u(lane, (i+2u) & 63u), 0);acc += textureLoad(a, vec2u(lane, (i+3u) & 63u), 0);"),
        ("stex 4x", "@group(0) @binding(3) var a: texture_storage_2d<rgba32float, read>;", "acc += textureLoad(a, vec2u(lane, i & 63u));acc += textureLoad(a, vec2u(lane, (i+1u) & 63u));acc += textureLoad(a, vec2u(lane, (i+2u) & 63u));acc += textureLoad(a, vec2u(lane, (i+3u) & 63u));"),
        ("mac vec4", "", "acc = acc * 0.999 + f32(i);"),
    ];
    for (name, decl, body) in tests {
        let text = format!("{decl}\n@group(0) @binding(0) var<storage, read_write> o: array<vec4f>;\n@compute @workgroup_size(32) fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) g: vec3u) {{ var acc = vec4f(0.0); for (var i = 0u; i < 900u; i++) {{ {body} }} o[lane] = acc; }}");
        let m = gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source: wgpu::ShaderSource::Wgsl(text.into()) });
        let t0 = Instant::now();
        let p = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor { label: None, layout: None, module: &m, entry_point: None, compilation_options: Default::default(), cache: None });
        gpu.check().unwrap();
        let mut e = vec![wgpu::BindGroupEntry { binding: 0, resource: o.as_entire_binding() }];
        if decl.contains("binding(1)") { e.push(wgpu::BindGroupEntry { binding: 1, resource: s.as_entire_binding() }); }
        if decl.contains("binding(2)") { e.push(wgpu::BindGroupEntry { binding: 2, resource: u.as_entire_binding() }); }
        if decl.contains("binding(3)") { e.push(wgpu::BindGroupEntry { binding: 3, resource: wgpu::BindingResource::TextureView(&view) }); }
        let bg = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &p.get_bind_group_layout(0), entries: &e });
        let run = |n: u32| { let mut e = gpu.device.create_command_encoder(&Default::default()); { let mut pass = e.begin_compute_pass(&Default::default()); pass.set_pipeline(&p); pass.set_bind_group(0, &bg, &[]); pass.dispatch_workgroups(n, 1, 1); } gpu.queue.submit([e.finish()]); gpu.wait(None).unwrap(); };
        run(1);
        let comp = t0.elapsed().as_secs_f64() * 1e3;
        let c = cpu(); run(300); let d = (cpu() - c) * 1e6 / (300.0 * 900.0);
        println!("{name:18} compile {comp:6.1} ms  {:.2} ns an iteration of 8 lanes", d / 4.0);
    }
}
