//! A worker's one address for its whole life: the groups of one view after the other, and the
//! connections to other members that outlive them.
//!
//! A station has one thread, one endpoint and one UDP port. Whoever connects says first what for:
//! callers for a group are handed to it, or wait a little for a group that this worker has not
//! joined yet; the others are members, or want to become ones (see `net/members.rs`).
//! The groups' drivers are tasks on the station's thread, so a group costs what it costs on a
//! thread of its own.

use std::future::Future;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError, mpsc as blocking};
use std::thread;
use std::time::Duration;

use quinn::ConnectionError;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::door::{Caller, Door};
use super::endpoint::{Endpoint, TransportSettings};
use super::handshake;
use super::identity::ClusterKey;
use super::members::Members;
use super::peer::{ATTEMPT_TIMEOUT, CODE_ABORT, HANDSHAKES_MAX, PeerAddress};
use super::{NetError, wire};
use crate::protocol::greeting::{Greeting, MemberHello};
use crate::protocol::membership::{Member, MemberId, Message};
use crate::protocol::message::Abort;

/// What a station is made from.
pub struct StationOptions {
    /// Bound to the address that the others are told.
    pub socket: UdpSocket,
    pub key: ClusterKey,
    pub transport: TransportSettings,
    /// What other members are told of this one.
    pub hello: MemberHello,
}

/// Something about another member.
#[derive(Debug)]
pub enum StationEvent {
    Message {
        from: MemberId,
        message: Message,
        /// To be dropped once the message is dealt with: a member may have a few unheeded ones only.
        unheeded: Unheeded,
    },
    /// A member of the view cannot be heard any more.
    Lost { id: MemberId, why: String },
}

/// A message that waits to be dealt with, among those of one connection.
#[derive(Debug)]
pub struct Unheeded {
    pub(super) _place: OwnedSemaphorePermit,
}

/// A member that has answered a worker that wants to come.
#[derive(Clone, Debug)]
pub struct Contact {
    pub member: MemberId,
    pub run_id: String,
    /// The address at which the member sees this worker.
    pub seen_at: String,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Station {
    runtime: Handle,
    endpoint: Endpoint,
    members: Arc<Members>,
    slot: watch::Sender<Slot>,
    stall_warning: Duration,
    /// The end, and the thread to wait for then.
    end: Mutex<Option<End>>,
}

/// Takes why a station ends, and its thread.
type End = (oneshot::Sender<Option<String>>, thread::JoinHandle<()>);

/// The newest group, if there is one: its generation, and where its callers are taken.
type Slot = Option<(u32, mpsc::Sender<Caller>)>;

impl Station {
    /// Starts the thread. `events` is called on it and must not block.
    ///
    /// # Errors
    /// If the socket or the settings cannot be used.
    pub fn open(
        options: StationOptions,
        events: impl Fn(StationEvent) + Send + Sync + 'static,
    ) -> Result<Station, NetError> {
        let StationOptions { socket, key, transport, hello } = options;
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(NetError::Thread)?;
        let endpoint = {
            let _inside = runtime.enter();
            Endpoint::new(socket, &key, &transport)?
        };
        let timeout = transport.failure_timeout;
        let members = Arc::new(Members::new(endpoint.clone(), hello, timeout, Box::new(events)));
        let (slot, newest) = watch::channel(None);
        let (end, ended) = oneshot::channel();
        let handle = runtime.handle().clone();
        let (shared, sorted) = (members.clone(), endpoint.clone());
        let thread = thread::Builder::new()
            .name("annulet-net".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::spawn(sort_callers(sorted, shared.clone(), newest));
                    // A station that is dropped has not parted in peace.
                    let reason = ended.await.unwrap_or_else(|_| Some("it is gone".to_owned()));
                    shared.close(reason).await;
                });
                // A name that is still being resolved must not hold up the end.
                runtime.shutdown_background();
            })
            .map_err(NetError::Thread)?;
        Ok(Station {
            runtime: handle,
            endpoint,
            members,
            slot,
            stall_warning: transport.stall_warning,
            end: Mutex::new(Some((end, thread))),
        })
    }

    /// Finds a member of a run that this worker wants to come to: all addresses are tried at once,
    /// and the first that answers is taken.
    ///
    /// # Errors
    /// If none answers in time, or one says that this worker does not fit.
    pub fn contact(
        &self,
        addresses: &[PeerAddress],
        within: Duration,
    ) -> Result<Contact, NetError> {
        let (sender, found) = blocking::sync_channel(1);
        let (members, addresses) = (self.members.clone(), addresses.to_vec());
        self.spawn(async move {
            let _ = sender.send(members.contact(addresses, within).await);
        });
        found.recv().unwrap_or_else(|_| Err(NetError::Stopped("its thread is gone".to_owned())))
    }

    /// Sends a message to another member. It is dropped if the member cannot be reached.
    pub fn send(&self, to: MemberId, message: Message) {
        let _inside = self.runtime.enter();
        self.members.send(to, message);
    }

    /// From now on these are the members, `me` among them: a connection to each is made, within so
    /// long, and kept, and its loss is an event.
    pub fn watch(&self, members: &[Member], me: MemberId, within: Duration) {
        let _inside = self.runtime.enter();
        self.members.watch(members, me, within);
    }

    /// This worker is another member from now on, in no view: all connections to members end.
    pub fn rename(&self, me: MemberId) {
        self.members.rename(me);
    }

    /// Parts from all others: in peace once everything said has reached them, or for a reason that
    /// they are told.
    pub fn part(&self, reason: Option<String>) {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((end, thread)) = end {
            // A thread that is gone has parted.
            let _ = end.send(reason);
            let _ = thread.join();
        }
    }

    /// The door of the newest group, that of this generation.
    pub(super) fn door(&self, generation: u32) -> Door {
        let (sender, callers) = mpsc::channel(HANDSHAKES_MAX);
        self.slot.send_replace(Some((generation, sender)));
        Door::shared(self.endpoint.clone(), callers)
    }

    pub(super) fn stall_warning(&self) -> Duration {
        self.stall_warning
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        self.part(Some("it left before the run's end".to_owned()));
    }
}

/// Takes connections, hears what they are for, and hands them over.
async fn sort_callers(endpoint: Endpoint, members: Arc<Members>, newest: watch::Receiver<Slot>) {
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            call = endpoint.accept(), if handshakes.len() < HANDSHAKES_MAX => {
                let Some((address, connecting)) = call else { return };
                handshakes.spawn(receive(address, connecting, members.clone(), newest.clone()));
            }
            Some(done) = handshakes.join_next() => {
                done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            }
        }
    }
}

async fn receive(
    address: SocketAddr,
    connecting: Result<quinn::Connecting, ConnectionError>,
    members: Arc<Members>,
    newest: watch::Receiver<Slot>,
) {
    match timeout(ATTEMPT_TIMEOUT, handshake::hear(address, connecting)).await {
        Ok(Ok(caller)) => match &caller.greeting {
            Greeting::Group(hello) => {
                let (generation, rank) = (hello.generation, hello.rank);
                hand_over(caller, generation, rank, newest).await;
            }
            Greeting::Member(theirs) => {
                let theirs = theirs.clone();
                let _ = timeout(ATTEMPT_TIMEOUT, members.welcome(caller, theirs)).await;
            }
        },
        Ok(Err(failed)) => tracing::warn!("turned away {address}: {failed}"),
        Err(_) => tracing::debug!("turned away {address}: it fell silent"),
    }
}

/// Gives a caller to the group that it wants. Its worker may have heard of a view a little earlier
/// than this one, so the group is waited for as long as the caller waits.
async fn hand_over(caller: Caller, generation: u32, rank: u32, mut newest: watch::Receiver<Slot>) {
    let is_there = |slot: &Slot| slot.as_ref().is_some_and(|(newest, _)| *newest >= generation);
    let slot = match timeout(ATTEMPT_TIMEOUT, newest.wait_for(is_there)).await {
        Ok(Ok(slot)) => slot.clone(),
        _ => return,
    };
    let Some((newest, callers)) = slot else { return };
    let connection = caller.connection.clone();
    if newest != generation || callers.try_send(caller).is_err() {
        // Nobody is to blame: the caller is told what it needs to know by other members.
        let abort = Abort::new(rank, None, "the group of this view is there no more".to_owned());
        connection.close(CODE_ABORT, &wire::encode(&abort).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::members::UNHEEDED_MAX;
    use crate::protocol::membership::{Member, View};

    /// What a station is told, and the station of a worker with this number and these terms.
    fn station(
        key: &ClusterKey,
        id: u64,
        lr: &str,
        run_id: Option<&str>,
    ) -> (Station, blocking::Receiver<StationEvent>, Member) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port on loopback");
        let address = socket.local_addr().expect("a bound socket");
        let (sender, events) = blocking::channel();
        let hello = MemberHello {
            id: MemberId(id),
            run_id: run_id.map(str::to_owned),
            terms: vec![("lr".to_owned(), lr.to_owned())],
        };
        let (key, transport) = (key.clone(), TransportSettings::default());
        let options = StationOptions { socket, key, transport, hello };
        let told = move |event| drop(sender.send(event));
        let member = Member { id: MemberId(id), addresses: vec![address.to_string()] };
        (Station::open(options, told).expect("a station"), events, member)
    }

    /// Longer than anything here takes; whoever waits in vain fails.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn members_hear_each_other_and_miss_one_that_is_gone() {
        let key = ClusterKey::generate().expect("a key");
        let (a, told_a, member_a) = station(&key, 0, "0.1", Some("fox"));
        let (b, told_b, member_b) = station(&key, 1, "0.1", Some("fox"));
        let view = View::first(vec![member_a, member_b], 0);
        a.watch(&view.members, MemberId(0), PATIENCE);
        let commit = Message::Commit { view: Box::new(view) };
        a.send(MemberId(1), commit.clone());
        let heard = told_b.recv_timeout(PATIENCE).expect("a message");
        let StationEvent::Message { from, message, .. } = heard else { panic!("{heard:?}") };
        assert_eq!((from, message), (MemberId(0), commit));
        // The other direction needs no address: there is a connection.
        b.send(MemberId(0), Message::Leave { generation: 0, why: String::new() });
        let heard = told_a.recv_timeout(PATIENCE).expect("a message");
        assert!(matches!(heard, StationEvent::Message { from: MemberId(1), .. }), "{heard:?}");
        b.part(Some("its disk is full".to_owned()));
        let heard = told_a.recv_timeout(PATIENCE).expect("a loss");
        let StationEvent::Lost { id, why } = heard else { panic!("{heard:?}") };
        assert_eq!((id, why.as_str()), (MemberId(1), "it ended: its disk is full"));
    }

    #[test]
    fn whoever_comes_hears_the_run_or_why_it_does_not_fit() {
        let key = ClusterKey::generate().expect("a key");
        let (_a, told, member) = station(&key, 0, "0.1", Some("fox"));
        let contacts = [member.addresses[0].parse().expect("an address")];
        let (b, _, itself) = station(&key, 7, "0.1", None);
        let contact = b.contact(&contacts, PATIENCE).expect("it fits");
        assert_eq!((contact.member, contact.run_id.as_str()), (MemberId(0), "fox"));
        assert_eq!(contact.seen_at, itself.addresses[0]);
        let (c, _, _) = station(&key, 8, "0.2", None);
        let error = c.contact(&contacts, PATIENCE).expect_err("another learning rate");
        assert!(error.to_string().contains("lr differs: worker 8 has 0.2"), "{error}");
        // Nobody in the run has noticed.
        drop((b, c));
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn whoever_says_more_than_can_be_heeded_is_dropped() {
        let key = ClusterKey::generate().expect("a key");
        let (a, told_a, member_a) = station(&key, 0, "0.1", Some("fox"));
        let (b, _, member_b) = station(&key, 1, "0.1", Some("fox"));
        let view = View::first(vec![member_a, member_b], 0);
        a.watch(&view.members, MemberId(0), PATIENCE);
        b.watch(&view.members, MemberId(1), PATIENCE);
        let ask = || b.send(MemberId(0), Message::Ask { generation: None });
        // Heeded one after the other, there may be any number.
        for _ in 0..2 * UNHEEDED_MAX {
            ask();
            let heard = told_a.recv_timeout(PATIENCE).expect("a message");
            assert!(matches!(heard, StationEvent::Message { .. }), "{heard:?}");
        }
        let mut waiting = Vec::new();
        let why = loop {
            ask();
            match told_a.recv_timeout(PATIENCE).expect("a message or the loss") {
                StationEvent::Lost { why, .. } => break why,
                heard => waiting.push(heard),
            }
        };
        assert_eq!(waiting.len(), UNHEEDED_MAX);
        assert!(why.contains("more than 256 messages"), "{why}");
    }

    #[test]
    fn a_view_that_cannot_be_ends_the_connection() {
        let key = ClusterKey::generate().expect("a key");
        let (a, told_a, member_a) = station(&key, 0, "0.1", Some("fox"));
        let (b, _, member_b) = station(&key, 1, "0.1", Some("fox"));
        let mut view = View::first(vec![member_a, member_b], 0);
        a.watch(&view.members, MemberId(0), PATIENCE);
        b.watch(&view.members, MemberId(1), PATIENCE);
        view.source = MemberId(9);
        b.send(MemberId(0), Message::Commit { view: Box::new(view) });
        let heard = told_a.recv_timeout(PATIENCE).expect("a loss");
        let StationEvent::Lost { id, why } = heard else { panic!("{heard:?}") };
        assert_eq!(id, MemberId(1));
        assert!(why.starts_with("it broke the protocol"), "{why}");
    }
}
