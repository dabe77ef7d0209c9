//! The communication thread: one endpoint, both neighbours, and the collectives under way.
//!
//! Everything runs on one thread with a single-threaded tokio runtime. Sending and receiving are
//! driven from one poll function in one task, since a worker that waited for its sends before it
//! read would wait for ever once all workers did. Vectors come in by one bounded channel and go
//! back by another; they are moved, never copied.
//!
//! The streams of consecutive collectives follow each other without a gap: while the last words of
//! one are still awaited, the own shard of the next may already be on its way.

use std::collections::VecDeque;
use std::future::Future;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as blocking;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use quinn::{ConnectionError, ReadError, WriteError};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use super::endpoint::{Endpoint, TransportSettings};
use super::identity::ClusterKey;
use super::peer::{self, CODE_ABORT, CODE_DONE, JoinLimit, Next, Peer, PeerAddress, Prev};
use super::{NetError, wire};
use crate::protocol::collective::{CollectiveId, Reduction};
use crate::protocol::message::{Abort, CollectiveHeader, HEADER_WORDS, Hello, describe};
use crate::protocol::ring::RingAllReduce;

/// What a worker needs to join a ring.
#[derive(Debug)]
pub struct RingOptions {
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
    /// How long the neighbours may take to be there.
    pub join_timeout: Duration,
    pub transport: TransportSettings,
}

/// Vectors that may be under way at one time.
pub const IN_FLIGHT_MAX: usize = 64;

/// The trainer's end of the communication thread. Dropping it before [`close`](RingHandle::close)
/// tells the other workers that this one left, and ends their run.
#[derive(Debug)]
pub struct RingHandle {
    rank: usize,
    world_size: usize,
    /// `None` once closed.
    commands: Option<mpsc::Sender<Command>>,
    events: blocking::Receiver<Result<Event, NetError>>,
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
    Reduced(Vec<u32>),
}

/// Bytes of vectors and headers that went through the streams, and the time it took.
#[derive(Debug, Default)]
struct Counters {
    busy_ns: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl RingHandle {
    /// Starts the communication thread and waits until both neighbours are connected.
    ///
    /// # Errors
    /// If a neighbour is not there in time, holds another key, or takes part in another run.
    ///
    /// # Panics
    /// If `rank` is not an index of `peers`.
    pub fn join(options: RingOptions) -> Result<RingHandle, NetError> {
        let (rank, world_size) = (options.rank, options.peers.len());
        assert!(rank < world_size, "rank {rank} in a world of {world_size}");
        // Both channels hold all that may be under way and the last word, so neither side waits.
        let (commands, commands_receiver) = mpsc::channel(IN_FLIGHT_MAX + 1);
        let (events_sender, events) = blocking::sync_channel(IN_FLIGHT_MAX + 2);
        let traffic = Arc::new(Counters::default());
        let trainer = Trainer {
            commands: commands_receiver,
            events: events_sender,
            traffic: traffic.clone(),
        };
        let thread = thread::Builder::new()
            .name("annulet-net".to_owned())
            .spawn(|| run(options, trainer))
            .map_err(NetError::Thread)?;
        let mut handle = RingHandle {
            rank,
            world_size,
            commands: Some(commands),
            events,
            in_flight: 0,
            failure: None,
            traffic,
            thread: Some(thread),
        };
        match handle.next_event()? {
            Event::Joined => Ok(handle),
            Event::Reduced(_) => unreachable!("nothing was handed over yet"),
        }
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Hands a vector over, without waiting.
    ///
    /// # Errors
    /// If the ring has failed, or if [`IN_FLIGHT_MAX`] vectors are under way.
    ///
    /// # Panics
    /// If the vector's length is not the reduction's, or is 2^32 words or more.
    pub fn start(
        &mut self,
        id: CollectiveId,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<(), NetError> {
        assert_eq!(vector.len(), reduction.words(), "the vector is the reduction's");
        assert!(u32::try_from(vector.len()).is_ok(), "a vector has fewer than 2^32 words");
        if self.in_flight == IN_FLIGHT_MAX {
            return Err(NetError::TooManyInFlight(IN_FLIGHT_MAX));
        }
        if !self.send(Command::Reduce { id, reduction, vector }) {
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
    /// If the ring has failed.
    ///
    /// # Panics
    /// If none is under way.
    pub fn finish(&mut self) -> Result<Vec<u32>, NetError> {
        assert!(self.in_flight > 0, "a vector is under way");
        match self.next_event()? {
            Event::Reduced(vector) => {
                self.in_flight -= 1;
                Ok(vector)
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

    /// Finishes what is under way, makes sure that the next neighbour has all of it, and parts.
    ///
    /// # Errors
    /// If the ring fails before that.
    pub fn close(mut self) -> Result<(), NetError> {
        if self.failure.is_some() || !self.send(Command::Close) {
            return Err(self.failed());
        }
        loop {
            match self.events.recv() {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error),
                Err(blocking::RecvError) => return self.join_thread(),
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
        match self.events.recv() {
            Ok(Ok(event)) => Ok(event),
            Ok(Err(error)) => {
                self.failure = Some(error.to_string());
                Err(error)
            }
            Err(blocking::RecvError) => Err(NetError::Stopped(GONE.to_owned())),
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

    fn join_thread(&mut self) -> Result<(), NetError> {
        self.commands = None;
        match self.thread.take().map(thread::JoinHandle::join) {
            Some(Err(_)) => Err(NetError::Stopped(GONE.to_owned())),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

const GONE: &str = "its thread ended without a reason, which is a bug in annulet";

impl Drop for RingHandle {
    fn drop(&mut self) {
        // Waits until the neighbours are told, which takes no longer than DRAIN_MAX. A thread that
        // panicked has said so already.
        let _ = self.join_thread();
    }
}

/// The thread's end of what connects it with the trainer's handle.
struct Trainer {
    commands: mpsc::Receiver<Command>,
    events: blocking::SyncSender<Result<Event, NetError>>,
    traffic: Arc<Counters>,
}

impl Trainer {
    fn tell(&self, event: Result<Event, NetError>) {
        // The channel holds all that may be under way and the last word. If the handle is gone,
        // the commands say so.
        let _ = self.events.try_send(event);
    }
}

/// The longest wait, after closing, for the neighbours to take note.
const DRAIN_MAX: Duration = Duration::from_secs(1);

fn run(options: RingOptions, trainer: Trainer) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return trainer.tell(Err(NetError::Thread(error))),
    };
    // As a task of its own: waking the future of `block_on` itself costs system calls.
    let work = runtime.spawn(work(options, trainer));
    if let Err(error) = runtime.block_on(work) {
        std::panic::resume_unwind(error.into_panic());
    }
    // A name that is still being resolved must not hold up the end.
    runtime.shutdown_background();
}

async fn work(options: RingOptions, trainer: Trainer) {
    let (rank, world) = (options.rank, options.peers.len());
    if world == 1 {
        return alone(trainer).await;
    }
    let next = (rank + 1) % world;
    if options.peers[next].is_empty() {
        return trainer.tell(Err(NetError::Settings(format!("rank {next} has no address"))));
    }
    let endpoint = match Endpoint::new(options.socket, &options.key, &options.transport) {
        Ok(endpoint) => endpoint,
        Err(error) => return trainer.tell(Err(error)),
    };
    let hello = Hello {
        run_id: options.run_id,
        config_digest: options.config_digest,
        world_size: world as u32,
        generation: 0,
        rank: rank as u32,
    };
    let limit = JoinLimit::new(options.join_timeout);
    let joined = peer::join(&endpoint, &hello, &options.peers[next], limit).await;
    endpoint.refuse_connections();
    let (next, prev) = match joined {
        Ok(neighbours) => neighbours,
        Err(error) => {
            close(&endpoint, rank, &trainer, Err(End::Failed(error))).await;
            return;
        }
    };
    trainer.tell(Ok(Event::Joined));
    let stall = StallWatch::new(options.transport.stall_warning);
    let mut driver = Driver::new(rank, world, next, prev, trainer, stall);
    let end = driver.run().await;
    let path = driver.next.peer.connection.stats().path;
    tracing::debug!("rank {rank}: the path to the next worker was {path:?}");
    // The driver lives on until the connections are closed: dropping its streams before would look
    // like a fault to the neighbours.
    close(&endpoint, rank, &driver.trainer, end).await;
}

/// Tells the trainer and the neighbours how it ended.
async fn close(endpoint: &Endpoint, rank: usize, trainer: &Trainer, end: Result<(), End>) {
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
        None => endpoint.close(CODE_DONE, b"done"),
        Some(abort) => endpoint.close(CODE_ABORT, &wire::encode(&abort).unwrap_or_default()),
    }
    let _ = timeout(DRAIN_MAX, endpoint.drained()).await;
}

/// The only worker's ring: each vector is its own reduction.
async fn alone(mut trainer: Trainer) {
    trainer.tell(Ok(Event::Joined));
    while let Some(Command::Reduce { vector, .. }) = trainer.commands.recv().await {
        trainer.tell(Ok(Event::Reduced(vector)));
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

/// The collectives under way and the two streams.
struct Driver {
    rank: usize,
    world: usize,
    next: Next,
    prev: Prev,
    trainer: Trainer,
    /// In the order in which they were started, which is that of both streams.
    jobs: VecDeque<Job>,
    /// Jobs begun so far.
    sequence: u64,
    /// Since when at least one job is under way.
    busy_since: Option<Instant>,
    /// No more jobs will come.
    closing: bool,
    outgoing: Outgoing,
    incoming: Incoming,
    next_closed: Closed,
    prev_closed: Closed,
    stall: StallWatch,
}

/// One collective under way.
struct Job {
    header: CollectiveHeader,
    ring: RingAllReduce,
    vector: Vec<u32>,
}

/// Where the stream to the next neighbour stands.
#[derive(Default)]
struct Outgoing {
    /// The job being sent: an index of `jobs`.
    job: usize,
    /// Bytes of its header and words that are sent.
    bytes: usize,
}

/// Where the stream from the previous neighbour stands.
struct Incoming {
    /// The job being received: an index of `jobs`.
    job: usize,
    /// Whether its header has come.
    header_seen: bool,
    /// Words as they arrived, in the machine's byte order as far as they are complete.
    buffer: Box<[u32]>,
    /// Bytes of the buffer that are filled and not yet used.
    filled: usize,
}

/// Ends with the reason once the connection is closed.
type Closed = Option<Pin<Box<dyn Future<Output = ConnectionError> + Send>>>;

const HEADER_BYTES: usize = HEADER_WORDS * size_of::<u32>();

/// 64 KiB stay in the processor's caches while they are reduced.
const BUFFER_WORDS: usize = 16 << 10;

impl Driver {
    fn new(
        rank: usize,
        world: usize,
        next: Next,
        prev: Prev,
        trainer: Trainer,
        stall: StallWatch,
    ) -> Driver {
        Driver {
            rank,
            world,
            next_closed: closed(&next.peer),
            prev_closed: closed(&prev.peer),
            next,
            prev,
            trainer,
            jobs: VecDeque::new(),
            sequence: 0,
            busy_since: None,
            closing: false,
            outgoing: Outgoing::default(),
            incoming: Incoming {
                job: 0,
                header_seen: false,
                buffer: vec![0; BUFFER_WORDS].into_boxed_slice(),
                filled: 0,
            },
            stall,
        }
    }

    /// Works until the trainer closes the ring or something fails.
    async fn run(&mut self) -> Result<(), End> {
        std::future::poll_fn(|cx| self.poll(cx)).await?;
        // All vectors are reduced, so nothing more is needed from the previous neighbour; what the
        // next one needs must have reached it before the connection may be closed.
        let _ = self.next.stream.finish();
        match self.next.stream.stopped().await {
            Err(quinn::StoppedError::ConnectionLost(error)) if !peer::is_done(&error) => {
                Err(self.next.peer.lost(&error, "the end of the run").into())
            }
            _ => Ok(()),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        loop {
            let mut moved = self.poll_commands(cx)?;
            moved |= self.poll_receive(cx)?;
            moved |= self.poll_send(cx)?;
            self.deliver();
            if !moved {
                break;
            }
        }
        if self.closing && self.jobs.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = poll_closed(cx, &mut self.next_closed) {
            return Poll::Ready(Err(self.next.peer.lost(&error, self.activity()).into()));
        }
        if let Some(error) = poll_closed(cx, &mut self.prev_closed) {
            return Poll::Ready(Err(self.prev.peer.lost(&error, self.activity()).into()));
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
                Poll::Ready(Some(Command::Reduce { id, reduction, vector })) => {
                    let header = CollectiveHeader::new(id, reduction, self.sequence);
                    let ring = RingAllReduce::new(self.rank, self.world, reduction);
                    self.busy_since.get_or_insert_with(Instant::now);
                    self.jobs.push_back(Job { header, ring, vector });
                    self.sequence += 1;
                }
                Poll::Ready(Some(Command::Close)) => self.closing = true,
                Poll::Ready(Some(Command::Abort(reason))) => return Err(End::Left(reason)),
                Poll::Ready(None) => return Err(End::Left("it left before the run's end".into())),
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Reads once and reduces what came, so that it can be passed on before more is read.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Result<bool, NetError> {
        if self.incoming.job == self.jobs.len() {
            return Ok(false);
        }
        // What is left in the buffer may have waited for a job that is there now.
        let mut moved = self.use_buffer()?;
        if self.incoming.job == self.jobs.len() {
            return Ok(moved);
        }
        let incoming = &mut self.incoming;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut incoming.buffer);
        let read = match self.prev.stream.poll_read(cx, &mut bytes[incoming.filled..]) {
            Poll::Pending => return Ok(moved),
            Poll::Ready(Ok(0)) => return Err(self.prev.peer.finished(self.activity())),
            Poll::Ready(Ok(read)) => read,
            Poll::Ready(Err(ReadError::ConnectionLost(error))) => {
                return Err(self.prev.peer.lost(&error, self.activity()));
            }
            Poll::Ready(Err(error)) => return Err(self.prev.peer.violation(error)),
        };
        let complete =
            incoming.filled / size_of::<u32>()..(incoming.filled + read) / size_of::<u32>();
        for word in &mut incoming.buffer[complete] {
            *word = u32::from_le(*word);
        }
        incoming.filled += read;
        self.trainer.traffic.received.fetch_add(read as u64, Ordering::Relaxed);
        moved = true;
        self.use_buffer()?;
        Ok(moved)
    }

    /// Gives the buffered words to the jobs they belong to.
    fn use_buffer(&mut self) -> Result<bool, NetError> {
        let Incoming { job: at, header_seen, buffer, filled } = &mut self.incoming;
        let mut words = &buffer[..*filled / size_of::<u32>()];
        let all = words.len();
        while let Some(job) = self.jobs.get_mut(*at) {
            if !*header_seen {
                let Some((header, rest)) = words.split_first_chunk::<HEADER_WORDS>() else { break };
                let theirs = CollectiveHeader::decode(header)
                    .map_err(|fault| self.prev.peer.violation(fault))?;
                job.header.check(&theirs, self.prev.peer.rank)?;
                *header_seen = true;
                words = rest;
            }
            let (piece, rest) = words.split_at(words.len().min(job.ring.words_to_receive()));
            job.ring
                .receive(&mut job.vector, piece)
                .map_err(|fault| self.prev.peer.violation(fault))?;
            words = rest;
            if job.ring.words_to_receive() > 0 {
                break;
            }
            *at += 1;
            *header_seen = false;
        }
        let used = (all - words.len()) * size_of::<u32>();
        bytemuck::cast_slice_mut::<u32, u8>(buffer).copy_within(used..*filled, 0);
        *filled -= used;
        Ok(used > 0)
    }

    /// Sends as much as may be sent and as the transport takes.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<bool, NetError> {
        let mut moved = false;
        while let Some(job) = self.jobs.get_mut(self.outgoing.job) {
            let bytes = self.outgoing.bytes;
            let header;
            let mut reordered = Vec::new();
            let sendable = if bytes < HEADER_BYTES {
                header = job.header.encode();
                &little_endian(&header, &mut reordered)[bytes..]
            } else {
                // The first word may be sent in part.
                let words = &job.vector[job.ring.next_send()];
                &little_endian(words, &mut reordered)[bytes % size_of::<u32>()..]
            };
            if sendable.is_empty() {
                if job.ring.words_to_send() > 0 {
                    break;
                }
                self.outgoing = Outgoing { job: self.outgoing.job + 1, bytes: 0 };
                moved = true;
                continue;
            }
            // The transport copies the bytes; the vector may change at once.
            let written = match Pin::new(&mut self.next.stream).poll_write(cx, sendable) {
                Poll::Pending => break,
                Poll::Ready(Ok(written)) => written,
                Poll::Ready(Err(WriteError::ConnectionLost(error))) => {
                    return Err(self.next.peer.lost(&error, describe(&job.header.id)));
                }
                Poll::Ready(Err(error)) => return Err(self.next.peer.violation(error)),
            };
            let words_before = bytes.saturating_sub(HEADER_BYTES) / size_of::<u32>();
            let words_after = (bytes + written).saturating_sub(HEADER_BYTES) / size_of::<u32>();
            job.ring.sent(words_after - words_before);
            self.outgoing.bytes += written;
            self.trainer.traffic.sent.fetch_add(written as u64, Ordering::Relaxed);
            moved = true;
        }
        Ok(moved)
    }

    /// Gives back the vectors that are reduced and sent.
    fn deliver(&mut self) {
        while self.outgoing.job > 0 && self.incoming.job > 0 {
            let job = self.jobs.pop_front().expect("both streams are past the first job");
            debug_assert!(job.ring.is_finished());
            self.outgoing.job -= 1;
            self.incoming.job -= 1;
            if self.jobs.is_empty() {
                self.count_busy();
            }
            self.trainer.tell(Ok(Event::Reduced(job.vector)));
        }
    }

    /// Nothing is under way any more: adds the time since something was.
    fn count_busy(&mut self) {
        if let Some(since) = self.busy_since.take() {
            let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.trainer.traffic.busy_ns.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// What the ring is at, for error texts.
    fn activity(&self) -> String {
        self.jobs.front().map_or_else(|| "a pause".to_owned(), |job| describe(&job.header.id))
    }

    fn poll_stall(&mut self, cx: &mut Context<'_>) {
        let Counters { busy_ns: _, sent, received } = &*self.trainer.traffic;
        let bytes = sent.load(Ordering::Relaxed) + received.load(Ordering::Relaxed);
        let position = (self.sequence, bytes);
        let Some(stalled_for) = self.stall.poll(cx, position) else { return };
        if let Some(report) = self.stall_report() {
            tracing::warn!("nothing has moved for {:.1} s: {report}", stalled_for.as_secs_f32());
        }
    }

    /// Who is awaited, and for what; nobody, if nothing is under way.
    fn stall_report(&self) -> Option<String> {
        let awaited = |job: &Job| describe(&job.header.id);
        if let Some(job) = self.jobs.get(self.incoming.job) {
            let Peer { rank, address, .. } = self.prev.peer;
            let left = job.ring.words_to_receive();
            return Some(format!(
                "waiting for rank {rank} at {address} to send {} ({left} words left)",
                awaited(job)
            ));
        }
        let job = self.jobs.get(self.outgoing.job)?;
        let Peer { rank, address, .. } = self.next.peer;
        let left = job.ring.words_to_send();
        Some(format!(
            "waiting for rank {rank} at {address} to take {} ({left} words left)",
            awaited(job)
        ))
    }
}

fn closed(peer: &Peer) -> Closed {
    let connection = peer.connection.clone();
    Some(Box::pin(async move { connection.closed().await }))
}

/// The error of a connection that was lost. A neighbour that has finished its run needs nothing
/// more; if something is still needed from it, reading or writing will say so.
fn poll_closed(cx: &mut Context<'_>, closed: &mut Closed) -> Option<ConnectionError> {
    let Poll::Ready(error) = closed.as_mut()?.as_mut().poll(cx) else { return None };
    *closed = None;
    (!peer::is_done(&error)).then_some(error)
}

/// The words' bytes in the order in which they are sent: the words themselves, on most machines.
fn little_endian<'a>(words: &'a [u32], reordered: &'a mut Vec<u32>) -> &'a [u8] {
    if cfg!(target_endian = "little") {
        return bytemuck::cast_slice(words);
    }
    reordered.extend(words.iter().take(BUFFER_WORDS).map(|word| word.to_le()));
    bytemuck::cast_slice(reordered)
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
    use super::*;
    use crate::protocol::collective::Content;

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
        let options = RingOptions {
            socket,
            key: key.clone(),
            rank: 0,
            peers: peers.clone(),
            run_id: "test".into(),
            config_digest: [7; 32],
            join_timeout: Duration::from_secs(30),
            transport: TransportSettings::default(),
        };
        let worker = thread::spawn(|| {
            let mut handle = RingHandle::join(options).expect("the rogue joins as others do");
            let reduction = Reduction { sum_words: 4, max_words: 0 };
            handle.start(id(), reduction, vec![1; 4]).expect("started");
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
            };
            let limit = JoinLimit::new(Duration::from_secs(30));
            let (mut next, prev) =
                peer::join(&endpoint, &hello, &peers[0], limit).await.expect("the ring forms");
            rogue(&mut next.stream);
            // It is told what it did, on both connections.
            for connection in [&next.peer.connection, &prev.peer.connection] {
                let error = connection.closed().await;
                assert!(matches!(next.peer.lost(&error, "nothing"), NetError::Aborted(_)));
            }
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
        let reduction = Reduction { sum_words: 4, max_words: 0 };
        let header = CollectiveHeader::new(id(), reduction, 0);
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
        let reduction = Reduction { sum_words: 4, max_words: 0 };
        let header = CollectiveHeader::new(id(), reduction, 1);
        let error = verdict_on(|stream| write(stream, &header.encode()));
        assert!(matches!(error, NetError::OutOfStep(_)), "{error}");
        assert!(error.to_string().contains("(its collective 1)"), "{error}");
    }
}
