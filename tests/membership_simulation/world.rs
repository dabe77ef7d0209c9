//! The run: virtual time, events, nodes, and what each event does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use annulet::protocol::membership::{
    Acceptors, Action, Arbiter, ArbiterAction, Ending, Member, MemberId, Membership, Message,
    Party, Settings, View,
};
use annulet::protocol::time::Time;

use super::checks::{Checks, Statistics};
use super::engine::State;
use super::events::{Event, Queued};
use super::network::Network;
use super::node::{Content, Data, Life, Node, Work};
use super::random::Random;
use super::schedule::{FAILURE_TIMEOUT, Schedule};

/// No run takes as long: every wait is bounded.
const LONGEST_RUN: Duration = Duration::from_secs(120);

/// Nor has any as many events.
const MOST_EVENTS: u64 = 200_000;

/// Between two tries to get a message through a partition.
const HELD_UP: Duration = Duration::from_millis(10);

const JOIN_TIMEOUT: Duration = Duration::from_secs(4);

pub struct World {
    pub(super) now: Duration,
    queue: BinaryHeap<Reverse<Queued>>,
    order: u64,
    pub(super) random: Random,
    pub(super) schedule: Schedule,
    pub(super) settings: Settings,
    pub(super) nodes: Vec<Node>,
    pub(super) network: Network,
    arbiter: Arbiter,
    checks: Checks,
    pub(super) statistics: Statistics,
    pub(super) partitions: usize,
    pub(super) joined: bool,
    trace: bool,
}

pub(super) fn id_of(node: usize) -> MemberId {
    MemberId(node as u64)
}

pub(super) fn index_of(MemberId(id): MemberId) -> usize {
    id as usize
}

pub(super) fn member(node: usize) -> Member {
    Member { id: id_of(node), addresses: Vec::new() }
}

impl World {
    pub fn new(seed: u64, trace: bool) -> World {
        let mut random = Random::new(seed);
        let schedule = Schedule::of(&mut random);
        if trace {
            println!("{schedule:#?}");
        }
        let settings = Settings {
            acceptors: schedule.acceptors,
            failure_timeout: FAILURE_TIMEOUT,
            join_timeout: JOIN_TIMEOUT,
            members_min: 1,
            members_max: schedule.workers_max,
        };
        let first = View::first((0..schedule.workers).map(member).collect(), 0);
        let nodes = (0..schedule.workers)
            .map(|node| {
                let membership = Membership::member(settings.clone(), id_of(node), first.clone());
                let slowness = schedule.slow.filter(|&(slow, _)| slow == node).map_or(1, |s| s.1);
                Node::new(membership, Some(State::INITIAL), slowness)
            })
            .collect();
        let mut world = World {
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            order: 0,
            random,
            settings,
            nodes,
            network: Network::default(),
            arbiter: Arbiter::new(first.clone()),
            checks: Checks::new(schedule.steps, first.clone()),
            statistics: Statistics::default(),
            partitions: 0,
            joined: false,
            trace,
            schedule,
        };
        for (at, fault) in std::mem::take(&mut world.schedule.faults) {
            world.push(at, Event::Fault(fault));
        }
        for node in 0..world.nodes.len() {
            world.begin(node, &first);
        }
        world
    }

    /// Runs to the end.
    pub fn run(mut self) -> Statistics {
        while let Some(Reverse(Queued { at, event, .. })) = self.queue.pop() {
            self.now = at;
            self.statistics.events += 1;
            let hangs = self.now > LONGEST_RUN || self.statistics.events > MOST_EVENTS;
            assert!(!hangs, "the run hangs: {event:?}");
            self.handle(event);
        }
        self.check_end();
        self.statistics.view_changes = self.checks.views() as u64 - 1;
        self.statistics
    }

    pub(super) fn time(&self) -> Time {
        Time::after_origin(self.now)
    }

    pub(super) fn push(&mut self, at: Duration, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Queued { at, order: self.order, event }));
    }

    pub(super) fn push_in(&mut self, wait: Duration, event: Event) {
        self.push(self.now + wait, event);
    }

    fn handle(&mut self, event: Event) {
        // A node that stands still handles everything once it goes on.
        let target = match &event {
            Event::Said { to: Party::Member(id), .. } => Some(index_of(*id)),
            Event::Sent { to, .. } => Some(*to),
            Event::Lost { at, .. } => Some(*at),
            Event::Looks { node, .. }
            | Event::Timer { node }
            | Event::Computed { node, .. }
            | Event::Halted { node, .. } => Some(*node),
            _ => None,
        };
        if let Some(node) = target {
            if let Some(waiting) = &mut self.nodes[node].paused {
                return waiting.push(event);
            }
            if self.nodes[node].life != Life::Up {
                return;
            }
        }
        if self.trace && !matches!(event, Event::Timer { .. } | Event::Sent { .. }) {
            println!("{:>10.3?} {event:?}", self.now);
        }
        match event {
            Event::Said { from, to, message, epoch } => self.hear(from, to, message, epoch),
            Event::Sent { from, to, data, epoch } => {
                if self.network.link(from, to).epoch == epoch {
                    self.receive(from, to, data);
                }
            }
            Event::Lost { at, of, why, certain } => {
                let now = self.time();
                self.nodes[at].membership.handle_lost(now, id_of(of), why.to_owned(), certain);
            }
            Event::TimesOut { a, b } => {
                if self.nodes[a].paused.is_some()
                    || self.nodes[b].paused.is_some()
                    || self.network.is_cut(a, b)
                {
                    self.break_link(a, b);
                }
            }
            Event::Looks { node, generation } => self.look(node, generation),
            Event::Timer { node } => {
                let now = self.time();
                self.nodes[node].timer = None;
                if self.nodes[node].membership.poll_timeout().is_some_and(|at| at <= now) {
                    self.nodes[node].membership.handle_timeout(now);
                }
            }
            Event::Computed { node, generation, step } => self.computed(node, generation, step),
            Event::Halted { node, generation } => {
                if self.nodes[node].membership.view().map(|v| v.generation) == Some(generation) {
                    self.halt(node);
                }
            }
            Event::Fault(fault) => self.inflict(fault),
            Event::Wakes { node } => {
                for event in self.nodes[node].paused.take().unwrap_or_default() {
                    self.push_in(Duration::ZERO, event);
                }
            }
            Event::Heals { partition } => self.network.heal(partition),
        }
        if let Some(node) = target {
            self.settle(node);
        }
    }

    /// Does what a node's membership wants to be done, and checks its state.
    pub(super) fn settle(&mut self, node: usize) {
        while self.nodes[node].life == Life::Up
            && let Some(action) = self.nodes[node].membership.poll_action()
        {
            match action {
                Action::Send { to, message } => self.say(node, to, message),
                Action::Halt { .. } => {
                    // The step under way may well be completed before the node notices.
                    let generation = self.generation(node);
                    let most = self.schedule.compute * self.nodes[node].slowness;
                    let wait = self.random.duration(Duration::ZERO, most);
                    self.push_in(wait, Event::Halted { node, generation });
                }
                Action::Install { view } => {
                    self.checks.view(&view);
                    self.begin(node, &view);
                }
                Action::End(ending) => self.end(node, ending),
            }
        }
        if let Some(state) = &self.nodes[node].state {
            self.checks.state(state);
        }
        if self.nodes[node].life == Life::Up {
            let timeout = self.nodes[node].membership.poll_timeout();
            if timeout.is_some() && timeout != self.nodes[node].timer {
                self.nodes[node].timer = timeout;
                let at = timeout.map_or(self.now, |t| t.since(Time::ZERO)).max(self.now);
                self.push(at, Event::Timer { node });
            }
        }
    }

    pub(super) fn generation(&self, node: usize) -> u32 {
        self.nodes[node].membership.view().map_or(0, |view| view.generation)
    }

    /// Puts a message about views on its way.
    fn say(&mut self, node: usize, to: Party, message: Message) {
        if let Some(left) = &mut self.nodes[node].talks_left {
            if *left == 0 {
                return self.crash(node);
            }
            *left -= 1;
        }
        if let Message::Commit { view } = &message {
            self.checks.view(view);
        }
        let epoch = match to {
            // What goes through the launcher does not depend on the network.
            _ if self.schedule.acceptors == Acceptors::Launcher => 0,
            Party::Launcher => 0,
            Party::Member(id) => self.network.link(node, index_of(id)).epoch,
        };
        let from = Party::Member(id_of(node));
        let event = Event::Said { from, to, message, epoch };
        match to {
            Party::Member(id) => self.travel(node, index_of(id), event),
            Party::Launcher => {
                let wait = self.random.duration(Duration::ZERO, self.schedule.delay);
                self.push_in(wait, event);
            }
        }
    }

    /// Schedules an arrival: messages on a link keep their order, and wait while it is cut.
    fn travel(&mut self, from: usize, to: usize, event: Event) {
        let arrives = self.now + self.random.duration(Duration::ZERO, self.schedule.delay);
        let last = &mut self.network.link(from, to).last_arrival[usize::from(from > to)];
        *last = arrives.max(*last);
        let at = *last;
        self.push(at, event);
    }

    fn hear(&mut self, from: Party, to: Party, message: Message, epoch: u32) {
        let Party::Member(id) = to else {
            let Party::Member(from) = from else { return };
            self.arbiter.handle_message(from, message);
            return self.settle_arbiter();
        };
        if let (Party::Member(from), Acceptors::Members) = (from, self.schedule.acceptors) {
            let (from, node) = (index_of(from), index_of(id));
            if self.network.link(from, node).epoch != epoch {
                return;
            }
            if self.network.is_cut(from, node) {
                let message = Event::Said { from: id_of(from).into(), to, message, epoch };
                return self.push_in(HELD_UP, message);
            }
        }
        let now = self.time();
        self.nodes[index_of(id)].membership.handle_message(now, from, message);
    }

    fn settle_arbiter(&mut self) {
        while let Some(action) = self.arbiter.poll_action() {
            match action {
                ArbiterAction::Send { to, message } => {
                    let wait = self.random.duration(Duration::ZERO, self.schedule.delay);
                    let from = Party::Launcher;
                    let said = Event::Said { from, to: to.into(), message, epoch: 0 };
                    self.push_in(wait, said);
                }
                ArbiterAction::Chosen(view) => self.checks.view(&view),
            }
        }
    }

    /// Words of the collective arrive.
    fn receive(&mut self, from: usize, node: usize, data: Data) {
        if self.network.is_cut(from, node) {
            let epoch = self.network.link(from, node).epoch;
            let again = Event::Sent { from, to: node, data, epoch };
            return self.push_in(HELD_UP, again);
        }
        let known = self.nodes[node].membership.view().map(|view| view.generation);
        let copying = matches!(self.nodes[node].work, Work::Copying { .. });
        let is_part = matches!(data.content, Content::Part { .. });
        if known < Some(data.generation) || (copying && is_part) {
            return self.nodes[node].early.push((id_of(from), data));
        }
        if self.nodes[node].work.view().map(|view| view.generation) != Some(data.generation) {
            return;
        }
        match data.content {
            Content::Part { step, sum } => {
                self.nodes[node].note_part(id_of(from), step, sum);
                self.complete(node);
            }
            Content::State(state) => {
                self.nodes[node].copy(state);
                self.compute(node);
                self.receive_early(node);
            }
        }
    }

    /// Begins to work in a view.
    fn begin(&mut self, node: usize, view: &View) {
        let id = id_of(node);
        self.nodes[node].begin(id, view);
        let generation = view.generation;
        if view.source == id
            && let Some(state) = self.nodes[node].state
        {
            assert_eq!(state.step, view.start_step, "the source holds what the view says");
            for &other in &view.behind {
                let data = Data { generation, content: Content::State(state) };
                self.send(node, index_of(other), data);
            }
        }
        self.compute(node);
        self.push_in(FAILURE_TIMEOUT, Event::Looks { node, generation });
        self.receive_early(node);
    }

    /// What came before the node could take it.
    fn receive_early(&mut self, node: usize) {
        for (from, data) in std::mem::take(&mut self.nodes[node].early) {
            self.receive(index_of(from), node, data);
        }
    }

    /// Schedules the current step's part.
    fn compute(&mut self, node: usize) {
        let (Work::Step { view, .. }, Some(state)) =
            (&self.nodes[node].work, self.nodes[node].state)
        else {
            return;
        };
        let (generation, step) = (view.generation, state.step);
        let wait = self.schedule.compute * self.nodes[node].slowness;
        self.push_in(wait, Event::Computed { node, generation, step });
    }

    fn computed(&mut self, node: usize, generation: u32, step: u64) {
        let current = self.nodes[node].work.view().map(|view| view.generation) == Some(generation)
            && self.nodes[node].state.is_some_and(|state| state.step == step);
        if !current {
            return;
        }
        let Some((view, data)) = self.nodes[node].compute(id_of(node), self.schedule.steps) else {
            return;
        };
        for other in view.ids().filter(|&other| other != id_of(node)) {
            self.send(node, index_of(other), data.clone());
        }
        self.complete(node);
    }

    /// Applies the step if all parts are there.
    fn complete(&mut self, node: usize) {
        let Some(sum) = self.nodes[node].complete(id_of(node)) else { return };
        let Some(state) = self.nodes[node].state else { return };
        if state.step == self.schedule.steps {
            // The barrier behind the last step: all have completed it.
            self.nodes[node].life = Life::Finished;
            self.statistics.finished += 1;
            return self.part_with_all(node);
        }
        let next = state.after(sum);
        self.nodes[node].state = Some(next);
        self.statistics.steps += 1;
        self.checks.completed(self.generation(node), &next);
        // Parts of the next step may have come already: they stay.
        if let Work::Step { own, .. } = &mut self.nodes[node].work {
            *own = None;
        }
        self.compute(node);
    }

    fn send(&mut self, from: usize, to: usize, data: Data) {
        let epoch = self.network.link(from, to).epoch;
        self.travel(from, to, Event::Sent { from, to, data, epoch });
    }

    pub(super) fn halt(&mut self, node: usize) {
        self.nodes[node].work = Work::Idle;
        let (now, step) = (self.time(), self.nodes[node].state.map(|state| state.step));
        self.nodes[node].membership.handle_halted(now, step);
    }

    fn end(&mut self, node: usize, ending: Ending) {
        if self.trace {
            println!("{:>10.3?} node {node} ends: {ending}", self.now);
        }
        self.statistics.note_ending(&ending);
        self.nodes[node].life = Life::Ended(ending);
        self.part_with_all(node);
    }

    /// Everybody's part is over, and those that nothing happened to have the result, wherever the
    /// protocol promises it.
    fn check_end(&mut self) {
        let steps = self.schedule.steps;
        for (i, node) in self.nodes.iter().enumerate() {
            assert_ne!(node.life, Life::Up, "node {i} waits for ever");
            if node.life == Life::Finished {
                let state = node.state.expect("it has trained");
                assert_eq!(state.step, steps, "node {i} finished too early");
            }
        }
        let initial = &self.nodes[..self.schedule.workers];
        let sound = initial.iter().filter(|node| !node.touched).count();
        let promised = match self.schedule.acceptors {
            Acceptors::Launcher => true,
            // Joiners that fail make the view's quorum larger.
            Acceptors::Members => !self.joined && 2 * sound > initial.len(),
        };
        for (i, node) in initial.iter().enumerate().filter(|(_, node)| !node.touched) {
            // Whoever lost its peers behind the last step has the result as well.
            let has_result = node.state.is_some_and(|state| state.step == steps);
            assert!(!promised || has_result, "node {i}, untouched, ended as {:?}", node.life);
        }
        if !self.nodes.iter().any(|node| node.life == Life::Finished) {
            self.statistics.unfinished_runs += 1;
        }
    }
}
