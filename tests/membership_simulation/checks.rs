//! What must hold after every event, and what a run was made of.

use std::collections::BTreeMap;

use annulet::protocol::membership::{Ending, View};

use super::engine::{State, undisturbed};
use super::schedule::Fault;

pub struct Checks {
    /// The states of the undisturbed run.
    expected: Vec<State>,
    /// The view of each generation.
    views: BTreeMap<u32, View>,
    /// The most advanced step that was completed in each generation.
    completed: BTreeMap<u32, u64>,
}

impl Checks {
    pub fn new(steps: u64, first: View) -> Checks {
        let views = BTreeMap::from([(first.generation, first)]);
        Checks { expected: undisturbed(steps), views, completed: BTreeMap::new() }
    }

    /// Each view has one successor, and begins where the one before may have ended.
    pub fn view(&mut self, view: &View) {
        if let Some(known) = self.views.get(&view.generation) {
            assert_eq!(known, view, "two successors of generation {}", view.generation - 1);
            return;
        }
        let before = self.views.get(&(view.generation - 1)).expect("views follow each other");
        assert!(view.start_step + 1 >= before.start_step, "steps were lost: {before}, then {view}");
        assert!(before.contains(view.source), "a joiner cannot hand the state out");
        self.views.insert(view.generation, view.clone());
        self.one_history(view.generation - 1);
    }

    /// A node has completed a step in a generation.
    pub fn completed(&mut self, generation: u32, state: &State) {
        self.state(state);
        let most = self.completed.entry(generation).or_default();
        *most = state.step.max(*most);
        self.one_history(generation);
    }

    /// Nobody goes on in a view that was succeeded, but for the step that was under way.
    fn one_history(&self, generation: u32) {
        if let (Some(next), Some(&most)) =
            (self.views.get(&(generation + 1)), self.completed.get(&generation))
        {
            assert!(
                most <= next.start_step + 1,
                "step {most} was completed in generation {generation}, but {next}"
            );
        }
    }

    /// No step was applied twice, skipped, or made of other samples.
    pub fn state(&self, state: &State) {
        assert_eq!(*state, self.expected[state.step as usize], "not the undisturbed run's state");
    }

    pub fn views(&self) -> usize {
        self.views.len()
    }
}

/// What happened, in one run or in many.
#[derive(Debug, Default)]
pub struct Statistics {
    pub events: u64,
    pub view_changes: u64,
    pub steps: u64,
    pub finished: u64,
    pub unfinished_runs: u64,
    pub faults: BTreeMap<&'static str, u64>,
    pub endings: BTreeMap<&'static str, u64>,
}

impl Statistics {
    pub fn add(&mut self, other: &Statistics) {
        self.events += other.events;
        self.view_changes += other.view_changes;
        self.steps += other.steps;
        self.finished += other.finished;
        self.unfinished_runs += other.unfinished_runs;
        for (kind, count) in &other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (kind, count) in &other.endings {
            *self.endings.entry(kind).or_default() += count;
        }
    }

    pub fn note_ending(&mut self, ending: &Ending) {
        let kind = match ending {
            Ending::Left => "left",
            Ending::LeftBehind { .. } => "left behind",
            Ending::NoQuorum { .. } => "no quorum",
            Ending::NoSuccessor(_) => "no successor",
            Ending::NotAdmitted { .. } => "not admitted",
        };
        *self.endings.entry(kind).or_default() += 1;
    }

    pub fn assert_everything_happened(&self) {
        for kind in Fault::KINDS {
            assert!(self.faults.get(kind).is_some_and(|&n| n > 100), "too few of: {kind}");
        }
        for kind in ["left", "left behind", "no quorum", "no successor", "not admitted"] {
            assert!(self.endings.get(kind).is_some_and(|&n| n > 10), "too few ended as: {kind}");
        }
        assert!(self.view_changes > 10_000 && self.finished > 10_000);
    }
}
