//! What goes wrong, and when: decided by the seed before the run begins.

use std::collections::BTreeSet;
use std::time::Duration;

use annulet::protocol::membership::Acceptors;

use super::random::Random;

/// Something that happens to the run from outside. Nodes are named by index; one that has ended
/// by then is left alone.
#[derive(Clone, Debug)]
pub enum Fault {
    Crash {
        node: usize,
    },
    /// Crashes in the middle of what it says, after so many more messages about views.
    CrashWhileTalking {
        node: usize,
        after: u32,
    },
    /// Both ends lose the connection, and what is on it.
    Break {
        a: usize,
        b: usize,
    },
    /// These nodes and the others cannot reach each other for some time.
    Part {
        set: BTreeSet<usize>,
        lasts: Duration,
    },
    /// Does nothing for some time, and then goes on.
    Pause {
        node: usize,
        lasts: Duration,
    },
    /// Its collective fails without a reason.
    Fail {
        node: usize,
    },
    Leave {
        node: usize,
    },
    /// A new worker asks to join, through this contact first; it may crash soon.
    Join {
        contact: usize,
        crash_after: Option<Duration>,
    },
}

impl Fault {
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Crash { .. } => "crash",
            Fault::CrashWhileTalking { .. } => "crash while talking",
            Fault::Break { .. } => "broken connection",
            Fault::Part { .. } => "partition",
            Fault::Pause { .. } => "pause",
            Fault::Fail { .. } => "failed collective",
            Fault::Leave { .. } => "planned leave",
            Fault::Join { crash_after: None, .. } => "join",
            Fault::Join { crash_after: Some(_), .. } => "join and crash",
        }
    }

    pub const KINDS: [&str; 9] = [
        "crash",
        "crash while talking",
        "broken connection",
        "partition",
        "pause",
        "failed collective",
        "planned leave",
        "join",
        "join and crash",
    ];
}

/// A run and its faults.
#[derive(Debug)]
pub struct Schedule {
    pub acceptors: Acceptors,
    pub workers: usize,
    pub workers_max: usize,
    pub steps: u64,
    /// Of a step on an ordinary worker.
    pub compute: Duration,
    /// Longest time on the way of a message.
    pub delay: Duration,
    /// A worker that is so many times slower.
    pub slow: Option<(usize, u32)>,
    pub faults: Vec<(Duration, Fault)>,
}

pub const FAILURE_TIMEOUT: Duration = Duration::from_secs(1);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Schedule {
    pub fn of(random: &mut Random) -> Schedule {
        let acceptors = if random.one_in(3) { Acceptors::Launcher } else { Acceptors::Members };
        let workers = random.between(1, 5);
        let steps = random.between(6, 16) as u64;
        let compute = random.duration(ms(2), ms(20));
        let delay = random.duration(Duration::from_micros(50), ms(5));
        let slow = random.one_in(4).then(|| (random.below(workers), random.between(2, 8) as u32));
        let horizon = compute * steps as u32 + ms(50);
        let mut faults: Vec<(Duration, Fault)> = Vec::new();
        let mut at = Duration::ZERO;
        for _ in 0..random.between(0, 6) {
            // Half of them follow closely on another one, as they do at the worst of times: within
            // a change of views, or just behind the detection of the one before.
            at = match random.below(4) {
                0 | 1 => random.duration(Duration::ZERO, horizon),
                2 => at + random.duration(Duration::ZERO, ms(10)),
                _ => at + FAILURE_TIMEOUT + random.duration(Duration::ZERO, ms(60)),
            };
            faults.push((at, fault(random, workers)));
        }
        Schedule {
            acceptors,
            workers,
            workers_max: workers + random.below(3),
            steps,
            compute,
            delay,
            slow,
            faults,
        }
    }
}

fn fault(random: &mut Random, workers: usize) -> Fault {
    // Workers that join later are met too, if they exist by then.
    let node = random.below(workers + 2);
    match random.below(10) {
        0 => Fault::Crash { node },
        1 | 2 => Fault::CrashWhileTalking { node, after: random.below(12) as u32 },
        3 => Fault::Break { a: node, b: (node + 1 + random.below(workers + 1)) % (workers + 2) },
        4 => {
            let set = (0..workers + 2).filter(|_| random.one_in(2)).collect();
            Fault::Part { set, lasts: random.duration(ms(1), FAILURE_TIMEOUT * 3) }
        }
        5 => Fault::Pause { node, lasts: random.duration(ms(1), FAILURE_TIMEOUT * 3) },
        6 => Fault::Fail { node },
        7 => Fault::Leave { node },
        8 => Fault::Join { contact: random.below(workers), crash_after: None },
        _ => {
            let crash_after = Some(random.duration(Duration::ZERO, ms(60)));
            Fault::Join { contact: random.below(workers), crash_after }
        }
    }
}
