//! `annulet devices`: the adapters of this machine.

use clap::Args;

use crate::config::Kernels;
use crate::gpu::{AdapterChoice, AdapterReport, list_adapters};

use crate::launch::driver_environment::set_driver_environment;

use super::CommandError;
use super::output::{json, result};

#[derive(Debug, Args)]
pub struct DevicesArguments {
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

/// # Safety
/// No other thread may be running: the environment is changed for drivers.
pub unsafe fn run(arguments: DevicesArguments) -> Result<(), CommandError> {
    // SAFETY: the caller's promise.
    unsafe { set_driver_environment(Kernels::Auto, 1) };
    let adapters = list_adapters();
    if arguments.json {
        return json(&adapters);
    }
    // Without any adapter the choice says what was tried and what to install.
    AdapterChoice::Best.choose(&adapters)?;
    result(&adapters.iter().map(describe).collect::<String>())
}

fn describe(adapter: &AdapterReport) -> String {
    let limits = &adapter.limits;
    let mib = |bytes: u64| bytes >> 20;
    let bus = if adapter.pci_bus.is_empty() { "" } else { " at " };
    format!(
        "{}  {}\n   {}, {}, driver {}, PCI {}{bus}{}\n   buffers up to {} MiB, bindings up to {} \
         MiB, {} storage buffers a stage, workgroups of {} invocations and {} KiB, subgroups of {} \
         to {}\n",
        adapter.index,
        adapter.name,
        adapter.backend,
        adapter.kind.name(),
        adapter.driver,
        adapter.pci_id,
        adapter.pci_bus,
        mib(limits.buffer_bytes),
        mib(limits.storage_binding_bytes),
        limits.storage_buffers,
        limits.workgroup_invocations,
        limits.workgroup_bytes >> 10,
        adapter.subgroup_size_min,
        adapter.subgroup_size_max,
    )
}
