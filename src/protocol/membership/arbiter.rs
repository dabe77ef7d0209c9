//! The launcher as the only acceptor.

use std::collections::VecDeque;

use super::acceptor::Acceptor;
use super::message::Message;
use super::view::{MemberId, View};

/// The launcher's state machine: what it accepts is chosen, since nobody else is asked.
///
/// Drive it with [`handle_message`](Arbiter::handle_message), then poll
/// [`poll_action`](Arbiter::poll_action) until it has no more.
#[derive(Debug)]
pub struct Arbiter {
    view: View,
    acceptor: Acceptor,
    actions: VecDeque<ArbiterAction>,
}

/// What the launcher has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArbiterAction {
    Send {
        to: MemberId,
        message: Message,
    },
    /// This view was chosen.
    Chosen(Box<View>),
}

impl Arbiter {
    pub fn new(first: View) -> Arbiter {
        Arbiter { view: first, acceptor: Acceptor::default(), actions: VecDeque::new() }
    }

    /// The newest view.
    pub fn view(&self) -> &View {
        &self.view
    }

    pub fn handle_message(&mut self, from: MemberId, message: Message) {
        match message {
            Message::Prepare { generation, .. } | Message::Accept { generation, .. }
                if generation < self.view.generation =>
            {
                self.tell_view(from);
            }
            Message::Prepare { generation, ballot } if generation == self.view.generation => {
                let answer = match self.acceptor.prepare(ballot) {
                    Ok(()) => {
                        let accepted = self.acceptor.accepted().cloned();
                        Message::Promise { generation, ballot, accepted, step: None }
                    }
                    Err(promised) => Message::Refused { generation, ballot, promised },
                };
                self.send(from, answer);
            }
            Message::Accept { generation, ballot, view } if generation == self.view.generation => {
                match self.acceptor.accept(ballot, view.clone()) {
                    Ok(()) => {
                        self.send(from, Message::Accepted { generation, ballot });
                        self.view = View::clone(&view);
                        self.acceptor = Acceptor::default();
                        self.actions.push_back(ArbiterAction::Chosen(view));
                    }
                    Err(promised) => {
                        self.send(from, Message::Refused { generation, ballot, promised });
                    }
                }
            }
            Message::Join { member } if self.view.contains(member.id) => self.tell_view(member.id),
            Message::Join { member } => {
                for id in self.view.ids().collect::<Vec<_>>() {
                    self.send(id, Message::Join { member: member.clone() });
                }
            }
            Message::Ask { generation } if generation < Some(self.view.generation) => {
                self.tell_view(from);
            }
            // Everything else is said among members.
            _ => {}
        }
    }

    pub fn poll_action(&mut self) -> Option<ArbiterAction> {
        self.actions.pop_front()
    }

    fn tell_view(&mut self, to: MemberId) {
        self.send(to, Message::Commit { view: Box::new(self.view.clone()) });
    }

    fn send(&mut self, to: MemberId, message: Message) {
        self.actions.push_back(ArbiterAction::Send { to, message });
    }
}
