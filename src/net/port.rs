//! An emulated [`Card`] with the packets on it: those that leave through the real socket, those that
//! come from other cards of this process, and those that the program may have.
//!
//! **Between cards of one process** packets change hands in memory, with the time at which each
//! arrives: the loopback is no part of the emulated link, and its price, several system calls and
//! thread switches a packet, would be measured in its place. All of QUIC stays: packets of a real
//! link's size, each encrypted, acknowledged and, if the link says so, lost on its own.
//!
//! **Between processes** packets go through the kernel once they have reached the other card; those
//! that are due together go together, by segmentation offload where the system has it.
//!
//! Who waits for packets is woken at most every [`MODERATION`], as by a real card that moderates
//! its interrupts. The card's own times do not depend on when anybody is woken.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quinn::AsyncUdpSocket;
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};

use super::mover::Mover;
use crate::protocol::link::{Card, MODERATION};

/// A larger batch is more than a UDP datagram may have to the kernel.
const BATCH_BYTES_MAX: usize = 65_000;

/// A card, and what is on it.
pub(super) struct Port {
    socket: Arc<dyn AsyncUdpSocket>,
    address: SocketAddr,
    /// Packets that the kernel takes at once.
    batch_max: usize,
    mover: Arc<Mover>,
    state: Mutex<State>,
}

struct State {
    card: Card,
    /// On their way to other processes, by the time at which they reach the other card.
    outgoing: VecDeque<(Duration, Packet)>,
    /// On their way from this process's other cards.
    arriving: BinaryHeap<Reverse<Arriving>>,
    /// How many ever were.
    arriving_count: u64,
    /// Being taken in, by the time at which the program has them.
    incoming: VecDeque<(Duration, Packet)>,
    /// Whoever waits for the first incoming packet.
    reader: Option<Waker>,
    /// Whoever waits for room.
    writers: Vec<Waker>,
    /// When packets were last handed to the kernel, and when the reader was last woken.
    handed_at: Duration,
    woken_at: Duration,
    /// When the mover's next turn is.
    turn_at: Option<Duration>,
}

#[derive(Clone)]
struct Packet {
    /// Where it goes, or comes from.
    remote: SocketAddr,
    local: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
    /// The batch with which it was sent, and its place in that.
    batch: Arc<[u8]>,
    place: Range<usize>,
}

impl Packet {
    fn contents(&self) -> &[u8] {
        &self.batch[self.place.clone()]
    }
}

/// A packet that will arrive, ordered by when, and by when it was sent: jitter never reorders.
struct Arriving {
    at: Duration,
    number: u64,
    packet: Packet,
}

impl Ord for Arriving {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Arriving {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Arriving {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Arriving {}

impl Port {
    /// A card before a socket; `gso`: whether batches may be handed to the kernel at once.
    pub(super) fn new(
        socket: Arc<dyn AsyncUdpSocket>,
        card: Card,
        gso: bool,
    ) -> io::Result<Arc<Port>> {
        let mover = Mover::of_this_process()?;
        let address = socket.local_addr()?;
        let batch_max = if gso { socket.max_transmit_segments() } else { 1 };
        let state = Mutex::new(State {
            card,
            outgoing: VecDeque::new(),
            arriving: BinaryHeap::new(),
            arriving_count: 0,
            incoming: VecDeque::new(),
            reader: None,
            writers: Vec::new(),
            handed_at: Duration::ZERO,
            woken_at: Duration::ZERO,
            turn_at: None,
        });
        let port = Arc::new(Port { socket, address, batch_max, mover, state });
        port.mover.enter(address, &port);
        Ok(port)
    }

    /// Sends a batch.
    ///
    /// # Errors
    /// `WouldBlock` while the card holds the program back.
    pub(super) fn send(self: &Arc<Self>, transmit: &Transmit<'_>) -> io::Result<()> {
        let reachable = (!self.address.ip().is_unspecified()).then_some(transmit.destination);
        let neighbour = reachable.and_then(|address| self.mover.port(address));
        let mut state = self.lock();
        let now = self.mover.now();
        if state.card.held_back_until(now).is_some() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let batch: Arc<[u8]> = transmit.contents.into();
        let segment = transmit.segment_size.unwrap_or(batch.len()).max(1);
        let packets = (0..batch.len()).step_by(segment).filter_map(|start| {
            let place = start..(start + segment).min(batch.len());
            let at = state.card.send(now, place.len())?;
            let packet = Packet {
                remote: transmit.destination,
                local: transmit.src_ip,
                ecn: transmit.ecn,
                batch: batch.clone(),
                place,
            };
            Some((at, packet))
        });
        match neighbour {
            None => {
                let packets: Vec<_> = packets.collect();
                state.outgoing.extend(packets);
                self.plan_turn(&mut state, now);
            }
            Some(neighbour) => {
                let source = transmit.src_ip.unwrap_or(self.address.ip());
                let packets: Vec<_> = packets
                    .map(|(at, packet)| {
                        let local = Some(packet.remote.ip());
                        let remote = SocketAddr::new(source, self.address.port());
                        (at, Packet { remote, local, ..packet })
                    })
                    .collect();
                drop(state);
                neighbour.expect(packets);
            }
        }
        Ok(())
    }

    /// Packets of another card are on their way to this one.
    fn expect(self: &Arc<Self>, packets: Vec<(Duration, Packet)>) {
        let mut state = self.lock();
        for (at, packet) in packets {
            let number = state.arriving_count;
            state.arriving_count += 1;
            state.arriving.push(Reverse(Arriving { at, number, packet }));
        }
        self.plan_turn(&mut state, self.mover.now());
    }

    /// Gives the program the packets that it may have, one a buffer.
    pub(super) fn poll_recv(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.take_in(cx, buffers, meta)?;
        let mut state = self.lock();
        let now = self.mover.now();
        state.take_arrived(now);
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let Some((_, packet)) = state.incoming.pop_front_if(|(due, _)| *due <= now) else {
                break;
            };
            let contents = packet.contents();
            buffer[..contents.len()].copy_from_slice(contents);
            let len = contents.len();
            let Packet { remote: addr, local: dst_ip, ecn, .. } = packet;
            *meta = RecvMeta { addr, len, stride: len, ecn, dst_ip };
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        state.reader = Some(cx.waker().clone());
        self.plan_turn(&mut state, now);
        Poll::Pending
    }

    /// Takes in everything that has arrived at the real socket.
    fn take_in(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> io::Result<()> {
        while let Poll::Ready(count) = self.socket.poll_recv(cx, buffers, meta) {
            let mut state = self.lock();
            let now = self.mover.now();
            state.take_arrived(now);
            for (buffer, meta) in buffers.iter().zip(&*meta).take(count?) {
                // One buffer may hold several packets, each as long as the stride but the last.
                let batch: Arc<[u8]> = buffer[..meta.len].into();
                for start in (0..meta.len).step_by(meta.stride.max(1)) {
                    let place = start..(start + meta.stride.max(1)).min(meta.len);
                    let packet = Packet {
                        remote: meta.addr,
                        local: meta.dst_ip,
                        ecn: meta.ecn,
                        batch: batch.clone(),
                        place,
                    };
                    state.take(now, packet);
                }
            }
        }
        Ok(())
    }

    /// Waits for room on the card.
    pub(super) fn poll_room(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let now = self.mover.now();
        if state.card.held_back_until(now).is_none() {
            return Poll::Ready(());
        }
        if !state.writers.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.writers.push(cx.waker().clone());
        }
        self.plan_turn(&mut state, now);
        Poll::Pending
    }

    /// Lets no more packets come from this process's other cards. Those on their way to other
    /// processes still leave.
    pub(super) fn close(self: &Arc<Self>) {
        self.mover.leave(self.address, self);
    }

    /// The mover's turn: does what is due. A turn that was meanwhile planned anew is not taken.
    pub(super) fn turn(self: &Arc<Self>, at: Duration) {
        let mut state = self.lock();
        if state.turn_at != Some(at) {
            return;
        }
        state.turn_at = None;
        let now = self.mover.now();
        let mut to_hand = Vec::new();
        while let Some((_, packet)) = state.outgoing.pop_front_if(|(due, _)| *due <= now) {
            to_hand.push(packet);
        }
        if !to_hand.is_empty() {
            state.handed_at = now;
        }
        let mut to_wake = Vec::new();
        if !state.writers.is_empty() && state.card.held_back_until(now).is_none() {
            to_wake.append(&mut state.writers);
        }
        state.take_arrived(now);
        let may_wake = now >= state.woken_at + MODERATION;
        if may_wake
            && state.incoming.front().is_some_and(|(due, _)| *due <= now)
            && let Some(reader) = state.reader.take()
        {
            state.woken_at = now;
            to_wake.push(reader);
        }
        self.plan_turn(&mut state, now);
        drop(state);
        to_wake.into_iter().for_each(Waker::wake);
        self.hand_over(&to_hand);
    }

    /// Hands packets to the kernel, in as few calls as it allows.
    fn hand_over(&self, packets: &[Packet]) {
        let mut rest = packets;
        let mut batch = Vec::new();
        while let Some(first) = rest.first() {
            let segment = first.place.len();
            batch.clear();
            let mut count = 0;
            for packet in rest {
                // All but the last have the same length.
                let fits = batch.len() == count * segment
                    && packet.place.len() <= segment
                    && batch.len() + packet.place.len() <= BATCH_BYTES_MAX
                    && (packet.remote, packet.local, packet.ecn)
                        == (first.remote, first.local, first.ecn);
                if count > 0 && (count == self.batch_max || !fits) {
                    break;
                }
                batch.extend_from_slice(packet.contents());
                count += 1;
            }
            // A full socket loses packets, as a link may.
            let _ = self.socket.try_send(&Transmit {
                destination: first.remote,
                ecn: first.ecn,
                contents: &batch,
                segment_size: (count > 1).then_some(segment),
                src_ip: first.local,
            });
            rest = &rest[count..];
        }
    }

    /// Has the mover come when the next thing is due, unless it comes earlier anyway.
    fn plan_turn(self: &Arc<Self>, state: &mut State, now: Duration) {
        let Some(next) = state.next(now) else { return };
        if state.turn_at.is_none_or(|planned| next < planned) {
            state.turn_at = Some(next);
            self.mover.schedule(next, self.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes in what has arrived of this process's other cards, at the time at which it did.
    fn take_arrived(&mut self, now: Duration) {
        while let Some(Reverse(first)) = self.arriving.peek() {
            if first.at > now {
                return;
            }
            let Reverse(Arriving { at, packet, .. }) =
                self.arriving.pop().expect("it was peeked at");
            self.take(at, packet);
        }
    }

    /// Takes in a packet that has arrived, unless it is dropped.
    fn take(&mut self, at: Duration, packet: Packet) {
        if let Some(due) = self.card.receive(at, packet.place.len()) {
            self.incoming.push_back((due, packet));
        }
    }

    /// When something is to be done next.
    fn next(&mut self, now: Duration) -> Option<Duration> {
        let hand = self.outgoing.front().map(|(due, _)| (*due).max(self.handed_at + MODERATION));
        let room = match self.writers.is_empty() {
            true => None,
            false => Some(self.card.held_back_until(now).unwrap_or(now)),
        };
        let read = match (self.reader.is_some(), self.incoming.front()) {
            (false, _) => None,
            (true, Some((due, _))) => Some((*due).max(self.woken_at + MODERATION)),
            (true, None) => self.arriving.peek().map(|Reverse(first)| first.at),
        };
        [hand, room, read].into_iter().flatten().min()
    }
}
