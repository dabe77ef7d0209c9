//! The launcher's part in the membership: it introduces the workers to each other, passes their
//! messages on, elects views as the only acceptor, and reports who has ended.

use std::net::SocketAddr;

use crate::protocol::membership::{Arbiter, ArbiterAction, Member, MemberId, Message, Party, View};
use crate::train::event::{Event, Observer};

use super::local::Supervisor;
use super::pipe::ToWorker;

impl Supervisor<'_> {
    /// Tells all workers their peers' addresses, once they are all known.
    pub(super) fn introduce(&mut self) {
        let all: Option<Vec<Vec<SocketAddr>>> = self.bound.iter().cloned().collect();
        if let (Some(addresses), Some(_)) = (&all, self.servers) {
            let peers = ToWorker::Peers { addresses: addresses.clone() };
            self.children.list.iter_mut().for_each(|child| child.send(&peers));
        } else if let Some(addresses) = all {
            let member = |(id, addresses): (u64, Vec<SocketAddr>)| Member {
                id: MemberId(id),
                addresses: addresses.iter().map(ToString::to_string).collect(),
            };
            let view = View::first((0..).zip(addresses).map(member).collect(), 0);
            self.members = view.ids().collect();
            self.arbiter = Some(Arbiter::new(view.clone()));
            let begin = ToWorker::Begin { view: Box::new(view) };
            self.children.list.iter_mut().for_each(|child| child.send(&begin));
        }
    }

    /// Passes a worker's message about views on.
    pub(super) fn pass_on(
        &mut self,
        rank: usize,
        from: MemberId,
        to: Party,
        message: Message,
        observer: &mut dyn Observer,
    ) {
        let child = &mut self.children.list[rank];
        if from.process() as usize != rank {
            return;
        }
        // Whoever speaks is awake.
        child.leaves =
            (child.leaves && child.id == from) || matches!(message, Message::Leave { .. });
        (child.id, child.left_behind) = (from, false);
        match to {
            Party::Member(id) => {
                let message = ToWorker::Message { from: Party::Member(from), message };
                self.tell(id, &message);
            }
            Party::Launcher => {
                if let Some(arbiter) = &mut self.arbiter {
                    arbiter.handle_message(from, message);
                }
                while let Some(action) = self.arbiter.as_mut().and_then(Arbiter::poll_action) {
                    match action {
                        ArbiterAction::Send { to, message } => {
                            let from = Party::Launcher;
                            self.tell(to, &ToWorker::Message { from, message });
                        }
                        ArbiterAction::Chosen(view) => self.note_view(&view, observer),
                    }
                }
            }
        }
    }

    /// Notes the members of a new view. A worker that stood still and was left behind is left alone:
    /// once it wakes up it hears of the view, and asks to come again.
    fn note_view(&mut self, view: &View, observer: &mut dyn Observer) {
        let before = std::mem::replace(&mut self.members, view.ids().collect());
        for child in self.children.list.iter_mut().filter(|child| child.ended.is_none()) {
            // Whoever said that it leaves waits to hear that it has.
            if before.contains(&child.id) && !view.contains(child.id) && !child.leaves {
                let text = format!("{} was left behind: it could not be heard", child.id);
                observer.event(Event::Notice { text });
                child.left_behind = true;
            }
        }
    }

    /// Says who is lost, and how many go on.
    pub(super) fn note_lost(&self, rank: usize, observer: &mut dyn Observer) {
        let left = self.members.iter().filter(|&&id| !self.has_ended(id)).count();
        if self.training && left > 0 {
            let child = &self.children.list[rank];
            let (id, why) = (child.id, child.ended.clone().unwrap_or_default());
            let text = format!("{id} is lost: {why}; {left} go on");
            observer.event(Event::Notice { text });
        }
    }

    /// Tells those that still work that a worker has ended, and which others have before it.
    pub(super) fn report_ended(&mut self) {
        let children = &self.children.list;
        let ended: Vec<(MemberId, String)> =
            children.iter().filter_map(|child| Some((child.id, child.ended.clone()?))).collect();
        for (id, why) in ended {
            let exited = ToWorker::Exited { id, why };
            self.children.awake().for_each(|child| child.send(&exited));
        }
    }

    /// Whether the process of this member is gone.
    pub(super) fn has_ended(&self, id: MemberId) -> bool {
        let child = self.children.list.get(id.process() as usize);
        child.is_none_or(|child| child.ended.is_some())
    }

    fn tell(&mut self, to: MemberId, message: &ToWorker) {
        let child = self.children.list.get_mut(to.process() as usize);
        if let Some(child) = child.filter(|child| child.ended.is_none() && !child.left_behind) {
            child.send(message);
        }
    }
}
