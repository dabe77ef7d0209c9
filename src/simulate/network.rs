//! Nodes with a card and a processor each, and the packets between them, in virtual time.
//!
//! A packet costs its sender processor time, waits for the sender's [`Card`] (the very state machine
//! behind `--link`), travels, passes the receiver's card, and costs the receiver processor time.
//! What a node has for several others leaves as from QUIC connections in one thread: each in turn
//! hands over up to [`TURN_PACKETS`], until the card holds it back. When the card takes packets
//! again, whoever was held back first goes on to its message's end. A lost packet is sent again
//! when QUIC (RFC 9002) would notice, and what follows it on its stream waits for it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use super::machine::Machine;
use crate::protocol::link::{Card, FRAME_BYTES, LinkProfile, MODERATION};

/// Nanoseconds since the start.
pub(super) type Time = u64;

/// What QUIC and TLS add to a packet of stream bytes: the short header, a stream frame's header and
/// the tag.
const PACKET_BYTES: usize = 36;

/// Packets that a connection hands over before it is another one's turn, as in quinn.
const TURN_PACKETS: usize = 20;

/// QUIC's wait before a packet that nothing follows is taken for lost, beside a round trip: the
/// timer's granularity and the longest delay of an acknowledgement.
const PROBE_DELAY: Duration = Duration::from_millis(6);

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Happening {
    /// When the node has dealt with it so far; not before anything that happened to it earlier.
    pub at: Time,
    pub node: usize,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The timer that was set has run out.
    Timer,
    /// The next bytes of the stream from a node are here, and with them the end of a message if
    /// there is a tag.
    Bytes { from: usize, bytes: usize, tag: Option<u32> },
}

/// A node's threads, each of which does one thing after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thread {
    /// Computes, adds up and applies.
    Trainer,
    /// Speaks QUIC.
    Network,
}

pub(super) struct Network {
    machine: Machine,
    /// A full packet's stream bytes: whole words.
    payload: usize,
    /// What moves as one.
    piece: usize,
    rtt: Duration,
    lossy: bool,
    nodes: Vec<Node>,
    /// When each shared core is free.
    cores: Vec<Time>,
    /// When the thread that serves emulated cards has done what it knows of.
    mover_free_at: Time,
    /// What all threads have worked.
    worked: Time,
    events: BinaryHeap<Event>,
    sequence: u64,
    /// What has happened and is not told yet.
    untold: VecDeque<Happening>,
}

struct Node {
    card: Card,
    /// In ascending order.
    peers: Vec<u32>,
    streams: Vec<Stream>,
    /// Peers' places that have something to send, the next one first.
    turns: VecDeque<u32>,
    turn_packets: usize,
    waits_for_room: bool,
    /// When each [`Thread`] has done what it knows of.
    free_at: [Time; 2],
    /// When an emulated card says next that there is something to read: late, so that all that is due
    /// by then is read together.
    alarm: Option<Time>,
    /// When it did last.
    alarmed: Time,
    /// Due, and not read yet.
    unread: Vec<Packet>,
    /// Only one node sends to this one, so that packets arrive in the order in which they leave.
    has_one_source: bool,
    sent: u64,
    received: u64,
}

/// To and from one peer.
#[derive(Default)]
struct Stream {
    segments: VecDeque<(usize, Option<u32>)>,
    /// Packets sent; only counted where some may be lost.
    sent: u32,
    /// Packets received in order, and those that came before an earlier one.
    received: u32,
    early: BTreeMap<u32, Packet>,
}

#[derive(Clone, Copy)]
struct Packet {
    from: u32,
    to: u32,
    bytes: u32,
    number: u32,
    tag: Option<u32>,
}

struct Event {
    at: Time,
    sequence: u64,
    kind: Kind,
}

enum Kind {
    Timer(u32),
    /// The card takes packets again.
    Room(u32),
    /// An emulated card's timer runs out.
    Alarm(u32),
    /// At the receiver's card.
    Arrives(Packet),
    /// Through the receiver's card.
    Due(Packet),
    Resend(Packet),
}

/// The earliest first; of several, the one that was scheduled first.
impl Ord for Event {
    fn cmp(&self, other: &Event) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

impl Network {
    /// Nodes that speak to these peers each, in ascending order; so many packets move as one, which
    /// saves time where there are many.
    pub(super) fn new(
        link: &LinkProfile,
        machine: &Machine,
        peers: Vec<Vec<usize>>,
        has_one_source: bool,
        packets_at_once: usize,
        seed: u64,
    ) -> Network {
        // What is dropped before a full card would be sent again more slowly by congestion control,
        // which is not modelled; it waits instead.
        let link = LinkProfile { queue: u32::MAX, ..*link };
        let node = |(index, peers): (usize, Vec<usize>)| Node {
            card: Card::new(link, seed.wrapping_add(index as u64)),
            streams: peers.iter().map(|_| Stream::default()).collect(),
            peers: peers.into_iter().map(|peer| peer as u32).collect(),
            turns: VecDeque::new(),
            turn_packets: 0,
            waits_for_room: false,
            free_at: [0; 2],
            alarm: None,
            alarmed: 0,
            unread: Vec::new(),
            has_one_source,
            sent: 0,
            received: 0,
        };
        let payload = (machine.mtu as usize - PACKET_BYTES) / 4 * 4;
        Network {
            machine: *machine,
            payload,
            piece: payload * packets_at_once.max(1),
            rtt: 2 * link.latency + link.jitter,
            lossy: link.loss_ppm > 0,
            nodes: peers.into_iter().enumerate().map(node).collect(),
            cores: vec![0; machine.cores],
            mover_free_at: 0,
            worked: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            untold: VecDeque::new(),
        }
    }

    /// A node's timer runs out.
    pub(super) fn set_timer(&mut self, node: usize, at: Time) {
        self.schedule(at, Kind::Timer(node as u32));
    }

    /// A node has bytes for another; [`flush`](Network::flush) lets them leave.
    pub(super) fn send(&mut self, node: usize, to: usize, bytes: usize, tag: Option<u32>) {
        let node = &mut self.nodes[node];
        let place = node.place(to);
        node.sent += bytes as u64;
        let segments = &mut node.streams[place].segments;
        if segments.is_empty() {
            node.turns.push_back(place as u32);
        }
        match segments.back_mut() {
            Some((more, None)) if tag.is_none() => *more += bytes,
            _ => segments.push_back((bytes, tag)),
        }
    }

    /// Lets a node's bytes leave as far as its card takes them, one peer's after another's in turns.
    pub(super) fn flush(&mut self, node: usize, at: Time) {
        self.leave(node, at, TURN_PACKETS);
    }

    /// As [`flush`](Network::flush), by a trainer, which must hand over to the thread that sends.
    pub(super) fn hand_over(&mut self, node: usize, at: Time) {
        let at = self.wake(node, Thread::Network, at, 0);
        self.flush(node, at);
    }

    /// As [`flush`](Network::flush), where a peer's turn has so many packets.
    fn leave(&mut self, node: usize, at: Time, turn_packets: usize) {
        let mut now = at.max(self.nodes[node].free_at[Thread::Network as usize]);
        while let Some(&place) = self.nodes[node].turns.front() {
            let sender = &mut self.nodes[node];
            if let Some(until) = sender.card.held_back_until(Duration::from_nanos(now)) {
                if !std::mem::replace(&mut sender.waits_for_room, true) {
                    self.schedule(nanos(until), Kind::Room(node as u32));
                }
                return;
            }
            let stream = &mut sender.streams[place as usize];
            let (left, tag) = stream.segments.front_mut().expect("it has something to send");
            let bytes = (*left).min(self.piece);
            *left -= bytes;
            let ends = *left == 0;
            let packet = Packet {
                from: node as u32,
                to: sender.peers[place as usize],
                bytes: bytes as u32,
                number: stream.sent,
                tag: tag.filter(|_| ends),
            };
            stream.sent = stream.sent.wrapping_add(1);
            if ends {
                stream.segments.pop_front();
            }
            sender.turn_packets += bytes.div_ceil(self.payload);
            let is_empty = stream.segments.is_empty();
            if is_empty || sender.turn_packets >= turn_packets {
                sender.turn_packets = 0;
                sender.turns.pop_front();
                if !is_empty {
                    sender.turns.push_back(place);
                }
            }
            let cost = self.machine.packets_ns(bytes, bytes.div_ceil(self.payload));
            now = self.work(node, Thread::Network, now, cost);
            self.transmit(packet, now);
        }
    }

    /// The next thing that happens to a node, if any is still to come.
    pub(super) fn next(&mut self) -> Option<Happening> {
        loop {
            if let Some(happening) = self.untold.pop_front() {
                return Some(happening);
            }
            let Event { at, kind, .. } = self.events.pop()?;
            match kind {
                Kind::Timer(node) => {
                    let node = node as usize;
                    let at = self.wake(node, Thread::Trainer, at, 0);
                    return Some(Happening { at, node, what: What::Timer });
                }
                Kind::Room(node) => {
                    self.nodes[node as usize].waits_for_room = false;
                    self.leave(node as usize, at, usize::MAX);
                }
                Kind::Alarm(node) => {
                    let at = self.move_packets(at);
                    self.nodes[node as usize].alarm = None;
                    self.read(node as usize, at);
                }
                Kind::Arrives(packet) => {
                    if let Some(due) = self.take_in(&packet, at) {
                        self.schedule(due, Kind::Due(packet));
                    }
                }
                Kind::Due(packet) => {
                    let node = packet.to as usize;
                    self.nodes[node].unread.push(packet);
                    if self.machine.emulated && !self.nodes[node].is_busy(Thread::Network, at) {
                        self.set_alarm(node, at);
                    } else {
                        self.read(node, at);
                    }
                }
                Kind::Resend(packet) => self.transmit(packet, at),
            }
        }
    }

    /// A node's thread is busy for so long from then on; when it is done.
    pub(super) fn work(&mut self, node: usize, thread: Thread, at: Time, cost: Time) -> Time {
        let start = at.max(self.nodes[node].free_at[thread as usize]);
        let end = self.occupy(start, cost);
        self.nodes[node].free_at[thread as usize] = end;
        end
    }

    /// A core is busy for so long, as soon as there is one; when it is done.
    fn occupy(&mut self, at: Time, cost: Time) -> Time {
        let Some(core) = self.cores.iter_mut().min() else { return at + cost };
        let end = at.max(*core) + cost;
        *core = end;
        self.worked += cost;
        end
    }

    /// As [`work`](Network::work), where the thread may have to be woken first.
    pub(super) fn wake(&mut self, node: usize, thread: Thread, at: Time, cost: Time) -> Time {
        let sleeps = at > self.nodes[node].free_at[thread as usize];
        self.work(node, thread, at, cost + if sleeps { self.machine.wake_ns } else { 0 })
    }

    /// An emulated card has something to read from then on, and a timer that runs out late; nor does it
    /// wake its reader more often than cards do.
    fn set_alarm(&mut self, node: usize, at: Time) {
        let card = &mut self.nodes[node];
        if card.alarm.is_some() {
            return;
        }
        let alarm = (at + self.machine.timer_ns).max(card.alarmed + nanos(MODERATION));
        card.alarm = Some(alarm);
        card.alarmed = alarm;
        self.schedule(alarm, Kind::Alarm(node as u32));
    }

    /// The one thread that serves all emulated cards does what is due; when it has.
    fn move_packets(&mut self, at: Time) -> Time {
        let sleeps = at > self.mover_free_at;
        let cost = if sleeps { self.machine.wake_ns } else { 0 };
        self.mover_free_at = self.occupy(at.max(self.mover_free_at), cost);
        self.mover_free_at
    }

    /// A node reads what is through its card.
    fn read(&mut self, node: usize, at: Time) {
        let mut unread = std::mem::take(&mut self.nodes[node].unread);
        for packet in unread.drain(..) {
            self.deliver(packet, at);
        }
        // Its room is used again.
        self.nodes[node].unread = unread;
    }

    /// The share of the cores' time until then for which they were busy; none if nodes have cores of
    /// their own.
    pub(super) fn busy(&self, until: Time) -> Option<f64> {
        let all = self.cores.len() as f64 * until as f64;
        (all > 0.0).then(|| self.worked as f64 / all)
    }

    /// Bytes that a node has sent and received.
    pub(super) fn traffic(&self, node: usize) -> (u64, u64) {
        (self.nodes[node].sent, self.nodes[node].received)
    }

    fn transmit(&mut self, packet: Packet, now: Time) {
        let bytes = self.wire_bytes(&packet);
        let card = &mut self.nodes[packet.from as usize].card;
        let Some(arrival) = card.send(Duration::from_nanos(now), bytes) else {
            let sender = &self.nodes[packet.from as usize];
            let stream = &sender.streams[sender.place(packet.to as usize)];
            // Acknowledgements of three later packets tell of the loss at once.
            let follow: usize = stream.segments.iter().map(|(bytes, _)| bytes).sum();
            let noticed =
                if follow > 2 * self.payload { self.rtt * 9 / 8 } else { self.rtt + PROBE_DELAY };
            return self.schedule(now + nanos(noticed), Kind::Resend(packet));
        };
        let arrival = nanos(arrival);
        if self.nodes[packet.to as usize].has_one_source {
            if let Some(due) = self.take_in(&packet, arrival) {
                self.schedule(due, Kind::Due(packet));
            }
        } else {
            self.schedule(arrival, Kind::Arrives(packet));
        }
    }

    /// Through the receiver's card; when the node has it.
    fn take_in(&mut self, packet: &Packet, at: Time) -> Option<Time> {
        let bytes = self.wire_bytes(packet);
        let card = &mut self.nodes[packet.to as usize].card;
        let due = card.receive(Duration::from_nanos(at), bytes)?;
        Some(nanos(due))
    }

    /// A node reads a packet: nothing comes of it yet, if an earlier one was lost.
    fn deliver(&mut self, packet: Packet, at: Time) {
        let receiver = &mut self.nodes[packet.to as usize];
        let place = receiver.place(packet.from as usize);
        let stream = &mut receiver.streams[place];
        if self.lossy {
            if packet.number != stream.received {
                stream.early.insert(packet.number, packet);
                return;
            }
            stream.received = stream.received.wrapping_add(1);
            // What waited for this one is due too.
            let next = stream.early.remove(&stream.received);
            if let Some(next) = next {
                self.schedule(at, Kind::Due(next));
            }
        }
        self.nodes[packet.to as usize].received += u64::from(packet.bytes);
        let (node, bytes) = (packet.to as usize, packet.bytes as usize);
        let cost = self.machine.packets_ns(bytes, bytes.div_ceil(self.payload));
        let at = self.wake(node, Thread::Network, at, cost);
        let what = What::Bytes { from: packet.from as usize, bytes, tag: packet.tag };
        self.untold.push_back(Happening { at, node, what });
    }

    /// As the card counts them, which adds one frame's headers itself.
    fn wire_bytes(&self, packet: &Packet) -> usize {
        let bytes = packet.bytes as usize;
        let packets = bytes.div_ceil(self.payload).max(1);
        bytes + packets * (PACKET_BYTES + FRAME_BYTES) - FRAME_BYTES
    }

    fn schedule(&mut self, at: Time, kind: Kind) {
        self.sequence += 1;
        self.events.push(Event { at, sequence: self.sequence, kind });
    }
}

impl Node {
    /// Whether a thread is awake then, so that it finds what becomes due.
    fn is_busy(&self, thread: Thread, at: Time) -> bool {
        self.free_at[thread as usize] >= at
    }

    /// Where a peer's stream is.
    fn place(&self, peer: usize) -> usize {
        match self.peers.as_slice() {
            // By far the most common cases.
            [only] if *only as usize == peer => 0,
            [first, _] => usize::from(*first as usize != peer),
            peers => peers.binary_search(&(peer as u32)).expect("they speak to each other"),
        }
    }
}

pub(super) fn nanos(duration: Duration) -> Time {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::link::SEND_QUEUE_PACKETS;

    /// Two nodes, and all that happens to them after one has sent the other so many bytes.
    fn two(link: &str, machine: &Machine, bytes: usize) -> Vec<Happening> {
        let link = link.parse().unwrap();
        let mut network = Network::new(&link, machine, vec![vec![1], vec![0]], true, 1, 7);
        network.send(0, 1, bytes, Some(3));
        network.flush(0, 0);
        std::iter::from_fn(|| network.next()).collect()
    }

    const MTU: usize = 1_452;

    fn no_processor() -> Machine {
        Machine { mtu: MTU as u32, ..Machine::without_overheads() }
    }

    #[test]
    fn a_packet_takes_its_time_on_both_cards_and_the_latency_between() {
        let payload = MTU - PACKET_BYTES;
        let happened = two("1gbit/1ms", &no_processor(), 3 * payload);
        // 1,494 bytes at 1 Gbit/s, out and in again.
        let takes = 8 * (MTU + FRAME_BYTES) as u64;
        let at: Vec<_> = happened.iter().map(|h| h.at).collect();
        let first = 1_000_000 + 2 * takes;
        assert_eq!(at, [first, first + takes, first + 2 * takes]);
        let what = |tag| What::Bytes { from: 0, bytes: payload, tag };
        assert_eq!(
            happened.iter().map(|h| h.what).collect::<Vec<_>>(),
            [what(None), what(None), what(Some(3))]
        );
    }

    #[test]
    fn processors_cost_time_and_are_shared() {
        let machine = Machine { packet_ns: 1_000.0, wake_ns: 5_000, ..no_processor() };
        // One packet: sent by an awake thread, received by one that sleeps.
        assert_eq!(two("loopback", &machine, 4)[0].at, 1_000 + 5_000 + 1_000);
        let shared = Machine { cores: 1, wake_ns: 0, ..machine };
        let own = Machine { cores: 0, ..shared };
        let last = |machine| two("loopback", machine, 40 * MTU).last().unwrap().at;
        // With one core the receiver waits until everything is sent.
        assert!(last(&shared) > last(&own) + 30_000, "{} {}", last(&shared), last(&own));
    }

    #[test]
    fn lost_packets_come_late_and_in_order() {
        let bytes = |happened: &[Happening]| -> usize {
            let of = |h: &Happening| match h.what {
                What::Bytes { bytes, .. } => bytes,
                What::Timer => 0,
            };
            happened.iter().map(of).sum()
        };
        let clean = two("100mbit/1ms", &no_processor(), 500 * MTU);
        let lossy = two("100mbit/1ms/5%", &no_processor(), 500 * MTU);
        assert_eq!((bytes(&clean), bytes(&lossy)), (500 * MTU, 500 * MTU));
        assert!(lossy.iter().map(|h| h.at).is_sorted());
        assert!(lossy.last().unwrap().at > clean.last().unwrap().at);
        assert!(matches!(lossy.last().unwrap().what, What::Bytes { tag: Some(3), .. }));
    }

    #[test]
    fn connections_take_turns() {
        let link = "100mbit".parse().unwrap();
        let peers = vec![vec![1, 2], vec![0], vec![0]];
        let mut network = Network::new(&link, &no_processor(), peers, false, 1, 0);
        for to in [1, 2] {
            network.send(0, to, 100 * MTU, None);
        }
        network.flush(0, 0);
        let order: Vec<usize> = std::iter::from_fn(|| network.next()).map(|h| h.node).collect();
        let (mut turns, mut rest) = (vec![1; TURN_PACKETS], order.as_slice());
        turns.extend([2; TURN_PACKETS]);
        assert_eq!(rest.split_off(..turns.len()), Some(turns.as_slice()));
        // When its queue is full the card holds back; then the one comes to its end, and the other.
        let held_back = &rest[SEND_QUEUE_PACKETS - turns.len()..];
        assert!(held_back.is_sorted_by(|a, b| a >= b) || held_back.is_sorted());
        assert_eq!(network.traffic(0), (200 * MTU as u64, 0));
        assert_eq!(network.traffic(1), (0, 100 * MTU as u64));
    }
}
