//! Which local worker computes on which adapter.

use crate::gpu::GpuError;
use crate::gpu::adapter::{AdapterChoice, AdapterKind, AdapterReport, spread};

/// What one worker process is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// What `--adapter` takes.
    pub adapter: Option<String>,
    /// Cores that a software adapter may use.
    pub cores: usize,
}

/// Gives the workers the chosen adapter, or the best ones in turn, and each its share of the cores.
pub fn assign(
    adapters: &[AdapterReport],
    choice: Option<&AdapterChoice>,
    workers: usize,
    cores: usize,
) -> Result<Vec<Assignment>, GpuError> {
    let best = AdapterChoice::Best.choose(adapters)?;
    let candidates: Vec<String> = match choice {
        Some(choice) => {
            choice.choose(adapters)?;
            vec![choice.to_string()]
        }
        None if best.kind == AdapterKind::Software => vec![best.index.to_string()],
        None => spread(adapters).into_iter().map(|adapter| adapter.index.to_string()).collect(),
    };
    let cores = cores_of_each(cores, workers);
    Ok((0..workers)
        .map(|rank| Assignment {
            adapter: Some(candidates[rank % candidates.len()].clone()),
            cores,
        })
        .collect())
}

/// The cores of each of several workers on one machine.
pub fn cores_of_each(cores: usize, workers: usize) -> usize {
    (cores / workers).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::adapter::AdapterLimits;

    fn adapter(index: usize, kind: AdapterKind) -> AdapterReport {
        AdapterReport {
            index,
            name: format!("adapter {index}"),
            backend: "vulkan".into(),
            kind,
            driver: String::new(),
            pci_id: "0000:0000".into(),
            pci_bus: String::new(),
            subgroup_size_min: 8,
            subgroup_size_max: 8,
            limits: AdapterLimits {
                buffer_bytes: 0,
                storage_binding_bytes: 0,
                storage_buffers: 0,
                workgroup_bytes: 0,
                workgroup_invocations: 0,
            },
        }
    }

    fn indices(assignments: &[Assignment]) -> Vec<&str> {
        assignments.iter().map(|a| a.adapter.as_deref().unwrap()).collect()
    }

    #[test]
    fn workers_take_turns_on_equal_devices() {
        let adapters = [
            adapter(0, AdapterKind::Discrete),
            adapter(1, AdapterKind::Discrete),
            adapter(2, AdapterKind::Software),
        ];
        let assignments = assign(&adapters, None, 3, 8).unwrap();
        assert_eq!(indices(&assignments), ["0", "1", "0"]);
    }

    #[test]
    fn workers_on_a_software_adapter_share_the_cores() {
        let adapters = [adapter(0, AdapterKind::Software)];
        assert_eq!(assign(&adapters, None, 2, 8).unwrap()[1].cores, 4);
        assert_eq!(assign(&adapters, None, 7, 2).unwrap()[6].cores, 1);
    }

    #[test]
    fn a_choice_holds_for_all_and_no_adapter_is_an_error() {
        let adapters = [adapter(0, AdapterKind::Discrete), adapter(1, AdapterKind::Software)];
        let choice = AdapterChoice::Index(1);
        assert_eq!(indices(&assign(&adapters, Some(&choice), 2, 2).unwrap()), ["1", "1"]);
        assert!(assign(&[], None, 2, 2).is_err());
    }
}
