//! A worker's group as the rest of the program sees it: a handle that takes vectors and gives them
//! back reduced.
//!
//! Vectors go to the communication thread by one bounded channel and come back by another; they
//! are moved, never copied.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;

use super::NetError;
use super::channel::Counters;
use super::endpoint::TransportSettings;
use super::identity::ClusterKey;
use super::interrupt::Interrupt;
use super::life;
use super::peer::PeerAddress;
use super::station::Station;
use crate::protocol::collective::{CollectiveId, Reduction};
use crate::protocol::exchange::{Algorithm, Strategy};

/// What a worker needs to join a group.
#[derive(Debug)]
pub struct GroupOptions {
    /// Bound to the address that the other workers were told.
    pub socket: UdpSocket,
    pub key: ClusterKey,
    /// This worker's index in `peers`.
    pub rank: usize,
    /// Where each worker may be reached, by rank: each address is tried in turn. This worker's own
    /// entry is not used; the list's length is the world size.
    pub peers: Vec<Vec<PeerAddress>>,
    /// Names the run.
    pub run_id: String,
    /// Digest of everything that decides the result; the same on all workers.
    pub config_digest: [u8; 32],
    /// How long the others may take to be there.
    pub join_timeout: Duration,
    /// How algorithms are chosen; the same on all workers.
    pub strategy: Strategy,
    pub transport: TransportSettings,
}

impl GroupOptions {
    /// Options of a group that does one thing and needs no configuration: workers appear within a
    /// minute, algorithms are chosen by the cost model, and the transport has its defaults.
    pub fn new(
        socket: UdpSocket,
        key: ClusterKey,
        rank: usize,
        peers: Vec<Vec<PeerAddress>>,
    ) -> GroupOptions {
        GroupOptions {
            socket,
            key,
            rank,
            peers,
            run_id: String::new(),
            config_digest: [0; 32],
            join_timeout: Duration::from_secs(60),
            strategy: Strategy::Auto,
            transport: TransportSettings::default(),
        }
    }
}

/// A worker's place in the group of one view, where its [`Station`] has the socket and the key. The
/// fields are those of [`GroupOptions`].
#[derive(Clone, Debug)]
pub struct Seat {
    pub generation: u32,
    pub rank: usize,
    pub peers: Vec<Vec<PeerAddress>>,
    pub run_id: String,
    pub config_digest: [u8; 32],
    pub join_timeout: Duration,
    pub strategy: Strategy,
}

/// Vectors that may be under way at one time.
pub const IN_FLIGHT_MAX: usize = 64;

/// The trainer's end of the communication thread. Dropping it before [`close`](GroupHandle::close)
/// tells the other workers that this one left, and ends their run.
#[derive(Debug)]
pub struct GroupHandle {
    rank: usize,
    world_size: usize,
    strategy: Strategy,
    /// `None` once closed.
    commands: Option<mpsc::Sender<Command>>,
    events: mpsc::Receiver<Result<Event, NetError>>,
    in_flight: usize,
    /// The first failure's text, told again to whoever goes on calling.
    failure: Option<String>,
    traffic: Arc<Counters>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
pub(super) enum Command {
    Reduce {
        id: CollectiveId,
        algorithm: Algorithm,
        reduction: Reduction,
        vector: Vec<u32>,
    },
    /// Finish what is under way, then part in peace.
    Close,
    /// Tell the others that this worker cannot go on.
    Abort(String),
}

#[derive(Debug)]
pub(super) enum Event {
    Joined,
    Reduced(Reduced),
}

/// A vector that is reduced.
#[derive(Debug)]
pub struct Reduced {
    pub vector: Vec<u32>,
    /// From when it was handed over, or reached the head of the queue, to now.
    pub took: Duration,
}

impl GroupHandle {
    /// Starts the communication thread and waits until all workers are connected that this one will
    /// exchange words with.
    ///
    /// # Errors
    /// If a worker is not there in time, holds another key, or takes part in another run.
    ///
    /// # Panics
    /// If `rank` is not an index of `peers`.
    pub fn join(options: GroupOptions) -> Result<GroupHandle, NetError> {
        let GroupOptions { socket, key, transport, .. } = options;
        let seat = Seat {
            generation: 0,
            rank: options.rank,
            peers: options.peers,
            run_id: options.run_id,
            config_digest: options.config_digest,
            join_timeout: options.join_timeout,
            strategy: options.strategy,
        };
        let (mut handle, trainer) = GroupHandle::new(&seat);
        let thread = thread::Builder::new()
            .name("annulet-net".to_owned())
            .spawn(move || life::run(socket, key, transport, seat, trainer))
            .map_err(NetError::Thread)?;
        handle.thread = Some(thread);
        handle.joined()
    }

    /// As [`join`](GroupHandle::join), on the thread and by the address of a station. The interrupt
    /// ends it, also while other workers are awaited; then everything fails with
    /// [`NetError::Interrupted`].
    ///
    /// # Errors
    /// As [`join`](GroupHandle::join).
    ///
    /// # Panics
    /// If the seat's `rank` is not an index of its `peers`.
    pub fn join_at(
        station: &Station,
        seat: Seat,
        interrupt: Interrupt,
    ) -> Result<GroupHandle, NetError> {
        let (handle, trainer) = GroupHandle::new(&seat);
        let (door, stall_warning) = (station.door(seat.generation), station.stall_warning());
        station.spawn(life::work(door, seat, stall_warning, interrupt, trainer));
        handle.joined()
    }

    fn new(seat: &Seat) -> (GroupHandle, Trainer) {
        let (rank, world_size) = (seat.rank, seat.peers.len());
        assert!(rank < world_size, "rank {rank} in a world of {world_size}");
        // Both channels hold all that may be under way and the last word, so neither side waits.
        let (commands, commands_receiver) = mpsc::channel(IN_FLIGHT_MAX + 1);
        let (events_sender, events) = mpsc::channel(IN_FLIGHT_MAX + 2);
        let traffic = Arc::new(Counters::default());
        let trainer = Trainer {
            commands: commands_receiver,
            events: events_sender,
            traffic: traffic.clone(),
        };
        let handle = GroupHandle {
            rank,
            world_size,
            strategy: seat.strategy,
            commands: Some(commands),
            events,
            in_flight: 0,
            failure: None,
            traffic,
            thread: None,
        };
        (handle, trainer)
    }

    fn joined(mut self) -> Result<GroupHandle, NetError> {
        match self.next_event()? {
            Event::Joined => Ok(self),
            Event::Reduced(_) => unreachable!("nothing was handed over yet"),
        }
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn world_size(&self) -> usize {
        self.world_size
    }

    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Hands a vector over, without waiting. The algorithm must be the same on all workers.
    ///
    /// # Errors
    /// If the group has failed, or if [`IN_FLIGHT_MAX`] vectors are under way.
    ///
    /// # Panics
    /// If the vector's length is not the reduction's, or is 2^32 words or more, or the algorithm is
    /// none of the strategy's.
    pub fn start(
        &mut self,
        id: CollectiveId,
        algorithm: Algorithm,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<(), NetError> {
        assert_eq!(vector.len(), reduction.words(), "the vector is the reduction's");
        assert!(u32::try_from(vector.len()).is_ok(), "a vector has fewer than 2^32 words");
        let connected = self.strategy.algorithms(self.world_size).contains(&algorithm);
        assert!(connected, "the workers are connected for what their strategy may choose");
        if self.in_flight == IN_FLIGHT_MAX {
            return Err(NetError::TooManyInFlight(IN_FLIGHT_MAX));
        }
        if !self.send(Command::Reduce { id, algorithm, reduction, vector }) {
            return Err(self.failed());
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Vectors handed over and not yet taken back.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Waits for the oldest vector under way and returns it, reduced.
    ///
    /// # Errors
    /// If the group has failed.
    ///
    /// # Panics
    /// If none is under way.
    pub fn finish(&mut self) -> Result<Reduced, NetError> {
        assert!(self.in_flight > 0, "a vector is under way");
        match self.next_event()? {
            Event::Reduced(reduced) => {
                self.in_flight -= 1;
                Ok(reduced)
            }
            Event::Joined => unreachable!("joining is over"),
        }
    }

    /// Bytes sent and received, headers included.
    pub fn traffic(&self) -> (u64, u64) {
        (self.traffic.sent.load(Ordering::Relaxed), self.traffic.received.load(Ordering::Relaxed))
    }

    /// The time during which at least one vector was under way.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.traffic.busy_ns.load(Ordering::Relaxed))
    }

    /// Finishes what is under way, makes sure that the others have all of it, and parts.
    ///
    /// # Errors
    /// If the group fails before that.
    pub fn close(mut self) -> Result<(), NetError> {
        if self.failure.is_some() || !self.send(Command::Close) {
            return Err(self.failed());
        }
        loop {
            match self.events.blocking_recv() {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return self.join_thread(),
            }
        }
    }

    /// Parts at once and tells the other workers why: their run ends with this reason.
    pub fn abort(mut self, reason: String) {
        // If the thread is gone, the others know already.
        self.send(Command::Abort(reason));
    }

    fn send(&mut self, command: Command) -> bool {
        self.commands.as_ref().is_some_and(|commands| commands.try_send(command).is_ok())
    }

    fn next_event(&mut self) -> Result<Event, NetError> {
        if let Some(failure) = &self.failure {
            return Err(NetError::Stopped(failure.clone()));
        }
        match self.events.blocking_recv() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => {
                self.failure = Some(error.to_string());
                Err(error)
            }
            None => Err(NetError::Stopped(GONE.to_owned())),
        }
    }

    /// The reason for which the thread takes no more vectors: behind any that are reduced.
    fn failed(&mut self) -> NetError {
        loop {
            match self.next_event() {
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }

    /// Waits until the others are told, which takes no longer than a second.
    fn join_thread(&mut self) -> Result<(), NetError> {
        self.commands = None;
        // At a station there is no thread to wait for: its end of the channel is gone at the end.
        while self.events.blocking_recv().is_some() {}
        match self.thread.take().map(thread::JoinHandle::join) {
            Some(Err(_)) => Err(NetError::Stopped(GONE.to_owned())),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

const GONE: &str = "its thread ended without a reason, which is a bug in annulet";

impl Drop for GroupHandle {
    fn drop(&mut self) {
        // A thread that panicked has said so already.
        let _ = self.join_thread();
    }
}

/// The thread's end of what connects it with the trainer's handle.
pub(super) struct Trainer {
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) events: mpsc::Sender<Result<Event, NetError>>,
    pub(super) traffic: Arc<Counters>,
}

impl Trainer {
    pub(super) fn tell(&self, event: Result<Event, NetError>) {
        // The channel holds all that may be under way and the last word. If the handle is gone,
        // the commands say so.
        let _ = self.events.try_send(event);
    }
}
