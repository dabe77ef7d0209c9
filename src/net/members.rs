//! Connections between members, for messages about views: each pair has one at least, kept alive
//! whether there is anything to say or not, so that a member that is gone is missed.
//!
//! A connection begins as a group's does, with a [`MemberHello`]; behind it, frames with a
//! [`Message`] each travel in both directions. Whoever has something to say to a member that it is
//! not connected with connects first. Two that connect to each other at once have two connections,
//! and use either.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::door::Caller;
use super::endpoint::Endpoint;
use super::handshake::{self, Failed};
use super::peer::{
    self, ATTEMPT_TIMEOUT, CODE_ABORT, CODE_DONE, PAUSE_MAX, PAUSE_MIN, PeerAddress,
};
use super::station::{Contact, StationEvent, Unheeded};
use super::{Failures, NetError, wire};
use crate::protocol::greeting::{Greeting, MemberAnswer, MemberHello};
use crate::protocol::membership::{Member, MemberId, Message};
use crate::protocol::message::Abort;

/// Messages to one member that may wait to be sent. A change of views takes fewer than ten.
const OUTGOING_MAX: usize = 256;

/// Messages of one connection that may wait to be dealt with. A member that sends more is at fault,
/// and is dropped as one that is lost.
pub(super) const UNHEEDED_MAX: usize = 256;

/// Connections to one member. Two that connect at once have two, and whoever connects anew may not
/// have missed the old one yet; beyond this the oldest one is closed.
const CONNECTIONS_MAX: usize = 8;

/// The longest wait, at the end, for the others to take note.
const DRAIN_MAX: Duration = Duration::from_secs(1);

type Events = Box<dyn Fn(StationEvent) + Send + Sync>;

/// All connections to members, and who they are.
pub(super) struct Members {
    endpoint: Endpoint,
    failure_timeout: Duration,
    events: Events,
    state: Mutex<State>,
}

struct State {
    hello: MemberHello,
    open: BTreeMap<MemberId, Vec<Open>>,
    /// Members that are being connected to, and what is to be said to them.
    dialing: BTreeMap<MemberId, Vec<Message>>,
    addresses: BTreeMap<MemberId, Vec<PeerAddress>>,
    /// The other members of the view: the loss of each is an event.
    watched: BTreeSet<MemberId>,
    writers: Vec<JoinHandle<()>>,
}

/// A connection in use.
struct Open {
    connection: Connection,
    outgoing: mpsc::Sender<Message>,
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members").finish_non_exhaustive()
    }
}

/// How a connection came to its end.
enum Closed {
    /// The member has what it needs.
    InPeace,
    Lost(String),
    /// The member sent what no worker would.
    ByViolation(String),
}

/// A connection whose handshake is over.
struct Line {
    id: MemberId,
    connection: Connection,
    send: SendStream,
    receive: RecvStream,
}

impl Members {
    pub(super) fn new(
        endpoint: Endpoint,
        hello: MemberHello,
        failure_timeout: Duration,
        events: Events,
    ) -> Members {
        let state = State {
            hello,
            open: BTreeMap::new(),
            dialing: BTreeMap::new(),
            addresses: BTreeMap::new(),
            watched: BTreeSet::new(),
            writers: Vec::new(),
        };
        Members { endpoint, failure_timeout, events, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Station::send`](super::Station::send), on the station's thread or within its runtime.
    pub(super) fn send(self: &Arc<Self>, to: MemberId, message: Message) {
        let mut state = self.state();
        state.learn(message.members());
        if let Some(open) = state.open.get(&to).and_then(|open| open.first()) {
            // A member that takes nothing is about to be missed.
            let _ = open.outgoing.try_send(message);
        } else if let Some(waiting) = state.dialing.get_mut(&to) {
            if waiting.len() < OUTGOING_MAX {
                waiting.push(message);
            }
        } else if state.addresses.contains_key(&to) {
            state.dialing.insert(to, vec![message]);
            drop(state);
            tokio::spawn(self.clone().dial(to, self.failure_timeout));
        }
    }

    /// As [`Station::watch`](super::Station::watch).
    pub(super) fn watch(self: &Arc<Self>, members: &[Member], me: MemberId, within: Duration) {
        let mut state = self.state();
        state.watched = members.iter().map(|member| member.id).filter(|&id| id != me).collect();
        let State { addresses, watched, open, .. } = &mut *state;
        addresses.retain(|id, _| watched.contains(id) || open.contains_key(id));
        state.learn(members);
        for id in state.watched.clone() {
            // One of the two begins, so that there are seldom two connections.
            let wait = if id > me { Duration::ZERO } else { self.failure_timeout / 8 };
            let members = self.clone();
            tokio::spawn(async move {
                sleep(wait).await;
                if members.state().begin_dial(id) {
                    members.dial(id, within).await;
                }
            });
        }
    }

    /// As [`Station::rename`](super::Station::rename).
    pub(super) fn rename(&self, me: MemberId) {
        let mut state = self.state();
        let rank = state.hello.id.process();
        state.hello.id = me;
        state.watched.clear();
        let reason = "it was left behind and comes again".to_owned();
        let reason = wire::encode(&Abort::new(rank, None, reason)).unwrap_or_default();
        for open in std::mem::take(&mut state.open).into_values().flatten() {
            open.connection.close(CODE_ABORT, &reason);
        }
    }

    /// As [`Station::contact`](super::Station::contact).
    pub(super) async fn contact(
        self: Arc<Self>,
        addresses: Vec<PeerAddress>,
        within: Duration,
    ) -> Result<Contact, NetError> {
        let deadline = Instant::now() + within;
        let mut failures = Failures::default();
        loop {
            let mut attempts = JoinSet::new();
            for address in addresses.clone() {
                let members = self.clone();
                attempts.spawn(async move {
                    let tried = timeout_at(deadline, members.try_contact(&address)).await;
                    let silent = |_| Err(Failed::Retry("no answer".to_owned()));
                    (address, tried.unwrap_or_else(silent))
                });
            }
            while let Some(done) = attempts.join_next().await {
                match done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())) {
                    (_, Ok(contact)) => return Ok(contact),
                    (_, Err(Failed::Final(error))) => return Err(error),
                    (address, Err(failed)) => failures.note(address, failed),
                }
            }
            if Instant::now() + PAUSE_MAX >= deadline {
                return Err(NetError::NoMember { within, failures });
            }
            sleep(PAUSE_MAX).await;
        }
    }

    async fn try_contact(self: Arc<Self>, address: &PeerAddress) -> Result<Contact, Failed> {
        let mut failed = Failed::Retry("its name has no address".to_owned());
        for resolved in address.resolve().await? {
            match self.shake_hands(resolved).await {
                Ok((line, theirs, seen_at)) => {
                    let member = line.id;
                    let Some(run_id) = theirs.run_id else {
                        failed = Failed::Retry("it is not in the run itself yet".to_owned());
                        continue;
                    };
                    self.state().hello.run_id = Some(run_id.clone());
                    self.take(line);
                    return Ok(Contact { member, run_id, seen_at });
                }
                Err(error @ Failed::Final(_)) => return Err(error),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Connects to a member, tries again for so long, and says so if it is of no use.
    async fn dial(self: Arc<Self>, id: MemberId, within: Duration) {
        let deadline = Instant::now() + within;
        let (mut failure, mut pause) = ("it has no address".to_owned(), PAUSE_MIN);
        'tries: loop {
            let addresses = self.state().addresses.get(&id).cloned().unwrap_or_default();
            for address in addresses {
                if self.state().open.contains_key(&id) {
                    break 'tries;
                }
                match timeout_at(deadline, self.try_dial(id, &address)).await {
                    Ok(Ok(line)) => {
                        self.take(line);
                        break 'tries;
                    }
                    Ok(Err(failed)) => failure = format!("{address}: {failed}"),
                    Err(_) => failure = format!("{address}: no answer"),
                }
            }
            if Instant::now() + pause >= deadline {
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        let mut state = self.state();
        state.dialing.remove(&id);
        if !state.open.contains_key(&id) && state.watched.contains(&id) {
            drop(state);
            let why = format!("it cannot be reached ({failure})");
            (self.events)(StationEvent::Lost { id, why });
        }
    }

    async fn try_dial(&self, id: MemberId, address: &PeerAddress) -> Result<Line, Failed> {
        let mut failed = Failed::Retry("its name has no address".to_owned());
        for resolved in address.resolve().await? {
            match self.shake_hands(resolved).await {
                Ok((line, _, _)) if line.id == id => return Ok(line),
                Ok((line, _, _)) => failed = Failed::Retry(format!("{} is there", line.id)),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// The connecting side of a handshake.
    async fn shake_hands(
        &self,
        address: SocketAddr,
    ) -> Result<(Line, MemberHello, String), Failed> {
        let hello = self.state().hello.clone();
        let greeting = Greeting::Member(hello.clone());
        let connecting =
            self.endpoint.connect(address).map_err(|error| Failed::Retry(error.to_string()))?;
        let talk = async {
            let (connection, send, mut receive) =
                handshake::greet(connecting, address, &greeting).await?;
            let answer = handshake::read_frame(&mut receive).await?;
            Ok::<_, Failed>((connection, send, receive, answer))
        };
        let (connection, send, receive, answer) = match timeout(ATTEMPT_TIMEOUT, talk).await {
            Ok(talked) => talked?,
            Err(_) => return Err(Failed::Retry("no answer".to_owned())),
        };
        if self.state().hello.id != hello.id {
            return Err(Failed::Retry("this worker came anew meanwhile".to_owned()));
        }
        let refused = |reason| Failed::Final(NetError::RefusedByMember { address, reason });
        match answer {
            MemberAnswer::Welcome { hello: theirs, seen_at } => {
                hello.check(&theirs).map_err(|mismatch| refused(mismatch.to_string()))?;
                Ok((Line { id: theirs.id, connection, send, receive }, theirs, seen_at))
            }
            MemberAnswer::Refuse(reason) => Err(refused(reason)),
        }
    }

    /// The accepting side of a handshake.
    pub(super) async fn welcome(self: Arc<Self>, caller: Caller, theirs: MemberHello) {
        let Caller { address, connection, mut send, receive, .. } = caller;
        let hello = self.state().hello.clone();
        let checked = hello.check(&theirs);
        let answer = match &checked {
            Ok(()) => {
                let seen_at = SocketAddr::new(address.ip().to_canonical(), address.port());
                MemberAnswer::Welcome { hello, seen_at: seen_at.to_string() }
            }
            Err(mismatch) => MemberAnswer::Refuse(mismatch.to_string()),
        };
        let Ok(frame) = handshake::frame(&answer) else { return };
        if send.write_all(&frame).await.is_err() {
            return;
        }
        match checked {
            Ok(()) => self.take(Line { id: theirs.id, connection, send, receive }),
            Err(mismatch) => {
                tracing::warn!("turned away {} at {address}: {mismatch}", theirs.id);
                handshake::let_answer_arrive(&mut send).await;
            }
        }
    }

    /// Begins to use a connection.
    fn take(self: &Arc<Self>, line: Line) {
        let Line { id, connection, send, receive } = line;
        let (outgoing, messages) = mpsc::channel(OUTGOING_MAX);
        let mut state = self.state();
        for message in state.dialing.get_mut(&id).map(std::mem::take).unwrap_or_default() {
            let _ = outgoing.try_send(message);
        }
        let open = state.open.entry(id).or_default();
        open.push(Open { connection: connection.clone(), outgoing });
        if open.len() > CONNECTIONS_MAX {
            // The oldest: its reader ends with it.
            open.remove(0).connection.close(CODE_ABORT, b"");
        }
        state.writers.retain(|writer| !writer.is_finished());
        state.writers.push(tokio::spawn(write(send, messages)));
        tokio::spawn(self.clone().read(id, connection, receive));
    }

    async fn read(self: Arc<Self>, id: MemberId, connection: Connection, mut receive: RecvStream) {
        let places = Arc::new(Semaphore::new(UNHEEDED_MAX));
        let why = loop {
            match handshake::read_frame::<Message>(&mut receive).await {
                Ok(message) if message.is_sound() => {
                    let Ok(place) = places.clone().try_acquire_owned() else {
                        break format!("it sent more than {UNHEEDED_MAX} messages at once");
                    };
                    self.state().learn(message.members());
                    let unheeded = Unheeded { _place: place };
                    (self.events)(StationEvent::Message { from: id, message, unheeded });
                }
                Ok(_) => break "it broke the protocol: a view that cannot be".to_owned(),
                Err(failed) => match self.why_closed(&connection, &failed).await {
                    Closed::ByViolation(why) => break why,
                    Closed::Lost(why) if self.forget(id, &connection) => break why,
                    Closed::Lost(_) => return,
                    Closed::InPeace => {
                        self.forget(id, &connection);
                        return;
                    }
                },
            }
        };
        let mut state = self.state();
        // Whoever breaks the protocol is not listened to on another connection either.
        for open in state.open.remove(&id).unwrap_or_default() {
            open.connection.close(CODE_ABORT, b"");
        }
        if state.watched.contains(&id) {
            drop(state);
            (self.events)(StationEvent::Lost { id, why });
        }
    }

    /// Uses a connection no more. Whether it was the last one to that member.
    fn forget(&self, id: MemberId, connection: &Connection) -> bool {
        let mut state = self.state();
        let Some(open) = state.open.get_mut(&id) else { return false };
        open.retain(|open| open.connection.stable_id() != connection.stable_id());
        let last = open.is_empty();
        if last {
            state.open.remove(&id);
        }
        last
    }

    /// Why nothing more comes.
    async fn why_closed(&self, connection: &Connection, failed: &Failed) -> Closed {
        // The end of a stream comes a moment before that of its connection.
        let closed = timeout(self.failure_timeout, connection.closed()).await;
        let Ok(error) = closed else {
            return Closed::ByViolation(format!("it broke the protocol: {failed}"));
        };
        if peer::is_done(&error) {
            return Closed::InPeace;
        }
        Closed::Lost(match (peer::abort_of(&error), &error) {
            (Some(abort), _) => format!("it ended: {}", abort.reason),
            (None, ConnectionError::TimedOut) => {
                format!("nothing came from it for {} s", self.failure_timeout.as_secs_f32())
            }
            (None, ConnectionError::ApplicationClosed(_)) => "it is gone".to_owned(),
            (None, error) => error.to_string(),
        })
    }

    /// As [`Station::part`](super::Station::part).
    pub(super) async fn close(&self, reason: Option<String>) {
        let (writers, rank) = {
            let mut state = self.state();
            state.watched.clear();
            state.open.clear();
            (std::mem::take(&mut state.writers), state.hello.id.process())
        };
        let all_said = async {
            for writer in writers {
                let _ = writer.await;
            }
        };
        let _ = timeout(DRAIN_MAX, all_said).await;
        match reason {
            None => self.endpoint.close(CODE_DONE, b"done"),
            Some(reason) => {
                let abort = Abort::new(rank, None, reason);
                self.endpoint.close(CODE_ABORT, &wire::encode(&abort).unwrap_or_default());
            }
        }
        let _ = timeout(DRAIN_MAX, self.endpoint.drained()).await;
    }
}

impl State {
    /// Whether this member is to be connected with, and nobody is at it.
    fn begin_dial(&mut self, id: MemberId) -> bool {
        let known = self.open.contains_key(&id) || self.dialing.contains_key(&id);
        let begins = !known && self.watched.contains(&id);
        if begins {
            self.dialing.insert(id, Vec::new());
        }
        begins
    }

    /// Notes where members are reached. Whoever holds the key says so, but not for ever more of them.
    fn learn(&mut self, members: &[Member]) {
        const KNOWN_MAX: usize = 4_096;
        for Member { id, addresses } in members {
            if *id != self.hello.id && self.addresses.len() < KNOWN_MAX {
                let parsed = addresses.iter().filter_map(|address| address.parse().ok());
                self.addresses.insert(*id, parsed.collect());
            }
        }
    }
}

/// Sends what comes until nothing more will, and waits until all of it has arrived.
async fn write(mut send: SendStream, mut messages: mpsc::Receiver<Message>) {
    while let Some(message) = messages.recv().await {
        let frame = match handshake::frame(&message) {
            Ok(frame) => frame,
            Err(error) => {
                tracing::warn!("a message about views is not sent: {error}");
                continue;
            }
        };
        if send.write_all(&frame).await.is_err() {
            return;
        }
    }
    handshake::let_answer_arrive(&mut send).await;
}
