//! A member as the proposer of its view's successor.

use super::action::Ending;
use super::member::{Membership, Phase};
use super::message::{Ballot, Message, Party};
use super::proposal::{Acceptors, Proposal, Stage};
use super::successor::{Facts, successor};
use super::view::{MemberId, View};
use crate::protocol::time::Time;

impl Membership {
    /// Asks everybody for a promise.
    pub(super) fn propose(&mut self, now: Time) {
        if !self.quorum_is_possible() {
            return self.end(self.no_quorum());
        }
        self.round = self.acceptor.promised().map_or(self.round, |b| b.round.max(self.round)) + 1;
        let ballot = Ballot { round: self.round, proposer: self.me.id };
        let generation = self.generation();
        // Only the launcher's word can clear a suspicion up: among members alone, suspects are not
        // waited for.
        let by_launcher = self.settings.acceptors == Acceptors::Launcher;
        let grace = by_launcher.then(|| now + self.settings.grace());
        let mut proposal = Proposal::new(ballot, now + self.settings.answer_wait(), grace);
        self.acceptor.prepare(ballot).expect("its round is the highest so far");
        let accepted = self.acceptor.accepted().cloned();
        proposal.note_promise(self.me.id.into(), accepted, self.step);
        self.phase = Phase::Halted { propose_at: now, proposal: Some(proposal) };
        // Suspects are asked too: as acceptors they count while they answer.
        self.broadcast(&Message::Prepare { generation, ballot });
        if self.settings.acceptors == Acceptors::Launcher {
            self.send(Party::Launcher, Message::Prepare { generation, ballot });
        }
        self.advance(now);
    }

    /// Takes the proposal as far as the answers and the time allow.
    pub(super) fn advance(&mut self, now: Time) {
        let Phase::Halted { proposal: Some(proposal), .. } = &mut self.phase else { return };
        let overslept = now.since(proposal.deadline) > self.settings.stagger();
        if overslept {
            // This process stood still itself. The answers may have come long ago and be waiting to
            // be read, so the others must not be judged by its clock.
            proposal.deadline = now + self.settings.answer_wait();
            proposal.grace = proposal.grace.map(|_| now + self.settings.grace());
        }
        proposal.grace = proposal.grace.filter(|&grace| now < grace);
        let Phase::Halted { proposal: Some(proposal), .. } = &self.phase else { return };
        let view = self.view.as_ref().expect("only members halt");
        match &proposal.stage {
            Stage::Preparing => {
                let promised = |party| proposal.has_promised(party);
                let quorum = self.settings.acceptors.are_quorum(view, promised);
                let late = now >= proposal.deadline;
                let waiting = view.ids().any(|id| {
                    !promised(id.into())
                        && match self.suspects.get(&id) {
                            None => true,
                            Some(suspicion) => proposal.grace.is_some() && !suspicion.certain,
                        }
                });
                if quorum && (late || !waiting) {
                    self.choose(now);
                } else if late {
                    self.end(self.no_quorum());
                }
            }
            Stage::Accepting { .. } => {
                if let Some(next) = proposal.chosen(self.settings.acceptors, view) {
                    self.commit(*next);
                } else if now >= proposal.deadline {
                    self.propose(now);
                }
            }
        }
    }

    /// Proposes a successor to the acceptors.
    fn choose(&mut self, now: Time) {
        let deadline = now + self.settings.answer_wait();
        let view = self.view.as_ref().expect("only members halt");
        let Phase::Halted { proposal: Some(proposal), .. } = &mut self.phase else { return };
        // Where the launcher knows deaths for certain, whoever answers is alive.
        let by_launcher = self.settings.acceptors == Acceptors::Launcher;
        let lost = self
            .suspects
            .iter()
            .filter(|(id, suspicion)| {
                suspicion.certain || !by_launcher || !proposal.answered.contains_key(id)
            })
            .map(|(&id, suspicion)| (id, suspicion.why.clone()))
            .collect();
        let decided = proposal.choose(deadline, |answered| {
            successor(&Facts {
                view,
                answered,
                lost: &lost,
                leaving: &self.leaving,
                joiners: &self.joiners,
                members_min: self.settings.members_min,
                members_max: self.settings.members_max,
            })
        });
        let next = match decided {
            Ok(next) => next,
            Err(none) => return self.end(Ending::NoSuccessor(none)),
        };
        let (ballot, generation) = (proposal.ballot, view.generation);
        let accept = Message::Accept { generation, ballot, view: next.clone() };
        match self.settings.acceptors {
            Acceptors::Launcher => self.send(Party::Launcher, accept),
            Acceptors::Members => {
                if self.acceptor.accept(ballot, next).is_ok() {
                    proposal.note_accepted(Party::Member(self.me.id));
                }
                self.broadcast(&accept);
            }
        }
        self.advance(now);
    }

    /// The successor is chosen: tells everybody whom it concerns.
    fn commit(&mut self, next: View) {
        let commit = Message::Commit { view: Box::new(next.clone()) };
        self.broadcast(&commit);
        let view = self.view.as_ref().expect("only members propose");
        let new: Vec<MemberId> = next.ids().filter(|&id| !view.contains(id)).collect();
        for id in new {
            self.send(id.into(), commit.clone());
        }
        self.handle_commit(next);
    }
}
