//! What goes wrong: crashes, broken links, partitions, members that stand still, leave and come.

use std::collections::BTreeSet;
use std::time::Duration;

use annulet::protocol::membership::{Acceptors, LEAVES, Membership, Party, View};

use super::events::Event;
use super::node::{Life, Node};
use super::schedule::{FAILURE_TIMEOUT, Fault};
use super::world::{World, id_of, index_of, member};

impl World {
    /// A node that ends closes its connections, which the others see.
    pub(super) fn part_with_all(&mut self, node: usize) {
        for other in (0..self.nodes.len()).filter(|&other| other != node) {
            let wait = self.random.duration(Duration::ZERO, self.schedule.delay * 2);
            let certain = self.schedule.acceptors == Acceptors::Launcher;
            let why = "its process ended";
            // What it has sent arrives before that.
            let arrived = self.network.link(node, other).last_arrival[usize::from(node > other)];
            let at = (self.now + wait).max(arrived);
            self.push(at, Event::Lost { at: other, of: node, why, certain });
        }
    }

    pub(super) fn crash(&mut self, node: usize) {
        self.nodes[node].life = Life::Crashed;
        self.nodes[node].touched = true;
        for other in (0..self.nodes.len()).filter(|&other| other != node) {
            let (least, most, why, certain) = match self.schedule.acceptors {
                Acceptors::Launcher => {
                    (Duration::ZERO, Duration::from_millis(20), "its process ended", true)
                }
                Acceptors::Members => {
                    let keep_alive = FAILURE_TIMEOUT / 4;
                    (FAILURE_TIMEOUT - keep_alive, FAILURE_TIMEOUT, "it fell silent", false)
                }
            };
            let wait = self.random.duration(least, most);
            self.push_in(wait, Event::Lost { at: other, of: node, why, certain });
        }
    }

    pub(super) fn break_link(&mut self, a: usize, b: usize) {
        self.network.link(a, b).epoch += 1;
        for (at, of) in [(a, b), (b, a)] {
            self.nodes[at].touched = true;
            let wait = self.random.duration(Duration::ZERO, self.schedule.delay);
            let why = "its connection was lost";
            self.push_in(wait, Event::Lost { at, of, why, certain: false });
        }
    }

    /// Some time after a view began, connections to those that cannot be reached have timed out.
    pub(super) fn look(&mut self, node: usize, generation: u32) {
        if self.generation(node) != generation {
            return;
        }
        let view = self.nodes[node].membership.view().cloned();
        for other in view.iter().flat_map(View::ids).map(index_of) {
            let peer = &self.nodes[other];
            let gone = peer.life != Life::Up || peer.paused.is_some();
            if other != node && (gone || self.network.is_cut(node, other)) {
                let (now, why) = (self.time(), "no connection".to_owned());
                self.nodes[node].membership.handle_lost(now, id_of(other), why, false);
            }
        }
    }

    pub(super) fn inflict(&mut self, fault: Fault) {
        let is_up = |world: &World, node: usize| {
            world.nodes.get(node).is_some_and(|node| node.life == Life::Up)
        };
        let kind = fault.kind();
        match fault {
            Fault::Crash { node } if is_up(self, node) => self.crash(node),
            Fault::CrashWhileTalking { node, after } if is_up(self, node) => {
                self.nodes[node].talks_left = Some(after);
                self.nodes[node].touched = true;
            }
            Fault::Break { a, b } if a != b && is_up(self, a) && is_up(self, b) => {
                self.break_link(a, b);
            }
            Fault::Part { set, lasts } => self.part(set, lasts),
            Fault::Pause { node, lasts } if is_up(self, node) => self.pause(node, lasts),
            Fault::Fail { node } if is_up(self, node) && self.nodes[node].paused.is_none() => {
                self.halt(node);
                self.settle(node);
            }
            Fault::Leave { node } if is_up(self, node) && self.nodes[node].paused.is_none() => {
                self.nodes[node].touched = true;
                self.nodes[node].membership.handle_leave(LEAVES);
                self.settle(node);
            }
            Fault::Join { contact, crash_after } => self.join(contact, crash_after),
            _ => return,
        }
        *self.statistics.faults.entry(kind).or_default() += 1;
    }

    fn part(&mut self, set: BTreeSet<usize>, lasts: Duration) {
        let partition = self.partitions;
        self.partitions += 1;
        for (a, b) in self.network.part(partition, set, self.nodes.len()) {
            let jitter = self.random.duration(Duration::ZERO, FAILURE_TIMEOUT / 4);
            self.push_in(FAILURE_TIMEOUT - jitter, Event::TimesOut { a, b });
            for node in [a, b] {
                self.nodes[node].touched = true;
            }
        }
        self.push_in(lasts, Event::Heals { partition });
    }

    fn pause(&mut self, node: usize, lasts: Duration) {
        if self.nodes[node].paused.is_some() {
            return;
        }
        self.nodes[node].paused = Some(Vec::new());
        self.nodes[node].touched = true;
        for other in (0..self.nodes.len()).filter(|&other| other != node) {
            let jitter = self.random.duration(Duration::ZERO, FAILURE_TIMEOUT / 4);
            self.push_in(FAILURE_TIMEOUT - jitter, Event::TimesOut { a: node, b: other });
        }
        self.push_in(lasts, Event::Wakes { node });
    }

    fn join(&mut self, contact: usize, crash_after: Option<Duration>) {
        let node = self.nodes.len();
        let contacts = match self.schedule.acceptors {
            Acceptors::Launcher => vec![Party::Launcher],
            Acceptors::Members => {
                let others = (0..node).filter(|&other| other != contact);
                std::iter::once(contact).chain(others).map(|n| id_of(n).into()).collect()
            }
        };
        let now = self.time();
        let joiner = Membership::joiner(now, self.settings.clone(), member(node), contacts);
        self.nodes.push(Node::new(joiner, None, 1));
        self.nodes[node].touched = true;
        self.joined = true;
        self.settle(node);
        if let Some(wait) = crash_after {
            self.push_in(wait, Event::Fault(Fault::Crash { node }));
        }
    }
}
