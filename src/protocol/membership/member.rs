//! The state machine of one member or joiner.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::acceptor::Acceptor;
use super::action::{Action, Ending};
use super::message::{Ballot, Message, Party};
use super::proposal::{Acceptors, Proposal};
use super::settings::Settings;
use super::view::{Member, MemberId, View};
use crate::protocol::time::Time;

/// Why a member is taken for lost.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    pub(super) why: String,
    /// Its process is known to have ended.
    pub(super) certain: bool,
}

/// One member's or joiner's part in the membership.
///
/// After each call of a `handle_` method, take actions with [`poll_action`](Self::poll_action)
/// until there are no more, and call [`handle_timeout`](Self::handle_timeout) once the moment has
/// come that [`poll_timeout`](Self::poll_timeout) says. None of the methods blocks.
#[derive(Debug)]
pub struct Membership {
    pub(super) me: Member,
    pub(super) settings: Settings,
    /// The newest view; `None` for a joiner.
    pub(super) view: Option<View>,
    pub(super) phase: Phase,
    pub(super) acceptor: Acceptor,
    /// Steps completed by the state that this member holds, as it said when it halted.
    pub(super) step: Option<u64>,
    pub(super) suspects: BTreeMap<MemberId, Suspicion>,
    pub(super) leaving: BTreeMap<MemberId, String>,
    pub(super) joiners: BTreeMap<MemberId, Member>,
    /// A promise that is made, to be told once this member has halted.
    pub(super) owed: Option<(MemberId, Ballot)>,
    /// The highest round of any proposal heard of, in this view.
    pub(super) round: u32,
    pub(super) actions: VecDeque<Action>,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// Asks each contact in turn to be let in.
    Joining {
        contacts: Vec<Party>,
        next: usize,
        ask_at: Time,
        deadline: Time,
        refusal: String,
    },
    /// Works in the view.
    Working,
    /// Has told its owner to stop working. What follows is `Halted`.
    Halting,
    /// Works no more in this view. Proposes a successor at `propose_at`, unless it hears of one.
    Halted {
        propose_at: Time,
        proposal: Option<Proposal>,
    },
    Over,
}

impl Membership {
    /// A member of the first view, which holds the state of the view's start.
    ///
    /// # Panics
    /// If it is not in the view.
    pub fn member(settings: Settings, id: MemberId, view: View) -> Membership {
        let rank = view.rank(id).expect("it is a member of the view");
        let me = view.members[rank].clone();
        Membership::new(settings, me, Some(view), Phase::Working)
    }

    /// A worker that wants to come, and asks these parties in turn.
    pub fn joiner(now: Time, settings: Settings, me: Member, contacts: Vec<Party>) -> Membership {
        let deadline = now + settings.join_timeout;
        let refusal = "nobody answered".to_owned();
        let phase = Phase::Joining { contacts, next: 0, ask_at: now, deadline, refusal };
        let mut joiner = Membership::new(settings, me, None, phase);
        joiner.handle_timeout(now);
        joiner
    }

    fn new(settings: Settings, me: Member, view: Option<View>, phase: Phase) -> Membership {
        Membership {
            me,
            settings,
            view,
            phase,
            acceptor: Acceptor::default(),
            step: None,
            suspects: BTreeMap::new(),
            leaving: BTreeMap::new(),
            joiners: BTreeMap::new(),
            owed: None,
            round: 0,
            actions: VecDeque::new(),
        }
    }

    /// The newest view that this member knows; `None` for a joiner.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called, unless something is handled
    /// before.
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.phase {
            Phase::Joining { ask_at, deadline, .. } => Some(*ask_at.min(deadline)),
            Phase::Halted { proposal: Some(proposal), .. } => {
                Some(proposal.grace.map_or(proposal.deadline, |at| at.min(proposal.deadline)))
            }
            Phase::Halted { propose_at, proposal: None } => Some(*propose_at),
            Phase::Working | Phase::Halting | Phase::Over => None,
        }
    }

    /// The time has come.
    pub fn handle_timeout(&mut self, now: Time) {
        match &mut self.phase {
            Phase::Joining { contacts, next, ask_at, deadline, refusal } => {
                if now >= *deadline || contacts.is_empty() {
                    let why = std::mem::take(refusal);
                    self.end(Ending::NotAdmitted { why });
                } else if now >= *ask_at {
                    let to = contacts[*next % contacts.len()];
                    *next += 1;
                    *ask_at = now + self.settings.ask_interval();
                    let message = Message::Join { member: self.me.clone() };
                    self.actions.push_back(Action::Send { to, message });
                }
            }
            Phase::Halted { propose_at, proposal: None } if now >= *propose_at => self.propose(now),
            Phase::Halted { proposal: Some(_), .. } => self.expire(now),
            _ => {}
        }
    }

    /// The owner works no more in this view; its state has completed so many steps (`None`: it
    /// holds no state yet). May be called without having been asked, when the work has failed.
    pub fn handle_halted(&mut self, now: Time, step: Option<u64>) {
        if !matches!(self.phase, Phase::Working | Phase::Halting) {
            return;
        }
        self.step = step;
        self.phase = Phase::Halted { propose_at: now + self.turn(), proposal: None };
        if let Some((to, ballot)) = self.owed.take() {
            self.promise(now, to, ballot);
        }
        self.handle_timeout(now);
    }

    /// A member cannot be heard any more. `certain`: its process is known to have ended.
    pub fn handle_lost(&mut self, now: Time, id: MemberId, why: String, certain: bool) {
        self.joiners.remove(&id);
        let Some(view) = &self.view else { return };
        if id == self.me.id || matches!(self.phase, Phase::Over) {
            return;
        }
        if !view.contains(id) {
            // A joiner, who may be in a successor that is proposed already.
            if certain {
                self.suspects.insert(id, Suspicion { why, certain });
            }
            return;
        }
        let known = self.suspects.get(&id);
        if known.is_some_and(|known| known.certain || !certain) {
            return;
        }
        let generation = view.generation;
        // The launcher tells everybody itself.
        if known.is_none() && !certain {
            self.broadcast(&Message::Suspect { generation, member: id, why: why.clone() });
        }
        self.suspect(now, id, Suspicion { why, certain });
    }

    /// This member wants to leave, for a reason that the others are told ([`LEAVES`], if it was
    /// asked to): they need not wait for a timeout.
    pub fn handle_leave(&mut self, why: &str) {
        match &self.view {
            Some(view) => {
                let generation = view.generation;
                self.leaving.insert(self.me.id, why.to_owned());
                self.broadcast(&Message::Leave { generation, why: why.to_owned() });
                self.begin_change(&format!("this worker leaves: {why}"));
            }
            None => {
                // It may be in a successor that is proposed already.
                if self.settings.acceptors == Acceptors::Launcher {
                    let message = Message::Leave { generation: 0, why: why.to_owned() };
                    self.send(Party::Launcher, message);
                }
                self.end(Ending::Left);
            }
        }
    }

    pub(super) fn suspect(&mut self, now: Time, id: MemberId, suspicion: Suspicion) {
        let known = self.view.as_ref().is_some_and(|view| view.contains(id));
        if !known || id == self.me.id {
            return;
        }
        let news = format!("{id} is lost: {}", suspicion.why);
        let certain = suspicion.certain;
        if self.suspects.get(&id).is_none_or(|known| certain && !known.certain) {
            self.suspects.insert(id, suspicion);
        }
        if !self.quorum_is_possible() {
            return self.end(self.no_quorum());
        }
        self.begin_change(&news);
        // Its proposal will not come.
        let followed = self.acceptor.promised().is_none_or(|ballot| ballot.proposer == id);
        let turn = self.turn();
        if let Phase::Halted { propose_at, proposal: None } = &mut self.phase
            && followed
        {
            *propose_at = (*propose_at).min(now + turn);
        }
        match self.phase {
            Phase::Halted { proposal: Some(_), .. } => self.advance(now),
            _ => self.handle_timeout(now),
        }
    }

    /// Asks the owner to stop working, if it still works.
    pub(super) fn begin_change(&mut self, why: &str) {
        if matches!(self.phase, Phase::Working) {
            self.phase = Phase::Halting;
            self.actions.push_back(Action::Halt { why: why.to_owned() });
        }
    }

    /// How long this member waits for those before it to propose.
    pub(super) fn turn(&self) -> Duration {
        let Some(view) = &self.view else { return Duration::ZERO };
        let rank = view.rank(self.me.id).unwrap_or(view.members.len());
        let before = view.ids().take(rank).filter(|id| !self.suspects.contains_key(id)).count();
        // A view has far fewer than 2^32 members.
        self.settings.stagger() * before as u32
    }

    pub(super) fn install(&mut self, view: View) {
        self.acceptor = Acceptor::default();
        (self.round, self.owed) = (0, None);
        self.phase = Phase::Working;
        self.actions.push_back(Action::Install { view: Box::new(view.clone()) });
        self.joiners.retain(|&id, _| !view.contains(id));
        self.leaving.retain(|&id, _| view.contains(id));
        // A suspect that the launcher does not know to be dead, and that is in the view, answered.
        let by_launcher = self.settings.acceptors == Acceptors::Launcher;
        self.suspects
            .retain(|&id, suspicion| view.contains(id) && (suspicion.certain || !by_launcher));
        let generation = view.generation;
        let has_room = view.members.len() < self.settings.members_max;
        self.view = Some(view);
        // What the view does not know of yet is for the next one.
        for (id, suspicion) in self.suspects.clone() {
            let why = suspicion.why;
            self.broadcast(&Message::Suspect { generation, member: id, why });
        }
        if let Some(why) = self.leaving.get(&self.me.id).cloned() {
            self.broadcast(&Message::Leave { generation, why });
        }
        if !self.quorum_is_possible() {
            self.end(self.no_quorum());
        } else if let Some(id) = self.suspects.keys().chain(self.leaving.keys()).next() {
            self.begin_change(&format!("{id} is in the new view and should not be"));
        } else if let Some(id) = self.joiners.keys().next().filter(|_| has_room) {
            self.begin_change(&format!("{id} still wants to come"));
        }
    }

    pub(super) fn quorum_is_possible(&self) -> bool {
        let Some(view) = &self.view else { return true };
        self.settings.acceptors.are_quorum(view, |party| match party {
            Party::Launcher => true,
            Party::Member(id) => !self.suspects.contains_key(&id),
        })
    }

    pub(super) fn no_quorum(&self) -> Ending {
        let Some(view) = &self.view else {
            return Ending::NotAdmitted { why: "nobody answered".to_owned() };
        };
        let promised = |id: MemberId| match &self.phase {
            Phase::Halted { proposal: Some(proposal), .. } => proposal.has_promised(id.into()),
            _ => !self.suspects.contains_key(&id),
        };
        let missing: Vec<(MemberId, String)> = view
            .ids()
            .filter(|&id| id != self.me.id && !promised(id))
            .map(|id| {
                let known = self.suspects.get(&id).map(|suspicion| suspicion.why.clone());
                (id, known.unwrap_or_else(|| "it did not answer".to_owned()))
            })
            .collect();
        let members = view.members.len();
        Ending::NoQuorum { heard: members - missing.len(), members, missing }
    }

    pub(super) fn end(&mut self, ending: Ending) {
        self.phase = Phase::Over;
        self.actions.push_back(Action::End(ending));
    }

    pub(super) fn generation(&self) -> u32 {
        self.view.as_ref().map_or(0, |view| view.generation)
    }

    /// This member's proposal, if it has this ballot.
    pub(super) fn proposal(&mut self, ballot: Ballot) -> Option<&mut Proposal> {
        match &mut self.phase {
            Phase::Halted { proposal: Some(proposal), .. } if proposal.ballot == ballot => {
                Some(proposal)
            }
            _ => None,
        }
    }

    pub(super) fn tell_view(&mut self, to: Party) {
        if let Some(view) = &self.view {
            let view = Box::new(view.clone());
            self.send(to, Message::Commit { view });
        }
    }

    pub(super) fn send(&mut self, to: Party, message: Message) {
        self.actions.push_back(Action::Send { to, message });
    }

    /// Sends to all other members of the view.
    pub(super) fn broadcast(&mut self, message: &Message) {
        let Some(view) = &self.view else { return };
        for id in view.ids().filter(|&id| id != self.me.id) {
            let message = message.clone();
            self.actions.push_back(Action::Send { to: Party::Member(id), message });
        }
    }
}

/// The reason of whoever leaves as planned.
pub const LEAVES: &str = "it was asked to leave";

#[cfg(test)]
mod tests {
    use super::super::message::Message;
    use super::*;

    fn member(id: u64) -> Member {
        Member { id: MemberId(id), addresses: Vec::new() }
    }

    fn actions(membership: &mut Membership) -> Vec<Action> {
        std::iter::from_fn(|| membership.poll_action()).collect()
    }

    /// What the member asks of the launcher, who is its only acceptor, and the launcher's consent.
    fn agree(membership: &mut Membership, now: Time) -> Option<View> {
        let mut chosen = None;
        loop {
            let asked: Vec<Message> = actions(membership)
                .into_iter()
                .filter_map(|action| match action {
                    Action::Send { to: Party::Launcher, message } => Some(message),
                    _ => None,
                })
                .collect();
            if asked.is_empty() {
                return chosen;
            }
            for message in asked {
                let answer = match message {
                    Message::Prepare { generation, ballot } => {
                        Message::Promise { generation, ballot, accepted: None, step: None }
                    }
                    Message::Accept { generation, ballot, view } => {
                        chosen = Some(*view);
                        // The launcher saw the joiner's end before this answer left.
                        let why = "its process ended".to_owned();
                        membership.handle_lost(now, MemberId(1), why, true);
                        Message::Accepted { generation, ballot }
                    }
                    other => panic!("nobody asks {other:?}"),
                };
                membership.handle_message(now, Party::Launcher, answer);
            }
            if membership.view().map(|view| view.generation)
                == chosen.as_ref().map(|view| view.generation)
            {
                return chosen;
            }
        }
    }

    #[test]
    fn a_joiner_that_dies_while_it_is_let_in_is_not_waited_for() {
        let now = Time::ZERO;
        let settings = Settings {
            acceptors: Acceptors::Launcher,
            failure_timeout: Duration::from_secs(3),
            join_timeout: Duration::from_secs(30),
            members_min: 1,
            members_max: 4,
        };
        let view = View::first(vec![member(0)], 0);
        let mut survivor = Membership::member(settings, MemberId(0), view);
        survivor.handle_message(now, Party::Launcher, Message::Join { member: member(1) });
        survivor.handle_halted(now, Some(5));
        let with_joiner = agree(&mut survivor, now).expect("a view is chosen");
        assert!(with_joiner.contains(MemberId(1)));
        // It is in the view, which is ended at once.
        let halts = |action: &Action| matches!(action, Action::Halt { .. });
        assert!(actions(&mut survivor).iter().any(halts));
        survivor.handle_halted(now, Some(5));
        let alone = agree(&mut survivor, now).expect("another view is chosen");
        assert_eq!(alone.ids().collect::<Vec<_>>(), [MemberId(0)]);
        assert_eq!(alone.changes[0].why, "its process ended");
    }
}
