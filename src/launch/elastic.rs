//! The trainer's side of the membership: it joins the group of one view after the other, as the
//! [membership's thread](super::member_thread) says.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::net::{ClusterKey, GroupOptions, Interrupt, NetError, PeerAddress};
use crate::protocol::membership::{Member, MemberId, Membership, Party, Settings, View};
use crate::protocol::time::Time;
use crate::train::TrainError;
use crate::train::collective::{CollectiveError, Group};
use crate::train::views::{Joined, Views};

use super::LaunchError;
use super::member_thread::{Input, MemberThread, Messenger, Shared};
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
    pub messenger: Box<dyn Messenger>,
    /// Ends the run for all after the current step.
    pub stop: Arc<AtomicBool>,
    /// Whether this worker has rank 0 and speaks for all.
    pub speaks: Arc<AtomicBool>,
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
    /// This worker has left to come again.
    away: bool,
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
        let shared = Arc::new(Shared::new(first.as_ref(), interrupt.clone()));
        let failure_timeout = settings.failure_timeout;
        let membership = match &first {
            Some(first) => Membership::member(settings.clone(), id, first.clone()),
            None => {
                let contacts = vec![Party::Launcher];
                Membership::joiner(Time::ZERO, settings.clone(), me.clone(), contacts)
            }
        };
        let (to_thread, inbox) = place.inbox;
        let speaks = place.speaks;
        let thread = MemberThread {
            membership,
            me,
            settings,
            shared: shared.clone(),
            messenger: place.messenger,
            stop: place.stop,
            speaks: speaks.clone(),
            origin: Instant::now(),
            away: None,
        };
        std::thread::spawn(move || thread.run(&inbox));
        let place =
            Place { socket, key, run_id, id, config_digest, network, failure_timeout, speaks };
        let group =
            first.as_ref().map(|first| place.join(first, join_timeout, interrupt)).transpose()?;
        Ok((group, LaunchedViews { shared, to_thread, place, view: first, away: false }))
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

    fn leave(&mut self) {
        self.away = true;
        self.view = None;
        // A thread that is gone has left an ending.
        let _ = self.to_thread.send(Input::Suspend);
    }

    fn next(&mut self, error: &CollectiveError) -> Result<Joined, TrainError> {
        if std::mem::take(&mut self.away) {
            let _ = self.to_thread.send(Input::Return);
        }
        // A worker that comes has no view yet that could fail.
        let mut failure = self.view.as_ref().map(|view| broken(view, self.place.id, error));
        loop {
            if let Some(failure) = failure.take() {
                // A thread that is gone has left an ending.
                let _ = self.to_thread.send(failure);
            }
            let (view, interrupt, id) = self.wait()?;
            self.place.id = id;
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
    fn wait(&self) -> Result<(View, Interrupt, MemberId), TrainError> {
        let mut gate = self.shared.gate();
        loop {
            if let Some(ending) = &gate.ending {
                return Err(TrainError::Parted(Box::new(ending.clone())));
            }
            if let Some((mut view, id)) = gate.next.take() {
                view.changes = [std::mem::take(&mut gate.passed), view.changes].concat();
                gate.open = Some(view.generation);
                gate.interrupt = Interrupt::default();
                return Ok((view, gate.interrupt.clone(), id));
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
