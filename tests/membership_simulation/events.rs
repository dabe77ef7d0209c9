//! Events in virtual time.

use std::time::Duration;

use annulet::protocol::membership::{Message, Party};

use super::node::Data;
use super::schedule::Fault;

/// What can happen to the world.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message about views.
    Said {
        from: Party,
        to: Party,
        message: Message,
        epoch: u32,
    },
    /// Words of the collective.
    Sent {
        from: usize,
        to: usize,
        data: Data,
        epoch: u32,
    },
    Lost {
        at: usize,
        of: usize,
        why: &'static str,
        certain: bool,
    },
    /// A connection that was cut, or to a node that stands still, times out if it is still so.
    TimesOut {
        a: usize,
        b: usize,
    },
    /// A node looks whether the members of its new view can be reached.
    Looks {
        node: usize,
        generation: u32,
    },
    Timer {
        node: usize,
    },
    Computed {
        node: usize,
        generation: u32,
        step: u64,
    },
    Halted {
        node: usize,
        generation: u32,
    },
    Fault(Fault),
    Wakes {
        node: usize,
    },
    Heals {
        partition: usize,
    },
}

/// An event and when it happens; of two at one moment the one that was queued first comes first.
pub struct Queued {
    pub at: Duration,
    pub order: u64,
    pub event: Event,
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Queued {}
