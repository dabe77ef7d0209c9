//! The shaders: one table row a file, and how files make a kernel.
//!
//! A kernel is one file of `shaders/` with pieces of `shaders/shared/` behind it. WGSL does not
//! mind the order of declarations, so that the line numbers of errors stay the kernel's own. Sizes
//! and places are pipeline-overridable constants, given when the pipeline is made.

/// A WGSL file with the resources that it declares.
#[derive(Debug, PartialEq)]
pub struct Source {
    /// Path below `shaders/`.
    pub file: &'static str,
    pub text: &'static str,
    /// The function that runs; shared pieces have none.
    pub entry_point: Option<&'static str>,
    pub bindings: &'static [Binding],
}

/// A resource of bind group 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    pub index: u32,
    /// The variable's name.
    pub name: &'static str,
    pub access: Access,
}

/// What a resource is to a shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A storage buffer.
    Read,
    /// A storage buffer.
    ReadWrite,
    Uniform,
    /// What is read most: a storage buffer or a texture, as [`Reads`] says.
    Source,
}

/// Where kernels read activations, gradients and weights from. The results are the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Storage buffers, as GPUs like it.
    Buffers,
    /// Textures, copied from the buffers between the kernels: on software adapters a load from a
    /// texture is many times as fast as one from a buffer.
    Textures,
}

/// A file, the pieces that go with it, and its constants: what a pipeline is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    pub source: &'static Source,
    pub shared: Vec<&'static Source>,
    pub constants: Vec<(&'static str, f64)>,
    pub reads: Reads,
}

impl Kernel {
    /// The whole WGSL text.
    pub fn text(&self) -> String {
        let mut text = self.source.text.to_owned();
        for piece in self.pieces() {
            text.push('\n');
            text.push_str(piece.text);
        }
        text
    }

    /// The resources of the kernel and its pieces.
    pub fn bindings(&self) -> impl Iterator<Item = Binding> {
        let shared = self.pieces().flat_map(|piece| piece.bindings);
        self.source.bindings.iter().chain(shared).copied()
    }

    fn pieces(&self) -> impl Iterator<Item = &'static Source> {
        let reads = match self.reads {
            Reads::Buffers => &READS_BUFFERS,
            Reads::Textures => &READS_TEXTURES,
        };
        let has_sources = self.source.bindings.iter().any(|b| b.access == Access::Source);
        let submission = std::iter::once(&SUBMISSION);
        submission.chain(has_sources.then_some(reads)).chain(self.shared.iter().copied())
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
                ty: self.binding_type(binding.access),
                count: None,
            })
            .collect();
        let group = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(self.source.file),
            entries: &entries,
        });
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(self.source.file),
            bind_group_layouts: &[Some(&group)],
            immediate_size: 0,
        });
        device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(self.source.file),
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

    /// The kernel's bind group; `resource` finds a resource by the variable's name.
    pub fn bind_group<'a>(
        &self,
        device: &wgpu::Device,
        pipeline: &wgpu::ComputePipeline,
        resource: impl Fn(Binding) -> wgpu::BindingResource<'a>,
    ) -> wgpu::BindGroup {
        let entries: Vec<_> = self
            .bindings()
            .map(|binding| wgpu::BindGroupEntry {
                binding: binding.index,
                resource: resource(binding),
            })
            .collect();
        device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(self.source.file),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        })
    }

    fn binding_type(&self, access: Access) -> wgpu::BindingType {
        let buffer = |ty| wgpu::BindingType::Buffer {
            ty,
            has_dynamic_offset: false,
            min_binding_size: None,
        };
        match (access, self.reads) {
            (Access::Read, _) | (Access::Source, Reads::Buffers) => {
                buffer(wgpu::BufferBindingType::Storage { read_only: true })
            }
            (Access::ReadWrite, _) => buffer(wgpu::BufferBindingType::Storage { read_only: false }),
            (Access::Uniform, _) => buffer(wgpu::BufferBindingType::Uniform),
            (Access::Source, Reads::Textures) => wgpu::BindingType::StorageTexture {
                access: wgpu::StorageTextureAccess::ReadOnly,
                format: wgpu::TextureFormat::Rgba32Float,
                view_dimension: wgpu::TextureViewDimension::D2,
            },
        }
    }
}

const fn read(index: u32, name: &'static str) -> Binding {
    Binding { index, name, access: Access::Read }
}

const fn read_write(index: u32, name: &'static str) -> Binding {
    Binding { index, name, access: Access::ReadWrite }
}

// As `shared/reads_*.wgsl` declare them; a kernel names those that it reads.
const PARAMETERS: Binding = Binding { index: 1, name: "parameters_source", access: Access::Source };
const INPUT: Binding = Binding { index: 2, name: "input_source", access: Access::Source };
const D_OUTPUT: Binding = Binding { index: 3, name: "d_output_source", access: Access::Source };

/// A row of the table: a kernel with its entry point, or a shared piece.
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

pub static GATHER_IMAGES: Source = source!(
    "gather_images.wgsl",
    Some("gather_images"),
    &[read(1, "pixels"), read(2, "samples"), read_write(3, "images")]
);
pub static CONVOLUTION_FORWARD: Source = source!(
    "convolution_forward.wgsl",
    Some("convolution_forward"),
    &[INPUT, read(5, "bias"), read_write(7, "pooled")]
);
pub static DENSE_FORWARD: Source = source!(
    "dense_forward.wgsl",
    Some("dense_forward"),
    &[PARAMETERS, INPUT, read_write(7, "output")]
);
pub static LOSS_HEAD: Source = source!(
    "loss_head.wgsl",
    Some("loss_head"),
    &[
        PARAMETERS,
        INPUT,
        read(4, "labels"),
        read(5, "samples"),
        read_write(6, "logits"),
        read_write(7, "d_logits"),
    ]
);
pub static DENSE_BACKWARD_INPUT: Source =
    source!("dense_backward_input.wgsl", Some("dense_backward_input"), &[PARAMETERS, D_OUTPUT]);
pub static DENSE_BACKWARD_WEIGHTS: Source =
    source!("dense_backward_weights.wgsl", Some("dense_backward_weights"), &[INPUT, D_OUTPUT]);
pub static CONVOLUTION_BACKWARD_INPUT: Source =
    source!("convolution_backward_input.wgsl", Some("convolution_backward_input"), &[D_OUTPUT]);
pub static CONVOLUTION_BACKWARD_WEIGHTS: Source = source!(
    "convolution_backward_weights.wgsl",
    Some("convolution_backward_weights"),
    &[INPUT, D_OUTPUT, read_write(7, "partials")]
);
pub static QUANTIZE: Source =
    source!("quantize.wgsl", Some("quantize_partials"), &[read(1, "partials")]);

pub static SUBMISSION: Source = source!("shared/submission.wgsl", None, &[read(0, "submission")]);
pub static READS_BUFFERS: Source = source!("shared/reads_buffers.wgsl", None, &[]);
pub static READS_TEXTURES: Source = source!("shared/reads_textures.wgsl", None, &[]);
pub static CONVOLUTION_LAYER: Source =
    source!("shared/convolution_layer.wgsl", None, &[read(10, "layer")]);
pub static DENSE_LAYER: Source = source!("shared/dense_layer.wgsl", None, &[read(10, "layer")]);
pub static CONVOLUTION_WEIGHTS: Source = source!(
    "shared/convolution_weights.wgsl",
    None,
    &[Binding { index: 4, name: "weights", access: Access::Uniform }]
);
pub static WINDOW: Source = source!("shared/window.wgsl", None, &[]);
pub static FLOAT_BITS: Source = source!("shared/float_bits.wgsl", None, &[]);
pub static RELU: Source = source!("shared/relu.wgsl", None, &[]);
pub static TANH: Source = source!("shared/tanh.wgsl", None, &[]);
pub static MAX_POOL: Source = source!("shared/max_pool.wgsl", None, &[read_write(6, "winners")]);
pub static AVERAGE_POOL: Source =
    source!("shared/average_pool.wgsl", None, &[read_write(6, "windows")]);
pub static EMIT_THROUGH_ACTIVATION: Source = source!(
    "shared/emit_through_activation.wgsl",
    None,
    &[read(7, "activations"), read_write(8, "d_linear")]
);
pub static EMIT_THROUGH_POOLING: Source =
    source!("shared/emit_through_pooling.wgsl", None, &[read_write(8, "d_convolved")]);
pub static SUMS: Source = source!("shared/sums.wgsl", None, &[read_write(9, "words")]);

/// Every file of `shaders/`.
pub static SOURCES: [&Source; 24] = [
    &GATHER_IMAGES,
    &CONVOLUTION_FORWARD,
    &DENSE_FORWARD,
    &LOSS_HEAD,
    &DENSE_BACKWARD_INPUT,
    &DENSE_BACKWARD_WEIGHTS,
    &CONVOLUTION_BACKWARD_INPUT,
    &CONVOLUTION_BACKWARD_WEIGHTS,
    &QUANTIZE,
    &SUBMISSION,
    &READS_BUFFERS,
    &READS_TEXTURES,
    &CONVOLUTION_LAYER,
    &DENSE_LAYER,
    &CONVOLUTION_WEIGHTS,
    &WINDOW,
    &FLOAT_BITS,
    &RELU,
    &TANH,
    &MAX_POOL,
    &AVERAGE_POOL,
    &EMIT_THROUGH_ACTIVATION,
    &EMIT_THROUGH_POOLING,
    &SUMS,
];
