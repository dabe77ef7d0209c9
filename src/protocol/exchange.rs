//! One all-reduce by whichever algorithm was chosen: what a driver of streams needs to know of it.
//!
//! All algorithms are alike in this: between each two workers words flow in an order that both
//! know, so where a word stands says what it is, and the sums are exact, so the result's bits do
//! not depend on the algorithm.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::collective::{Reduction, StreamFault};
use super::cost_model::candidates;
use super::direct::DirectAllReduce;
use super::halving_doubling::HalvingDoubling;
use super::ring::RingAllReduce;

/// An all-reduce algorithm. Each one's module states its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// [`protocol::ring`](super::ring)
    Ring,
    /// [`protocol::halving_doubling`](super::halving_doubling)
    HalvingDoubling,
    /// [`protocol::direct`](super::direct)
    Direct,
}

impl Algorithm {
    pub const ALL: [Algorithm; 3] =
        [Algorithm::Ring, Algorithm::HalvingDoubling, Algorithm::Direct];

    /// As in `--algorithm`.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::HalvingDoubling => "halving-doubling",
            Algorithm::Direct => "direct",
        }
    }

    /// The workers that worker `rank` of `world` exchanges words with, in ascending order.
    pub fn peers(self, rank: usize, world: usize) -> Vec<usize> {
        let empty = Reduction::sums(0);
        let exchange = Exchange::new(self, rank, world, empty, &[]);
        (0..world).filter(|&peer| exchange.sends_to(peer) || exchange.receives_from(peer)).collect()
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a worker chooses algorithms: what `--algorithm` takes. The same for all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// For each size the fastest by the [cost model](super::cost_model).
    #[default]
    Auto,
    Ring,
    HalvingDoubling,
    Direct,
}

impl Strategy {
    pub const ALL: [Strategy; 4] =
        [Strategy::Auto, Strategy::Ring, Strategy::HalvingDoubling, Strategy::Direct];

    /// As in `--algorithm`.
    pub fn name(self) -> &'static str {
        self.fixed().map_or("auto", Algorithm::name)
    }

    /// The only algorithm, if there is but one.
    pub fn fixed(self) -> Option<Algorithm> {
        match self {
            Strategy::Auto => None,
            strategy => strategy.algorithms(1).first().copied(),
        }
    }

    /// The algorithms that may be taken among so many workers; the first one always may.
    pub fn algorithms(self, world: usize) -> &'static [Algorithm] {
        match self {
            Strategy::Auto => candidates(world, 0),
            Strategy::Ring => &[Algorithm::Ring],
            Strategy::HalvingDoubling => &[Algorithm::HalvingDoubling],
            Strategy::Direct => &[Algorithm::Direct],
        }
    }

    /// The workers that worker `rank` of `world` may exchange words with, in ascending order.
    pub fn peers(self, rank: usize, world: usize) -> Vec<usize> {
        let algorithms = self.algorithms(world).iter();
        let peers: BTreeSet<usize> =
            algorithms.flat_map(|algorithm| algorithm.peers(rank, world)).collect();
        peers.into_iter().collect()
    }
}

/// One worker's part in one all-reduce, without the vector itself and without IO.
///
/// Hand arriving words to [`receive`](Exchange::receive), and send to each peer the words that
/// [`next_send`](Exchange::next_send) holds for it, telling how many were taken with
/// [`sent`](Exchange::sent); in any order and in pieces of any size, until
/// [`is_finished`](Exchange::is_finished). The vector then holds the reduction over all workers.
#[derive(Clone, Debug)]
pub struct Exchange {
    rank: usize,
    world: usize,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Ring(RingAllReduce),
    HalvingDoubling(HalvingDoubling),
    Direct(DirectAllReduce),
}

impl Exchange {
    /// The part of worker `rank` of `world` that contributes `vector`.
    ///
    /// # Panics
    /// If `rank` is not below `world`, or the vector's length is not the reduction's.
    pub fn new(
        algorithm: Algorithm,
        rank: usize,
        world: usize,
        reduction: Reduction,
        vector: &[u32],
    ) -> Exchange {
        assert_eq!(vector.len(), reduction.words(), "the vector is the reduction's");
        match algorithm {
            Algorithm::Direct => {
                let state = State::Direct(DirectAllReduce::new(rank, world, reduction, vector));
                Exchange { rank, world, state }
            }
            _ => Exchange::without_payload(algorithm, rank, world, reduction),
        }
    }

    /// As [`new`](Exchange::new), where there is no vector: its words are only counted, by
    /// [`note_received`](Exchange::note_received) and [`next_send_words`](Exchange::next_send_words),
    /// which do all that [`receive`](Exchange::receive) and [`next_send`](Exchange::next_send) do
    /// without them.
    ///
    /// # Panics
    /// If `rank` is not below `world`.
    pub fn without_payload(
        algorithm: Algorithm,
        rank: usize,
        world: usize,
        reduction: Reduction,
    ) -> Exchange {
        let state = match algorithm {
            Algorithm::Ring => State::Ring(RingAllReduce::new(rank, world, reduction)),
            Algorithm::HalvingDoubling => {
                State::HalvingDoubling(HalvingDoubling::new(rank, world, reduction))
            }
            Algorithm::Direct => {
                State::Direct(DirectAllReduce::without_payload(rank, world, reduction))
            }
        };
        Exchange { rank, world, state }
    }

    /// Takes notice of the next words from worker `from`, where there is no vector.
    ///
    /// # Errors
    /// If the peer breaks the protocol.
    pub fn note_received(&mut self, from: usize, words: usize) -> Result<(), StreamFault> {
        if !self.receives_from(from) && words > 0 {
            return Err(StreamFault::Surplus { surplus: words });
        }
        match &mut self.state {
            State::Ring(ring) => ring.note_received(words),
            State::HalvingDoubling(halving) => halving.note_received(from, words),
            State::Direct(direct) => direct.note_received(from, words),
        }
    }

    /// How many words [`next_send`](Exchange::next_send) would name, with a vector or without.
    pub fn next_send_words(&self, to: usize) -> usize {
        if !self.sends_to(to) {
            return 0;
        }
        match &self.state {
            State::Ring(ring) => ring.next_send().len(),
            State::HalvingDoubling(halving) => halving.next_send(to).len(),
            State::Direct(direct) => direct.words_to_send(to),
        }
    }

    /// Takes the next words of the stream from worker `from`, of which there may be any number up
    /// to [`words_to_receive`](Exchange::words_to_receive).
    ///
    /// # Errors
    /// If the peer breaks the protocol.
    ///
    /// # Panics
    /// If the vector's length is not the reduction's.
    pub fn receive(
        &mut self,
        from: usize,
        vector: &mut [u32],
        words: &[u32],
    ) -> Result<(), StreamFault> {
        if !self.receives_from(from) && !words.is_empty() {
            return Err(StreamFault::Surplus { surplus: words.len() });
        }
        match &mut self.state {
            State::Ring(ring) => ring.receive(vector, words),
            State::HalvingDoubling(halving) => halving.receive(from, vector, words),
            State::Direct(direct) => direct.receive(from, vector, words),
        }
    }

    /// The words that come next in the stream to worker `to` and may be sent now; empty if more
    /// must be received first, or if all are sent. There may be more behind them once these are
    /// [`sent`](Exchange::sent).
    pub fn next_send<'a>(&'a self, to: usize, vector: &'a [u32]) -> &'a [u32] {
        if !self.sends_to(to) {
            return &[];
        }
        match &self.state {
            State::Ring(ring) => &vector[ring.next_send()],
            State::HalvingDoubling(halving) => &vector[halving.next_send(to)],
            State::Direct(direct) => direct.next_send(to),
        }
    }

    /// Notes that the first `words` of [`next_send`](Exchange::next_send) have been taken by the
    /// transport, which must have copied them: the vector will change.
    ///
    /// # Panics
    /// If these are more words than were named.
    pub fn sent(&mut self, to: usize, words: usize) {
        match &mut self.state {
            State::Ring(ring) => ring.sent(words),
            State::HalvingDoubling(halving) => halving.sent(to, words),
            State::Direct(direct) => direct.sent(to, words),
        }
    }

    /// Whether this all-reduce has words for worker `to`, be it none in the case of an empty part.
    pub fn sends_to(&self, to: usize) -> bool {
        match &self.state {
            State::Ring(_) => self.world > 1 && to == (self.rank + 1) % self.world,
            State::HalvingDoubling(halving) => halving.is_peer(to),
            State::Direct(direct) => direct.is_peer(to),
        }
    }

    /// Whether worker `from` has words for this all-reduce, be it none.
    pub fn receives_from(&self, from: usize) -> bool {
        match &self.state {
            State::Ring(_) => self.world > 1 && self.rank == (from + 1) % self.world,
            State::HalvingDoubling(halving) => halving.is_peer(from),
            State::Direct(direct) => direct.is_peer(from),
        }
    }

    /// Words still to come from a worker.
    pub fn words_to_receive(&self, from: usize) -> usize {
        match &self.state {
            State::Ring(ring) if self.receives_from(from) => ring.words_to_receive(),
            State::Ring(_) => 0,
            State::HalvingDoubling(halving) => halving.words_to_receive(from),
            State::Direct(direct) => direct.words_to_receive(from),
        }
    }

    /// Words still to go to a worker, whether or not they may be sent now.
    pub fn words_to_send(&self, to: usize) -> usize {
        match &self.state {
            State::Ring(ring) if self.sends_to(to) => ring.words_to_send(),
            State::Ring(_) => 0,
            State::HalvingDoubling(halving) => halving.words_to_send(to),
            State::Direct(direct) => direct.words_to_send(to),
        }
    }

    /// Whether nothing is left to receive or to send: the vector is reduced.
    pub fn is_finished(&self) -> bool {
        match &self.state {
            State::Ring(ring) => ring.is_finished(),
            State::HalvingDoubling(halving) => halving.is_finished(),
            State::Direct(direct) => direct.is_finished(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::ops::RangeInclusive;

    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    /// A whole group in one thread: the state machines and the words that are between them.
    struct Simulation {
        exchanges: Vec<Exchange>,
        vectors: Vec<Vec<u32>>,
        /// `between[i][k]` is what worker `i` has sent and worker `k` has not yet received.
        between: Vec<Vec<VecDeque<u32>>>,
        words_sent: usize,
        random: ChaCha8Rng,
    }

    impl Simulation {
        fn new(
            algorithm: Algorithm,
            vectors: Vec<Vec<u32>>,
            reduction: Reduction,
            random: ChaCha8Rng,
        ) -> Simulation {
            let world = vectors.len();
            Simulation {
                exchanges: (0..world)
                    .map(|i| Exchange::new(algorithm, i, world, reduction, &vectors[i]))
                    .collect(),
                vectors,
                between: vec![vec![VecDeque::new(); world]; world],
                words_sent: 0,
                random,
            }
        }

        fn below(&mut self, bound: usize) -> usize {
            self.random.next_u32() as usize % bound
        }

        /// Lets random workers send or receive pieces of random size until all are finished.
        fn run(&mut self) {
            let world = self.exchanges.len();
            // Small pieces cross every border; large ones keep the long vectors fast.
            let piece_max = 1 + self.below(1 + self.vectors[0].len() / 8);
            let mut idle = 0;
            while !self.exchanges.iter().all(Exchange::is_finished) {
                let (from, to) = (self.below(world), self.below(world));
                let piece = 1 + self.below(piece_max);
                let moved = if self.below(2) == 0 {
                    self.send(from, to, piece)
                } else {
                    self.receive(from, to, piece)
                };
                idle = if moved == 0 { idle + 1 } else { 0 };
                // With 2 * world^2 possible moves, so many misses in a row mean that none is left.
                assert!(idle < 200 * world * world, "the exchange stands still");
            }
            let nothing_left = self.between.iter().flatten().all(VecDeque::is_empty);
            assert!(nothing_left, "more was sent than is needed");
        }

        fn send(&mut self, from: usize, to: usize, piece: usize) -> usize {
            let words = self.exchanges[from].next_send(to, &self.vectors[from]);
            let words = &words[..words.len().min(piece)];
            self.between[from][to].extend(words);
            let count = words.len();
            if count > 0 {
                self.exchanges[from].sent(to, count);
                self.words_sent += count;
            }
            count
        }

        fn receive(&mut self, from: usize, to: usize, piece: usize) -> usize {
            let exchange = &mut self.exchanges[to];
            let between = &mut self.between[from][to];
            let words = between.len().min(piece).min(exchange.words_to_receive(from));
            let words: Vec<u32> = between.drain(..words).collect();
            exchange.receive(from, &mut self.vectors[to], &words).expect("peers keep the rules");
            words.len()
        }
    }

    fn plain_reduction(vectors: &[Vec<u32>], reduction: Reduction) -> Vec<u32> {
        let mut reduced = vectors[0].clone();
        for vector in &vectors[1..] {
            reduction.reduce(&mut reduced, 0, vector);
        }
        reduced
    }

    /// Runs all three algorithms on the same vectors, with their own interleavings.
    fn check(worlds: RangeInclusive<usize>, sizes: &[usize]) {
        for world in worlds {
            for &words in sizes {
                let seed = (world * 10_000_000 + words) as u64;
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                // Full-range words, so that sums wrap around.
                let vectors: Vec<Vec<u32>> =
                    (0..world).map(|_| (0..words).map(|_| random.next_u32()).collect()).collect();
                let max_words = random.next_u32() as usize % (words + 1);
                let reduction = Reduction::new(words - max_words, max_words);
                let expected = plain_reduction(&vectors, reduction);
                for algorithm in Algorithm::ALL {
                    let mut simulation =
                        Simulation::new(algorithm, vectors.clone(), reduction, random.clone());
                    simulation.run();
                    for (rank, vector) in simulation.vectors.iter().enumerate() {
                        assert!(
                            *vector == expected,
                            "{algorithm}: rank {rank} of {world}, {words} words, seed {seed}"
                        );
                    }
                    assert_eq!(simulation.words_sent, words_of_all(algorithm, world, words));
                }
            }
        }
    }

    /// What all workers together send, by the formulas in the modules' docs.
    fn words_of_all(algorithm: Algorithm, world: usize, words: usize) -> usize {
        match algorithm {
            Algorithm::Ring => 2 * (world - 1) * words,
            Algorithm::HalvingDoubling => {
                let members = 1 << world.ilog2();
                2 * (members - 1) * words + 2 * (world - members) * words
            }
            Algorithm::Direct => world * (world - 1) * words,
        }
    }

    #[test]
    fn every_algorithm_gives_every_worker_the_plain_reduction() {
        check(1..=16, &[0, 1, 4, 100, 997]);
    }

    #[test]
    fn long_vectors_of_uneven_length_are_reduced() {
        check(1..=16, &[61_706]);
        check(2..=3, &[1_000_003]);
        check(6..=6, &[1_000_003]);
    }

    #[test]
    fn peers_are_mutual_and_few() {
        for world in 1..=33 {
            for algorithm in Algorithm::ALL {
                let peers: Vec<_> = (0..world).map(|rank| algorithm.peers(rank, world)).collect();
                for (rank, list) in peers.iter().enumerate() {
                    assert!(list.iter().all(|&peer| peer != rank && peers[peer].contains(&rank)));
                    let most = match algorithm {
                        Algorithm::Ring => 2,
                        // A partner for each halving, and a guest.
                        Algorithm::HalvingDoubling => world.ilog2() as usize + 1,
                        Algorithm::Direct => world - 1,
                    };
                    assert!(list.len() <= most, "{algorithm}: {list:?} of {world}");
                }
            }
        }
    }

    #[test]
    fn a_strategy_connects_what_its_algorithms_need() {
        assert_eq!(Strategy::Ring.peers(0, 8), [1, 7]);
        assert_eq!(Strategy::HalvingDoubling.peers(0, 8), [1, 2, 4]);
        assert_eq!(Strategy::Auto.peers(0, 4), [1, 2, 3]);
        assert_eq!(Strategy::Auto.peers(0, 32), [1, 2, 4, 8, 16, 31]);
        assert_eq!(Strategy::Auto.peers(0, 1), [0; 0]);
    }

    #[test]
    fn words_from_a_stranger_are_an_error() {
        let reduction = Reduction::sums(4);
        for algorithm in [Algorithm::Ring, Algorithm::HalvingDoubling] {
            let mut vector = vec![1; 4];
            let mut exchange = Exchange::new(algorithm, 0, 8, reduction, &vector);
            let fault = exchange.receive(3, &mut vector, &[1, 2]);
            assert_eq!(fault, Err(StreamFault::Surplus { surplus: 2 }));
            assert!(exchange.next_send(3, &vector).is_empty());
        }
    }
}
