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
        to: Party,
        message: Message,
        observer: &mut dyn Observer,
    ) {
        let from = MemberId(rank as u64);
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
                        ArbiterAction::Chosen(view) => self.fence(&view, observer),
                    }
                }
            }
        }
    }

    /// Ends the processes that a new view has left behind. A worker that has only stood still would
    /// otherwise wake up one day and write over what the others did since.
    fn fence(&mut self, view: &View, observer: &mut dyn Observer) {
        let before = std::mem::replace(&mut self.members, view.ids().collect());
        for (id, child) in (0..).map(MemberId).zip(&mut self.children.list) {
            if child.ended.is_none() && before.contains(&id) && !view.contains(id) {
                let text = format!("{id} was left behind and is ended: it could not be heard");
                observer.event(Event::Notice { text });
                child.explained = true;
                child.kill();
            }
        }
    }

    /// Tells those that still work that a worker has ended, and which others have before it.
    pub(super) fn report_ended(&mut self, rank: usize, observer: &mut dyn Observer) {
        let ended: Vec<(MemberId, String)> = (0..)
            .map(MemberId)
            .zip(&self.children.list)
            .filter_map(|(id, child)| Some((id, child.ended.clone()?)))
            .collect();
        let left = self.children.list.len() - ended.len();
        if self.training && left > 0 {
            let why = self.children.list[rank].ended.clone().unwrap_or_default();
            let text = format!("worker {rank} is lost: {why}; {left} go on");
            observer.event(Event::Notice { text });
        }
        for (id, why) in ended {
            let exited = ToWorker::Exited { id, why };
            for child in self.children.list.iter_mut().filter(|child| child.ended.is_none()) {
                child.send(&exited);
            }
        }
    }

    fn tell(&mut self, to: MemberId, message: &ToWorker) {
        let child = usize::try_from(to.0).ok().and_then(|at| self.children.list.get_mut(at));
        if let Some(child) = child.filter(|child| child.ended.is_none()) {
            child.send(message);
        }
    }
}
