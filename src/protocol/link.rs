//! A network card and its link, emulated: when a packet leaves, when it arrives, and whether it is
//! lost. Without IO and clocks: the socket in [`net`](crate::net) moves the packets.
//!
//! Each endpoint has one card for all its connections. In each direction packets pass one after
//! another at the card's rate; between two cards lies the latency, with jitter that never reorders.
//! A program that sends faster than its card is held back, as by a full socket buffer; packets that
//! arrive faster than the card takes them wait in a queue, and beyond its end they are dropped, as in
//! a switch before a busy port.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// What a packet takes on an Ethernet link beside its UDP payload: the headers of UDP, IPv4 and
/// Ethernet, as the kernel's token bucket counts them.
pub const FRAME_BYTES: usize = 8 + 20 + 14;

/// Packets that wait to leave before the program is held back: as many full ones as a UDP socket's
/// usual buffer of 208 KiB takes before a token bucket, if they come in tens, as QUIC sends them by
/// segmentation offload.
pub const SEND_QUEUE_PACKETS: usize = 140;

/// The least time between two interrupts of an emulated card, and between two batches that it hands
/// to the kernel: that of common Ethernet drivers (`rx-usecs` of 50).
pub const MODERATION: Duration = Duration::from_micros(50);

/// What a link is like, seen from one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkProfile {
    /// Bits a second, in each direction; 0 for as fast as the machine is.
    pub bits_per_s: u64,
    /// One way.
    pub latency: Duration,
    /// The latency grows by up to so much, at random.
    pub jitter: Duration,
    /// Packets lost of a million.
    pub loss_ppm: u32,
    /// Packets that wait to be taken in before more are dropped.
    pub queue: u32,
}

/// As many as Linux' cards queue.
const QUEUE_DEFAULT: u32 = 1_000;

/// The profiles that have a name.
pub const PRESETS: [(&str, LinkProfile); 5] = [
    ("loopback", preset(0, 0, 0, 0)),
    ("lan-1g", preset(1_000_000_000, 100, 20, 0)),
    ("lan-10g", preset(10_000_000_000, 50, 10, 0)),
    ("wifi", preset(200_000_000, 2_000, 1_000, 1_000)),
    ("wan", preset(100_000_000, 10_000, 1_000, 100)),
];

const fn preset(bits_per_s: u64, latency_us: u64, jitter_us: u64, loss_ppm: u32) -> LinkProfile {
    LinkProfile {
        bits_per_s,
        latency: Duration::from_micros(latency_us),
        jitter: Duration::from_micros(jitter_us),
        loss_ppm,
        queue: QUEUE_DEFAULT,
    }
}

impl LinkProfile {
    /// Whether packets pass as if there were no card at all.
    pub fn is_transparent(&self) -> bool {
        let LinkProfile { bits_per_s, latency, jitter, loss_ppm, queue: _ } = self;
        *bits_per_s == 0 && latency.is_zero() && jitter.is_zero() && *loss_ppm == 0
    }
}

/// What is wrong with a profile's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{part:?}: {expected}; write RATE/LATENCY/LOSS, such as 1gbit/0.5ms/0.1%, then jitter=0.2ms or \
     queue=500 if need be, or one of loopback, lan-1g, lan-10g, wifi, wan"
)]
pub struct LinkSyntaxError {
    part: String,
    expected: &'static str,
}

impl FromStr for LinkProfile {
    type Err = LinkSyntaxError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some((_, profile)) = PRESETS.iter().find(|(name, _)| *name == text) {
            return Ok(*profile);
        }
        let mut profile = preset(0, 0, 0, 0);
        let mut positional = 0;
        for part in text.split('/') {
            let fault = |expected| LinkSyntaxError { part: part.to_owned(), expected };
            if let Some(value) = part.strip_prefix("jitter=") {
                profile.jitter = parse_duration(value).ok_or(fault("not a time such as 0.5ms"))?;
            } else if let Some(value) = part.strip_prefix("queue=") {
                let packets = value.parse().ok().filter(|&packets| packets > 0);
                profile.queue = packets.ok_or(fault("not a number of packets"))?;
            } else {
                match positional {
                    0 => {
                        profile.bits_per_s = rate(part).ok_or(fault("not a rate such as 1gbit"))?
                    }
                    1 => {
                        profile.latency =
                            parse_duration(part).ok_or(fault("not a time such as 0.5ms"))?;
                    }
                    2 => profile.loss_ppm = loss(part).ok_or(fault("not a loss such as 0.1%"))?,
                    _ => return Err(fault("more than rate, latency and loss")),
                }
                positional += 1;
            }
        }
        Ok(profile)
    }
}

fn rate(text: &str) -> Option<u64> {
    let units = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let bits = number.parse::<f64>().ok()? * unit;
    // Between a modem and what no card has yet.
    (1e3..=1e13).contains(&bits).then_some(bits as u64)
}

/// A time of up to ten seconds, such as `0.5ms`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let seconds = number.parse::<f64>().ok()? * unit;
    (0.0..=10.0).contains(&seconds).then(|| Duration::from_nanos((seconds * 1e9).round() as u64))
}

fn loss(text: &str) -> Option<u32> {
    let percent = text.strip_suffix('%')?.parse::<f64>().ok()?;
    (0.0..=90.0).contains(&percent).then(|| (percent * 1e4).round() as u32)
}

impl fmt::Display for LinkProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = |time: Duration| format!("{}ms", time.as_secs_f64() * 1e3);
        match self.bits_per_s {
            0 => f.write_str("unlimited")?,
            bits if bits % 1_000_000_000 == 0 => write!(f, "{}gbit", bits / 1_000_000_000)?,
            bits if bits % 1_000_000 == 0 => write!(f, "{}mbit", bits / 1_000_000)?,
            bits => write!(f, "{bits}bit")?,
        }
        write!(f, "/{}/{}%", milliseconds(self.latency), f64::from(self.loss_ppm) / 1e4)?;
        if !self.jitter.is_zero() {
            write!(f, "/jitter={}", milliseconds(self.jitter))?;
        }
        Ok(())
    }
}

/// One endpoint's card. Times are since the same, arbitrary moment, and never go back.
#[derive(Debug)]
pub struct Card {
    profile: LinkProfile,
    outgoing: Line,
    incoming: Line,
    /// When the last packet that left arrives.
    last_arrival: Duration,
    random: ChaCha8Rng,
}

/// Packets that pass one after another.
#[derive(Debug, Default)]
struct Line {
    free_at: Duration,
    /// When each packet that still waits or passes will have passed.
    passing: VecDeque<Duration>,
}

impl Line {
    /// Lets a packet that takes `takes` pass behind the others; when it has passed.
    fn pass(&mut self, now: Duration, takes: Duration) -> Duration {
        self.free_at = self.free_at.max(now) + takes;
        self.passing.push_back(self.free_at);
        self.free_at
    }

    /// Packets that have not passed yet.
    fn waiting(&mut self, now: Duration) -> usize {
        while self.passing.front().is_some_and(|&passed| passed <= now) {
            self.passing.pop_front();
        }
        self.passing.len()
    }
}

impl Card {
    pub fn new(profile: LinkProfile, seed: u64) -> Card {
        Card {
            profile,
            outgoing: Line::default(),
            incoming: Line::default(),
            last_arrival: Duration::ZERO,
            random: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Until when the program is held back; `None` if it may send.
    pub fn held_back_until(&mut self, now: Duration) -> Option<Duration> {
        let waiting = self.outgoing.waiting(now);
        // Woken at half, so that it need not wake for each packet.
        let index = waiting.checked_sub(SEND_QUEUE_PACKETS)? + SEND_QUEUE_PACKETS / 2;
        self.outgoing.passing.get(index).copied()
    }

    /// Sends a packet with a payload of so many bytes; when it reaches the other card, or `None` if
    /// it is lost on the way.
    pub fn send(&mut self, now: Duration, bytes: usize) -> Option<Duration> {
        let left = self.outgoing.pass(now, self.takes(bytes));
        if self.random.next_u32() % 1_000_000 < self.profile.loss_ppm {
            return None;
        }
        let share = f64::from(self.random.next_u32()) / f64::from(u32::MAX);
        let arrival = left + self.profile.latency + self.profile.jitter.mul_f64(share);
        self.last_arrival = self.last_arrival.max(arrival);
        Some(self.last_arrival)
    }

    /// Takes in a packet that arrives now; when the program has it, or `None` if it is dropped.
    pub fn receive(&mut self, now: Duration, bytes: usize) -> Option<Duration> {
        if self.incoming.waiting(now) >= self.profile.queue as usize {
            return None;
        }
        Some(self.incoming.pass(now, self.takes(bytes)))
    }

    fn takes(&self, bytes: usize) -> Duration {
        match self.profile.bits_per_s {
            0 => Duration::ZERO,
            bits_per_s => {
                let bits = 8 * (bytes + FRAME_BYTES) as u128;
                let nanoseconds = bits * 1_000_000_000 / u128::from(bits_per_s);
                Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn profile(text: &str) -> LinkProfile {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn profiles_are_read_and_written() {
        let link = profile("1gbit/0.5ms/0.1%");
        assert_eq!((link.bits_per_s, link.latency, link.loss_ppm), (1_000_000_000, MS / 2, 1_000));
        assert_eq!(link.to_string(), "1gbit/0.5ms/0.1%");
        let link = profile("2.5mbit/10us/jitter=2ms/queue=7");
        assert_eq!((link.bits_per_s, link.jitter, link.queue), (2_500_000, 2 * MS, 7));
        for (name, preset) in PRESETS {
            assert_eq!(profile(name), preset);
            if preset.bits_per_s > 0 {
                assert_eq!(profile(&preset.to_string()), preset, "{name}");
            }
        }
        for text in [
            "",
            "fast",
            "1gbit/1",
            "1gbit/1ms/1",
            "1gbit/1ms/1%/2",
            "1bit",
            "queue=0",
            "1gbit/-1ms",
        ] {
            let error = text.parse::<LinkProfile>().expect_err(text).to_string();
            assert!(error.contains("write RATE/LATENCY/LOSS"), "{error}");
        }
    }

    #[test]
    fn packets_pass_at_the_rate() {
        // 1,208 bytes and 42 are 10,000 bits: 10 ms at 1 Mbit/s.
        let mut card = Card::new(profile("1mbit/3ms"), 0);
        for i in 1..=5 {
            assert_eq!(card.send(Duration::ZERO, 1_208), Some(i * 10 * MS + 3 * MS));
        }
        // After a pause it begins at once.
        assert_eq!(card.send(100 * MS, 1_208), Some(113 * MS));
        // The other direction is free meanwhile.
        assert_eq!(card.receive(100 * MS, 1_208), Some(110 * MS));
        assert_eq!(card.receive(100 * MS, 1_208), Some(120 * MS));
    }

    #[test]
    fn a_fast_sender_is_held_back_until_half_has_left() {
        let mut card = Card::new(profile("1mbit"), 0);
        for _ in 0..SEND_QUEUE_PACKETS {
            assert_eq!(card.held_back_until(Duration::ZERO), None);
            card.send(Duration::ZERO, 1_208);
        }
        let until = card.held_back_until(Duration::ZERO).expect("the queue is full");
        assert_eq!(until, (SEND_QUEUE_PACKETS as u32 / 2 + 1) * 10 * MS);
        assert_eq!(card.held_back_until(until), None);
    }

    #[test]
    fn what_arrives_beyond_the_queue_is_dropped() {
        let mut card = Card::new(profile("1mbit/queue=3"), 0);
        let taken = (0..5).filter(|_| card.receive(Duration::ZERO, 1_208).is_some()).count();
        assert_eq!(taken, 3);
        assert!(card.receive(10 * MS, 1_208).is_some(), "one has passed");
    }

    #[test]
    fn loss_and_jitter_are_seeded_and_never_reorder() {
        let arrivals = |seed| {
            let mut card = Card::new(profile("100mbit/1ms/10%/jitter=5ms"), seed);
            (0..10_000).map(|i| card.send(i * MS / 10, 1_208)).collect::<Vec<_>>()
        };
        let first = arrivals(1);
        assert_eq!(first, arrivals(1));
        assert_ne!(first, arrivals(2));
        let lost = first.iter().filter(|arrival| arrival.is_none()).count();
        // Six standard deviations of a binomial around 1,000.
        assert!((820..1_180).contains(&lost), "{lost}");
        assert!(first.iter().flatten().is_sorted());
    }
}
