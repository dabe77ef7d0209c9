//! A launched worker's part in the membership: the state machine on a thread of its own, between
//! the launcher's pipe and the trainer.
//!
//! The trainer may be in the middle of a long computation when a view ends. So that nobody waits
//! for it, a view is ended by the thread here: it shuts the gate through which each completed step
//! must go ([`Views::completing`]), interrupts the group, and answers for the trainer, which finds
//! out at its next step.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::net::{ClusterKey, GroupOptions, Interrupt, NetError, PeerAddress};
use crate::protocol::membership::{
    Action, Change, Ending, Member, MemberId, Membership, Message, Party, Settings, View,
};
use crate::protocol::time::Time;
use crate::train::TrainError;
use crate::train::collective::{CollectiveError, Group};
use crate::train::views::{Joined, Views};

use super::LaunchError;
use super::worker::NetworkPlan;

/// What a launched worker knows of its group.
pub struct ElasticPlace {
    /// Bound to the address that the others were told; used by one group after the other.
    pub socket: UdpSocket,
    pub key: ClusterKey,
    pub run_id: String,
    pub me: Member,
    /// The view that the run begins with; none for a worker that comes into a run under way.
    pub first: Option<View>,
    pub settings: Settings,
    /// How long the others may take to be there at first.
    pub join_timeout: Duration,
    pub inbox: (Sender<Input>, Receiver<Input>),
    /// Sends a message by way of the launcher.
    pub send: Box<dyn Fn(Party, Message) + Send>,
    /// Whether this worker has rank 0 and speaks for all.
    pub speaks: Arc<AtomicBool>,
}

/// What the membership's thread is told.
pub enum Input {
    Message {
        from: Party,
        message: Message,
    },
    /// A worker's process has ended.
    Exited {
        id: MemberId,
        why: String,
    },
    /// The trainer's group has failed in the view of this generation.
    Broken {
        generation: u32,
        culprit: Option<MemberId>,
        why: String,
    },
}

/// After a change, how many failure timeouts the others may take to be there: they have loaded
/// everything, but may be in the middle of a long step.
const REJOIN_TIMEOUTS: u32 = 4;

/// The trainer's side.
pub struct LaunchedViews {
    shared: Arc<Shared>,
    to_thread: Sender<Input>,
    place: Place,
    /// The view whose group the trainer was given last.
    view: Option<View>,
}

/// What every group of this worker is made from.
struct Place {
    socket: UdpSocket,
    key: ClusterKey,
    run_id: String,
    id: MemberId,
    config_digest: [u8; 32],
    network: NetworkPlan,
    failure_timeout: Duration,
    speaks: Arc<AtomicBool>,
}

/// Between the trainer and the membership's thread.
struct Shared {
    gate: Mutex<Gate>,
    changed: Condvar,
}

struct Gate {
    /// The generation in which steps may be completed, if they may.
    open: Option<u32>,
    /// Steps completed by the trainer's state, once it has one that counts.
    completed: Option<u64>,
    /// Of the group in use.
    interrupt: Interrupt,
    /// The view that the trainer is to join.
    next: Option<View>,
    /// What changed in views that ended before the trainer could join them.
    passed: Vec<Change>,
    ending: Option<Ending>,
}

impl Shared {
    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LaunchedViews {
    /// Starts the membership's thread, and joins the first view's group if there is one.
    ///
    /// # Errors
    /// If the group cannot be formed.
    pub fn start(
        place: ElasticPlace,
        config_digest: [u8; 32],
        network: NetworkPlan,
        step: u64,
    ) -> Result<(Option<Group>, LaunchedViews), LaunchError> {
        let ElasticPlace { socket, key, run_id, me, first, settings, join_timeout, .. } = place;
        // The launcher does not know what the checkpoint holds that the run goes on from.
        let first = first.map(|first| View { start_step: step, ..first });
        let id = me.id;
        let interrupt = Interrupt::default();
        let gate = Gate {
            open: first.as_ref().map(|first| first.generation),
            completed: first.as_ref().map(|first| first.start_step),
            interrupt: interrupt.clone(),
            next: None,
            passed: Vec::new(),
            ending: None,
        };
        let shared = Arc::new(Shared { gate: Mutex::new(gate), changed: Condvar::new() });
        let failure_timeout = settings.failure_timeout;
        let origin = Instant::now();
        let membership = match &first {
            Some(first) => Membership::member(settings, id, first.clone()),
            None => Membership::joiner(Time::ZERO, settings, me, vec![Party::Launcher]),
        };
        let (to_thread, inbox) = place.inbox;
        let thread = Thread { membership, shared: shared.clone(), send: place.send };
        let speaks = place.speaks;
        std::thread::spawn(move || thread.run(origin, &inbox));
        let place =
            Place { socket, key, run_id, id, config_digest, network, failure_timeout, speaks };
        let group =
            first.as_ref().map(|first| place.join(first, join_timeout, interrupt)).transpose()?;
        Ok((group, LaunchedViews { shared, to_thread, place, view: first }))
    }
}

impl Place {
    fn rank(&self, view: &View) -> usize {
        view.rank(self.id).expect("only views with this worker are installed")
    }

    fn join(
        &self,
        view: &View,
        join_timeout: Duration,
        interrupt: Interrupt,
    ) -> Result<Group, NetError> {
        let rank = self.rank(view);
        self.speaks.store(rank == 0, Ordering::Relaxed);
        let peers: Result<Vec<Vec<PeerAddress>>, _> = view
            .members
            .iter()
            .map(|member| member.addresses.iter().map(|address| address.parse()).collect())
            .collect();
        let peers = peers.map_err(|error| NetError::Settings(error.to_string()))?;
        let options = GroupOptions {
            socket: self.socket.try_clone().map_err(NetError::Socket)?,
            key: self.key.clone(),
            rank,
            peers,
            run_id: self.run_id.clone(),
            config_digest: self.config_digest,
            join_timeout,
            strategy: self.network.strategy,
            transport: self.network.transport.clone(),
        };
        Group::join_view(options, view.generation, interrupt)
    }
}

impl Views for LaunchedViews {
    fn completing(&mut self, generation: u32, step: u64) -> Result<(), CollectiveError> {
        let mut gate = self.shared.gate();
        if gate.open != Some(generation) {
            return Err(NetError::Interrupted("this view has ended".to_owned()).into());
        }
        gate.completed = Some(step);
        Ok(())
    }

    fn next(&mut self, error: &CollectiveError) -> Result<Joined, TrainError> {
        // A worker that comes has no view yet that could fail.
        let mut failure = self.view.as_ref().map(|view| broken(view, self.place.id, error));
        loop {
            if let Some(failure) = failure.take() {
                // A thread that is gone has left an ending.
                let _ = self.to_thread.send(failure);
            }
            let (view, interrupt) = self.wait()?;
            self.view = Some(view.clone());
            let patience = self.place.failure_timeout * REJOIN_TIMEOUTS;
            match self.place.join(&view, patience, interrupt) {
                Ok(group) => {
                    let (rank, collective) = (self.place.rank(&view), Box::new(group));
                    return Ok(Joined { view, rank, collective });
                }
                Err(error) if error.is_about_a_peer() => {
                    self.shared.gate().passed.extend(view.changes.iter().cloned());
                    failure = Some(broken(&view, self.place.id, &error.into()));
                }
                Err(error) => return Err(CollectiveError::Net(error).into()),
            }
        }
    }
}

impl LaunchedViews {
    /// Waits for the next view, in which steps may be completed from now on.
    fn wait(&self) -> Result<(View, Interrupt), TrainError> {
        let mut gate = self.shared.gate();
        loop {
            if let Some(ending) = &gate.ending {
                return Err(TrainError::Parted(Box::new(ending.clone())));
            }
            if let Some(mut view) = gate.next.take() {
                view.changes = [std::mem::take(&mut gate.passed), view.changes].concat();
                gate.open = Some(view.generation);
                gate.interrupt = Interrupt::default();
                return Ok((view, gate.interrupt.clone()));
            }
            gate = self.shared.changed.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What the membership is told about a group's failure.
fn broken(view: &View, me: MemberId, error: &CollectiveError) -> Input {
    let culprit = match error {
        CollectiveError::Net(error) => error.culprit(),
        CollectiveError::NothingStarted => None,
    };
    let culprit = culprit.and_then(|rank| view.members.get(rank)).map(|member| member.id);
    let culprit = culprit.filter(|&id| id != me);
    Input::Broken { generation: view.generation, culprit, why: error.to_string() }
}

/// The membership's thread.
struct Thread {
    membership: Membership,
    shared: Arc<Shared>,
    send: Box<dyn Fn(Party, Message) + Send>,
}

impl Thread {
    fn run(mut self, origin: Instant, inbox: &Receiver<Input>) {
        let now = || Time::after_origin(origin.elapsed());
        loop {
            if self.act(&now) {
                return;
            }
            let wait = self.membership.poll_timeout().map(|at| at.since(now()));
            let input = match wait {
                Some(wait) => inbox.recv_timeout(wait),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match input {
                Ok(input) => self.handle(now(), input),
                Err(RecvTimeoutError::Timeout) => self.membership.handle_timeout(now()),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Does what there is to do; says whether it is over.
    fn act(&mut self, now: &impl Fn() -> Time) -> bool {
        while let Some(action) = self.membership.poll_action() {
            match action {
                Action::Send { to, message } => (self.send)(to, message),
                Action::Halt { why } => {
                    let completed = self.halt(&why);
                    self.membership.handle_halted(now(), completed);
                }
                Action::Install { view } => {
                    self.shared.gate().next = Some(*view);
                    self.shared.changed.notify_all();
                }
                Action::End(ending) => {
                    self.halt(&ending.to_string());
                    self.shared.gate().ending = Some(ending);
                    self.shared.changed.notify_all();
                    return true;
                }
            }
        }
        false
    }

    fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Message { from, message } => self.membership.handle_message(now, from, message),
            Input::Exited { id, why } => self.membership.handle_lost(now, id, why, true),
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
        }
    }

    /// Lets nothing more be completed in this view, and says how many steps are.
    fn halt(&self, why: &str) -> Option<u64> {
        let mut gate = self.shared.gate();
        gate.open = None;
        if let Some(view) = gate.next.take() {
            gate.passed.extend(view.changes);
        }
        gate.interrupt.raise(why);
        gate.completed
    }
}
