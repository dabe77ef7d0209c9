//! Steps among workers: the exchanges' own state machines, whose words are counted and not moved.

use super::network::{Happening, Network, Thread, Time, What};
use super::record::{Compute, Recording};
use super::run::Settings;
use super::scenario::Scenario;
use crate::protocol::collective::Reduction;
use crate::protocol::cost_model::{self, Link};
use crate::protocol::exchange::{Algorithm, Exchange, Strategy};
use crate::protocol::link::LinkProfile;
use crate::protocol::message::HEADER_WORDS;

const WORD_BYTES: usize = size_of::<u32>();
const HEADER_BYTES: usize = HEADER_WORDS * WORD_BYTES;

struct Worker {
    exchange: Exchange,
    peers: Vec<Peer>,
    /// Whether the step's exchange is under way.
    exchanges: bool,
    /// What this step's computing took.
    computed: Time,
    steps: usize,
}

struct Peer {
    /// As the exchange knows it, and which node it is.
    rank: usize,
    node: usize,
    /// Bytes that have come and are not used.
    pending: usize,
    header_seen: bool,
}

/// Steps by all-reduce: who has done how many.
struct Group<'a> {
    network: Network,
    fresh: Vec<Exchange>,
    workers: Vec<Worker>,
    compute: Compute,
    recording: &'a mut Recording,
    steps: usize,
    update_ns: u64,
    /// All compute as long as the first worker.
    are_alike: bool,
}

/// Workers of a ring who stand for all, where all are alike: each has a left and a right neighbour of
/// its own among them.
pub(super) const STAND_INS: usize = 3;

/// Simulates the scenario's workers.
pub(super) fn run(
    scenario: &Scenario,
    settings: &Settings,
    strategy: Strategy,
    steps: usize,
    recording: &mut Recording,
) {
    let world = scenario.workers;
    let algorithm = algorithm(scenario, settings, strategy);
    let nodes = settings.nodes(scenario);
    let are_alike = nodes < world;
    // Then all shards are as long as the longest.
    let elements =
        if are_alike { scenario.elements.next_multiple_of(world) } else { scenario.elements };
    let reduction = Reduction::sums(elements);
    let fresh: Vec<Exchange> = (0..nodes)
        .map(|rank| Exchange::without_payload(algorithm, rank, world, reduction))
        .collect();
    let ranks: Vec<Vec<usize>> = (0..nodes).map(|rank| algorithm.peers(rank, world)).collect();
    let node_of = |rank: usize, peer: usize| match are_alike {
        false => peer,
        true if peer == (rank + 1) % world => (rank + 1) % nodes,
        true => (rank + nodes - 1) % nodes,
    };
    let worker = |(rank, exchange): (usize, &Exchange)| Worker {
        exchange: exchange.clone(),
        peers: ranks[rank]
            .iter()
            .map(|&peer| Peer {
                rank: peer,
                node: node_of(rank, peer),
                pending: 0,
                header_seen: false,
            })
            .collect(),
        exchanges: false,
        computed: 0,
        steps: 0,
    };
    let workers: Vec<Worker> = fresh.iter().enumerate().map(worker).collect();
    let peers = workers.iter().map(Worker::nodes).collect();
    let one_source = algorithm == Algorithm::Ring;
    let packets = settings.packets_at_once(scenario);
    let (link, seed) = (&scenario.link, settings.seed);
    let mut group = Group {
        network: Network::new(link, &settings.machine, peers, one_source, packets, seed),
        fresh,
        workers,
        compute: Compute::new(scenario, settings),
        recording,
        steps,
        update_ns: settings.machine.update_ns(scenario.elements),
        are_alike,
    };
    for node in 0..nodes {
        group.compute(node, 0);
    }
    let mut end = 0;
    while let Some(Happening { at, node, what }) = group.network.next() {
        end = end.max(at);
        match what {
            What::Timer => group.begin(node, at),
            What::Bytes { from, bytes, .. } => group.take_in(node, at, from, bytes),
        }
    }
    for node in 0..nodes {
        let (sent, received) = group.network.traffic(node);
        group.recording.count_bytes(sent, received);
    }
    group.recording.machine_busy = group.network.busy(end);
}

/// The one that is told, or the fastest by the cost model, which would have measured this link.
pub(super) fn algorithm(scenario: &Scenario, settings: &Settings, strategy: Strategy) -> Algorithm {
    let LinkProfile { bits_per_s, latency, jitter, .. } = scenario.link;
    let machine = &settings.machine;
    let of_card = 8e12_f64 / bits_per_s.max(1) as f64;
    let of_processor = 2e3 * (machine.byte_ns + machine.packet_ns / f64::from(machine.mtu));
    let slower = if bits_per_s == 0 { of_processor } else { of_card.max(of_processor) };
    let link = Link {
        latency_ns: (latency + jitter / 2).as_nanos().min(u128::from(u32::MAX)) as u32
            + machine.wake_ns as u32,
        overhead_ns: machine.packet_ns as u32,
        picoseconds_per_byte: slower as u32,
    };
    strategy
        .fixed()
        .unwrap_or_else(|| cost_model::choose(scenario.workers, scenario.bytes(), &link).algorithm)
}

impl Worker {
    /// In ascending order.
    fn nodes(&self) -> Vec<usize> {
        let mut nodes: Vec<usize> = self.peers.iter().map(|peer| peer.node).collect();
        nodes.sort_unstable();
        nodes
    }
}

impl Group<'_> {
    fn compute(&mut self, rank: usize, at: Time) {
        let worker = &mut self.workers[rank];
        if worker.steps == self.steps {
            return;
        }
        worker.computed = self.compute.next(if self.are_alike { 0 } else { rank });
        let done = at + worker.computed;
        self.network.set_timer(rank, done);
    }

    /// The gradient is there: the exchange begins.
    fn begin(&mut self, rank: usize, at: Time) {
        let worker = &mut self.workers[rank];
        worker.exchange.clone_from(&self.fresh[rank]);
        worker.exchanges = true;
        for peer in &mut worker.peers {
            peer.header_seen = !worker.exchange.receives_from(peer.rank);
            if worker.exchange.sends_to(peer.rank) {
                self.network.send(rank, peer.node, HEADER_BYTES, None);
            }
        }
        // One alone has nobody to speak to, and no thread that does.
        let is_alone = worker.peers.is_empty();
        let at = if is_alone { at } else { self.network.wake(rank, Thread::Network, at, 0) };
        self.advance(rank, at);
    }

    fn take_in(&mut self, rank: usize, at: Time, from: usize, bytes: usize) {
        let worker = &mut self.workers[rank];
        if let Some(peer) = worker.peers.iter_mut().find(|peer| peer.node == from) {
            peer.pending += bytes;
        }
        if worker.exchanges {
            self.advance(rank, at);
        }
    }

    /// Uses what has come, and sends what may be sent because of it.
    fn advance(&mut self, rank: usize, at: Time) {
        let Worker { exchange, peers, .. } = &mut self.workers[rank];
        for peer in peers.iter_mut().filter(|peer| peer.pending > 0) {
            if !peer.header_seen && peer.pending >= HEADER_BYTES {
                peer.header_seen = true;
                peer.pending -= HEADER_BYTES;
            }
            if peer.header_seen {
                let words = (peer.pending / WORD_BYTES).min(exchange.words_to_receive(peer.rank));
                exchange.note_received(peer.rank, words).expect("peers keep the rules");
                peer.pending -= words * WORD_BYTES;
            }
        }
        for peer in peers.iter() {
            loop {
                let words = exchange.next_send_words(peer.rank);
                if words == 0 {
                    break;
                }
                exchange.sent(peer.rank, words);
                self.network.send(rank, peer.node, words * WORD_BYTES, None);
            }
        }
        self.network.flush(rank, at);
        let worker = &mut self.workers[rank];
        let headers_seen = worker.peers.iter().all(|peer| peer.header_seen);
        if worker.exchange.is_finished() && headers_seen {
            worker.exchanges = false;
            worker.steps += 1;
            let at = self.network.wake(rank, Thread::Trainer, at, self.update_ns);
            let (computed, steps) = (worker.computed, worker.steps);
            self.recording.mark(rank, at, computed);
            if rank == 0 {
                self.recording.applied(steps, at);
            }
            self.compute(rank, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Machine, simulate};

    /// NETWORK's figures are of vectors of 247 kB, without computing.
    fn step_ms(topology: &str, workers: usize, link: &str, machine: Machine) -> f64 {
        let scenario = Scenario {
            workers,
            topology: topology.parse().unwrap(),
            link: link.parse().unwrap(),
            compute: "0ms".parse().unwrap(),
            elements: 61_706,
            straggler: None,
        };
        let settings = Settings { machine, ..Settings::default() };
        simulate(&scenario, &settings).unwrap().step.p50
    }

    fn within(percent: f64, expected: f64, found: f64) {
        let error = 100.0 * (found / expected - 1.0);
        assert!(error.abs() <= percent, "{found:.3} where {expected} was measured: {error:+.1} %");
    }

    #[test]
    fn a_ring_over_slow_links_takes_what_was_measured() {
        // In network namespaces behind token buckets of 200 Mbit/s.
        for (workers, measured) in [(2, 10.5), (4, 15.7), (8, 18.4)] {
            within(10.0, measured, step_ms("ring", workers, "200mbit", Machine::default()));
        }
    }

    #[test]
    fn a_ring_over_long_links_takes_what_was_measured() {
        // At 10 ms one way and 100 Mbit/s.
        let step = |workers| step_ms("ring", workers, "100mbit/10ms", Machine::default());
        for (workers, measured) in [(2, 32.0), (4, 71.0)] {
            within(10.0, measured, step(workers));
        }
        // Eight workers took 163 to 200 ms on two cores. Fourteen latencies are 140 ms, and the last
        // shard of 2.5 ms comes behind them; no more than what was measured is lost beside.
        assert!((142.5..163.0).contains(&step(8)), "{}", step(8));
    }

    #[test]
    fn on_fast_links_steps_lie_between_the_latencies_and_the_formulas() {
        // 247 kB at 10 Gbit/s and 50 us, where whole shards in one message take 1,046 us by ring and
        // 646 by halving-doubling: 14 and 6 latencies, and 345 us of bytes. Passing words on as they
        // come hides bytes behind latencies, though never more than all but the last step's.
        let free = Machine::without_overheads();
        let ring = step_ms("ring", 8, "10gbit/50us", free);
        assert!((0.700 + 0.345 / 14.0..1.046 * 1.05).contains(&ring), "{ring}");
        let halving = step_ms("halving-doubling", 8, "10gbit/50us", free);
        assert!((0.300 + 0.345 / 2.0..0.646 * 1.05).contains(&halving), "{halving}");
        // A server takes eight vectors in and gives as many out, 198 us each, which overlap where the
        // last are given while the first come in again; 3,260 us are the sum.
        let one = step_ms("server", 8, "10gbit/50us", free);
        assert!((0.1 + 9.0 * 0.197..3.26 * 1.05).contains(&one), "{one}");
        let eight = step_ms("server*8", 8, "10gbit/50us", free);
        // Slices travel side by side: no faster than two latencies and one slice each way, and well
        // ahead of one server. The messages that order slices come on top of the formula's 495 us.
        assert!(0.297 * 0.95 <= eight && eight < one / 2.0, "{eight}");
    }

    #[test]
    fn three_workers_of_a_ring_stand_for_all_where_all_are_alike() {
        let cell = |link: &str, elements: usize, packets_max: usize| {
            let scenario = Scenario {
                workers: 48,
                topology: "ring".parse().unwrap(),
                link: link.parse().unwrap(),
                compute: "20ms".parse().unwrap(),
                elements,
                straggler: None,
            };
            // A tile for each, so that all compute equally long.
            let settings =
                Settings { batch: 48 * 16, steps: 3, packets_max, ..Settings::default() };
            simulate(&scenario, &settings).unwrap()
        };
        // More than three send in these steps, and fewer than all send in one.
        let (all, few) = (usize::MAX, 10_000);
        // Equal shards: not a nanosecond's difference.
        let elements = 48 * 1_000;
        let steady = "1gbit/0.1ms";
        let (simulated, stood_for) = (cell(steady, elements, all), cell(steady, elements, few));
        assert_eq!(simulated.step.p50, stood_for.step.p50);
        assert_eq!(simulated.busiest_node, stood_for.busiest_node);
        assert_eq!(simulated.compute_ms, stood_for.compute_ms);
        // Else shards of all are as long as the longest, of one word more: each hop may take that
        // word's time longer, through two cards and two processors.
        let elements = elements + 1;
        let (simulated, stood_for) = (cell(steady, elements, all), cell(steady, elements, few));
        let word_ms = 4.0 * (2.0 * 8e-6 + 2.0 * Machine::default().byte_ns * 1e-6);
        let longer = stood_for.step.p50 - simulated.step.p50;
        assert!((0.0..=94.0 * word_ms).contains(&longer), "{longer} ms");
        // Jitter of all hops adds up to nearly the same everywhere.
        let (simulated, stood_for) = (cell("lan-1g", elements, all), cell("lan-1g", elements, few));
        within(2.0, simulated.step.p50, stood_for.step.p50);
    }

    #[test]
    fn large_worlds_finish_and_count_their_bytes() {
        for topology in ["ring", "halving-doubling"] {
            for workers in [5, 64, 96] {
                let settings = Settings::default();
                let scenario = Scenario {
                    workers,
                    topology: topology.parse().unwrap(),
                    link: "lan-1g".parse().unwrap(),
                    compute: "20ms".parse().unwrap(),
                    elements: 61_706,
                    straggler: None,
                };
                let cell = simulate(&scenario, &settings).unwrap();
                let through = cell.busiest_node.sent + cell.busiest_node.received;
                let least = 2.0 * 2.0 * (workers - 1) as f64 / workers as f64 * 246_824.0;
                assert!(through >= least * 0.99, "{topology} {workers}: {through} of {least}");
                assert!(cell.step.p50 > 20.0 / workers as f64);
            }
        }
    }
}
