//! What a member or joiner makes of what it is told.

use super::action::Ending;
use super::member::{Membership, Phase, Suspicion};
use super::message::{Ballot, Message, Party};
use super::proposal::Stage;
use super::view::{Member, MemberId, View};
use crate::protocol::time::Time;

impl Membership {
    /// A message that came from `from`.
    pub fn handle_message(&mut self, now: Time, from: Party, message: Message) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        match message {
            Message::Commit { view } => self.handle_commit(*view),
            Message::Join { member } => self.handle_join(from, member),
            Message::NotAdmitted { why } => {
                if let Phase::Joining { refusal, .. } = &mut self.phase {
                    *refusal = why;
                }
            }
            Message::Ask { generation } => self.handle_ask(from, generation),
            Message::Prepare { generation, .. }
            | Message::Promise { generation, .. }
            | Message::Refused { generation, .. }
            | Message::Accept { generation, .. }
            | Message::Accepted { generation, .. }
            | Message::Suspect { generation, .. }
            | Message::Leave { generation, .. } => {
                let own = self.view.as_ref().map(|view| view.generation);
                if own < Some(generation) {
                    self.send(from, Message::Ask { generation: own });
                } else if own > Some(generation) {
                    // Whoever seeks the successor of an older view is told the newest one.
                    if matches!(message, Message::Prepare { .. } | Message::Accept { .. }) {
                        self.tell_view(from);
                    }
                } else {
                    self.handle_in_view(now, from, message);
                }
            }
        }
    }

    /// A message about the successor of this member's view.
    fn handle_in_view(&mut self, now: Time, from: Party, message: Message) {
        match (from, message) {
            (Party::Member(id), Message::Prepare { ballot, .. }) => {
                self.handle_prepare(now, id, ballot);
            }
            (from, Message::Promise { ballot, accepted, step, .. }) => {
                if let Some(proposal) = self.proposal(ballot) {
                    proposal.note_promise(from, accepted, step);
                    self.advance(now);
                }
            }
            (_, Message::Refused { ballot, promised, .. }) if self.proposal(ballot).is_some() => {
                self.round = self.round.max(promised.round);
                // The other proposal is given the time to come through.
                self.wait_to_propose(now + self.settings.stagger() + self.turn());
            }
            (Party::Member(id), Message::Accept { generation, ballot, view }) => {
                let answer = match self.acceptor.accept(ballot, view) {
                    Ok(()) => {
                        self.follow(now, ballot);
                        Message::Accepted { generation, ballot }
                    }
                    Err(promised) => Message::Refused { generation, ballot, promised },
                };
                self.send(Party::Member(id), answer);
            }
            (from, Message::Accepted { ballot, .. }) => {
                if let Some(proposal) = self.proposal(ballot) {
                    proposal.note_accepted(from);
                    self.advance(now);
                }
            }
            // What a lost member says of others may be its own loss.
            (Party::Member(id), Message::Suspect { member, why, .. })
                if !self.suspects.contains_key(&id) =>
            {
                let why = format!("{why}, says {id}");
                self.suspect(now, member, Suspicion { why, certain: false });
            }
            (Party::Member(id), Message::Leave { why, .. }) => {
                self.begin_change(&format!("{id} leaves: {why}"));
                self.leaving.insert(id, why);
            }
            _ => {}
        }
    }

    fn handle_prepare(&mut self, now: Time, from: MemberId, ballot: Ballot) {
        self.round = self.round.max(ballot.round);
        match self.acceptor.prepare(ballot) {
            Ok(()) => {
                self.follow(now, ballot);
                if matches!(self.phase, Phase::Halted { .. }) {
                    self.promise(now, from, ballot);
                } else {
                    self.owed = Some((from, ballot));
                    self.begin_change(&format!("{from} proposes a new view"));
                }
            }
            Err(promised) => {
                let generation = self.generation();
                self.send(from.into(), Message::Refused { generation, ballot, promised });
            }
        }
    }

    /// A higher proposal than this member's own is under way.
    fn follow(&mut self, now: Time, ballot: Ballot) {
        if ballot.proposer != self.me.id {
            self.wait_to_propose(now + self.settings.failure_timeout + self.turn());
        }
    }

    fn wait_to_propose(&mut self, at: Time) {
        if let Phase::Halted { propose_at, proposal } = &mut self.phase {
            (*propose_at, *proposal) = (at, None);
        }
    }

    /// Tells the proposer what this halted member has promised, unless it has promised more since.
    pub(super) fn promise(&mut self, now: Time, to: MemberId, ballot: Ballot) {
        if self.acceptor.promised() == Some(ballot) {
            self.follow(now, ballot);
            let (generation, step) = (self.generation(), self.step);
            let accepted = self.acceptor.accepted().cloned();
            self.send(to.into(), Message::Promise { generation, ballot, accepted, step });
        }
    }

    pub(super) fn handle_commit(&mut self, view: View) {
        if Some(view.generation) <= self.view.as_ref().map(|view| view.generation) {
            return;
        }
        let included = view.contains(self.me.id);
        match self.phase {
            Phase::Joining { .. } if included => self.install(view),
            // A view with this member has its promise, so it has halted.
            Phase::Halted { .. } if included => self.install(view),
            _ if included => {}
            Phase::Joining { .. } => {}
            _ if self.leaving.contains_key(&self.me.id) => self.end(Ending::Left),
            _ => self.end(Ending::LeftBehind { view: Box::new(view) }),
        }
    }

    fn handle_join(&mut self, from: Party, member: Member) {
        let Some(view) = &self.view else { return };
        if view.contains(member.id) {
            return self.tell_view(member.id.into());
        }
        if view.members.len() >= self.settings.members_max {
            let most = self.settings.members_max;
            let why = format!("there are {most} workers, as many as --max-workers allows");
            return self.send(member.id.into(), Message::NotAdmitted { why });
        }
        // The launcher tells all members itself; what a member says comes from the joiner.
        let first_heard = from == Party::Member(member.id);
        let news = format!("{} wants to come", member.id);
        if self.joiners.insert(member.id, member.clone()).is_none() {
            if first_heard {
                self.broadcast(&Message::Join { member });
            }
            self.begin_change(&news);
        }
    }

    fn handle_ask(&mut self, from: Party, generation: Option<u32>) {
        if generation < self.view.as_ref().map(|view| view.generation) {
            self.tell_view(from);
            // It may have been asked for a promise too early.
            if let Phase::Halted { proposal: Some(proposal), .. } = &self.phase {
                let (generation, ballot) = (self.generation(), proposal.ballot);
                if matches!(proposal.stage, Stage::Preparing) {
                    self.send(from, Message::Prepare { generation, ballot });
                }
            }
        }
    }
}
