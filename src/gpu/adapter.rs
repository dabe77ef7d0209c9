//! Adapters: what is there, which one is taken, and among which of them workers are spread.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::GpuError;

/// What computes behind an adapter; the order is the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdapterKind {
    Discrete,
    Integrated,
    Virtual,
    /// The driver does not say.
    Other,
    /// A driver that computes on the CPU.
    Software,
}

impl AdapterKind {
    pub const fn name(self) -> &'static str {
        match self {
            AdapterKind::Discrete => "discrete",
            AdapterKind::Integrated => "integrated",
            AdapterKind::Virtual => "virtual",
            AdapterKind::Other => "other",
            AdapterKind::Software => "software",
        }
    }
}

impl From<wgpu::DeviceType> for AdapterKind {
    fn from(device_type: wgpu::DeviceType) -> AdapterKind {
        match device_type {
            wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
            wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
            wgpu::DeviceType::Other => AdapterKind::Other,
            wgpu::DeviceType::Cpu => AdapterKind::Software,
        }
    }
}

/// An adapter as `annulet devices` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterReport {
    /// Place in [`list_adapters`]: what `--adapter 0` means.
    pub index: usize,
    pub name: String,
    /// `vulkan`, `metal`, `dx12` or `gl`.
    pub backend: String,
    pub kind: AdapterKind,
    /// Driver and version, as far as the driver tells.
    pub driver: String,
    /// Vendor and device, as in `10de:2330`; drivers without PCI device give numbers of their own.
    pub pci_id: String,
    /// As in `0000:01:00.0`; empty where the driver does not tell.
    pub pci_bus: String,
    pub subgroup_size_min: u32,
    pub subgroup_size_max: u32,
    pub limits: AdapterLimits,
}

impl AdapterReport {
    /// Name and backend, for messages.
    pub fn label(&self) -> String {
        format!("{} ({})", self.name, self.backend)
    }

    pub(super) fn new(index: usize, adapter: &wgpu::Adapter) -> AdapterReport {
        let info = adapter.get_info();
        let limits = adapter.limits();
        let driver = [info.driver.as_str(), info.driver_info.as_str()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(" ");
        AdapterReport {
            index,
            name: info.name,
            backend: info.backend.to_str().to_owned(),
            kind: info.device_type.into(),
            driver,
            pci_id: format!("{:04x}:{:04x}", info.vendor, info.device),
            pci_bus: info.device_pci_bus_id,
            subgroup_size_min: info.subgroup_min_size,
            subgroup_size_max: info.subgroup_max_size,
            limits: AdapterLimits {
                buffer_bytes: limits.max_buffer_size,
                storage_binding_bytes: limits.max_storage_buffer_binding_size,
                storage_buffers: limits.max_storage_buffers_per_shader_stage,
                workgroup_bytes: limits.max_compute_workgroup_storage_size,
                workgroup_invocations: limits.max_compute_invocations_per_workgroup,
            },
        }
    }
}

/// The limits of an adapter that decide what annulet can do on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterLimits {
    /// Largest buffer.
    pub buffer_bytes: u64,
    /// Largest piece of a buffer that a shader sees: bounds the data set.
    pub storage_binding_bytes: u64,
    /// Storage buffers of one shader.
    pub storage_buffers: u32,
    /// Memory shared by a workgroup.
    pub workgroup_bytes: u32,
    /// Invocations of a workgroup.
    pub workgroup_invocations: u32,
}

/// The adapters present, best first: discrete, integrated, virtual, other, software; behind them
/// those of GL, which are mostly the same devices with fewer abilities.
pub fn list_adapters() -> Vec<AdapterReport> {
    reports(&enumerate(wgpu::Backends::all()))
}

/// The adapters among which the choice can be made. Unless the choice is a backend, their indices
/// are those of [`list_adapters`].
///
/// GL is started only where nothing else fits: it is slow to start, and on a machine without a
/// display its libraries complain.
pub fn adapters_for(choice: &AdapterChoice) -> Vec<AdapterReport> {
    reports(&enumerate_for(choice))
}

/// The adapters among which local workers are spread, worker `i` on `i % len`: every device of the
/// best one's kind and backend. A software adapter stays alone.
pub fn spread(reports: &[AdapterReport]) -> Vec<&AdapterReport> {
    let Some(best) = reports.first() else { return Vec::new() };
    if best.kind == AdapterKind::Software {
        return vec![best];
    }
    reports.iter().filter(|r| r.kind == best.kind && r.backend == best.backend).collect()
}

/// Which adapter to take: the value of `--adapter`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AdapterChoice {
    /// The first of [`list_adapters`].
    #[default]
    Best,
    /// A place in [`list_adapters`].
    Index(usize),
    /// The best one of a backend: `vulkan`, `metal`, `dx12`, `gl`.
    Backend(wgpu::Backend),
    /// Vendor and device, as in `10de:2330`.
    Pci { vendor: u32, device: u32 },
    /// A place on the PCI bus, as in `0000:01:00.0`: tells two equal devices apart.
    Bus(String),
    /// The best one whose name contains this, in either case.
    Name(String),
}

impl FromStr for AdapterChoice {
    type Err = GpuError;

    fn from_str(text: &str) -> Result<AdapterChoice, GpuError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(GpuError::AdapterSyntax {
                text: text.to_owned(),
                reason: "give an index, a part of a name, a backend or a PCI id as in 10de:2330",
            });
        }
        if text == "best" {
            return Ok(AdapterChoice::Best);
        }
        if let Ok(index) = text.parse() {
            return Ok(AdapterChoice::Index(index));
        }
        let lower = text.to_ascii_lowercase();
        if let Some(backend) = NATIVE_BACKENDS.into_iter().find(|b| b.to_str() == lower) {
            return Ok(AdapterChoice::Backend(backend));
        }
        let parts: Vec<Option<u32>> =
            lower.split([':', '.']).map(|part| u32::from_str_radix(part, 16).ok()).collect();
        Ok(match parts.as_slice() {
            &[Some(vendor), Some(device)] if lower.contains(':') => {
                AdapterChoice::Pci { vendor, device }
            }
            [Some(_), Some(_), Some(_), Some(_)] => AdapterChoice::Bus(lower),
            _ => AdapterChoice::Name(text.to_owned()),
        })
    }
}

impl fmt::Display for AdapterChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdapterChoice::Best => write!(f, "best"),
            AdapterChoice::Index(index) => write!(f, "{index}"),
            AdapterChoice::Backend(backend) => write!(f, "{backend}"),
            AdapterChoice::Pci { vendor, device } => write!(f, "{vendor:04x}:{device:04x}"),
            AdapterChoice::Bus(bus) => write!(f, "{bus}"),
            AdapterChoice::Name(name) => write!(f, "{name}"),
        }
    }
}

impl AdapterChoice {
    /// The chosen one among the adapters of [`list_adapters`].
    pub fn choose<'a>(&self, reports: &'a [AdapterReport]) -> Result<&'a AdapterReport, GpuError> {
        if reports.is_empty() {
            return Err(GpuError::NoAdapter { tried: backend_names(self.backends()) });
        }
        reports.iter().find(|report| self.matches(report)).ok_or_else(|| GpuError::NoSuchAdapter {
            choice: self.to_string(),
            reason: match self {
                AdapterChoice::Index(_) => {
                    format!("the index must be below {}", reports.len())
                }
                _ => "no adapter fits".to_owned(),
            },
            present: reports
                .iter()
                .map(|r| format!("{}: {} {}", r.index, r.label(), r.pci_id))
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    fn matches(&self, report: &AdapterReport) -> bool {
        match self {
            AdapterChoice::Best => true,
            AdapterChoice::Index(index) => report.index == *index,
            AdapterChoice::Backend(backend) => report.backend == backend.to_str(),
            AdapterChoice::Pci { vendor, device } => {
                report.pci_id == format!("{vendor:04x}:{device:04x}")
            }
            AdapterChoice::Bus(bus) => report.pci_bus.eq_ignore_ascii_case(bus),
            AdapterChoice::Name(part) => report.name.to_lowercase().contains(&part.to_lowercase()),
        }
    }

    /// The backends to look at: a chosen one spares the start of the others.
    fn backends(&self) -> wgpu::Backends {
        match self {
            AdapterChoice::Backend(backend) => (*backend).into(),
            _ => wgpu::Backends::all(),
        }
    }
}

/// Backends with adapters of their own, in the order of preference.
pub(super) const NATIVE_BACKENDS: [wgpu::Backend; 4] =
    [wgpu::Backend::Vulkan, wgpu::Backend::Metal, wgpu::Backend::Dx12, wgpu::Backend::Gl];

pub(super) fn reports(adapters: &[wgpu::Adapter]) -> Vec<AdapterReport> {
    adapters.iter().enumerate().map(|(index, adapter)| AdapterReport::new(index, adapter)).collect()
}

pub(super) fn enumerate_for(choice: &AdapterChoice) -> Vec<wgpu::Adapter> {
    let backends = choice.backends();
    let modern = enumerate(backends - wgpu::Backends::GL);
    if choice.choose(&reports(&modern)).is_ok() { modern } else { enumerate(backends) }
}

pub(super) fn enumerate(backends: wgpu::Backends) -> Vec<wgpu::Adapter> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let mut adapters = pollster::block_on(instance.enumerate_adapters(backends));
    // The sort is stable: equal devices stay in the driver's order.
    adapters.sort_by_key(|adapter| {
        let info = adapter.get_info();
        let backend = NATIVE_BACKENDS.iter().position(|&b| b == info.backend);
        (info.backend == wgpu::Backend::Gl, AdapterKind::from(info.device_type), backend)
    });
    adapters
}

fn backend_names(backends: wgpu::Backends) -> String {
    NATIVE_BACKENDS
        .into_iter()
        .filter(|&b| (backends & wgpu::Instance::enabled_backend_features()).contains(b.into()))
        .map(wgpu::Backend::to_str)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(index: usize, name: &str, backend: &str, kind: AdapterKind) -> AdapterReport {
        AdapterReport {
            index,
            name: name.to_owned(),
            backend: backend.to_owned(),
            kind,
            driver: String::new(),
            pci_id: "10de:2330".to_owned(),
            pci_bus: format!("0000:0{index}:00.0"),
            subgroup_size_min: 32,
            subgroup_size_max: 32,
            limits: AdapterLimits {
                buffer_bytes: 1 << 30,
                storage_binding_bytes: 1 << 30,
                storage_buffers: 8,
                workgroup_bytes: 16 << 10,
                workgroup_invocations: 256,
            },
        }
    }

    fn machine() -> Vec<AdapterReport> {
        vec![
            report(0, "NVIDIA H100", "vulkan", AdapterKind::Discrete),
            report(1, "NVIDIA H100", "vulkan", AdapterKind::Discrete),
            report(2, "NVIDIA H100", "gl", AdapterKind::Discrete),
            report(3, "llvmpipe (LLVM 15)", "vulkan", AdapterKind::Software),
        ]
    }

    #[test]
    fn a_choice_is_read_as_its_author_meant_it() {
        for (text, choice) in [
            ("best", AdapterChoice::Best),
            ("1", AdapterChoice::Index(1)),
            ("gl", AdapterChoice::Backend(wgpu::Backend::Gl)),
            ("10DE:2330", AdapterChoice::Pci { vendor: 0x10de, device: 0x2330 }),
            ("0000:01:00.0", AdapterChoice::Bus("0000:01:00.0".to_owned())),
            ("llvm", AdapterChoice::Name("llvm".to_owned())),
            ("RTX 4090", AdapterChoice::Name("RTX 4090".to_owned())),
        ] {
            assert_eq!(text.parse::<AdapterChoice>().unwrap(), choice, "{text}");
        }
        assert!("".parse::<AdapterChoice>().is_err());
    }

    #[test]
    fn a_choice_finds_its_adapter() {
        let machine = machine();
        for (text, index) in [
            ("best", 0),
            ("1", 1),
            ("gl", 2),
            ("10de:2330", 0),
            ("0000:01:00.0", 1),
            ("LLVMpipe", 3),
        ] {
            let choice: AdapterChoice = text.parse().unwrap();
            assert_eq!(choice.choose(&machine).unwrap().index, index, "{text}");
        }
    }

    #[test]
    fn a_choice_that_fits_nothing_lists_what_is_there() {
        let error = AdapterChoice::Index(9).choose(&machine()).unwrap_err().to_string();
        assert!(error.contains("--adapter 9") && error.contains("below 4"), "{error}");
        assert!(error.contains("3: llvmpipe (LLVM 15) (vulkan)"), "{error}");
    }

    #[test]
    fn without_adapter_the_message_says_what_to_install() {
        let error = AdapterChoice::Best.choose(&[]).unwrap_err().to_string();
        assert!(error.contains("vulkan") && error.contains("mesa-vulkan-drivers"), "{error}");
    }

    #[test]
    fn workers_spread_over_equal_devices_only() {
        let machine = machine();
        let indices =
            |reports: &[AdapterReport]| spread(reports).iter().map(|r| r.index).collect::<Vec<_>>();
        assert_eq!(indices(&machine), [0, 1]);
        assert_eq!(indices(&machine[3..]), [3]);
        assert_eq!(indices(&[]), [] as [usize; 0]);
    }
}
