//! The trainer's side of the membership: it joins the group of one view after the other, as the
//! [membership's thread](super::member_thread) says.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::net::{
    ClusterKey, Contact, Interrupt, NetError, PeerAddress, Seat, Station, StationOptions,
};
use crate::protocol::greeting::MemberHello;
use crate::protocol::membership::{Member, MemberId, Membership, Message, Party, Settings, View};
use crate::protocol::time::Time;
use crate::train::TrainError;
use crate::train::collective::{CollectiveError, Group};
use crate::train::views::{Joined, Views};

use super::LaunchError;
use super::member_thread::{Input, MemberThread, Messenger, Shared};
use super::worker::{NetworkPlan, Terms};

/// What a worker knows of its group.
pub struct ElasticPlace {
    /// Bound to the address that the others were told.
    pub socket: UdpSocket,
    pub key: ClusterKey,
    /// A worker that comes over the network hears it from the member that it comes to.
    pub run_id: String,
    pub me: Member,
    /// The view that the run begins with; none for a worker that comes into a run under way.
    pub first: Option<View>,
    pub settings: Settings,
    /// How long the others may take to be there at first.
    pub join_timeout: Duration,
    pub inbox: (Sender<Input>, Receiver<Input>),
    pub way: Way,
    /// Ends the run for all after the current step.
    pub stop: Arc<AtomicBool>,
    /// Whether this worker has rank 0 and speaks for all.
    pub speaks: Arc<AtomicBool>,
}

/// How members speak to each other about views.
pub enum Way {
    /// By the launcher, which elects views alone.
    Launcher(Box<dyn Messenger>),
    /// Over the network, and they elect views themselves.
    Network {
        /// For a worker that comes into a run under way: where members may be found.
        contacts: Vec<PeerAddress>,
    },
}

/// After a change, how many failure timeouts the others may take to be there: they have loaded
/// everything, but may be in the middle of a long step.
const REJOIN_TIMEOUTS: u32 = 4;

/// The trainer's side.
pub struct ElasticViews {
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
    station: Arc<Station>,
    run_id: String,
    id: MemberId,
    config_digest: [u8; 32],
    network: NetworkPlan,
    failure_timeout: Duration,
    speaks: Arc<AtomicBool>,
}

/// A worker that has taken its place.
pub(super) struct Started {
    /// The first view's group, if there is one.
    pub(super) group: Option<Group>,
    pub(super) views: ElasticViews,
    /// To be parted from at the end.
    pub(super) station: Arc<Station>,
}

impl ElasticViews {
    /// Starts the station and the membership's thread, and joins the first view's group if there is
    /// one.
    ///
    /// # Errors
    /// If the group cannot be formed, or no member of the run under way can be found.
    pub(super) fn start(
        place: ElasticPlace,
        terms: Terms,
        network: NetworkPlan,
        step: u64,
    ) -> Result<Started, LaunchError> {
        let ElasticPlace { socket, key, mut run_id, mut me, first, settings, join_timeout, .. } =
            place;
        let (stop, speaks) = (place.stop, place.speaks);
        let (to_thread, inbox) = place.inbox;
        let over_network = matches!(place.way, Way::Network { .. });
        let comes = over_network && first.is_none();
        let told = to_thread.clone();
        let options = StationOptions {
            socket,
            key,
            transport: network.transport.clone(),
            hello: MemberHello {
                id: me.id,
                run_id: (!comes).then(|| run_id.clone()),
                terms: terms.by_name,
            },
        };
        let station = Arc::new(Station::open(options, move |event| {
            // A membership that is over needs nothing more.
            let _ = told.send(Input::Heard(event));
        })?);
        let (messenger, contact): (Box<dyn Messenger>, _) = match place.way {
            Way::Launcher(messenger) => (messenger, Party::Launcher),
            Way::Network { contacts } => {
                let mut contact = Party::Launcher;
                if comes {
                    let found = station.contact(&contacts, join_timeout)?;
                    let Contact { member, run_id: its, seen_at } = found;
                    (contact, run_id) = (Party::Member(member), its);
                    if me.addresses.is_empty() {
                        me.addresses = vec![seen_at];
                    }
                }
                let (station, within) = (station.clone(), join_timeout);
                (Box::new(ByStation { station, within }), contact)
            }
        };
        // Nobody else knows what the checkpoint holds that the run goes on from.
        let first = first.map(|first| View { start_step: step, ..first });
        let interrupt = Interrupt::default();
        let shared = Arc::new(Shared::new(first.as_ref(), interrupt.clone()));
        let membership = match &first {
            Some(first) => Membership::member(settings.clone(), me.id, first.clone()),
            None => Membership::joiner(Time::ZERO, settings.clone(), me.clone(), vec![contact]),
        };
        let place = Place {
            station: station.clone(),
            run_id,
            id: me.id,
            config_digest: terms.digest,
            network,
            failure_timeout: settings.failure_timeout,
            speaks: speaks.clone(),
        };
        let thread = MemberThread {
            membership,
            me,
            settings,
            shared: shared.clone(),
            messenger,
            stop,
            speaks,
            lost_quorum: None,
            origin: Instant::now(),
            away: None,
        };
        let run = move || thread.run(&inbox);
        let join = || {
            let join = |first| place.join(first, join_timeout, interrupt);
            first.as_ref().map(join).transpose()
        };
        let group = if over_network {
            // What is heard before the group is there waits: until then there is no way to go on
            // without anybody.
            let group = join()?;
            std::thread::spawn(run);
            group
        } else {
            // A sibling's death ends the wait for it.
            std::thread::spawn(run);
            join()?
        };
        let views = ElasticViews { shared, to_thread, place, view: first, away: false };
        Ok(Started { group, views, station })
    }
}

/// Messages go by way of the station.
struct ByStation {
    station: Arc<Station>,
    /// How long the members of the next view may take to be there: at first they have to start.
    within: Duration,
}

impl Messenger for ByStation {
    fn send(&mut self, _from: MemberId, to: Party, message: Message) {
        if let Party::Member(id) = to {
            self.station.send(id, message);
        }
    }

    fn begin(&mut self, view: &View, me: MemberId, failure_timeout: Duration) {
        let first = view.generation == 0;
        let within = if first { self.within } else { failure_timeout };
        self.station.watch(&view.members, me, within);
    }

    fn rename(&mut self, me: &Member) {
        self.station.rename(me.id);
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
        let seat = Seat {
            generation: view.generation,
            rank,
            peers,
            run_id: self.run_id.clone(),
            config_digest: self.config_digest,
            join_timeout,
            strategy: self.network.strategy,
        };
        Group::join_at(&self.station, seat, interrupt)
    }
}

impl Views for ElasticViews {
    fn completing(&mut self, generation: u32, step: u64) -> Result<(), CollectiveError> {
        let mut gate = self.shared.gate();
        if gate.open != Some(generation) {
            return Err(NetError::Interrupted("this view has ended".to_owned()).into());
        }
        gate.completed = Some(step);
        Ok(())
    }

    fn leave(&mut self, why: String) {
        self.away = true;
        self.view = None;
        // A thread that is gone has left an ending.
        let _ = self.to_thread.send(Input::Suspend { why });
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

impl ElasticViews {
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
        // Whoever saw the loss says so itself.
        CollectiveError::Net(NetError::Aborted(_)) => None,
        CollectiveError::Net(error) => error.culprit(),
        CollectiveError::NothingStarted => None,
    };
    let culprit = culprit.and_then(|rank| view.members.get(rank)).map(|member| member.id);
    let culprit = culprit.filter(|&id| id != me);
    Input::Broken { generation: view.generation, culprit, why: error.to_string() }
}
