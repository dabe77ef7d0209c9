//! Every shader, translated for Vulkan, Metal, Direct3D and OpenGL, and those of the
//! portable set held to WebGPU's default limits: most of those drivers are not here to refuse it.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use annulet::gpu::Sums;
use annulet::gpu::lane::kernels::{Kernel as LaneKernel, Sources, Variant};
use annulet::gpu::portable::buffers::{BufferId, TILES_PER_SUBMISSION_MAX};
use annulet::gpu::portable::stages::{Stage, Tuning, stages};
use annulet::gpu::shader::{Access, Binding, Kernel, Reads, SOURCES};
use annulet::model::ModelKind;
use annulet::numerics::fixed_point::TILE_SAMPLES;
use naga::back::pipeline_constants::process_overrides;
use naga::back::{glsl, hlsl, msl, spv};
use naga::proc::BoundsCheckPolicies;
use naga::valid::{
    Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator,
};
use naga::{AddressSpace, ImageClass, Module, ShaderStage, StorageAccess, TypeInner};

#[test]
fn every_file_is_in_the_table() {
    let shaders = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let mut files = BTreeSet::new();
    for folder in ["", "shared/"] {
        for entry in shaders.join(folder).read_dir().unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".wgsl") {
                files.insert(format!("{folder}{name}"));
            }
        }
    }
    let table: BTreeSet<String> = SOURCES.iter().map(|source| source.file.to_owned()).collect();
    assert_eq!(files, table);
}

#[test]
fn every_source_is_used() {
    let mut used = BTreeSet::new();
    for kernel in kernels() {
        let text = kernel.text();
        used.extend(SOURCES.iter().filter(|s| text.contains(s.text)).map(|s| s.file));
    }
    assert_eq!(used, SOURCES.iter().map(|source| source.file).collect());
}

#[test]
fn every_kernel_translates() {
    for kernel in kernels() {
        let (module, info) = resolve(&kernel);
        let entry_point = kernel.source.entry_point.unwrap();
        translate(&describe(&kernel), &module, &info, entry_point, false);
    }
}

/// The lane set may be asked for on any adapter; where there are no subgroups, as on OpenGL, it
/// does without.
#[test]
fn every_lane_kernel_translates() {
    for model in ModelKind::ALL {
        for sums in [Sums::Exact, Sums::Plain] {
            for subgroup_size in [0, 4, 8, 16] {
                let variant = Variant { model, sums, subgroup_size, images_per_row: 128 };
                let sources = Sources::new(variant);
                for kernel in LaneKernel::ALL {
                    let what = format!("{} {variant:?}", kernel.name());
                    let subgroups = subgroup_size != 0;
                    let (module, info) = parse(&what, &sources.wgsl(kernel), subgroups);
                    translate(&what, &module, &info, "main", subgroups);
                }
            }
        }
    }
}

/// Translates a module that has no overrides left, as wgpu would for each kind of driver; only
/// OpenGL has no subgroups.
fn translate(what: &str, module: &Module, info: &ModuleInfo, entry_point: &str, subgroups: bool) {
    let entry_point = entry_point.to_owned();
    let chosen = Some((ShaderStage::Compute, entry_point.clone()));

    let options = spv::Options {
        lang_version: if subgroups { (1, 3) } else { (1, 0) },
        ..Default::default()
    };
    let pipeline = spv::PipelineOptions {
        shader_stage: ShaderStage::Compute,
        entry_point: entry_point.clone(),
    };
    let words = spv::write_vec(module, info, &options, Some(&pipeline));
    assert!(!words.unwrap_or_else(|e| panic!("{what}: SPIR-V: {e}")).is_empty());

    // Metal's first version with all that WebGPU needs.
    let options = msl::Options { lang_version: (2, 3), ..Default::default() };
    let pipeline = msl::PipelineOptions { entry_point: chosen.clone(), ..Default::default() };
    let (text, translation) = msl::write_string(module, info, &options, &pipeline)
        .unwrap_or_else(|e| panic!("{what}: MSL: {e}"));
    assert!(translation.entry_point_names.iter().all(Result::is_ok), "{what}");
    assert!(text.contains("kernel void"), "{what}");

    let shader_model = if subgroups { hlsl::ShaderModel::V6_0 } else { hlsl::ShaderModel::V5_1 };
    let options = hlsl::Options { shader_model, ..Default::default() };
    let pipeline = hlsl::PipelineOptions { entry_point: chosen };
    let mut text = String::new();
    hlsl::Writer::new(&mut text, &options, &pipeline)
        .write(module, info, None)
        .unwrap_or_else(|e| panic!("{what}: HLSL: {e}"));
    assert!(text.contains("numthreads"), "{what}");

    for version in [glsl::Version::new_gles(310), glsl::Version::Desktop(430)] {
        if subgroups {
            continue;
        }
        let options = glsl::Options { version, ..Default::default() };
        let pipeline = glsl::PipelineOptions {
            shader_stage: ShaderStage::Compute,
            entry_point: entry_point.clone(),
            multiview: None,
        };
        let mut text = String::new();
        let bounds = BoundsCheckPolicies::default();
        glsl::Writer::new(&mut text, module, info, &options, &pipeline, bounds)
            .and_then(|mut writer| writer.write())
            .unwrap_or_else(|e| panic!("{what}: GLSL {version}: {e}"));
        assert!(text.contains("void main()"), "{what}");
    }
}

#[test]
fn every_kernel_keeps_to_the_default_limits() {
    let limits = wgpu::Limits::default();
    for kernel in kernels() {
        let what = describe(&kernel);
        let (module, info) = resolve(&kernel);

        let [x, y, z] = module.entry_points[0].workgroup_size;
        assert!(x <= limits.max_compute_workgroup_size_x, "{what}: {x}");
        assert!(y <= limits.max_compute_workgroup_size_y, "{what}: {y}");
        assert!(z <= limits.max_compute_workgroup_size_z, "{what}: {z}");
        assert!(x * y * z <= limits.max_compute_invocations_per_workgroup, "{what}");

        let workgroup_bytes: u32 = module
            .global_variables
            .iter()
            .filter(|(_, variable)| variable.space == AddressSpace::WorkGroup)
            .map(|(_, variable)| module.types[variable.ty].inner.size(module.to_ctx()))
            .sum();
        assert!(
            workgroup_bytes <= limits.max_compute_workgroup_storage_size,
            "{what}: {workgroup_bytes}"
        );

        let used = |space: fn(AddressSpace) -> bool| {
            let used = module.global_variables.iter().filter(|(handle, variable)| {
                space(variable.space) && !info.get_entry_point(0)[*handle].is_empty()
            });
            used.count() as u32
        };
        let storage = used(|space| matches!(space, AddressSpace::Storage { .. }));
        assert!(storage <= limits.max_storage_buffers_per_shader_stage, "{what}: {storage}");
        let uniform = used(|space| space == AddressSpace::Uniform);
        assert!(uniform <= limits.max_uniform_buffers_per_shader_stage, "{what}: {uniform}");
        let textures = used(|space| space == AddressSpace::Handle);
        assert!(textures <= limits.max_storage_textures_per_shader_stage, "{what}: {textures}");
    }
}

#[test]
fn the_table_names_what_each_kernel_binds() {
    for kernel in kernels() {
        let (module, info) = resolve(&kernel);
        let mut declared = HashMap::new();
        for (handle, variable) in module.global_variables.iter() {
            let Some(binding) = &variable.binding else { continue };
            if info.get_entry_point(0)[handle].is_empty() {
                continue;
            }
            assert_eq!(binding.group, 0);
            let access = match variable.space {
                AddressSpace::Uniform => Access::Uniform,
                AddressSpace::Storage { access } if access.contains(StorageAccess::STORE) => {
                    Access::ReadWrite
                }
                AddressSpace::Storage { .. } => Access::Read,
                _ => {
                    let image = &module.types[variable.ty].inner;
                    assert!(
                        matches!(
                            image,
                            TypeInner::Image {
                                class: ImageClass::Storage { access: StorageAccess::LOAD, .. },
                                ..
                            }
                        ),
                        "{image:?}"
                    );
                    Access::Source
                }
            };
            declared.insert((binding.binding, variable.name.clone().unwrap()), access);
        }
        let table: HashMap<_, _> = kernel
            .bindings()
            .map(|Binding { index, name, access }| {
                let is_buffer = access == Access::Source && kernel.reads == Reads::Buffers;
                ((index, name.to_owned()), if is_buffer { Access::Read } else { access })
            })
            .collect();
        assert_eq!(declared, table, "{}", describe(&kernel));
    }
}

#[test]
fn the_largest_submission_keeps_to_the_default_limits() {
    let limits = wgpu::Limits::default();
    let samples = (TILES_PER_SUBMISSION_MAX * TILE_SAMPLES) as u32;
    for model in ModelKind::ALL {
        for id in BufferId::ALL {
            // The MNIST families have 70,000 images.
            let bytes = 4 * id.words(model, 70_000, TILES_PER_SUBMISSION_MAX) as u64;
            let most = match id {
                BufferId::ConvolutionWeights => limits.max_uniform_buffer_binding_size,
                _ => limits.max_storage_buffer_binding_size,
            };
            assert!(bytes <= most, "{id:?}: {bytes}");
            let rows = id.texture_rows(TILES_PER_SUBMISSION_MAX).unwrap_or(0) as u32;
            // An odd height is made of it.
            assert!(rows < limits.max_texture_dimension_2d, "{id:?}: {rows}");
        }
    }
    for Stage { label, grid, .. } in all_stages() {
        for count in grid.workgroups(samples, Tuning::HARDWARE.tile_shares_max) {
            assert!(count <= limits.max_compute_workgroups_per_dimension, "{label}: {count}");
        }
    }
}

fn all_stages() -> Vec<Stage> {
    let mut all = Vec::new();
    for model in ModelKind::ALL {
        for sums in [Sums::Exact, Sums::Plain] {
            for tuning in [Tuning::SOFTWARE, Tuning::HARDWARE] {
                all.extend(stages(model, sums, tuning));
            }
        }
    }
    all
}

/// The different kernels of both models, with both kinds of sums, tuned for both kinds of adapter.
fn kernels() -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    for stage in all_stages() {
        if !kernels.contains(&stage.kernel) {
            kernels.push(stage.kernel);
        }
    }
    assert!(kernels.len() > 20);
    kernels
}

fn describe(kernel: &Kernel) -> String {
    let shared: Vec<_> = kernel.shared.iter().map(|piece| piece.file).collect();
    format!("{} with {} {:?}", kernel.source.file, shared.join(", "), kernel.reads)
}

/// The kernel's module with its constants in place, validated with what every adapter can do.
fn resolve(kernel: &Kernel) -> (Module, ModuleInfo) {
    let what = describe(kernel);
    let (module, info) = parse(&what, &kernel.text(), false);
    let constants =
        kernel.constants.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    let entry_point = (ShaderStage::Compute, kernel.source.entry_point.unwrap());
    let (module, _) = process_overrides(&module, &info, Some(entry_point), &constants)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let module = module.into_owned();
    let info = validate(&what, &module, false);
    (module, info)
}

fn parse(what: &str, text: &str, subgroups: bool) -> (Module, ModuleInfo) {
    let module = naga::front::wgsl::parse_str(text)
        .unwrap_or_else(|e| panic!("{what}: {}", e.emit_to_string(text)));
    let info = validate(what, &module, subgroups);
    (module, info)
}

/// Allows what every adapter can do, and subgroups where they are asked for.
fn validate(what: &str, module: &Module, subgroups: bool) -> ModuleInfo {
    let capabilities = match subgroups {
        true => Capabilities::default() | Capabilities::SUBGROUP,
        false => Capabilities::default(),
    };
    Validator::new(ValidationFlags::all(), capabilities)
        .subgroup_stages(ShaderStages::COMPUTE)
        .subgroup_operations(SubgroupOperationSet::all())
        .validate(module)
        .unwrap_or_else(|e| panic!("{what}: {e:?}"))
}
