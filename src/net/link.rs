//! An emulated network card behind quinn's socket: packets leave and arrive when the
//! [`Card`] says. One thread an endpoint moves them, since the runtime's timer is too coarse for a
//! packet's time on a fast link.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use crate::protocol::link::{Card, LinkProfile};

/// A socket with an emulated card before it.
pub(super) struct EmulatedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    shared: Arc<Shared>,
}

impl fmt::Debug for EmulatedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmulatedSocket").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// What the socket and its thread share.
struct Shared {
    started: Instant,
    state: Mutex<State>,
    /// Something in the state became due earlier than it was.
    changed: Condvar,
}

struct State {
    card: Card,
    /// On their way, by the time at which they reach the other card.
    outgoing: VecDeque<(Duration, Outgoing)>,
    /// Being taken in, by the time at which the program has them.
    incoming: VecDeque<(Duration, Incoming)>,
    /// Whoever waits for the first incoming packet.
    reader: Option<Waker>,
    /// Whoever waits for room.
    writers: Vec<Waker>,
    closed: bool,
}

struct Outgoing {
    destination: SocketAddr,
    source: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
    contents: Vec<u8>,
}

struct Incoming {
    meta: RecvMeta,
    contents: Vec<u8>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

impl EmulatedSocket {
    /// Puts a card before a socket; losses and jitter follow from the seed.
    pub(super) fn new(
        inner: Arc<dyn AsyncUdpSocket>,
        profile: LinkProfile,
        seed: u64,
    ) -> io::Result<EmulatedSocket> {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            state: Mutex::new(State {
                card: Card::new(profile, seed),
                outgoing: VecDeque::new(),
                incoming: VecDeque::new(),
                reader: None,
                writers: Vec::new(),
                closed: false,
            }),
            changed: Condvar::new(),
        });
        let (socket, moved) = (inner.clone(), shared.clone());
        thread::Builder::new()
            .name("annulet-link".to_owned())
            .spawn(move || move_packets(socket.as_ref(), &moved))?;
        Ok(EmulatedSocket { inner, shared })
    }

    /// Takes in everything that has arrived at the real socket.
    fn take_in(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> io::Result<()> {
        while let Poll::Ready(count) = self.inner.poll_recv(cx, buffers, meta) {
            let mut state = self.shared.lock();
            let now = self.shared.now();
            for (buffer, meta) in buffers.iter().zip(&*meta).take(count?) {
                // One buffer may hold several packets, each as long as the stride but the last.
                for packet in buffer[..meta.len].chunks(meta.stride.max(1)) {
                    if let Some(due) = state.card.receive(now, packet.len()) {
                        let meta = RecvMeta { len: packet.len(), stride: packet.len(), ..*meta };
                        let contents = packet.to_vec();
                        state.incoming.push_back((due, Incoming { meta, contents }));
                    }
                }
            }
        }
        Ok(())
    }
}

impl AsyncUdpSocket for EmulatedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Room(self.shared.clone()))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut state = self.shared.lock();
        let now = self.shared.now();
        if state.card.held_back_until(now).is_some() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        for packet in transmit.contents.chunks(segment) {
            if let Some(due) = state.card.send(now, packet.len()) {
                let packet = Outgoing {
                    destination: transmit.destination,
                    source: transmit.src_ip,
                    ecn: transmit.ecn,
                    contents: packet.to_vec(),
                };
                state.outgoing.push_back((due, packet));
            }
        }
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.take_in(cx, buffers, meta)?;
        let mut state = self.shared.lock();
        let now = self.shared.now();
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let Some((_, packet)) = state.incoming.pop_front_if(|(due, _)| *due <= now) else {
                break;
            };
            buffer[..packet.contents.len()].copy_from_slice(&packet.contents);
            *meta = packet.meta;
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        state.reader = Some(cx.waker().clone());
        drop(state);
        self.shared.changed.notify_one();
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

impl Drop for EmulatedSocket {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

/// Waits for room in the card's queue.
struct Room(Arc<Shared>);

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Room")
    }
}

impl UdpPoller for Room {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        let now = self.0.now();
        if state.card.held_back_until(now).is_none() {
            return Poll::Ready(Ok(()));
        }
        if !state.writers.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.writers.push(cx.waker().clone());
        }
        drop(state);
        self.0.changed.notify_one();
        Poll::Pending
    }
}

/// The thread: sends what has reached the other card and wakes who waits, until the socket is gone
/// and nothing is on its way.
fn move_packets(socket: &dyn AsyncUdpSocket, shared: &Shared) {
    let mut state = shared.lock();
    loop {
        let now = shared.now();
        while let Some((_, packet)) = state.outgoing.pop_front_if(|(due, _)| *due <= now) {
            drop(state);
            // A full socket loses the packet, as a link may.
            let _ = socket.try_send(&Transmit {
                destination: packet.destination,
                ecn: packet.ecn,
                contents: &packet.contents,
                segment_size: None,
                src_ip: packet.source,
            });
            state = shared.lock();
        }
        let now = shared.now();
        let mut next = state.outgoing.front().map(|(due, _)| *due);
        let mut consider = |due: Duration| next = Some(next.map_or(due, |next| next.min(due)));
        if !state.writers.is_empty() {
            match state.card.held_back_until(now) {
                Some(until) => consider(until),
                None => state.writers.drain(..).for_each(Waker::wake),
            }
        }
        if let (Some((due, _)), true) = (state.incoming.front(), state.reader.is_some()) {
            let due = *due;
            if due <= now {
                state.reader.take().into_iter().for_each(Waker::wake);
            } else {
                consider(due);
            }
        }
        if state.closed && state.outgoing.is_empty() {
            return;
        }
        state = match next {
            Some(due) if due <= now => state,
            Some(due) => {
                let waited = shared.changed.wait_timeout(state, due - now);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
    }
}
