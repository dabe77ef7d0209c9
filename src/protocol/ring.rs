//! The ring all-reduce (Patarasu and Yuan 2009): reduce-scatter, then all-gather.
//!
//! The vector is cut into `n` shards, shard `i` being `words * i / n .. words * (i + 1) / n`. In
//! ring step `j` a worker sends shard `rank - j` to its next neighbour and receives shard
//! `rank - 1 - j` from its previous one (modulo `n`). In the first `n - 1` ring steps arriving
//! words are reduced into the vector, so that each shard ends up complete on one worker; in the
//! other `n - 1` they are the result and are copied.
//!
//! **Cost**: `2(n - 1)` ring steps, and each worker sends and receives `2(n - 1) / n` of the
//! vector, whatever the number of workers: the least that any all-reduce can do.
//!
//! The whole exchange is two streams of words. What a worker sends is its own shard, followed by
//! everything that it receives, after reduction, except for the last shard. So words may be passed
//! on as soon as they have arrived, in pieces of any size (*cut-through*), and the only question
//! is how many: the length of the own shard plus the number of words received.

use std::ops::Range;

use super::collective::{Reduction, StreamFault};

/// One worker's part in one ring all-reduce, without the vector itself and without IO.
///
/// Hand arriving words to [`receive`](RingAllReduce::receive) and send the words of the vector that
/// [`next_send`](RingAllReduce::next_send) names, telling how many were taken with
/// [`sent`](RingAllReduce::sent); in any order and in pieces of any size, until
/// [`is_finished`](RingAllReduce::is_finished). The vector then holds the reduction over all
/// workers.
#[derive(Clone, Debug)]
pub struct RingAllReduce {
    rank: usize,
    world: usize,
    reduction: Reduction,
    incoming: Cursor,
    outgoing: Cursor,
    /// Words of the whole incoming and outgoing stream.
    incoming_words: usize,
    outgoing_words: usize,
}

/// A position in one of the two streams.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// Words before this position.
    words: usize,
    ring_step: usize,
    /// Words before this position within the ring step's shard.
    offset: usize,
}

impl RingAllReduce {
    /// The part of worker `rank` of `world`, in an all-reduce of a vector of
    /// [`reduction.words()`](Reduction::words) words.
    ///
    /// # Panics
    /// If `rank` is not below `world`.
    pub fn new(rank: usize, world: usize, reduction: Reduction) -> RingAllReduce {
        assert!(rank < world, "rank {rank} in a world of {world}");
        let mut ring = RingAllReduce {
            rank,
            world,
            reduction,
            incoming: Cursor::default(),
            outgoing: Cursor::default(),
            incoming_words: 0,
            outgoing_words: 0,
        };
        ring.incoming_words = (0..ring.ring_steps()).map(|j| ring.incoming_shard(j).len()).sum();
        ring.outgoing_words = (0..ring.ring_steps()).map(|j| ring.outgoing_shard(j).len()).sum();
        ring
    }

    /// Takes the next words of the stream from the previous neighbour, of which there may be any
    /// number up to [`words_to_receive`](RingAllReduce::words_to_receive).
    ///
    /// # Errors
    /// If the neighbour breaks the protocol; the vector is then left as it was.
    ///
    /// # Panics
    /// If the vector's length is not the reduction's.
    pub fn receive(&mut self, vector: &mut [u32], words: &[u32]) -> Result<(), StreamFault> {
        assert_eq!(vector.len(), self.reduction.words(), "the vector is the reduction's");
        let reduction = self.reduction;
        let mut rest = words;
        self.take_in(words.len(), |at, count, is_result| {
            let piece = rest.split_off(..count).unwrap_or_default();
            if is_result {
                vector[at..at + count].copy_from_slice(piece);
            } else {
                reduction.reduce(vector, at, piece);
            }
        })
    }

    /// Takes notice of so many words as [`receive`](RingAllReduce::receive) does, where there is no
    /// vector: the times of an exchange do not depend on what is exchanged.
    ///
    /// # Errors
    /// As [`receive`](RingAllReduce::receive).
    pub fn note_received(&mut self, words: usize) -> Result<(), StreamFault> {
        self.take_in(words, |_, _, _| {})
    }

    /// Tells of each piece of so many words where it belongs, how long it is, and whether it is the
    /// result.
    fn take_in(
        &mut self,
        mut words: usize,
        mut piece: impl FnMut(usize, usize, bool),
    ) -> Result<(), StreamFault> {
        if words > self.words_to_receive() {
            return Err(StreamFault::Surplus { surplus: words - self.words_to_receive() });
        }
        // In the all-gather the shards arrive in the order in which this worker sent its own
        // contributions to them. A result includes that contribution, so it cannot be here before
        // the contribution has left; it would overwrite words that are still to be sent.
        let reduced_words = self.reduction.words() - self.shard(self.rank).len();
        let results = (self.incoming.words + words).saturating_sub(reduced_words);
        if results > self.outgoing.words {
            return Err(StreamFault::Early { early: results - self.outgoing.words });
        }
        while words > 0 {
            let ring_step = self.incoming.ring_step;
            let shard = self.incoming_shard(ring_step);
            let at = shard.start + self.incoming.offset;
            let count = words.min(shard.end - at);
            piece(at, count, ring_step >= self.world - 1);
            self.incoming.advance(count, shard.len());
            words -= count;
        }
        Ok(())
    }

    /// The words of the vector that come next in the stream to the next neighbour and may be sent
    /// now; empty if more must be received first, or if all are sent. What follows behind a
    /// shard's border is named after these were [`sent`](RingAllReduce::sent).
    pub fn next_send(&self) -> Range<usize> {
        let received_and_own = self.shard(self.rank).len() + self.incoming.words;
        let sendable = received_and_own.min(self.outgoing_words) - self.outgoing.words;
        if sendable == 0 {
            return 0..0;
        }
        let mut cursor = self.outgoing;
        let mut shard = self.outgoing_shard(cursor.ring_step);
        while cursor.offset == shard.len() {
            cursor.advance(0, shard.len());
            shard = self.outgoing_shard(cursor.ring_step);
        }
        let at = shard.start + cursor.offset;
        at..shard.end.min(at + sendable)
    }

    /// Notes that the first `words` of [`next_send`](RingAllReduce::next_send) have been taken by
    /// the transport, which must have copied them: the vector will change.
    ///
    /// # Panics
    /// If these are more words than were named.
    pub fn sent(&mut self, mut words: usize) {
        assert!(words <= self.next_send().len(), "only words that were named may be sent");
        while words > 0 {
            let shard = self.outgoing_shard(self.outgoing.ring_step);
            let piece = words.min(shard.len() - self.outgoing.offset);
            self.outgoing.advance(piece, shard.len());
            words -= piece;
        }
    }

    /// Words still to come from the previous neighbour.
    pub fn words_to_receive(&self) -> usize {
        self.incoming_words - self.incoming.words
    }

    /// Words still to go to the next neighbour, whether or not they may be sent now.
    pub fn words_to_send(&self) -> usize {
        self.outgoing_words - self.outgoing.words
    }

    /// Whether nothing is left to receive or to send: the vector is reduced.
    pub fn is_finished(&self) -> bool {
        self.words_to_receive() == 0 && self.words_to_send() == 0
    }

    fn ring_steps(&self) -> usize {
        2 * (self.world - 1)
    }

    fn incoming_shard(&self, ring_step: usize) -> Range<usize> {
        self.shard((self.rank + 2 * self.world - 1 - ring_step) % self.world)
    }

    fn outgoing_shard(&self, ring_step: usize) -> Range<usize> {
        self.shard((self.rank + 2 * self.world - ring_step) % self.world)
    }

    fn shard(&self, index: usize) -> Range<usize> {
        let border = |i: usize| {
            // In 64 bits, where the product of two 32-bit counts fits.
            (self.reduction.words() as u64 * i as u64 / self.world as u64) as usize
        };
        border(index)..border(index + 1)
    }
}

impl Cursor {
    /// Moves on by `words` within a shard of `shard_words`, and past its end if that is reached.
    fn advance(&mut self, words: usize, shard_words: usize) {
        self.words += words;
        self.offset += words;
        debug_assert!(self.offset <= shard_words);
        if self.offset == shard_words {
            self.ring_step += 1;
            self.offset = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    const WORDS: [usize; 9] = [0, 1, 2, 3, 4, 7, 100, 997, 61_706];

    /// A whole ring in one thread: the state machines and the words that are between them.
    struct Simulation {
        rings: Vec<RingAllReduce>,
        vectors: Vec<Vec<u32>>,
        /// `between[i]` is what worker `i` has sent and worker `i + 1` has not yet received.
        between: Vec<VecDeque<u32>>,
        random: ChaCha8Rng,
    }

    impl Simulation {
        fn new(vectors: Vec<Vec<u32>>, reduction: Reduction, random: ChaCha8Rng) -> Simulation {
            let world = vectors.len();
            Simulation {
                rings: (0..world).map(|i| RingAllReduce::new(i, world, reduction)).collect(),
                vectors,
                between: vec![VecDeque::new(); world],
                random,
            }
        }

        fn below(&mut self, bound: usize) -> usize {
            self.random.next_u32() as usize % bound
        }

        /// Lets random workers send or receive pieces of random size until all are finished.
        fn run(mut self) -> Vec<Vec<u32>> {
            let world = self.rings.len();
            // Small pieces cross every border; large ones keep the long vectors fast.
            let piece_max = 1 + self.below(1 + self.vectors[0].len() / 8);
            let mut idle = 0;
            while !self.rings.iter().all(RingAllReduce::is_finished) {
                let i = self.below(world);
                let piece = 1 + self.below(piece_max);
                let moved =
                    if self.below(2) == 0 { self.send(i, piece) } else { self.receive(i, piece) };
                idle = if moved == 0 { idle + 1 } else { 0 };
                // With 2 * world possible moves, so many misses in a row mean that there is none.
                assert!(idle < 1_000 * world, "the ring stands still");
            }
            assert!(self.between.iter().all(VecDeque::is_empty), "more was sent than is needed");
            self.vectors
        }

        fn send(&mut self, i: usize, piece: usize) -> usize {
            let range = self.rings[i].next_send();
            let words = range.len().min(piece);
            self.between[i].extend(&self.vectors[i][range.start..range.start + words]);
            self.rings[i].sent(words);
            words
        }

        fn receive(&mut self, i: usize, piece: usize) -> usize {
            let prev = (i + self.rings.len() - 1) % self.rings.len();
            let words = self.between[prev].len().min(piece).min(self.rings[i].words_to_receive());
            let words: Vec<u32> = self.between[prev].drain(..words).collect();
            self.rings[i].receive(&mut self.vectors[i], &words).expect("neighbours keep the rules");
            words.len()
        }
    }

    fn plain_reduction(vectors: &[Vec<u32>], reduction: Reduction) -> Vec<u32> {
        (0..reduction.words())
            .map(|at| {
                let column = vectors.iter().map(|vector| vector[at]);
                if at < reduction.sum_words {
                    column.fold(0, u32::wrapping_add)
                } else {
                    column.max().expect("a world is not empty")
                }
            })
            .collect()
    }

    #[test]
    fn every_worker_ends_with_the_plain_reduction() {
        for world in 1..=16 {
            for words in WORDS {
                let seed = (world * 1_000_000 + words) as u64;
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                // Full-range words, so that sums wrap around.
                let vectors: Vec<Vec<u32>> =
                    (0..world).map(|_| (0..words).map(|_| random.next_u32()).collect()).collect();
                let max_words = random.next_u32() as usize % (words + 1);
                let reduction = Reduction::new(words - max_words, max_words);
                let expected = plain_reduction(&vectors, reduction);
                let reduced = Simulation::new(vectors, reduction, random.clone()).run();
                for (rank, vector) in reduced.iter().enumerate() {
                    assert!(
                        *vector == expected,
                        "seed {seed}: rank {rank} of {world}, {words} words"
                    );
                }
                // The same collective again, on what came out.
                let expected = plain_reduction(&reduced, reduction);
                let again = Simulation::new(reduced, reduction, random).run();
                assert!(again.iter().all(|vector| *vector == expected), "seed {seed}: second time");
            }
        }
    }

    #[test]
    fn costs_what_the_module_says() {
        for world in 1..=16 {
            for words in WORDS {
                let reduction = Reduction::sums(words);
                let rings: Vec<_> =
                    (0..world).map(|rank| RingAllReduce::new(rank, world, reduction)).collect();
                // Shards differ by at most one word, and each stream leaves out two of them.
                let expected = 2 * words as isize - 2 * (words / world) as isize;
                for ring in &rings {
                    let sent = ring.words_to_send() as isize;
                    let received = ring.words_to_receive() as isize;
                    assert!((0..=2).contains(&(expected - sent)), "{world} {words}: {sent}");
                    assert!(
                        (0..=2).contains(&(expected - received)),
                        "{world} {words}: {received}"
                    );
                }
                let total: usize = rings.iter().map(RingAllReduce::words_to_send).sum();
                assert_eq!(total, 2 * (world - 1) * words);
            }
        }
    }

    #[test]
    fn a_word_is_passed_on_as_soon_as_it_is_received() {
        let reduction = Reduction::sums(9);
        let mut ring = RingAllReduce::new(1, 3, reduction);
        let mut vector: Vec<u32> = (0..9).collect();
        assert_eq!(ring.next_send(), 3..6);
        ring.sent(3);
        assert_eq!(ring.next_send(), 0..0);
        ring.receive(&mut vector, &[10]).expect("a first word");
        assert_eq!(ring.next_send(), 0..1);
        assert_eq!(vector[0], 10);
    }

    #[test]
    fn words_beyond_the_end_are_an_error() {
        let reduction = Reduction::sums(4);
        let mut ring = RingAllReduce::new(0, 2, reduction);
        let mut vector = vec![1; 4];
        ring.sent(2);
        assert_eq!(ring.receive(&mut vector, &[0; 5]), Err(StreamFault::Surplus { surplus: 1 }));
        assert_eq!(vector, [1; 4]);
        let mut alone = RingAllReduce::new(0, 1, reduction);
        assert!(alone.is_finished());
        assert_eq!(alone.receive(&mut vector, &[0]), Err(StreamFault::Surplus { surplus: 1 }));
    }

    #[test]
    fn a_result_that_comes_too_early_is_an_error() {
        let reduction = Reduction::sums(4);
        let mut ring = RingAllReduce::new(0, 2, reduction);
        let mut vector = vec![1; 4];
        ring.sent(1);
        ring.receive(&mut vector, &[5, 5]).expect("the neighbour's shard");
        assert_eq!(ring.receive(&mut vector, &[7, 7]), Err(StreamFault::Early { early: 1 }));
        assert_eq!(vector, [1, 1, 6, 6]);
        ring.receive(&mut vector, &[7]).expect("the word that was sent");
        assert_eq!(vector, [7, 1, 6, 6]);
    }

    #[test]
    #[should_panic(expected = "only words that were named may be sent")]
    fn sending_words_that_were_not_named_is_a_bug() {
        RingAllReduce::new(0, 2, Reduction::sums(4)).sent(3);
    }
}
