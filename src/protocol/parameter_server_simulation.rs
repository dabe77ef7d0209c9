//! Whole clusters in virtual time: random delays, orders and deaths, from a seed that a failure
//! prints.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

/// What travels, in virtual microseconds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A worker has computed its task.
    Computed {
        rank: usize,
    },
    /// Gradients reach a server, and with them, at the coordinator, the wish for another task.
    Push {
        server: usize,
        rank: usize,
        task: Task,
        version: u64,
    },
    /// The wish for a slice reaches a server.
    Pull {
        server: usize,
        rank: usize,
        version: u64,
        clocks: Vec<u64>,
    },
    /// A task reaches a worker, with what the coordinator's slice holds.
    Given {
        rank: usize,
        task: Task,
        version: u64,
        pull: (u64, Vec<u64>),
    },
    /// Another server's slice reaches a worker.
    Slice {
        rank: usize,
        server: usize,
        version: u64,
    },
    Die {
        rank: usize,
    },
    /// A server hears of a death.
    Missed {
        server: usize,
        rank: usize,
    },
}

struct Cluster {
    mode: Mode,
    servers: Vec<ParameterServer>,
    /// What each server has applied of each step, and what it has summed of the current one.
    applied: Vec<BTreeMap<u64, u64>>,
    sums: Vec<u64>,
    /// How often each server has applied each share, in the asynchronous mode.
    shares: Vec<BTreeMap<Task, u32>>,
    workers: Vec<SimulatedWorker>,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    /// When the last message of each link arrives: streams keep their order.
    links: BTreeMap<(usize, usize, bool), u64>,
    random: ChaCha8Rng,
    ended: bool,
}

#[derive(Clone, Default)]
struct SimulatedWorker {
    dead: bool,
    task: Option<Task>,
    versions: Vec<u64>,
    slices_awaited: usize,
    /// Its computing takes so many times longer.
    slowness: u64,
}

/// What a share of a step is worth: any numbers whose sums tell them apart.
fn value(task: Task) -> u64 {
    (task.step + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (1 << (task.share % 60))
}

/// Whether the step does not fit its range at first, on all servers alike.
fn must_be_redone(step: u64) -> bool {
    step % 5 == 3
}

impl Cluster {
    fn new(mode: Mode, workers: usize, servers: usize, steps: u64, seed: u64) -> Cluster {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let slow = random.next_u32() as usize % workers;
        let worker = |rank| SimulatedWorker {
            versions: vec![0; servers],
            slowness: if rank == slow { 10 } else { 1 },
            ..SimulatedWorker::default()
        };
        let mut cluster = Cluster {
            mode,
            servers: vec![ParameterServer::new(mode, workers, 0); servers],
            applied: vec![BTreeMap::new(); servers],
            sums: vec![0; servers],
            shares: vec![BTreeMap::new(); servers],
            workers: (0..workers).map(worker).collect(),
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            links: BTreeMap::new(),
            random,
            ended: false,
        };
        cluster.servers[0].allow(steps);
        for rank in 0..workers {
            cluster.servers[0].ask(Duration::ZERO, rank, Request::Task);
        }
        cluster.grant(0);
        cluster
    }

    fn below(&mut self, bound: u64) -> u64 {
        u64::from(self.random.next_u32()) % bound
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((self.now + delay, self.sequence, event)));
    }

    /// Sends over a link whose messages keep their order.
    fn send(&mut self, rank: usize, server: usize, to_server: bool, event: Event) {
        let arrival = self.now + 1 + self.below(300);
        let last = self.links.entry((rank, server, to_server)).or_default();
        *last = (*last).max(arrival);
        let delay = *last - self.now;
        self.after(delay, event);
    }

    fn run(&mut self) {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            if self.ended {
                return;
            }
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Computed { rank } if !self.workers[rank].dead => {
                let task = self.workers[rank].task.expect("it has computed something");
                for server in 0..self.servers.len() {
                    let version = self.workers[rank].versions[server];
                    self.send(rank, server, true, Event::Push { server, rank, task, version });
                }
            }
            Event::Push { server, rank, task, version } if self.servers[server].is_alive(rank) => {
                self.push(server, rank, task, version);
            }
            Event::Pull { server, rank, version, clocks }
                if self.servers[server].is_alive(rank) =>
            {
                let request = Request::Slice(Age { version, clocks });
                self.servers[server].ask(Duration::from_micros(self.now), rank, request);
                self.grant(server);
            }
            Event::Given { rank, task, version, pull } if !self.workers[rank].dead => {
                let worker = &mut self.workers[rank];
                worker.task = Some(task);
                worker.versions[0] = version;
                worker.slices_awaited = self.servers.len() - 1;
                for server in 1..self.servers.len() {
                    let (version, clocks) = pull.clone();
                    self.send(rank, server, true, Event::Pull { server, rank, version, clocks });
                }
                self.compute_if_ready(rank);
            }
            Event::Slice { rank, server, version } if !self.workers[rank].dead => {
                self.workers[rank].versions[server] = version;
                self.workers[rank].slices_awaited -= 1;
                self.compute_if_ready(rank);
            }
            Event::Die { rank } => {
                self.workers[rank].dead = true;
                for server in 0..self.servers.len() {
                    self.send(rank, server, true, Event::Missed { server, rank });
                }
            }
            Event::Missed { server, rank } => {
                match self.servers[server].leave(rank) {
                    Departure::GoesOn => {}
                    Departure::Completes => self.complete(server),
                    Departure::Ends => self.ended = true,
                }
                self.grant(server);
            }
            _ => {}
        }
    }

    fn compute_if_ready(&mut self, rank: usize) {
        if self.workers[rank].slices_awaited == 0 {
            let delay = (1 + self.below(1_000)) * self.workers[rank].slowness;
            self.after(delay, Event::Computed { rank });
        }
    }

    fn push(&mut self, server: usize, rank: usize, task: Task, version: u64) {
        match self.servers[server].push(rank, task, version).expect("workers keep to the protocol")
        {
            Verdict::Add => self.sums[server] = self.sums[server].wrapping_add(value(task)),
            Verdict::Complete => {
                self.sums[server] = self.sums[server].wrapping_add(value(task));
                self.complete(server);
            }
            Verdict::Apply { .. } => *self.shares[server].entry(task).or_default() += 1,
            Verdict::Drop => assert!(matches!(self.mode, Mode::Backup { .. })),
        }
        if server == 0 {
            self.servers[0].ask(Duration::from_micros(self.now), rank, Request::Task);
        }
        self.grant(server);
    }

    fn complete(&mut self, server: usize) {
        let machine = &mut self.servers[server];
        let sum = std::mem::take(&mut self.sums[server]);
        let redone = self.mode == Mode::Sync && must_be_redone(machine.step);
        if redone && machine.attempt() == 0 {
            return machine.redo();
        }
        if let Mode::Backup { spare } = self.mode {
            let least = (machine.workers.len() - spare).min(machine.live());
            assert!(machine.counted() >= least, "too few gradients made a step");
        }
        let twice = self.applied[server].insert(machine.step, sum);
        assert_eq!(twice, None, "step {} was applied twice", machine.step);
        machine.applied();
    }

    fn grant(&mut self, server: usize) {
        let now = Duration::from_micros(self.now);
        while let Some((rank, grant)) = self.servers[server].next_grant(now) {
            let version = self.servers[server].version();
            let event = match grant {
                Grant::Slice => Event::Slice { rank, server, version },
                Grant::Task(task) => {
                    self.check_lead(rank);
                    let Age { version: needed, clocks } = self.servers[0].age(false);
                    Event::Given { rank, task, version, pull: (needed, clocks) }
                }
            };
            self.send(rank, server, false, event);
        }
    }

    /// Nobody begins a task while it is more than the bound ahead of the slowest.
    fn check_lead(&self, rank: usize) {
        if let Mode::Async { bound: Some(bound) } = self.mode {
            let clocks = self.servers[0].workers.iter().filter(|worker| worker.alive);
            let slowest = clocks.map(|worker| worker.clock).min().expect("somebody is there");
            assert!(self.servers[0].workers[rank].clock <= slowest + bound, "rank {rank} leads");
        }
    }
}

const MODES: [Mode; 5] = [
    Mode::Sync,
    Mode::Backup { spare: 1 },
    Mode::Async { bound: Some(1) },
    Mode::Async { bound: Some(4) },
    Mode::Async { bound: None },
];

const STEPS: u64 = 12;

/// Runs a cluster for each mode and each of many seeds; a failure names both.
fn for_each_cluster(deaths: bool, check: impl Fn(&Cluster, usize)) {
    for seed in 0..150 {
        let mut random = ChaCha8Rng::seed_from_u64(1_000 + seed);
        let workers = 2 + random.next_u32() as usize % 5;
        let servers = 1 + random.next_u32() as usize % 3;
        for mode in MODES {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut cluster = Cluster::new(mode, workers, servers, STEPS, seed);
                let victims = if deaths { 1 + seed as usize % (workers - 1) } else { 0 };
                for rank in 0..victims {
                    let at = cluster.below(20_000);
                    cluster.after(at, Event::Die { rank });
                }
                cluster.run();
                check(&cluster, workers);
            }));
            if let Err(panic) = outcome {
                eprintln!("seed {seed}, {mode:?}, {workers} workers, {servers} servers");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// The plain sum of a step's shares.
fn whole(step: u64, workers: usize) -> u64 {
    (0..workers as u32)
        .fold(0, |sum, share| sum.wrapping_add(value(Task { step, share, attempt: 0 })))
}

#[test]
fn every_step_is_applied_once_and_nobody_waits_for_ever() {
    for_each_cluster(false, |cluster, workers| {
        for (server, machine) in cluster.servers.iter().enumerate() {
            if cluster.mode.is_async() {
                assert_eq!(cluster.shares[server].len() as u64, STEPS * workers as u64);
                assert!(cluster.shares[server].values().all(|times| *times == 1));
                assert_eq!(machine.version(), STEPS * workers as u64);
                assert_eq!(machine.staleness().iter().sum::<u64>(), machine.version());
            } else {
                assert_eq!(machine.version(), STEPS);
            }
            assert_eq!(machine.steps_done(), STEPS);
            if cluster.mode == Mode::Sync {
                let sums: Vec<u64> = cluster.applied[server].values().copied().collect();
                let expected: Vec<u64> = (0..STEPS).map(|step| whole(step, workers)).collect();
                assert_eq!(sums, expected, "server {server}");
                assert_eq!(machine.staleness(), [STEPS * workers as u64]);
            }
        }
    });
}

#[test]
fn with_deaths_the_others_finish_unless_every_gradient_is_needed() {
    for_each_cluster(true, |cluster, workers| {
        let coordinator = &cluster.servers[0];
        if cluster.mode == Mode::Sync {
            assert!(cluster.ended || coordinator.steps_done() == STEPS);
            return;
        }
        assert!(!cluster.ended);
        assert_eq!(coordinator.steps_done(), STEPS);
        if cluster.mode.is_async() {
            // The coordinator hands a lost task to another worker; each counts there once.
            assert_eq!(cluster.shares[0].len() as u64, STEPS * workers as u64);
            assert!(cluster.shares[0].values().all(|times| *times == 1));
        }
    });
}

#[test]
fn the_fast_wait_for_the_slow_as_long_as_the_mode_says() {
    let waited = |mode| {
        let mut cluster = Cluster::new(mode, 4, 1, STEPS, 3);
        cluster.run();
        let slow = cluster.workers.iter().position(|worker| worker.slowness > 1).expect("one is");
        let waits = cluster.servers[0].waits();
        let for_slow: Duration = waits.iter().map(|waits| waits[slow]).sum();
        let all: Duration = waits.iter().flatten().sum();
        (for_slow, all)
    };
    let (for_slow, all) = waited(Mode::Sync);
    assert!(for_slow > all / 2, "most waiting is for the slowest: {for_slow:?} of {all:?}");
    let (bounded, _) = waited(Mode::Async { bound: Some(1) });
    assert!(bounded < for_slow);
    assert_eq!(waited(Mode::Async { bound: None }).1, Duration::ZERO);
}

#[test]
fn a_worker_that_was_not_asked_is_refused() {
    let mut server = ParameterServer::new(Mode::Sync, 2, 0);
    let task = Task { step: 0, share: 0, attempt: 0 };
    assert_eq!(server.push(0, task, 0), Ok(Verdict::Add));
    assert_eq!(server.push(0, task, 0), Err(PushFault::NotAsked { step: 0, attempt: 0 }));
    let later = Task { step: 1, ..task };
    assert_eq!(server.push(1, later, 0), Err(PushFault::NotAsked { step: 1, attempt: 0 }));
    assert_eq!(server.push(1, task, 7), Err(PushFault::FromTheFuture { theirs: 7, ours: 0 }));
    assert_eq!(server.push(1, task, 0), Ok(Verdict::Complete));
}

#[test]
fn no_bound_and_no_spare_are_synchronous() {
    assert_eq!(Mode::bounded(0), Mode::Sync);
    assert_eq!(Mode::backup(0), Mode::Sync);
    assert_eq!(Mode::bounded(2), Mode::Async { bound: Some(2) });
}
