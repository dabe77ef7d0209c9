//! How members behave.

use std::time::Duration;

use super::proposal::Acceptors;

/// How a member behaves; the same for all members of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub acceptors: Acceptors,
    /// The longest that a member may be silent. Every wait of the protocol is a part of it.
    pub failure_timeout: Duration,
    /// How long a joiner goes on asking.
    pub join_timeout: Duration,
    /// With fewer members the run stops.
    pub members_min: usize,
    /// No more members are admitted.
    pub members_max: usize,
}

impl Settings {
    /// How long a proposer waits for promises, or for acceptances.
    pub(super) fn answer_wait(&self) -> Duration {
        self.failure_timeout / 2
    }

    /// How long a proposer waits for a member that is only suspected, where the launcher will say
    /// for certain who is dead.
    pub(super) fn grace(&self) -> Duration {
        self.failure_timeout / 10
    }

    /// How long a joiner waits for one member before it asks the next one.
    pub(super) fn ask_interval(&self) -> Duration {
        self.failure_timeout / 5
    }

    /// How much later each further member proposes.
    pub(super) fn stagger(&self) -> Duration {
        self.failure_timeout / 20
    }
}
