//! How a worker goes on when its group has broken: the trainer knows membership by this trait alone.

use crate::protocol::membership::View;

use super::collective::{Collective, CollectiveError};
use super::trainer::TrainError;

/// A worker's part in the membership.
pub trait Views: Send {
    /// Must be called before the state becomes that after `step` steps, in the view of this
    /// generation.
    ///
    /// # Errors
    /// If this worker has promised to complete nothing more in that view.
    fn completing(&mut self, generation: u32, step: u64) -> Result<(), CollectiveError>;

    /// The group has failed: agrees with the other workers on the next view, and joins it.
    ///
    /// The view's changes are all since the last view that was returned.
    ///
    /// # Errors
    /// If the run is over for this worker, or if its own machine is at fault.
    fn next(&mut self, error: &CollectiveError) -> Result<Joined, TrainError>;

    /// Leaves the others, who are told why and go on without this worker. [`next`](Views::next) then
    /// asks to be let in again, as a new member.
    fn leave(&mut self, why: String);
}

/// A view that this worker has joined.
pub struct Joined {
    pub view: View,
    /// This worker's index.
    pub rank: usize,
    pub collective: Box<dyn Collective>,
}

impl Joined {
    /// Whether any member has to copy the source's state.
    pub fn copies(&self) -> bool {
        !self.view.behind.is_empty()
    }

    /// Whether this worker has to.
    pub fn is_behind(&self) -> bool {
        self.view.behind.contains(&self.view.members[self.rank].id)
    }

    /// Whether this worker's state is the one that is copied.
    pub fn is_source(&self) -> bool {
        self.view.source == self.view.members[self.rank].id
    }
}

/// Where a worker stands in its run, apart from the state: after a change all stand where the one
/// stands that has the most left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The epoch that ends with the last completed step is evaluated and reported.
    pub reported: bool,
    /// The run is to end here.
    pub stopped: bool,
}

/// The outcome of a change.
#[derive(Clone, Debug)]
pub struct Regrouped {
    pub view: View,
    /// This worker's index.
    pub rank: usize,
    pub standing: Standing,
}
