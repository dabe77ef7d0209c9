//! One proposal of a successor, from its first message to the choice.

use std::collections::{BTreeMap, BTreeSet};

use super::message::{Ballot, Party};
use super::view::{MemberId, View};
use crate::protocol::time::Time;

/// Who elects a view's successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptors {
    /// The view's members: more than half of them, or half with rank 0. The others stop.
    Members,
    /// The launcher alone: as the parent of all workers it knows deaths for certain, so that even
    /// the last worker goes on.
    Launcher,
}

impl Acceptors {
    /// Whether those who answered decide for all.
    pub fn are_quorum(self, view: &View, answered: impl Fn(Party) -> bool) -> bool {
        match self {
            Acceptors::Members => view.is_quorum(|id| answered(Party::Member(id))),
            Acceptors::Launcher => answered(Party::Launcher),
        }
    }
}

/// What a proposer has heard so far.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    pub(super) ballot: Ballot,
    /// Everybody who has promised.
    promised: BTreeSet<Party>,
    /// What each member that has promised holds.
    pub(super) answered: BTreeMap<MemberId, Option<u64>>,
    /// The successor that was accepted with the highest ballot, among those who promised.
    accepted: Option<(Ballot, Box<View>)>,
    pub(super) stage: Stage,
    /// When the stage has taken too long.
    pub(super) deadline: Time,
    /// Until when suspects are waited for that may be alive after all.
    pub(super) grace: Option<Time>,
}

#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// Promises are gathered.
    Preparing,
    /// This successor is proposed, and these have accepted it.
    Accepting { view: Box<View>, accepted_by: BTreeSet<Party> },
}

impl Proposal {
    pub(super) fn new(ballot: Ballot, deadline: Time, grace: Option<Time>) -> Proposal {
        Proposal {
            ballot,
            promised: BTreeSet::new(),
            answered: BTreeMap::new(),
            accepted: None,
            stage: Stage::Preparing,
            deadline,
            grace,
        }
    }

    pub(super) fn note_promise(
        &mut self,
        from: Party,
        accepted: Option<(Ballot, Box<View>)>,
        step: Option<u64>,
    ) {
        self.promised.insert(from);
        if let Party::Member(id) = from {
            self.answered.insert(id, step);
        }
        let known = self.accepted.as_ref().map(|(ballot, _)| *ballot);
        if let Some(accepted) = accepted.filter(|(ballot, _)| Some(*ballot) > known) {
            self.accepted = Some(accepted);
        }
    }

    pub(super) fn has_promised(&self, party: Party) -> bool {
        self.promised.contains(&party)
    }

    /// Begins to propose: what may have been chosen already, or what `decide` says.
    pub(super) fn choose<E>(
        &mut self,
        deadline: Time,
        decide: impl FnOnce(&BTreeMap<MemberId, Option<u64>>) -> Result<View, E>,
    ) -> Result<Box<View>, E> {
        let view = match &self.accepted {
            Some((_, view)) => view.clone(),
            None => Box::new(decide(&self.answered)?),
        };
        self.deadline = deadline;
        self.stage = Stage::Accepting { view: view.clone(), accepted_by: BTreeSet::new() };
        Ok(view)
    }

    pub(super) fn note_accepted(&mut self, from: Party) {
        if let Stage::Accepting { accepted_by, .. } = &mut self.stage {
            accepted_by.insert(from);
        }
    }

    /// The successor, once enough acceptors have accepted it.
    pub(super) fn chosen(&self, acceptors: Acceptors, view: &View) -> Option<Box<View>> {
        match &self.stage {
            Stage::Accepting { view: next, accepted_by }
                if acceptors.are_quorum(view, |party| accepted_by.contains(&party)) =>
            {
                Some(next.clone())
            }
            _ => None,
        }
    }
}
