//! Steps around servers: their own decisions in virtual time, and workers that say the same in the
//! same order as those of training.

use std::ops::Range;
use std::time::Duration;

use super::machine::Machine;
use super::network::{Happening, Network, Thread, Time, What};
use super::record::{Compute, Recording};
use super::run::Settings;
use super::scenario::Scenario;
use crate::data::sampler::share;
use crate::protocol::parameter_server::{
    Age, Grant, Mode, ParameterServer, Request, Task, Verdict,
};
use crate::protocol::star;

/// What a message has beside its words: a frame, its kind and numbers, and the count of words.
const MESSAGE_BYTES: usize = 24;

const WORD_BYTES: usize = size_of::<u32>();

/// What goes between a worker and a server.
enum Message {
    Push { task: Task, version: u64 },
    Pull(Age),
    Order { task: Task, version: u64, pull: Age },
    Slice { version: u64 },
}

#[derive(Default)]
struct Worker {
    versions: Vec<u64>,
    awaited: usize,
    task: Option<Task>,
    computes: bool,
    computed: Time,
}

struct Star<'a> {
    mode: Mode,
    network: Network,
    machine: Machine,
    workers: Vec<Worker>,
    servers: Vec<ParameterServer>,
    /// Elements of each server's slice.
    slices: Vec<usize>,
    /// Under way, by tag.
    messages: Vec<Option<Message>>,
    free: Vec<u32>,
    compute: Compute,
    batch: usize,
    recording: &'a mut Recording,
}

/// Simulates the scenario's workers and servers.
pub(super) fn run(
    scenario: &Scenario,
    settings: &Settings,
    mode: Mode,
    steps: usize,
    recording: &mut Recording,
) {
    let (workers, servers) = (scenario.workers, scenario.servers());
    let all_servers: Vec<usize> = (workers..workers + servers).collect();
    let all_workers: Vec<usize> = (0..workers).collect();
    let mut peers = vec![all_servers; workers];
    peers.resize(workers + servers, all_workers);
    let packets = settings.packets_at_once(scenario);
    let (link, machine, seed) = (&scenario.link, settings.machine, settings.seed);
    let worker = |_| Worker { versions: vec![0; servers], ..Worker::default() };
    let mut star = Star {
        mode,
        network: Network::new(link, &machine, peers, false, packets, seed),
        machine,
        workers: (0..workers).map(worker).collect(),
        servers: (0..servers)
            .map(|server| ParameterServer::new(mode, workers, 0).begin_with(server))
            .collect(),
        slices: (0..servers)
            .map(|server| star::slice(scenario.elements, servers, server))
            .map(|slice: Range<usize>| slice.len())
            .collect(),
        messages: Vec::new(),
        free: Vec::new(),
        compute: Compute::new(scenario, settings),
        batch: settings.batch,
        recording,
    };
    // With one more, each step that counts ends with the order of the next.
    star.servers[0].allow(steps as u64 + 1);
    for rank in 0..workers {
        star.servers[0].ask(Duration::ZERO, rank, Request::Task);
    }
    star.grant(0, 0);
    let mut end = 0;
    while let Some(Happening { at, node, what }) = star.network.next() {
        end = end.max(at);
        match what {
            What::Timer => star.computed(node, at),
            What::Bytes { tag: None, .. } => {}
            What::Bytes { from, tag: Some(tag), .. } => {
                let message = star.messages[tag as usize].take();
                star.free.push(tag);
                let message = message.expect("a message arrives once");
                let at = star.network.wake(node, Thread::Trainer, at, 0);
                if node < workers {
                    star.told(node, at, from - workers, message);
                } else {
                    star.heard(node - workers, at, from, message);
                }
            }
        }
    }
    for node in 0..workers + servers {
        let (sent, received) = star.network.traffic(node);
        star.recording.count_bytes(sent, received);
    }
    star.recording.machine_busy = star.network.busy(end);
}

impl Star<'_> {
    fn send(&mut self, node: usize, to: usize, message: Message) {
        let server = node.max(to) - self.workers.len();
        let (words, clocks) = match &message {
            Message::Push { .. } | Message::Slice { .. } => (self.slices[server], 0),
            Message::Pull(age) => (0, age.clocks.len()),
            Message::Order { pull, .. } => (self.slices[server], pull.clocks.len()),
        };
        let tag = self.free.pop().unwrap_or_else(|| {
            self.messages.push(None);
            self.messages.len() as u32 - 1
        });
        self.messages[tag as usize] = Some(message);
        let bytes = MESSAGE_BYTES + clocks + words * WORD_BYTES;
        self.network.send(node, to, bytes.next_multiple_of(WORD_BYTES), Some(tag));
    }

    /// A worker hears from a server.
    fn told(&mut self, rank: usize, at: Time, server: usize, message: Message) {
        let worker = &mut self.workers[rank];
        match message {
            Message::Order { task, version, pull } => {
                worker.versions[server] = version;
                worker.task = Some(task);
                if self.mode != Mode::Sync || task.step == 0 {
                    self.ask_for_slices(rank, &pull);
                    self.network.hand_over(rank, at);
                }
            }
            Message::Slice { version } => {
                worker.versions[server] = version;
                worker.awaited -= 1;
            }
            Message::Push { .. } | Message::Pull(_) => unreachable!("servers send none"),
        }
        let worker = &mut self.workers[rank];
        if worker.task.is_some() && worker.awaited == 0 && !worker.computes {
            self.recording.mark(rank, at, worker.computed);
            worker.computes = true;
            worker.computed = self.compute.next(rank);
            self.network.set_timer(rank, at + worker.computed);
        }
    }

    fn ask_for_slices(&mut self, rank: usize, age: &Age) {
        for server in star::in_turn(rank, self.servers.len()).filter(|&server| server > 0) {
            self.send(rank, self.workers.len() + server, Message::Pull(age.clone()));
            self.workers[rank].awaited += 1;
        }
    }

    /// A worker's gradients are there: it pushes them.
    fn computed(&mut self, rank: usize, at: Time) {
        let worker = &mut self.workers[rank];
        worker.computes = false;
        let task = worker.task.take().expect("it has computed something");
        let version = worker.versions[0];
        for server in star::in_turn(rank, self.servers.len()) {
            let version = self.workers[rank].versions[server];
            self.send(rank, self.workers.len() + server, Message::Push { task, version });
        }
        if self.mode == Mode::Sync {
            self.ask_for_slices(rank, &Age { version: version + 1, clocks: Vec::new() });
        }
        self.network.hand_over(rank, at);
    }

    /// A server hears from a worker.
    fn heard(&mut self, server: usize, at: Time, rank: usize, message: Message) {
        let mut at = at;
        match message {
            Message::Push { task, version } => {
                at = self.push(server, at, rank, task, version);
                if server == 0 {
                    self.ask(server, at, rank, Request::Task);
                }
            }
            Message::Pull(age) => self.ask(server, at, rank, Request::Slice(age)),
            Message::Order { .. } | Message::Slice { .. } => unreachable!("workers send none"),
        }
        self.grant(server, at);
    }

    fn ask(&mut self, server: usize, at: Time, rank: usize, request: Request) {
        self.servers[server].ask(Duration::from_nanos(at), rank, request);
    }

    /// Takes in a push; when that is done.
    fn push(&mut self, server: usize, at: Time, rank: usize, task: Task, version: u64) -> Time {
        let decisions = &mut self.servers[server];
        let verdict = decisions.push(rank, task, version).expect("workers keep the rules");
        let late = match verdict {
            Verdict::Drop => return at,
            Verdict::Add | Verdict::Complete => None,
            Verdict::Apply { staleness } => Some(staleness),
        };
        if server == 0 && self.recording.is_open() {
            let samples = share(self.batch, self.workers.len(), task.share as usize).len();
            self.recording.count_gradients(samples, late);
        }
        // Adding up takes about as long as applying.
        let cost = self.machine.update_ns(self.slices[server]);
        let at = self.network.work(self.workers.len() + server, Thread::Trainer, at, cost);
        if verdict == Verdict::Add {
            return at;
        }
        if verdict == Verdict::Complete {
            self.servers[server].applied();
        }
        if server == 0 {
            self.recording.applied(self.servers[0].steps_done() as usize, at);
        }
        at
    }

    /// Gives workers what they wait for, where they may have it.
    fn grant(&mut self, server: usize, at: Time) {
        let node = self.workers.len() + server;
        while let Some((rank, grant)) = self.servers[server].next_grant(Duration::from_nanos(at)) {
            let decisions = &self.servers[server];
            let version = decisions.version();
            let message = match grant {
                Grant::Slice => Message::Slice { version },
                Grant::Task(task) => Message::Order { task, version, pull: decisions.age(false) },
            };
            self.send(node, rank, message);
            // Messages are made one after another, while the first are leaving already.
            self.network.hand_over(node, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Cell, Slowdown, simulate};

    fn cell(topology: &str, workers: usize, link: &str, compute: &str, delay_ms: u64) -> Cell {
        let delay = Duration::from_millis(delay_ms);
        let scenario = Scenario {
            workers,
            topology: topology.parse().unwrap(),
            link: link.parse().unwrap(),
            compute: compute.parse().unwrap(),
            elements: 61_706,
            straggler: (delay_ms > 0).then_some(Slowdown { rank: 1, delay }),
        };
        simulate(&scenario, &Settings::default()).unwrap()
    }

    #[test]
    fn one_server_takes_time_for_each_worker_and_several_share_it() {
        let step = |topology, workers| cell(topology, workers, "200mbit", "0ms", 0).step.p50;
        // A card takes in all gradients and gives out all parameters. While it still gives to the
        // last workers, the first ones' next gradients come in, so a step takes between n + 1 and
        // 2 n times a vector's 9.9 ms and headers. Where that was measured (29.4, 61.1 and 107.2 ms
        // with two, four and eight) it lay between, too.
        for workers in [2, 4, 8] {
            let (took, vector) = (step("server", workers), 9.9);
            let n = workers as f64;
            assert!(took > 0.95 * (n + 1.0) * vector && took < 2.2 * n * vector, "{n} {took}");
        }
        assert!(step("server", 8) > 3.0 * step("server", 2) * 0.9);
        // Four share the bytes, not the latencies and messages.
        assert!(step("server*4", 8) < step("server", 8) / 2.0);
        assert!(step("server*workers", 8) < step("server*4", 8));
    }

    #[test]
    fn only_those_wait_for_a_straggler_who_must() {
        let step = |topology| cell(topology, 4, "lan-10g", "20ms", 40).images_per_s;
        assert!(step("backup=1") > 5.0 * step("server"));
        assert!(step("async") > 3.0 * step("server"));
        assert!(step("staleness=4") < 1.5 * step("server"));
    }

    #[test]
    fn what_is_late_is_counted() {
        let late = cell("async", 4, "lan-1g", "20ms", 0).staleness.unwrap();
        // With equal workers each push comes after about one of each other one.
        assert!((2.0..4.0).contains(&late.mean), "{late:?}");
        let bounded = cell("staleness=1*2", 4, "lan-1g", "20ms", 30).staleness.unwrap();
        assert!(bounded.max <= 4 * 2, "{bounded:?}");
        assert!(cell("server", 4, "lan-1g", "20ms", 0).staleness.is_none());
    }
}
