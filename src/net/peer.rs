//! Connections to other workers: finding them, and the handshake that proves that both sides take
//! part in the same run.
//!
//! Two workers share one connection, and on it one bidirectional stream: the handshake comes first
//! (see [`message`](crate::protocol::message)), and behind it, for the rest of the run, the words
//! of vectors in both directions. The connecting side's first word tells the accepting side that
//! the handshake is complete on both sides.
//!
//! Strangers, who do not hold the cluster key, are turned away and change nothing. A worker that
//! does hold it and yet does not fit ends the attempt on both sides: somebody made a mistake, and
//! waiting will not mend it.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::{Connection, ConnectionError, RecvStream, SendStream, VarInt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::door::{Call, Caller, Door};
use super::handshake::{
    Failed, frame, greet, hear, let_answer_arrive, read_failed, read_frame, write_failed,
};
use super::{Failures, NetError, wire};
use crate::protocol::greeting::Greeting;
use crate::protocol::message::{Abort, Answer, Hello};

/// Where a worker may be reached: `host:port`, the host being an IP address or a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddress(String);

/// A text that is no address of a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address; write HOST:PORT, for example 10.0.0.2:4000 or [fe80::1]:4000")]
pub struct AddressError {
    text: String,
}

impl FromStr for PeerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let valid = match text.parse::<SocketAddr>() {
            Ok(address) => address.port() != 0,
            Err(_) => text.rsplit_once(':').is_some_and(|(host, port)| {
                let host_is_name = !host.is_empty() && !host.contains([':', '[', ']', ' ']);
                host_is_name && port.parse::<u16>().is_ok_and(|port| port != 0)
            }),
        };
        if valid {
            Ok(PeerAddress(text.to_owned()))
        } else {
            Err(AddressError { text: text.to_owned() })
        }
    }
}

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> Self {
        PeerAddress(address.to_string())
    }
}

impl PeerAddress {
    /// All addresses that the name has.
    pub(super) async fn resolve(&self) -> Result<Vec<SocketAddr>, Failed> {
        match tokio::net::lookup_host(&self.0).await {
            Ok(resolved) => Ok(resolved.collect()),
            Err(error) => Err(Failed::Retry(format!("cannot be resolved: {error}"))),
        }
    }

    /// The port; parsing has made sure that there is one.
    pub fn port(&self) -> u16 {
        self.0.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0)
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Code of a connection that is closed since everything is done.
pub(super) const CODE_DONE: VarInt = VarInt::from_u32(1);

/// Code of a connection that is closed before the end; the reason is an [`Abort`].
pub(super) const CODE_ABORT: VarInt = VarInt::from_u32(2);

/// A connected worker of the same run.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) rank: usize,
    pub(super) address: SocketAddr,
    pub(super) connection: Connection,
}

impl Peer {
    /// The error of a connection that ended `during` something.
    pub(super) fn lost(&self, error: &ConnectionError, during: impl fmt::Display) -> NetError {
        if let Some(abort) = abort_of(error) {
            return NetError::Aborted(abort);
        }
        if is_done(error) {
            return self.finished(during);
        }
        let reason = match error {
            ConnectionError::ApplicationClosed(_) => "its worker is gone".to_owned(),
            ConnectionError::TimedOut => "nothing came from it any more".to_owned(),
            error => error.to_string(),
        };
        self.lost_because(reason, during)
    }

    /// The error of a peer that finished its run `during` something that still needs it.
    pub(super) fn finished(&self, during: impl fmt::Display) -> NetError {
        self.lost_because("it has finished its run".to_owned(), during)
    }

    fn lost_because(&self, reason: String, during: impl fmt::Display) -> NetError {
        NetError::Lost {
            rank: self.rank,
            address: self.address,
            during: during.to_string(),
            reason,
        }
    }

    /// The error of a peer that holds the key and yet sends what no worker would.
    pub(super) fn violation(&self, fault: impl fmt::Display) -> NetError {
        NetError::Violation { rank: self.rank, address: self.address, fault: fault.to_string() }
    }
}

/// Whether the peer closed the connection since it has all that it needs.
pub(super) fn is_done(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::ApplicationClosed(close) if close.error_code == CODE_DONE)
}

pub(super) fn abort_of(error: &ConnectionError) -> Option<Abort> {
    match error {
        ConnectionError::ApplicationClosed(close) if close.error_code == CODE_ABORT => {
            wire::decode(&close.reason).ok()
        }
        _ => None,
    }
}

/// A connected worker and the stream to and from it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: Peer,
    pub(super) send: SendStream,
    pub(super) receive: RecvStream,
}

/// Connections to the workers that this one exchanges words with.
#[derive(Debug)]
pub(super) struct Mesh {
    /// By rank.
    pub(super) links: Vec<Link>,
    /// Tells a connection's rank and error once it is closed.
    pub(super) closed: JoinSet<(usize, ConnectionError)>,
}

/// How long the other workers may take to be there.
#[derive(Clone, Copy, Debug)]
pub(super) struct JoinLimit {
    within: Duration,
    deadline: Instant,
}

impl JoinLimit {
    /// From now on.
    pub(super) fn new(within: Duration) -> JoinLimit {
        // Beyond what the clock can count, a year is as good as any other long time.
        const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        let within = within.min(YEAR);
        JoinLimit { within, deadline: Instant::now() + within }
    }
}

/// Connects to some of the wanted workers and waits for the others. When one of them is there and
/// leaves while another is awaited, that ends it.
///
/// `addresses` are those of all workers, by rank.
pub(super) async fn join(
    door: &Door,
    hello: &Hello,
    addresses: &[Vec<PeerAddress>],
    wanted: &[usize],
    limit: JoinLimit,
) -> Result<Mesh, NetError> {
    let (rank, world) = (hello.rank as usize, hello.world_size as usize);
    let (callees, awaited): (Vec<usize>, Vec<usize>) =
        wanted.iter().partition(|&&peer| connects(rank, peer, world));
    join_as(door, hello, addresses, callees, awaited, limit).await
}

/// Like [`join`], where it is settled who connects to whom: this worker to the `callees`, and the
/// `awaited` to this one.
pub(super) async fn join_as(
    door: &Door,
    hello: &Hello,
    addresses: &[Vec<PeerAddress>],
    callees: Vec<usize>,
    mut awaited: Vec<usize>,
    limit: JoinLimit,
) -> Result<Mesh, NetError> {
    let wanted = callees.len() + awaited.len();
    let failures = Arc::new(Mutex::new(Failures::default()));
    let expected: Arc<[u32]> = awaited.iter().map(|&peer| peer as u32).collect();
    let mut connecting = JoinSet::new();
    for peer in callees {
        let (door, hello, failures) = (door.clone(), hello.clone(), failures.clone());
        let addresses = addresses[peer].clone();
        connecting
            .spawn(async move { connect(&door, &hello, peer, &addresses, limit, &failures).await });
    }
    let mut handshakes = JoinSet::new();
    let mut mesh = Mesh { links: Vec::with_capacity(wanted), closed: JoinSet::new() };
    while mesh.links.len() < wanted {
        tokio::select! {
            biased;
            Some(done) = connecting.join_next() => mesh.add(unwind(done)?),
            Some(done) = mesh.closed.join_next() => {
                let (rank, error) = unwind(done);
                let link = mesh.links.iter().find(|link| link.peer.rank == rank);
                let link = link.expect("only links are watched");
                return Err(link.peer.lost(&error, "the forming of the group"));
            }
            Some(call) = door.accept(),
                if !awaited.is_empty() && handshakes.len() < HANDSHAKES_MAX =>
            {
                let (door, hello, expected) = (door.clone(), hello.clone(), expected.clone());
                handshakes.spawn(async move {
                    let address = call.address();
                    let welcome = welcome(&door, call, &hello, &expected);
                    let welcomed = timeout(ATTEMPT_TIMEOUT, welcome).await;
                    let silent = |_| Err(Failed::Retry("it fell silent".to_owned()));
                    (address, welcomed.unwrap_or_else(silent))
                });
            }
            Some(done) = handshakes.join_next() => match unwind(done) {
                (_, Ok((link, theirs))) => {
                    let Some(place) = awaited.iter().position(|&peer| peer == link.peer.rank)
                    else {
                        let expected = awaited.iter().map(|&peer| peer as u32).collect();
                        let mismatch = hello.unexpected(theirs, expected);
                        return Err(NetError::Mismatch { address: link.peer.address, mismatch });
                    };
                    awaited.remove(place);
                    mesh.add(link);
                }
                (_, Err(Failed::Final(error))) => return Err(error),
                (address, Err(failed)) => {
                    tracing::warn!("turned away {address}: {failed}");
                    note(&failures, &format_args!("from {address}"), &failed);
                }
            },
            // Where both fail at the deadline, connecting knows more.
            () = sleep_until(limit.deadline), if connecting.is_empty() => {
                let failures = noted(&failures);
                return Err(NetError::Absent { rank: awaited[0], within: limit.within, failures });
            }
        }
    }
    mesh.links.sort_unstable_by_key(|link| link.peer.rank);
    Ok(mesh)
}

impl Mesh {
    fn add(&mut self, link: Link) {
        let (rank, connection) = (link.peer.rank, link.peer.connection.clone());
        self.closed.spawn(async move { (rank, connection.closed().await) });
        self.links.push(link);
    }
}

/// Of two workers, which one connects to the other: the one from which the other lies nearer in
/// the ring's direction, so that each connects to its next neighbour; among two opposite ones the
/// lower rank.
fn connects(rank: usize, peer: usize, world: usize) -> bool {
    let (there, back) = ((peer + world - rank) % world, (rank + world - peer) % world);
    there < back || (there == back && rank < peer)
}

/// A task's result; its panic goes on here.
fn unwind<T>(done: Result<T, tokio::task::JoinError>) -> T {
    done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Handshakes under way at one time: strangers must not fill the memory.
pub(super) const HANDSHAKES_MAX: usize = 64;

/// One try to connect and to shake hands: long, for a machine that is busy.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Pauses between rounds over all addresses double from the one to the other.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(50);
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(250);

async fn connect(
    door: &Door,
    hello: &Hello,
    rank: usize,
    addresses: &[PeerAddress],
    limit: JoinLimit,
    failures: &Mutex<Failures>,
) -> Result<Link, NetError> {
    let note = |address: &dyn fmt::Display, failed: &dyn fmt::Display| {
        tracing::debug!("rank {rank} at {address}: {failed}");
        note(failures, address, failed);
    };
    let mut pause = PAUSE_MIN;
    loop {
        // The address where another key was met, if it was met everywhere.
        let mut other_key = None;
        let mut others = 0;
        for address in addresses {
            let resolved =
                match timeout_at(limit.deadline, tokio::net::lookup_host(&address.0)).await {
                    Ok(Ok(resolved)) => resolved,
                    Ok(Err(error)) => {
                        note(address, &format_args!("cannot be resolved: {error}"));
                        others += 1;
                        continue;
                    }
                    Err(_) => {
                        note(address, &"resolving it took too long");
                        break;
                    }
                };
            for address in resolved {
                let attempt = timeout(ATTEMPT_TIMEOUT, attempt(door, address, hello, rank));
                let failed = match timeout_at(limit.deadline, attempt).await {
                    Ok(Ok(Ok(link))) => return Ok(link),
                    Ok(Ok(Err(Failed::Final(error)))) => return Err(error),
                    Ok(Ok(Err(failed))) => failed,
                    Ok(Err(_)) | Err(_) => Failed::Retry("no answer".to_owned()),
                };
                match failed {
                    Failed::OtherKey => other_key = Some(address),
                    _ => others += 1,
                }
                note(&address, &failed);
            }
        }
        if let (Some(address), 0) = (other_key, others) {
            return Err(NetError::OtherKey { rank, address });
        }
        if Instant::now() + pause >= limit.deadline {
            let failures = noted(failures);
            return Err(NetError::Unreachable { rank, within: limit.within, failures });
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn attempt(
    door: &Door,
    address: SocketAddr,
    hello: &Hello,
    rank: usize,
) -> Result<Link, Failed> {
    let greeting = Greeting::Group(hello.clone());
    let connecting = door.connect(address).map_err(|error| Failed::Retry(error.to_string()))?;
    let (connection, mut send, mut receive) = greet(connecting, address, &greeting).await?;
    door.note(&connection);
    match read_frame(&mut receive).await? {
        Answer::Welcome(theirs) => hello
            .check(&theirs, &[rank as u32])
            .map_err(|mismatch| Failed::mismatch(address, mismatch))?,
        Answer::Refuse(reason) => {
            return Err(Failed::Final(NetError::Refused { rank, address, reason }));
        }
    }
    send.write_all(&STREAM_MAGIC).await.map_err(write_failed)?;
    Ok(Link { peer: Peer { rank, address, connection }, send, receive })
}

/// The failures of connecting and of accepting stand in one list, since one side's silence may be
/// explained by what the other side saw.
fn note(failures: &Mutex<Failures>, address: &dyn fmt::Display, failed: &dyn fmt::Display) {
    failures.lock().unwrap_or_else(PoisonError::into_inner).note(address, failed);
}

fn noted(failures: &Mutex<Failures>) -> Failures {
    failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Call {
    fn address(&self) -> SocketAddr {
        match self {
            Call::Incoming(address, _) => *address,
            Call::Greeted(caller) => caller.address,
        }
    }
}

/// The accepting side of a handshake with one of the expected ranks.
async fn welcome(
    door: &Door,
    call: Call,
    hello: &Hello,
    expected: &[u32],
) -> Result<(Link, Hello), Failed> {
    let caller = match call {
        Call::Incoming(address, connecting) => hear(address, connecting).await?,
        Call::Greeted(caller) => *caller,
    };
    let Caller { address, connection, mut send, mut receive, greeting } = caller;
    door.note(&connection);
    let (answer, checked) = match greeting {
        Greeting::Group(theirs) => match hello.check(&theirs, expected) {
            Ok(()) => (Answer::Welcome(hello.clone()), Ok(theirs)),
            Err(mismatch) => {
                (Answer::Refuse(mismatch.to_string()), Err(Failed::mismatch(address, mismatch)))
            }
        },
        Greeting::Member(_) => {
            let text = "this group takes nobody who comes later";
            (Answer::Refuse(text.to_owned()), Err(Failed::Retry(text.to_owned())))
        }
    };
    send.write_all(&frame(&answer)?).await.map_err(write_failed)?;
    let theirs = match checked {
        Ok(theirs) => theirs,
        Err(failed) => {
            let_answer_arrive(&mut send).await;
            return Err(failed);
        }
    };
    let mut magic = [0; STREAM_MAGIC.len()];
    receive.read_exact(&mut magic).await.map_err(read_failed)?;
    if magic != STREAM_MAGIC {
        return Err(Failed::Retry("its stream does not begin as a worker's does".to_owned()));
    }
    let peer = Peer { rank: theirs.rank as usize, address, connection };
    Ok((Link { peer, send, receive }, theirs))
}

/// The connecting side's first word behind the handshake.
const STREAM_MAGIC: [u8; 4] = *b"ring";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_connects_and_each_to_its_next_neighbour() {
        for world in 2..20 {
            for rank in 0..world {
                for peer in (0..world).filter(|&peer| peer != rank) {
                    assert_ne!(connects(rank, peer, world), connects(peer, rank, world));
                }
                assert!(connects(rank, (rank + 1) % world, world) || world == 2);
            }
        }
    }

    #[test]
    fn addresses_are_host_and_port() {
        for text in ["10.0.0.2:4000", "[::1]:4000", "worker-1.example:4000", "localhost:1"] {
            let address: PeerAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "",
            "4000",
            "worker",
            "worker:",
            ":4000",
            "::1:4000",
            "a b:1",
            "a:65536",
            "a:0",
            "10.0.0.2:0",
        ] {
            let error = text.parse::<PeerAddress>().expect_err(text);
            assert!(error.to_string().contains("HOST:PORT"), "{error}");
        }
    }
}
