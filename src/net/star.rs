//! Workers around servers: messages, with words behind them, over the same endpoints and with the
//! same handshake as the workers of a ring.
//!
//! Nodes are numbered in one row: first the workers by rank, then the servers. Each worker connects
//! to each server, and the first server to the other ones. A message is a frame of
//! [`wire`], the number of its words as a little-endian `u32`, and the words.

use std::marker::PhantomData;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as blocking;
use std::thread;
use std::time::Duration;

use quinn::{ReadExactError, RecvStream, SendStream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::door::Door;
use super::endpoint::{Endpoint, TransportSettings};
use super::identity::ClusterKey;
use super::peer::{self, CODE_ABORT, CODE_DONE, JoinLimit, Link, Peer, PeerAddress};
use super::{NetError, wire};
use crate::protocol::exchange::Strategy;
use crate::protocol::message::{Abort, Hello};

/// What a node needs to take its place.
#[derive(Debug)]
pub struct StarOptions {
    /// Bound; a server's to the address that the others were told.
    pub socket: UdpSocket,
    pub key: ClusterKey,
    /// This node's number: a worker's rank, or the number of workers and a server's number.
    pub node: usize,
    pub workers: usize,
    /// Where each server may be reached.
    pub servers: Vec<Vec<PeerAddress>>,
    /// Names the run.
    pub run_id: String,
    /// Digest of everything that decides the result; the same on all nodes.
    pub config_digest: [u8; 32],
    /// How long the others may take to be there.
    pub join_timeout: Duration,
    pub transport: TransportSettings,
    /// The longest vector that a message carries.
    pub words_max: usize,
}

/// Messages to one node that may wait to be sent; who sends more has lost the protocol.
const OUTGOING_MAX: usize = 64;

/// The longest wait, after closing, for the others to take note.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// One node's end of the network thread: `Out` is what it sends, `In` what it is sent.
///
/// Dropping it before [`close`](Star::close) tells the others that this node left.
pub struct Star<Out, In> {
    workers: usize,
    /// By node; none where there is no connection.
    writers: Vec<Option<mpsc::Sender<Envelope>>>,
    events: mpsc::Receiver<StarEvent<In>>,
    end: mpsc::Sender<End>,
    traffic: Arc<Traffic>,
    thread: Option<thread::JoinHandle<()>>,
    out: PhantomData<fn(Out)>,
}

/// Something from another node.
#[derive(Debug)]
pub enum StarEvent<In> {
    Message {
        node: usize,
        message: In,
        words: Vec<u32>,
    },
    /// The node has parted in peace.
    Left {
        node: usize,
    },
    /// The node is gone, or has broken the protocol; nothing more comes from it.
    Lost {
        node: usize,
        error: NetError,
    },
}

/// An encoded message and its words.
type Envelope = (Vec<u8>, Vec<u32>);

#[derive(Debug, Default)]
struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
}

/// How a node parts.
enum End {
    /// In peace, once everything has reached the others.
    Close,
    Abort(String),
}

/// What the thread tells once the node is connected.
type Joined = Result<Vec<Option<mpsc::Sender<Envelope>>>, NetError>;

impl<Out: Serialize, In: DeserializeOwned + Send + 'static> Star<Out, In> {
    /// Starts the network thread and waits until all nodes are connected that this one speaks to.
    ///
    /// # Errors
    /// If a node is not there in time, holds another key, or takes part in another run.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn join(options: StarOptions) -> Result<Star<Out, In>, NetError> {
        let workers = options.workers;
        assert!(options.node < workers + options.servers.len(), "a node is in the row");
        let (joined_sender, joined) = blocking::sync_channel(1);
        let (events_sender, events) = mpsc::channel(OUTGOING_MAX);
        let (end, end_receiver) = mpsc::channel(1);
        let traffic = Arc::new(Traffic::default());
        let shared = traffic.clone();
        let thread = thread::Builder::new()
            .name("annulet-net".to_owned())
            .spawn(move || run(options, &joined_sender, events_sender, end_receiver, shared))
            .map_err(NetError::Thread)?;
        let gone = |_| NetError::Stopped("its thread ended without a reason".to_owned());
        let writers = joined.recv().map_err(gone)??;
        let thread = Some(thread);
        Ok(Star { workers, writers, events, end, traffic, thread, out: PhantomData })
    }

    /// Sends a message, without waiting for it to leave. A node that is gone is not told; that it is
    /// gone is an event.
    ///
    /// # Errors
    /// If too much waits to be sent to that node.
    ///
    /// # Panics
    /// If there is no connection to that node.
    pub fn send(&self, node: usize, message: &Out, words: Vec<u32>) -> Result<(), NetError> {
        let writer = self.writers[node].as_ref().expect("a connected node");
        let frame = wire::encode_frame(message)
            .map_err(|error| NetError::Settings(format!("message: {error}")))?;
        match writer.try_send((frame, words)) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(NetError::TooManyInFlight(OUTGOING_MAX)),
            _ => Ok(()),
        }
    }

    /// Waits for the next thing that another node says.
    ///
    /// # Errors
    /// If all of them are gone.
    pub fn receive(&mut self) -> Result<StarEvent<In>, NetError> {
        self.events
            .blocking_recv()
            .ok_or_else(|| NetError::Stopped("no other node is left".to_owned()))
    }

    /// Workers of the star.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Bytes sent and received.
    pub fn traffic(&self) -> (u64, u64) {
        let Traffic { sent, received } = &*self.traffic;
        (sent.load(Ordering::Relaxed), received.load(Ordering::Relaxed))
    }

    /// Makes sure that the others have everything, and parts.
    pub fn close(mut self) {
        self.part(End::Close);
    }

    /// Parts at once and tells the others why.
    pub fn abort(mut self, reason: String) {
        self.part(End::Abort(reason));
    }
}

impl<Out, In> Star<Out, In> {
    fn part(&mut self, end: End) {
        // The thread may be gone, and then has said so.
        let _ = self.end.try_send(end);
        self.writers.clear();
        // Readers that wait for room are let go.
        self.events.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<Out, In> Drop for Star<Out, In> {
    fn drop(&mut self) {
        self.part(End::Abort("it left before the run's end".into()));
    }
}

fn run<In: DeserializeOwned + Send + 'static>(
    options: StarOptions,
    joined: &blocking::SyncSender<Joined>,
    events: mpsc::Sender<StarEvent<In>>,
    end: mpsc::Receiver<End>,
    traffic: Arc<Traffic>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = joined.send(Err(NetError::Thread(error)));
            return;
        }
    };
    runtime.block_on(work(options, joined, events, end, traffic));
    // A name that is still being resolved must not hold up the end.
    runtime.shutdown_background();
}

async fn work<In: DeserializeOwned + Send + 'static>(
    options: StarOptions,
    joined: &blocking::SyncSender<Joined>,
    events: mpsc::Sender<StarEvent<In>>,
    mut end: mpsc::Receiver<End>,
    traffic: Arc<Traffic>,
) {
    let StarOptions { socket, key, node, workers, servers, transport, words_max, .. } = options;
    // Whoever is told has gone: then so does this thread.
    let tell = |result: Joined| drop(joined.send(result));
    let endpoint = match Endpoint::new(socket, &key, &transport) {
        Ok(endpoint) => endpoint,
        Err(error) => return tell(Err(error)),
    };
    let hello = Hello {
        run_id: options.run_id,
        config_digest: options.config_digest,
        world_size: (workers + servers.len()) as u32,
        generation: 0,
        rank: node as u32,
        // There is no all-reduce in a star.
        strategy: Strategy::Direct,
    };
    let (callees, awaited) = neighbours(node, workers, servers.len());
    let addresses: Vec<_> = vec![Vec::new(); workers].into_iter().chain(servers.clone()).collect();
    let limit = JoinLimit::new(options.join_timeout);
    let mesh =
        peer::join_as(&Door::own(endpoint.clone()), &hello, &addresses, callees, awaited, limit)
            .await;
    endpoint.refuse_connections();
    let mesh = match mesh {
        Ok(mesh) => mesh,
        Err(error) => {
            endpoint.close(CODE_ABORT, &abort_bytes(node, error.to_string()));
            tell(Err(named(error, workers)));
            let _ = timeout(DRAIN_MAX, endpoint.drained()).await;
            return;
        }
    };
    let mut writers: Vec<_> = (0..workers + servers.len()).map(|_| None).collect();
    let mut writing = JoinSet::new();
    for Link { peer, send, receive } in mesh.links {
        let (sender, envelopes) = mpsc::channel(OUTGOING_MAX);
        writers[peer.rank] = Some(sender);
        writing.spawn(write(send, envelopes, traffic.clone()));
        let reader = Reader { peer, workers, receive, words_max, traffic: traffic.clone() };
        tokio::spawn(read(reader, events.clone()));
    }
    drop(events);
    tell(Ok(writers));
    match end.recv().await {
        Some(End::Abort(reason)) => endpoint.close(CODE_ABORT, &abort_bytes(node, reason)),
        Some(End::Close) | None => {
            // The writers' channels are closed: each sends what is left and waits until it arrived.
            let all = async { while writing.join_next().await.is_some() {} };
            let _ = timeout(transport.failure_timeout, all).await;
            endpoint.close(CODE_DONE, b"done");
        }
    }
    let _ = timeout(DRAIN_MAX, endpoint.drained()).await;
}

/// Whom a node connects to, and who connects to it.
fn neighbours(node: usize, workers: usize, servers: usize) -> (Vec<usize>, Vec<usize>) {
    let all_servers = workers..workers + servers;
    if node < workers {
        (all_servers.collect(), Vec::new())
    } else if node == workers {
        (all_servers.skip(1).collect(), (0..workers).collect())
    } else {
        (Vec::new(), (0..=workers).collect())
    }
}

fn abort_bytes(node: usize, reason: String) -> Vec<u8> {
    let abort = Abort::new(node as u32, Some(node as u32), reason);
    wire::encode(&abort).unwrap_or_default()
}

/// The error, with servers called by their own numbers.
fn named(error: NetError, workers: usize) -> NetError {
    let server = |node: usize| node.checked_sub(workers);
    match error {
        NetError::Lost { rank, address, during, reason } => match server(rank) {
            Some(server) => NetError::LostServer { server, address, reason },
            None => NetError::Lost { rank, address, during, reason },
        },
        NetError::Unreachable { rank, within, failures } => match server(rank) {
            Some(server) => NetError::ServerUnreachable { server, within, failures },
            None => NetError::Unreachable { rank, within, failures },
        },
        NetError::Aborted(abort) => match server(abort.rank as usize) {
            Some(server) => NetError::ServerEnded { server, reason: abort.reason },
            None => NetError::Aborted(abort),
        },
        error => error,
    }
}

/// Sends what comes, until nothing more will; then waits until all of it has arrived. Whether the
/// other node is gone is told by its reader.
async fn write(
    mut send: SendStream,
    mut envelopes: mpsc::Receiver<Envelope>,
    traffic: Arc<Traffic>,
) {
    while let Some((frame, mut words)) = envelopes.recv().await {
        if cfg!(target_endian = "big") {
            words.iter_mut().for_each(|word| *word = word.to_le());
        }
        let count = u32::try_from(words.len()).expect("vectors are short").to_le_bytes();
        let head = [&frame[..], &count].concat();
        let body: &[u8] = bytemuck::cast_slice(&words);
        for bytes in [&head[..], body] {
            if send.write_all(bytes).await.is_err() {
                return;
            }
        }
        traffic.sent.fetch_add((head.len() + body.len()) as u64, Ordering::Relaxed);
    }
    let _ = send.finish();
    let _ = send.stopped().await;
}

/// The receiving direction of a connection.
struct Reader {
    peer: Peer,
    workers: usize,
    receive: RecvStream,
    words_max: usize,
    traffic: Arc<Traffic>,
}

async fn read<In: DeserializeOwned>(mut reader: Reader, events: mpsc::Sender<StarEvent<In>>) {
    let node = reader.peer.rank;
    loop {
        let event = match reader.message().await {
            Ok(Some((message, words))) => StarEvent::Message { node, message, words },
            Ok(None) => StarEvent::Left { node },
            Err(error) => StarEvent::Lost { node, error: named(error, reader.workers) },
        };
        let last = !matches!(event, StarEvent::Message { .. });
        if events.send(event).await.is_err() || last {
            return;
        }
    }
}

impl Reader {
    /// The next message with its words; none if the other node has parted in peace.
    async fn message<In: DeserializeOwned>(&mut self) -> Result<Option<(In, Vec<u32>)>, NetError> {
        let mut prefix = [0; wire::PREFIX_BYTES];
        match self.receive.read_exact(&mut prefix).await {
            Ok(()) => {}
            Err(ReadExactError::FinishedEarly(0)) => return Ok(None),
            Err(ReadExactError::ReadError(quinn::ReadError::ConnectionLost(error)))
                if peer::is_done(&error) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(self.failed(error)),
        }
        let length = wire::frame_length(prefix).map_err(|error| self.peer.violation(error))?;
        let mut message = vec![0; length];
        self.fill(&mut message).await?;
        let message = wire::decode(&message).map_err(|error| self.peer.violation(error))?;
        let mut count = [0; size_of::<u32>()];
        self.fill(&mut count).await?;
        let count = u32::from_le_bytes(count) as usize;
        if count > self.words_max {
            let fault = format!("{count} words, where at most {} belong", self.words_max);
            return Err(self.peer.violation(fault));
        }
        let mut words = vec![0u32; count];
        self.fill(bytemuck::cast_slice_mut(&mut words)).await?;
        for word in &mut words {
            *word = u32::from_le(*word);
        }
        let bytes = prefix.len() + length + size_of::<u32>() * (1 + words.len());
        self.traffic.received.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(Some((message, words)))
    }

    async fn fill(&mut self, bytes: &mut [u8]) -> Result<(), NetError> {
        self.receive.read_exact(bytes).await.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: ReadExactError) -> NetError {
        const DURING: &str = "the run";
        match error {
            ReadExactError::FinishedEarly(_) => self.peer.finished(DURING),
            ReadExactError::ReadError(quinn::ReadError::ConnectionLost(error)) => {
                self.peer.lost(&error, DURING)
            }
            ReadExactError::ReadError(error) => self.peer.violation(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_has_one_side_that_makes_it() {
        let (workers, servers) = (3, 2);
        let neighbours = |node| neighbours(node, workers, servers);
        for node in 0..workers + servers {
            for callee in neighbours(node).0 {
                assert!(neighbours(callee).1.contains(&node));
            }
            for caller in neighbours(node).1 {
                assert!(neighbours(caller).0.contains(&node));
            }
        }
        assert_eq!(neighbours(3), (vec![4], vec![0, 1, 2]));
    }

    #[test]
    fn messages_and_losses_arrive() {
        let key = ClusterKey::generate().expect("a key");
        let socket = || UdpSocket::bind("127.0.0.1:0").expect("a port on loopback");
        let server_socket = socket();
        let address = server_socket.local_addr().expect("a bound socket");
        let options = |node, socket| StarOptions {
            socket,
            key: key.clone(),
            node,
            workers: 2,
            servers: vec![vec![address.into()]],
            run_id: "test".into(),
            config_digest: [7; 32],
            join_timeout: Duration::from_secs(30),
            transport: TransportSettings::default(),
            words_max: 3,
        };
        let (first, second, serving) =
            (options(0, socket()), options(1, socket()), options(2, server_socket));
        let server = thread::spawn(move || {
            let mut star = Star::<u64, String>::join(serving).expect("all are there");
            let (mut sums, mut left, mut lost) = (0, Vec::new(), Vec::new());
            while left.len() + lost.len() < 2 {
                match star.receive().expect("somebody is left") {
                    StarEvent::Message { node, message, words } => {
                        assert_eq!(message, format!("from {node}"));
                        sums += words.iter().sum::<u32>();
                        star.send(node, &u64::from(sums), words).expect("room");
                    }
                    StarEvent::Left { node } => left.push(node),
                    StarEvent::Lost { node, error } => lost.push((node, error.to_string())),
                }
            }
            (sums, left, lost)
        });
        let worker = |options| move || Star::<String, u64>::join(options).expect("all are there");
        let (first, second) = (thread::spawn(worker(first)), thread::spawn(worker(second)));
        let (mut first, second) = (first.join().expect("joined"), second.join().expect("joined"));
        first.send(2, &"from 0".to_owned(), vec![1, 2, 3]).expect("room");
        let event = first.receive().expect("the server is there");
        assert!(matches!(event, StarEvent::Message { node: 2, message: 6, .. }), "{event:?}");
        first.close();
        // More words than belong there.
        second.send(2, &"from 1".to_owned(), vec![0; 4]).expect("room");
        let (sums, left, lost) = server.join().expect("its assertions hold");
        assert_eq!((sums, left), (6, vec![0]));
        assert!(lost[0].0 == 1 && lost[0].1.contains("4 words, where at most 3"), "{lost:?}");
        drop(second);
    }
}
