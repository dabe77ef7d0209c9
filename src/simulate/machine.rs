//! What a node is like beside its link: what messages and updates cost its processor.

use serde::{Deserialize, Serialize};

/// The costs of a node's processor, of which only what counts in a step is modelled.
///
/// A node has two threads, one that computes and applies and one that speaks QUIC; where cards are
/// emulated, one more serves all of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// A full packet's UDP payload in bytes.
    pub mtu: u32,
    /// Cores that all nodes share; 0 if each node is a machine of its own.
    pub cores: usize,
    /// For each packet, of its sender and of its receiver.
    pub packet_ns: f64,
    /// For each byte, likewise: encryption, copies, and adding up.
    pub byte_ns: f64,
    /// Until a thread that waited runs, for which a core is busy too.
    pub wake_ns: u64,
    /// Whether cards are emulated: then readers are woken by timers.
    pub emulated: bool,
    /// For each element of an update, of the node that applies it.
    pub element_ns: f64,
    /// How late a timer of the system runs out: that of waiting instead of computing, and those of
    /// emulated cards.
    pub timer_ns: u64,
}

/// A machine of its own for each node.
///
/// From all-reduces of 247 KB among four processes on two cores, which were bound by the processor:
/// 0.5 ms with packets of 6,500 bytes and 1.1 ms with 1,452, so 250 and 550 us of a core for each
/// rank, which sent and received 57 or 257 packets of 370 KB in all. The two equations give 1.5 us
/// for a packet and 0.44 ns for a byte, half of each at either end. A wake-up took 15 us.
impl Default for Machine {
    fn default() -> Machine {
        Machine {
            mtu: 1_452,
            cores: 0,
            packet_ns: 750.0,
            byte_ns: 0.22,
            wake_ns: 15_000,
            emulated: false,
            element_ns: 1.0,
            timer_ns: 60_000,
        }
    }
}

impl Machine {
    /// Nodes of this program that share one machine's cores, with emulated cards before them.
    ///
    /// Where [`calibrate`](super::calibrate) begins, which fits these costs to measured cells.
    pub fn local(cores: usize) -> Machine {
        Machine {
            cores,
            emulated: true,
            packet_ns: 2_000.0,
            timer_ns: 80_000,
            ..Machine::default()
        }
    }

    /// Processors that cost nothing, as in the textbooks' formulas.
    pub const fn without_overheads() -> Machine {
        Machine {
            mtu: 1_452,
            cores: 0,
            packet_ns: 0.0,
            byte_ns: 0.0,
            wake_ns: 0,
            emulated: false,
            element_ns: 0.0,
            timer_ns: 0,
        }
    }

    /// Of so many bytes in so many packets, at one end.
    pub(super) fn packets_ns(&self, bytes: usize, packets: usize) -> u64 {
        (packets as f64 * self.packet_ns + bytes as f64 * self.byte_ns) as u64
    }

    /// Of applying so many elements.
    pub(super) fn update_ns(&self, elements: usize) -> u64 {
        (elements as f64 * self.element_ns) as u64
    }
}
