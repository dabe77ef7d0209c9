//! One simulated worker: its part in the membership, its engine, and its end of the collective.

use std::collections::BTreeMap;

use annulet::protocol::membership::{Ending, MemberId, Membership, View};
use annulet::protocol::time::Time;

use super::engine::State;
use super::world::Event;

pub struct Node {
    pub membership: Membership,
    pub life: Life,
    /// What it does now, and for each event that came meanwhile, when it will be handled.
    pub paused: Option<Vec<Event>>,
    /// `None` until a joiner has copied it.
    pub state: Option<State>,
    pub work: Work,
    /// Words of the collective that came before this node was in their view.
    pub early: Vec<(MemberId, Data)>,
    /// When its next timer event comes.
    pub timer: Option<Time>,
    /// Crashes after so many more messages about views.
    pub talks_left: Option<u32>,
    /// It computes so many times slower than others.
    pub slowness: u32,
    /// Something happened to it or to one of its links: nothing is promised about its end.
    pub touched: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    Up,
    Crashed,
    /// The protocol said so.
    Ended(Ending),
    /// It has the result.
    Finished,
}

pub enum Work {
    /// None: not yet in a view, or halted.
    Idle,
    /// In a view, but the state has not come yet.
    Copying { view: View },
    /// In the step behind its state, or in the barrier behind the last step. Another member may be
    /// a step ahead, so parts are kept by step.
    Step { view: View, own: Option<u64>, received: BTreeMap<(u64, MemberId), u64> },
}

/// What workers exchange apart from messages about views.
#[derive(Clone, Debug)]
pub struct Data {
    pub generation: u32,
    pub content: Content,
}

#[derive(Clone, Debug)]
pub enum Content {
    /// A part of the sum of the step behind `step` completed ones.
    Part {
        step: u64,
        sum: u64,
    },
    State(State),
}

impl Work {
    pub fn view(&self) -> Option<&View> {
        match self {
            Work::Idle => None,
            Work::Copying { view } | Work::Step { view, .. } => Some(view),
        }
    }
}

impl Node {
    pub fn new(membership: Membership, state: Option<State>, slowness: u32) -> Node {
        Node {
            membership,
            life: Life::Up,
            paused: None,
            state,
            work: Work::Idle,
            early: Vec::new(),
            timer: None,
            talks_left: None,
            slowness,
            touched: false,
        }
    }

    /// Begins to work in a view.
    pub fn begin(&mut self, id: MemberId, view: &View) {
        let view = view.clone();
        self.work = if view.behind.contains(&id) {
            Work::Copying { view }
        } else {
            Work::Step { view, own: None, received: BTreeMap::new() }
        };
    }

    /// The state has come.
    pub fn copy(&mut self, state: State) {
        if let Work::Copying { view } = &self.work {
            let own = self.state.map(|state| state.step);
            assert!(own < Some(state.step), "a step is taken back: {own:?} to {state:?}");
            self.state = Some(state);
            let view = view.clone();
            self.work = Work::Step { view, own: None, received: BTreeMap::new() };
        }
    }

    /// This node's part of the current step; in the barrier behind the last step, nothing.
    pub fn compute(&mut self, id: MemberId, steps: u64) -> Option<(View, Data)> {
        let state = self.state?;
        let Work::Step { view, own, .. } = &mut self.work else { return None };
        if own.is_some() {
            return None;
        }
        let rank = view.rank(id).expect("it is a member");
        let sum =
            if state.step == steps { 0 } else { state.contribution(rank, view.members.len()) };
        *own = Some(sum);
        let content = Content::Part { step: state.step, sum };
        Some((view.clone(), Data { generation: view.generation, content }))
    }

    /// Notes another member's part.
    pub fn note_part(&mut self, from: MemberId, step: u64, sum: u64) {
        if let Work::Step { received, .. } = &mut self.work {
            received.insert((step, from), sum);
        }
    }

    /// The sum over all members, once it is known.
    pub fn complete(&self, id: MemberId) -> Option<u64> {
        let state = self.state?;
        let Work::Step { view, own: Some(own), received } = &self.work else { return None };
        let mut sum = *own;
        for other in view.ids().filter(|&other| other != id) {
            sum = sum.wrapping_add(*received.get(&(state.step, other))?);
        }
        Some(sum)
    }
}
