//! The shaders: one table row a file, and how files make a kernel.
//!
//! A kernel is one file of `shaders/` with pieces of `shaders/shared/` behind it. WGSL does not
//! mind the order of declarations, so that the line numbers of errors stay the kernel's own. Sizes
//! and places are pipeline-overridable constants, given when the pipeline is made.

/// A WGSL file with the buffers that it declares.
#[derive(Debug)]
pub struct Source {
    /// Path below `shaders/`.
    pub file: &'static str,
    pub text: &'static str,
    /// The function that runs; shared pieces have none.
    pub entry_point: Option<&'static str>,
    pub bindings: &'static [Binding],
}

/// A storage buffer of bind group 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    pub index: u32,
    /// The variable's name.
    pub name: &'static str,
    pub access: Access,
}

/// What a shader does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    ReadWrite,
}

/// A file, the pieces that go with it, and the constants that make it one layer's kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// For people: `conv1 forward`.
    pub label: &'static str,
    pub source: &'static Source,
    pub shared: Vec<&'static Source>,
    pub constants: Vec<(&'static str, f64)>,
}

impl Kernel {
    /// The whole WGSL text.
    pub fn text(&self) -> String {
        let mut text = self.source.text.to_owned();
        for shared in &self.shared {
            text.push('\n');
            text.push_str(shared.text);
        }
        text
    }

    /// The buffers of the kernel and its pieces.
    pub fn bindings(&self) -> impl Iterator<Item = Binding> {
        let shared = self.shared.iter().flat_map(|piece| piece.bindings);
        self.source.bindings.iter().chain(shared).copied()
    }

    /// Compiles the kernel; failures arrive at the device's error handler.
    pub fn pipeline(&self, device: &wgpu::Device) -> wgpu::ComputePipeline {
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(self.source.file),
            source: wgpu::ShaderSource::Wgsl(self.text().into()),
        });
        let entries: Vec<_> = self
            .bindings()
            .map(|binding| wgpu::BindGroupLayoutEntry {
                binding: binding.index,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage {
                        read_only: binding.access == Access::Read,
                    },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let group = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(self.label),
            entries: &entries,
        });
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(self.label),
            bind_group_layouts: &[Some(&group)],
            immediate_size: 0,
        });
        device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(self.label),
            layout: Some(&layout),
            module: &module,
            entry_point: self.source.entry_point,
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &self.constants,
                // Every kernel writes its workgroup memory before reading it.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        })
    }

    /// The kernel's bind group; `buffer` finds a buffer by the variable's name.
    pub fn bind_group<'a>(
        &self,
        device: &wgpu::Device,
        pipeline: &wgpu::ComputePipeline,
        buffer: impl Fn(&str) -> &'a wgpu::Buffer,
    ) -> wgpu::BindGroup {
        let entries: Vec<_> = self
            .bindings()
            .map(|binding| wgpu::BindGroupEntry {
                binding: binding.index,
                resource: buffer(binding.name).as_entire_binding(),
            })
            .collect();
        device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(self.label),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        })
    }
}

const fn read(index: u32, name: &'static str) -> Binding {
    Binding { index, name, access: Access::Read }
}

const fn read_write(index: u32, name: &'static str) -> Binding {
    Binding { index, name, access: Access::ReadWrite }
}

/// A row of the table: a kernel `name(entry_point)`, or a shared piece.
macro_rules! source {
    ($file:literal, $entry_point:expr, $bindings:expr) => {
        Source {
            file: $file,
            text: include_str!(concat!("../../shaders/", $file)),
            entry_point: $entry_point,
            bindings: $bindings,
        }
    };
}

pub static CONVOLUTION_FORWARD: Source = source!(
    "convolution_forward.wgsl",
    Some("convolution_forward"),
    &[read(1, "parameters"), read_write(2, "pooled")]
);
pub static DENSE_FORWARD: Source = source!(
    "dense_forward.wgsl",
    Some("dense_forward"),
    &[read(1, "parameters"), read(2, "input"), read_write(3, "output")]
);
pub static LOSS_HEAD: Source = source!(
    "loss_head.wgsl",
    Some("loss_head"),
    &[
        read(1, "parameters"),
        read(2, "input"),
        read(3, "labels"),
        read_write(4, "logits"),
        read_write(5, "d_logits"),
        read(7, "samples"),
    ]
);
pub static DENSE_BACKWARD_INPUT: Source = source!(
    "dense_backward_input.wgsl",
    Some("dense_backward_input"),
    &[read(1, "parameters"), read(2, "d_output")]
);
pub static DENSE_BACKWARD_WEIGHTS: Source = source!(
    "dense_backward_weights.wgsl",
    Some("dense_backward_weights"),
    &[read(1, "input"), read(2, "d_output")]
);
pub static CONVOLUTION_BACKWARD_INPUT: Source = source!(
    "convolution_backward_input.wgsl",
    Some("convolution_backward_input"),
    &[read(1, "parameters"), read(2, "d_output")]
);
pub static CONVOLUTION_BACKWARD_WEIGHTS: Source = source!(
    "convolution_backward_weights.wgsl",
    Some("convolution_backward_weights"),
    &[read(1, "d_output"), read_write(2, "partials")]
);
pub static QUANTIZE: Source =
    source!("quantize.wgsl", Some("quantize_partials"), &[read(1, "partials")]);

pub static SUBMISSION: Source = source!("shared/submission.wgsl", None, &[read(0, "submission")]);
pub static SUMS: Source = source!("shared/sums.wgsl", None, &[read_write(9, "words")]);
pub static RELU: Source = source!("shared/relu.wgsl", None, &[]);
pub static TANH: Source = source!("shared/tanh.wgsl", None, &[]);
pub static MAX_POOL: Source = source!("shared/max_pool.wgsl", None, &[read_write(8, "winners")]);
pub static AVERAGE_POOL: Source =
    source!("shared/average_pool.wgsl", None, &[read_write(8, "windows")]);
pub static INPUT_PIXELS: Source =
    source!("shared/input_pixels.wgsl", None, &[read(6, "pixels"), read(7, "samples")]);
pub static INPUT_PLANES: Source = source!("shared/input_planes.wgsl", None, &[read(6, "planes")]);
pub static EMIT_THROUGH_ACTIVATION: Source = source!(
    "shared/emit_through_activation.wgsl",
    None,
    &[read(6, "activations"), read_write(7, "d_linear")]
);
pub static EMIT_THROUGH_POOLING: Source =
    source!("shared/emit_through_pooling.wgsl", None, &[read_write(7, "d_convolved")]);

/// Every file of `shaders/`.
pub static SOURCES: [&Source; 18] = [
    &CONVOLUTION_FORWARD,
    &DENSE_FORWARD,
    &LOSS_HEAD,
    &DENSE_BACKWARD_INPUT,
    &DENSE_BACKWARD_WEIGHTS,
    &CONVOLUTION_BACKWARD_INPUT,
    &CONVOLUTION_BACKWARD_WEIGHTS,
    &QUANTIZE,
    &SUBMISSION,
    &SUMS,
    &RELU,
    &TANH,
    &MAX_POOL,
    &AVERAGE_POOL,
    &INPUT_PIXELS,
    &INPUT_PLANES,
    &EMIT_THROUGH_ACTIVATION,
    &EMIT_THROUGH_POOLING,
];
