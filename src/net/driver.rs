//! The communication thread: one endpoint, the other workers, and the collectives under way.
//!
//! Everything runs on one thread with a single-threaded tokio runtime. Sending and receiving are
//! driven from one poll function in one task, since a worker that waited for its sends before it
//! read would wait for ever once all workers did. Vectors come in by one bounded channel and go
//! back by another; they are moved, never copied.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use quinn::ConnectionError;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::channel::{Channel, Counters, Job, Jobs};
use super::door::Door;
use super::endpoint::{Endpoint, TransportSettings};
use super::identity::ClusterKey;
use super::interrupt::Interrupt;
use super::peer::{self, CODE_ABORT, CODE_DONE, JoinLimit, Mesh, PeerAddress};
use super::station::Station;
use super::{NetError, wire};
use crate::protocol::collective::{CollectiveId, Reduction};
use crate::protocol::exchange::{Algorithm, Exchange, Strategy};
use crate::protocol::message::{Abort, CollectiveHeader, Hello, describe};

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
enum Command {
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
enum Event {
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
            .spawn(move || run(socket, key, transport, seat, trainer))
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
        station.spawn(work(door, seat, stall_warning, interrupt, trainer));
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
struct Trainer {
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Result<Event, NetError>>,
    traffic: Arc<Counters>,
}

impl Trainer {
    fn tell(&self, event: Result<Event, NetError>) {
        // The channel holds all that may be under way and the last word. If the handle is gone,
        // the commands say so.
        let _ = self.events.try_send(event);
    }
}

fn run(
    socket: UdpSocket,
    key: ClusterKey,
    transport: TransportSettings,
    seat: Seat,
    trainer: Trainer,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return trainer.tell(Err(NetError::Thread(error))),
    };
    // As a task of its own: waking the future of `block_on` itself costs system calls.
    let work = runtime.spawn(async move {
        match Endpoint::new(socket, &key, &transport) {
            Ok(endpoint) => {
                let door = Door::own(endpoint);
                work(door, seat, transport.stall_warning, Interrupt::default(), trainer).await;
            }
            Err(error) => trainer.tell(Err(error)),
        }
    });
    if let Err(error) = runtime.block_on(work) {
        std::panic::resume_unwind(error.into_panic());
    }
    // A name that is still being resolved must not hold up the end.
    runtime.shutdown_background();
}

async fn work(
    door: Door,
    seat: Seat,
    stall_warning: Duration,
    interrupt: Interrupt,
    trainer: Trainer,
) {
    let (rank, world) = (seat.rank, seat.peers.len());
    if world == 1 {
        return alone(trainer, &interrupt).await;
    }
    let wanted = seat.strategy.peers(rank, world);
    if let Some(peer) = wanted.iter().find(|&&peer| seat.peers[peer].is_empty()) {
        return trainer.tell(Err(NetError::Settings(format!("rank {peer} has no address"))));
    }
    let hello = Hello {
        run_id: seat.run_id,
        config_digest: seat.config_digest,
        world_size: world as u32,
        generation: seat.generation,
        rank: rank as u32,
        strategy: seat.strategy,
    };
    let limit = JoinLimit::new(seat.join_timeout);
    let joined = tokio::select! {
        joined = peer::join(&door, &hello, &seat.peers, &wanted, limit) => joined,
        reason = interrupt.raised() => Err(NetError::Interrupted(reason)),
    };
    door.refuse_connections().await;
    let mesh = match joined {
        Ok(mesh) => mesh,
        Err(error) => {
            close(&door, rank, &trainer, Err(End::Failed(error))).await;
            return;
        }
    };
    trainer.tell(Ok(Event::Joined));
    let stall = StallWatch::new(stall_warning);
    let mut driver = Driver::new(rank, world, mesh, trainer, stall);
    let end = tokio::select! {
        end = driver.run() => end,
        reason = interrupt.raised() => Err(NetError::Interrupted(reason).into()),
    };
    for channel in &driver.channels {
        let (peer, path) = (channel.peer().rank, channel.peer().connection.stats().path);
        tracing::debug!("rank {rank}: the path to rank {peer} was {path:?}");
    }
    // The driver lives on until the connections are closed: dropping its streams before would look
    // like a fault to the others.
    close(&door, rank, &driver.trainer, end).await;
}

/// Tells the trainer and the other workers how it ended.
async fn close(door: &Door, rank: usize, trainer: &Trainer, end: Result<(), End>) {
    let abort = match end {
        Ok(()) => None,
        Err(End::Left(reason)) => Some(Abort::new(rank as u32, Some(rank as u32), reason)),
        Err(End::Failed(error)) => {
            let abort = error.to_abort(rank);
            trainer.tell(Err(error));
            Some(abort)
        }
    };
    match abort {
        None => door.close(CODE_DONE, b"done").await,
        Some(abort) => door.close(CODE_ABORT, &wire::encode(&abort).unwrap_or_default()).await,
    }
}

/// The only worker's group: each vector is its own reduction.
async fn alone(mut trainer: Trainer, interrupt: &Interrupt) {
    trainer.tell(Ok(Event::Joined));
    loop {
        tokio::select! {
            command = trainer.commands.recv() => {
                let Some(Command::Reduce { vector, .. }) = command else { return };
                trainer.tell(Ok(Event::Reduced(Reduced { vector, took: Duration::ZERO })));
            }
            reason = interrupt.raised() => {
                return trainer.tell(Err(NetError::Interrupted(reason)));
            }
        }
    }
}

/// Why the thread ends before the run's end.
enum End {
    Failed(NetError),
    /// The trainer left, for this reason.
    Left(String),
}

impl From<NetError> for End {
    fn from(error: NetError) -> Self {
        End::Failed(error)
    }
}

/// The collectives under way and the streams.
struct Driver {
    rank: usize,
    world: usize,
    /// By rank.
    channels: Vec<Channel>,
    /// Tells a connection's rank and error once it is closed.
    closed: JoinSet<(usize, ConnectionError)>,
    trainer: Trainer,
    jobs: Jobs,
    /// When the last job was delivered.
    delivered: Instant,
    /// Since when at least one job is under way.
    busy_since: Option<Instant>,
    /// No more jobs will come.
    closing: bool,
    stall: StallWatch,
}

impl Driver {
    fn new(rank: usize, world: usize, mesh: Mesh, trainer: Trainer, stall: StallWatch) -> Driver {
        Driver {
            rank,
            world,
            channels: mesh.links.into_iter().map(Channel::new).collect(),
            closed: mesh.closed,
            trainer,
            jobs: Jobs::default(),
            delivered: Instant::now(),
            busy_since: None,
            closing: false,
            stall,
        }
    }

    /// Works until the trainer closes the group or something fails.
    async fn run(&mut self) -> Result<(), End> {
        std::future::poll_fn(|cx| self.poll(cx)).await?;
        // All vectors are reduced, so nothing more is needed from the others; what they need must
        // have reached them before the connections may be closed.
        self.channels.iter_mut().for_each(Channel::finish);
        for channel in &mut self.channels {
            channel.drained().await?;
        }
        Ok(())
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        loop {
            let mut moved = self.poll_commands(cx)?;
            for channel in &mut self.channels {
                moved |= channel.poll_receive(cx, &mut self.jobs, &self.trainer.traffic)?;
            }
            for channel in &mut self.channels {
                moved |= channel.poll_send(cx, &mut self.jobs, &self.trainer.traffic)?;
            }
            self.deliver();
            if !moved {
                break;
            }
        }
        if self.closing && self.jobs.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = self.poll_closed(cx) {
            return Poll::Ready(Err(error.into()));
        }
        self.poll_stall(cx);
        Poll::Pending
    }

    /// Takes what the trainer hands over.
    fn poll_commands(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut moved = false;
        while !self.closing {
            match self.trainer.commands.poll_recv(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Command::Reduce { id, algorithm, reduction, vector })) => {
                    self.begin(id, algorithm, reduction, vector);
                }
                Poll::Ready(Some(Command::Close)) => self.closing = true,
                Poll::Ready(Some(Command::Abort(reason))) => return Err(End::Left(reason)),
                Poll::Ready(None) => return Err(End::Left("it left before the run's end".into())),
            }
            moved = true;
        }
        Ok(moved)
    }

    fn begin(
        &mut self,
        id: CollectiveId,
        algorithm: Algorithm,
        reduction: Reduction,
        vector: Vec<u32>,
    ) {
        let header = CollectiveHeader::new(id, algorithm, reduction, self.jobs.started());
        let exchange = Exchange::new(algorithm, self.rank, self.world, reduction, &vector);
        let streams = self.channels.iter().map(|channel| channel.directions(&exchange)).sum();
        let since = Instant::now();
        self.busy_since.get_or_insert(since);
        self.jobs.push(Job { header, exchange, vector, since, streams });
    }

    /// Gives back the vectors that are reduced and sent.
    fn deliver(&mut self) {
        while let Some(job) = self.jobs.pop_finished() {
            let since = job.since.max(self.delivered);
            self.delivered = Instant::now();
            if self.jobs.is_empty() {
                self.count_busy();
            }
            let took = self.delivered - since;
            self.trainer.tell(Ok(Event::Reduced(Reduced { vector: job.vector, took })));
        }
    }

    /// Nothing is under way any more: adds the time since something was.
    fn count_busy(&mut self) {
        if let Some(since) = self.busy_since.take() {
            let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.trainer.traffic.busy_ns.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// The error of a connection that was lost. A worker that has finished its run needs nothing
    /// more; if something is still needed from it, reading or writing will say so.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Option<NetError> {
        while let Poll::Ready(Some(closed)) = self.closed.poll_join_next(cx) {
            let (rank, error) =
                closed.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            let channel = self.channels.iter().find(|channel| channel.peer().rank == rank);
            if let Some(channel) = channel.filter(|_| !peer::is_done(&error)) {
                return Some(channel.peer().lost(&error, self.activity()));
            }
        }
        None
    }

    /// What the group is at, for error texts.
    fn activity(&self) -> String {
        self.jobs.front().map_or_else(|| "a pause".to_owned(), |job| describe(&job.header.id))
    }

    fn poll_stall(&mut self, cx: &mut Context<'_>) {
        let Counters { busy_ns: _, sent, received } = &*self.trainer.traffic;
        let bytes = sent.load(Ordering::Relaxed) + received.load(Ordering::Relaxed);
        let position = (self.jobs.started(), bytes);
        let Some(stalled_for) = self.stall.poll(cx, position) else { return };
        if !self.jobs.is_empty() {
            let seconds = stalled_for.as_secs_f32();
            tracing::warn!("nothing has moved for {seconds:.1} s: {}", self.stall_report());
        }
    }

    /// Who is awaited, and for what.
    fn stall_report(&self) -> String {
        let words = self.channels.iter().filter_map(|channel| channel.awaited_words(&self.jobs));
        let room = self.channels.iter().filter_map(|channel| channel.awaited_room(&self.jobs));
        let mut report: Vec<String> = words.collect();
        if report.is_empty() {
            report = room.collect();
        }
        report.join("; ")
    }
}

/// Notices when nothing moves.
struct StallWatch {
    ticks: Interval,
    /// Where everything stood at the last tick.
    position: (u64, u64),
    ticks_without_move: u32,
}

impl StallWatch {
    fn new(warning: Duration) -> StallWatch {
        let warning = warning.max(Duration::from_millis(1));
        let mut ticks = interval_at(Instant::now() + warning, warning);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        StallWatch { ticks, position: (0, 0), ticks_without_move: 0 }
    }

    /// How long the position has been the same, at a tick at which it still is.
    fn poll(&mut self, cx: &mut Context<'_>, position: (u64, u64)) -> Option<Duration> {
        let mut ticked = false;
        while self.ticks.poll_tick(cx).is_ready() {
            ticked = true;
        }
        if !ticked {
            return None;
        }
        if position != self.position {
            self.position = position;
            self.ticks_without_move = 0;
            return None;
        }
        self.ticks_without_move += 1;
        Some(self.ticks.period() * self.ticks_without_move)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use super::*;
    use crate::protocol::collective::Content;
    use crate::protocol::message::HEADER_WORDS;

    /// What rank 0 of two says of a rank 1 that holds the key and does this with its stream.
    fn verdict_on(rogue: impl FnOnce(&mut quinn::SendStream)) -> NetError {
        let key = ClusterKey::generate().expect("a key");
        let bind = || UdpSocket::bind("127.0.0.1:0").expect("a port on loopback");
        let sockets = [bind(), bind()];
        let peers: Vec<Vec<PeerAddress>> = sockets
            .iter()
            .map(|socket| vec![socket.local_addr().expect("a bound socket").into()])
            .collect();
        let [socket, rogue_socket] = sockets;
        let options = GroupOptions {
            socket,
            key: key.clone(),
            rank: 0,
            peers: peers.clone(),
            run_id: "test".into(),
            config_digest: [7; 32],
            join_timeout: Duration::from_secs(30),
            strategy: Strategy::Ring,
            transport: TransportSettings::default(),
        };
        let worker = thread::spawn(|| {
            let mut handle = GroupHandle::join(options).expect("the rogue joins as others do");
            let reduction = Reduction::sums(4);
            handle.start(id(), Algorithm::Ring, reduction, vec![1; 4]).expect("started");
            handle.finish().expect_err("the rogue breaks the protocol")
        });
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let transport = TransportSettings::default();
            let endpoint = Endpoint::new(rogue_socket, &key, &transport).expect("an endpoint");
            let hello = Hello {
                run_id: "test".into(),
                config_digest: [7; 32],
                world_size: 2,
                generation: 0,
                rank: 1,
                strategy: Strategy::Ring,
            };
            let limit = JoinLimit::new(Duration::from_secs(30));
            let mesh = peer::join(&Door::own(endpoint), &hello, &peers, &[0], limit).await;
            let link = &mut mesh.expect("the group forms").links[0];
            rogue(&mut link.send);
            // It is told what it did.
            let error = link.peer.connection.closed().await;
            assert!(matches!(link.peer.lost(&error, "nothing"), NetError::Aborted(_)));
        });
        worker.join().expect("its assertions hold")
    }

    fn id() -> CollectiveId {
        CollectiveId { generation: 0, step: 3, attempt: 0, content: Content::Gradients(1) }
    }

    fn write(stream: &mut quinn::SendStream, words: &[u32]) {
        let bytes = bytemuck::cast_slice(words);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let written = Pin::new(stream).poll_write(&mut cx, bytes);
        assert!(matches!(written, Poll::Ready(Ok(written)) if written == bytes.len()));
    }

    #[test]
    fn words_that_are_no_header_are_a_violation() {
        let error = verdict_on(|stream| write(stream, &[0xDEAD_BEEF; HEADER_WORDS]));
        assert!(matches!(error, NetError::Violation { rank: 1, .. }), "{error}");
        assert!(error.to_string().contains("0xdeadbeef"), "{error}");
    }

    #[test]
    fn a_stream_that_ends_early_is_a_lost_peer() {
        let reduction = Reduction::sums(4);
        let header = CollectiveHeader::new(id(), Algorithm::Ring, reduction, 0);
        let error = verdict_on(|stream| {
            write(stream, &header.encode());
            write(stream, &[1]);
            stream.finish().expect("an open stream");
        });
        assert!(matches!(error, NetError::Lost { rank: 1, .. }), "{error}");
        let text = "during step 3 bucket 1: it has finished its run";
        assert!(error.to_string().contains(text), "{error}");
    }

    #[test]
    fn a_collective_that_was_not_asked_for_is_out_of_step() {
        let reduction = Reduction::sums(4);
        let header = CollectiveHeader::new(id(), Algorithm::Ring, reduction, 1);
        let error = verdict_on(|stream| write(stream, &header.encode()));
        assert!(matches!(error, NetError::OutOfStep(_)), "{error}");
        assert!(error.to_string().contains("(its collective 1)"), "{error}");
    }
}
