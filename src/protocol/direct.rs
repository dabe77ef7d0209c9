//! The direct exchange: every worker sends its vector to every other one and adds up what comes.
//!
//! **Cost**: one step, in which each worker sends and receives `n - 1` whole vectors. No other
//! all-reduce has fewer steps, and none moves more bytes, so this is for vectors that are tiny
//! beside the link's latency (among two workers it moves no more than the others do).
//!
//! A worker's own words are still being sent while others' are added to the vector, so it keeps a
//! copy of what it contributed.

use super::collective::{Reduction, StreamFault};

/// One worker's part in one direct exchange, without the vector itself and without IO.
///
/// Hand arriving words to [`receive`](DirectAllReduce::receive), and send what
/// [`next_send`](DirectAllReduce::next_send) holds for each peer, telling how many words were
/// taken with [`sent`](DirectAllReduce::sent); in any order and in pieces of any size, until
/// [`is_finished`](DirectAllReduce::is_finished). The vector then holds the reduction over all
/// workers.
#[derive(Clone, Debug)]
pub struct DirectAllReduce {
    rank: usize,
    reduction: Reduction,
    /// What this worker contributes.
    own: Vec<u32>,
    /// Words sent to and received from each worker; of this worker's own entry, all.
    sent: Vec<usize>,
    received: Vec<usize>,
}

impl DirectAllReduce {
    /// The part of worker `rank` of `world` that contributes `vector`.
    ///
    /// # Panics
    /// If `rank` is not below `world`, or the vector's length is not the reduction's.
    pub fn new(rank: usize, world: usize, reduction: Reduction, vector: &[u32]) -> DirectAllReduce {
        assert_eq!(vector.len(), reduction.words(), "the vector is the reduction's");
        let own = vector.to_vec();
        DirectAllReduce { own, ..DirectAllReduce::without_payload(rank, world, reduction) }
    }

    /// As [`new`](DirectAllReduce::new), where there is no vector, so that only
    /// [`note_received`](DirectAllReduce::note_received) may take words.
    ///
    /// # Panics
    /// If `rank` is not below `world`.
    pub fn without_payload(rank: usize, world: usize, reduction: Reduction) -> DirectAllReduce {
        assert!(rank < world, "rank {rank} in a world of {world}");
        let mut done = vec![0; world];
        done[rank] = reduction.words();
        DirectAllReduce { rank, reduction, own: Vec::new(), sent: done.clone(), received: done }
    }

    /// Takes the next words from worker `from`, of which there may be any number up to
    /// [`words_to_receive`](DirectAllReduce::words_to_receive).
    ///
    /// # Errors
    /// If the peer breaks the protocol; the vector is then left as it was.
    ///
    /// # Panics
    /// If the vector's length is not the reduction's.
    pub fn receive(
        &mut self,
        from: usize,
        vector: &mut [u32],
        words: &[u32],
    ) -> Result<(), StreamFault> {
        assert_eq!(vector.len(), self.reduction.words(), "the vector is the reduction's");
        let at = self.received[from];
        self.note_received(from, words.len())?;
        self.reduction.reduce(vector, at, words);
        Ok(())
    }

    /// Takes notice of so many words as [`receive`](DirectAllReduce::receive) does, where there is no
    /// vector: the times of an exchange do not depend on what is exchanged.
    ///
    /// # Errors
    /// As [`receive`](DirectAllReduce::receive).
    pub fn note_received(&mut self, from: usize, words: usize) -> Result<(), StreamFault> {
        let left = self.words_to_receive(from);
        if words > left {
            return Err(StreamFault::Surplus { surplus: words - left });
        }
        self.received[from] += words;
        Ok(())
    }

    /// The words that come next in the stream to worker `to`; empty if all are sent.
    pub fn next_send(&self, to: usize) -> &[u32] {
        &self.own[self.sent[to]..]
    }

    /// Notes that the first `words` of [`next_send`](DirectAllReduce::next_send) were taken.
    ///
    /// # Panics
    /// If these are more words than were named.
    pub fn sent(&mut self, to: usize, words: usize) {
        assert!(words <= self.words_to_send(to), "only words that were named may be sent");
        self.sent[to] += words;
    }

    /// Words still to come from a worker.
    pub fn words_to_receive(&self, from: usize) -> usize {
        self.reduction.words() - self.received[from]
    }

    /// Words still to go to a worker.
    pub fn words_to_send(&self, to: usize) -> usize {
        self.reduction.words() - self.sent[to]
    }

    /// Whether nothing is left to receive or to send: the vector is reduced.
    pub fn is_finished(&self) -> bool {
        self.sent.iter().chain(&self.received).all(|&words| words == self.reduction.words())
    }

    /// Whether words go to and come from this worker.
    pub fn is_peer(&self, rank: usize) -> bool {
        rank != self.rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_does_not_change_with_what_arrives() {
        let reduction = Reduction::new(2, 1);
        let mut vector = vec![1, 2, 3];
        let mut direct = DirectAllReduce::new(0, 3, reduction, &vector);
        direct.receive(1, &mut vector, &[10, 10]).expect("two words of three");
        assert_eq!(vector, [11, 12, 3]);
        assert_eq!(direct.next_send(2), [1, 2, 3]);
        direct.sent(2, 3);
        assert_eq!(direct.next_send(1), [1, 2, 3]);
    }

    #[test]
    fn words_beyond_the_end_are_an_error() {
        let reduction = Reduction::sums(1);
        let mut vector = vec![1];
        let mut direct = DirectAllReduce::new(0, 2, reduction, &vector);
        let surplus = direct.receive(1, &mut vector, &[1, 1]);
        assert_eq!(surplus, Err(StreamFault::Surplus { surplus: 1 }));
        let from_itself = direct.receive(0, &mut vector, &[1]);
        assert_eq!(from_itself, Err(StreamFault::Surplus { surplus: 1 }));
        assert_eq!(vector, [1]);
    }
}
