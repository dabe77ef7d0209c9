//! Which local worker computes on which adapter.

use crate::gpu::GpuError;
use crate::gpu::device::{AdapterChoice, AdapterKind, AdapterReport, spread};

/// What one worker process is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// An index for `--adapter`.
    pub adapter: Option<String>,
    /// Cores that a software adapter may use.
    pub cores: usize,
    /// Variables of the worker's environment.
    pub environment: Vec<(&'static str, String)>,
}

/// Gives the workers the chosen adapter, or the best ones in turn; on a software adapter they share
/// the machine's cores.
///
/// Mesa's lavapipe makes a thread a core in each process unless told otherwise, so several workers
/// would fight: each gets its share of the cores. `LP_NUM_THREADS=0` means that the submitting
/// thread computes by itself, which saves waking another one for each dispatch.
pub fn assign(
    adapters: &[AdapterReport],
    choice: Option<&AdapterChoice>,
    workers: usize,
    cores: usize,
) -> Result<Vec<Assignment>, GpuError> {
    let best = AdapterChoice::Best.choose(adapters)?;
    let candidates = match choice {
        Some(choice) => vec![choice.choose(adapters)?],
        None if best.kind == AdapterKind::Software => vec![best],
        None => spread(adapters),
    };
    let cores = (cores / workers).max(1);
    let threads = if cores == 1 { 0 } else { cores };
    Ok((0..workers)
        .map(|rank| {
            let adapter = candidates[rank % candidates.len()];
            let software = adapter.kind == AdapterKind::Software;
            Assignment {
                adapter: Some(adapter.index.to_string()),
                cores,
                environment: if software {
                    vec![("LP_NUM_THREADS", threads.to_string())]
                } else {
                    Vec::new()
                },
            }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::device::AdapterLimits;

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
        assert!(assignments.iter().all(|a| a.environment.is_empty()));
    }

    #[test]
    fn workers_on_a_software_adapter_share_the_cores() {
        let adapters = [adapter(0, AdapterKind::Software)];
        let assignments = assign(&adapters, None, 2, 8).unwrap();
        assert_eq!(assignments[1].environment, [("LP_NUM_THREADS", "4".to_owned())]);
        let assignments = assign(&adapters, None, 7, 2).unwrap();
        assert_eq!(assignments[6].environment, [("LP_NUM_THREADS", "0".to_owned())]);
    }

    #[test]
    fn a_choice_holds_for_all_and_no_adapter_is_an_error() {
        let adapters = [adapter(0, AdapterKind::Discrete), adapter(1, AdapterKind::Software)];
        let choice = AdapterChoice::Index(1);
        assert_eq!(indices(&assign(&adapters, Some(&choice), 2, 2).unwrap()), ["1", "1"]);
        assert!(assign(&[], None, 2, 2).is_err());
    }
}
