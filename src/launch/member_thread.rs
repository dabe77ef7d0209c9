//! The membership's thread: the state machine of one worker, between what others say and the
//! trainer.
//!
//! The trainer may be in the middle of a long computation when a view ends. So that nobody waits
//! for it, a view is ended by the thread here: it shuts the gate through which each completed step
//! must go, interrupts the group, and answers for the trainer, which finds out at its next step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::net::{Interrupt, StationEvent};
use crate::protocol::membership::{
    Acceptors, Action, Change, Ending, LEAVES, Member, MemberId, Membership, Message, Party,
    Settings, View,
};
use crate::protocol::time::Time;

/// What the membership's thread is told.
pub enum Input {
    /// By way of the launcher.
    Message { from: Party, message: Message },
    /// A worker's process has ended.
    Exited { id: MemberId, why: String },
    /// Something from the network.
    Heard(StationEvent),
    /// The trainer's group has failed in the view of this generation.
    Broken { generation: u32, culprit: Option<MemberId>, why: String },
    /// This worker is asked to leave, and the others are to go on.
    Leave,
    /// This worker cannot compute: it leaves for a while, and the others are to go on.
    Suspend { why: String },
    /// It can compute again, and asks to be let in anew.
    Return,
}

/// How messages reach the other workers.
pub trait Messenger: Send {
    /// Sends a message, or drops it if the party cannot be reached.
    fn send(&mut self, from: MemberId, to: Party, message: Message);

    /// A view begins, with this worker in it: the others are to be heard from now on.
    fn begin(&mut self, _view: &View, _me: MemberId, _failure_timeout: Duration) {}

    /// This worker comes anew, as this member.
    fn rename(&mut self, _me: &Member) {}
}

/// Between the trainer and the membership's thread.
pub(super) struct Shared {
    gate: Mutex<Gate>,
    pub(super) changed: Condvar,
}

pub(super) struct Gate {
    /// The generation in which steps may be completed, if they may.
    pub(super) open: Option<u32>,
    /// Steps completed by the trainer's state, once it has one that counts.
    pub(super) completed: Option<u64>,
    /// Of the group in use.
    pub(super) interrupt: Interrupt,
    /// The view that the trainer is to join, and as which member.
    pub(super) next: Option<(View, MemberId)>,
    /// What changed in views that ended before the trainer could join them.
    pub(super) passed: Vec<Change>,
    pub(super) ending: Option<Ending>,
}

impl Shared {
    pub(super) fn new(first: Option<&View>, interrupt: Interrupt) -> Shared {
        let gate = Gate {
            open: first.map(|first| first.generation),
            completed: first.map(|first| first.start_step),
            interrupt,
            next: None,
            passed: Vec::new(),
            ending: None,
        };
        Shared { gate: Mutex::new(gate), changed: Condvar::new() }
    }

    pub(super) fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The membership's thread.
pub(super) struct MemberThread {
    pub(super) membership: Membership,
    pub(super) me: Member,
    pub(super) settings: Settings,
    pub(super) shared: Arc<Shared>,
    pub(super) messenger: Box<dyn Messenger>,
    /// Ends the run for all after the current step.
    pub(super) stop: Arc<AtomicBool>,
    /// Whether this worker has rank 0 and speaks for all.
    pub(super) speaks: Arc<AtomicBool>,
    /// While it asks, without a quorum, whether the others have gone on.
    pub(super) lost_quorum: Option<Ending>,
    pub(super) origin: Instant,
    pub(super) away: Option<Away>,
}

/// A worker that leaves to come again.
#[derive(Default)]
pub(super) struct Away {
    /// Whom it will ask, once it has left.
    contacts: Option<Vec<Party>>,
    /// It can compute again.
    is_ready: bool,
}

impl MemberThread {
    pub(super) fn run(mut self, inbox: &Receiver<Input>) {
        if let Some(first) = self.membership.view() {
            self.messenger.begin(first, self.me.id, self.settings.failure_timeout);
        }
        loop {
            if self.act() {
                return;
            }
            let now = self.now();
            let input = match self.membership.poll_timeout() {
                Some(at) => inbox.recv_timeout(at.since(now)),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let now = self.now();
            match input {
                Ok(input) => self.handle(now, input),
                Err(RecvTimeoutError::Timeout) => self.membership.handle_timeout(now),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn now(&self) -> Time {
        Time::after_origin(self.origin.elapsed())
    }

    /// Does what there is to do; says whether it is over.
    fn act(&mut self) -> bool {
        while let Some(action) = self.membership.poll_action() {
            match action {
                Action::Send { to, message } => self.messenger.send(self.me.id, to, message),
                Action::Halt { why } => {
                    let completed = self.halt(&why);
                    self.membership.handle_halted(self.now(), completed);
                }
                Action::Install { view } => {
                    self.lost_quorum = None;
                    self.messenger.begin(&view, self.me.id, self.settings.failure_timeout);
                    self.shared.gate().next = Some((*view, self.me.id));
                    self.shared.changed.notify_all();
                }
                Action::End(ending) => {
                    self.halt(&ending.to_string());
                    if !self.come_again(&ending) {
                        let ending = self.lost_quorum.take().unwrap_or(ending);
                        self.shared.gate().ending = Some(ending);
                        self.shared.changed.notify_all();
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Asks to be let in anew, where the others have gone on without this worker. Without a quorum
    /// they may have: it may have stood still itself, which from within looks as if all others had
    /// fallen silent, or a cable may be mended. Then it asks once, for as long as anybody may be
    /// silent, and ends so much later.
    fn come_again(&mut self, ending: &Ending) -> bool {
        let by_launcher = self.settings.acceptors == Acceptors::Launcher;
        let (ids, settings): (Vec<MemberId>, _) = match (ending, self.membership.view()) {
            (Ending::LeftBehind { view }, _) => (view.ids().collect(), self.settings.clone()),
            (Ending::Left, Some(view)) if self.away.is_some() => {
                (view.ids().collect(), self.settings.clone())
            }
            (Ending::NoQuorum { .. }, Some(view)) if !by_launcher && self.away.is_none() => {
                self.lost_quorum = Some(ending.clone());
                let join_timeout = self.settings.failure_timeout;
                (view.ids().collect(), Settings { join_timeout, ..self.settings.clone() })
            }
            _ => return false,
        };
        let others = ids.into_iter().filter(|&id| id != self.me.id).map(Party::Member);
        let contacts = if by_launcher { vec![Party::Launcher] } else { others.collect() };
        if let Some(away) = &mut self.away {
            away.contacts = Some(contacts);
            self.return_if_ready();
            return true;
        }
        tracing::warn!("{ending}; it asks whether it may join them again");
        self.join_anew(contacts, settings);
        true
    }

    /// A worker that has left asks to be let in once it can compute: nobody is to wait for it.
    fn return_if_ready(&mut self) {
        if let Some(Away { contacts: Some(contacts), is_ready: true }) = &mut self.away {
            let contacts = std::mem::take(contacts);
            self.away = None;
            self.join_anew(contacts, self.settings.clone());
        }
    }

    fn join_anew(&mut self, contacts: Vec<Party>, settings: Settings) {
        self.speaks.store(false, Ordering::Relaxed);
        // Whatever this worker has completed, the others may have taken another way since.
        self.shared.gate().completed = None;
        self.me.id = self.me.id.next_life();
        self.messenger.rename(&self.me);
        self.membership = Membership::joiner(self.now(), settings, self.me.clone(), contacts);
    }

    fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Message { from, message } => self.membership.handle_message(now, from, message),
            Input::Exited { id, why } => self.membership.handle_lost(now, id, why, true),
            Input::Heard(StationEvent::Message { from, message, .. }) => {
                self.membership.handle_message(now, Party::Member(from), message);
            }
            Input::Heard(StationEvent::Lost { id, why }) => {
                self.membership.handle_lost(now, id, why, false);
            }
            Input::Broken { generation, culprit, why } => {
                let current = self.membership.view().map(|view| view.generation);
                if current != Some(generation) {
                    return;
                }
                if let Some(id) = culprit {
                    self.membership.handle_lost(now, id, why.clone(), false);
                }
                let completed = self.halt(&why);
                self.membership.handle_halted(now, completed);
            }
            // Without others, leaving is ending the run.
            Input::Leave if self.membership.view().is_some_and(|v| v.members.len() == 1) => {
                self.stop.store(true, Ordering::Relaxed);
            }
            Input::Leave => self.membership.handle_leave(LEAVES),
            Input::Suspend { why } => {
                self.away = Some(Away::default());
                self.membership.handle_leave(&why);
            }
            Input::Return => {
                if let Some(away) = &mut self.away {
                    away.is_ready = true;
                }
                self.return_if_ready();
            }
        }
    }

    /// Lets nothing more be completed in this view, and says how many steps are.
    fn halt(&self, why: &str) -> Option<u64> {
        let mut gate = self.shared.gate();
        gate.open = None;
        if let Some((view, _)) = gate.next.take() {
            gate.passed.extend(view.changes);
        }
        gate.interrupt.raise(why);
        gate.completed
    }
}
