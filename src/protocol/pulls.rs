//! Which slices a worker has asked for, so that each server but the coordinator sends its own once a
//! step: a slice may be asked for before the task that needs it comes, and then arrives before it or
//! after.

/// One worker's requests for the slices that do not come with its tasks.
///
/// [`ask`](Pulls::ask), then [`arrived`](Pulls::arrived) for each; once they [are
/// here](Pulls::are_here), [`used`](Pulls::used), and only then do they count as asked for no more.
#[derive(Clone, Debug)]
pub struct Pulls {
    /// Servers beside the coordinator.
    slices: usize,
    asked: bool,
    awaited: usize,
}

/// A slice came that was not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a slice that was not asked for")]
pub struct Unasked;

impl Pulls {
    /// The first slices are still to be asked for.
    pub fn new(servers: usize) -> Pulls {
        Pulls { slices: servers - 1, asked: false, awaited: 0 }
    }

    /// Whether the slices are to be asked for now: not if they are on their way, or here and unused.
    pub fn ask(&mut self) -> bool {
        if self.asked {
            return false;
        }
        self.asked = true;
        self.awaited = self.slices;
        true
    }

    /// One of the slices is here.
    ///
    /// # Errors
    /// If it was not asked for.
    pub fn arrived(&mut self) -> Result<(), Unasked> {
        self.awaited = self.awaited.checked_sub(1).ok_or(Unasked)?;
        Ok(())
    }

    /// Whether nothing that was asked for is still to come.
    pub fn are_here(&self) -> bool {
        self.awaited == 0
    }

    /// A task was begun with the slices: the next one needs others.
    pub fn used(&mut self) {
        debug_assert!(self.are_here());
        self.asked = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_that_came_before_their_task_are_not_asked_for_again() {
        let mut pulls = Pulls::new(3);
        assert!(pulls.ask());
        assert!(!pulls.ask(), "they are on their way");
        assert_eq!(pulls.arrived(), Ok(()));
        assert!(!pulls.are_here());
        assert_eq!(pulls.arrived(), Ok(()));
        assert!(pulls.are_here());
        assert!(!pulls.ask(), "they are here");
        assert_eq!(pulls.arrived(), Err(Unasked));
        pulls.used();
        assert!(pulls.ask());
    }

    #[test]
    fn one_server_has_nothing_to_be_asked_for() {
        let mut pulls = Pulls::new(1);
        pulls.ask();
        assert!(pulls.are_here());
    }
}
