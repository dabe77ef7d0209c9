//! The recursive halving-doubling all-reduce (Rabenseifner 2004; Thakur, Rabenseifner and Gropp
//! 2005): a reduce-scatter in which the partners' distance doubles and the exchanged part halves,
//! then an all-gather that goes the same way back.
//!
//! Among `p` workers, a power of two, worker `v` exchanges with `v ^ 1`, `v ^ 2`, `v ^ 4` and so
//! on. Both partners have reduced the same part of the vector so far; each keeps one half of it and
//! sends the other. After `log2 p` steps each worker holds `1 / p` of the result, and the same
//! partners in reverse order exchange all they have.
//!
//! A world that is no power of two is folded: with `r = n - p` surplus workers, each even rank
//! below `2 r` gives its vector to the rank above it, which takes part for both, and has the result
//! back at the end.
//!
//! **Cost**: `2 log2 p` steps, in which each worker sends and receives `2(p - 1) / p` of the
//! vector; folding adds two steps of a whole vector each. The ring moves as little and takes
//! `2(n - 1)` steps, so this one is faster where latency counts.
//!
//! A word may be sent as soon as all earlier steps are done with it, so pieces of a step flow into
//! the next one while the rest is still arriving.

use std::ops::Range;

use super::collective::{Reduction, StreamFault};

/// One worker's part in one halving-doubling all-reduce, without the vector itself and without IO.
///
/// Hand arriving words to [`receive`](HalvingDoubling::receive), and send the words of the vector
/// that [`next_send`](HalvingDoubling::next_send) names for each peer, telling how many were taken
/// with [`sent`](HalvingDoubling::sent); in any order and in pieces of any size, until
/// [`is_finished`](HalvingDoubling::is_finished). The vector then holds the reduction over all
/// workers.
#[derive(Clone, Debug)]
pub struct HalvingDoubling {
    reduction: Reduction,
    /// By step.
    sends: Vec<Transfer>,
    receives: Vec<Transfer>,
}

/// A part of the vector that goes to or comes from one peer in one step.
#[derive(Clone, Debug)]
struct Transfer {
    peer: usize,
    step: usize,
    part: Range<usize>,
    /// Whether these words are the result, or contributions to it.
    result: bool,
    /// Words of it that are done.
    done: usize,
}

impl HalvingDoubling {
    /// The part of worker `rank` of `world`, in an all-reduce of a vector of
    /// [`reduction.words()`](Reduction::words) words.
    ///
    /// # Panics
    /// If `rank` is not below `world`.
    pub fn new(rank: usize, world: usize, reduction: Reduction) -> HalvingDoubling {
        assert!(rank < world, "rank {rank} in a world of {world}");
        let mut plan = HalvingDoubling { reduction, sends: Vec::new(), receives: Vec::new() };
        let all = 0..reduction.words();
        let fold = Fold::of(world);
        let unfold_step = 1 + 2 * fold.halvings() as usize;
        match fold.role(rank) {
            Role::Surplus { host } => {
                plan.send(host, 0, all.clone(), false);
                plan.receive_part(host, unfold_step, all, true);
            }
            Role::Member { index, guest } => {
                if let Some(guest) = guest {
                    plan.receive_part(guest, 0, all.clone(), false);
                }
                plan.halve_and_double(index, &fold, all.clone());
                if let Some(guest) = guest {
                    plan.send(guest, unfold_step, all, true);
                }
            }
        }
        plan
    }

    fn halve_and_double(&mut self, index: usize, fold: &Fold, all: Range<usize>) {
        let mut part = all;
        // What was kept and what was sent in each halving.
        let mut halves = Vec::new();
        for k in 0..fold.halvings() {
            let middle = part.start + part.len() / 2;
            let (lower, upper) = (part.start..middle, middle..part.end);
            let (kept, given) = if index & (1 << k) == 0 { (lower, upper) } else { (upper, lower) };
            let partner = fold.rank_of(index ^ (1 << k));
            let step = 1 + k as usize;
            self.send(partner, step, given.clone(), false);
            self.receive_part(partner, step, kept.clone(), false);
            halves.push((partner, kept.clone(), given));
            part = kept;
        }
        for (i, (partner, kept, given)) in halves.into_iter().rev().enumerate() {
            let step = 1 + fold.halvings() as usize + i;
            self.send(partner, step, kept, true);
            self.receive_part(partner, step, given, true);
        }
    }

    fn send(&mut self, peer: usize, step: usize, part: Range<usize>, result: bool) {
        self.sends.push(Transfer { peer, step, part, result, done: 0 });
    }

    fn receive_part(&mut self, peer: usize, step: usize, part: Range<usize>, result: bool) {
        self.receives.push(Transfer { peer, step, part, result, done: 0 });
    }

    /// Takes the next words of the stream from worker `from`, of which there may be any number up
    /// to [`words_to_receive`](HalvingDoubling::words_to_receive).
    ///
    /// A peer that is ahead may send a later step's words before an earlier step's have come from
    /// another one: both are added to the same words, in whatever order.
    ///
    /// # Errors
    /// If the peer breaks the protocol. Words before the fault may then have been taken.
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
        let reduction = self.reduction;
        let mut rest = words;
        self.take_in(from, words.len(), |at, count, is_result| {
            let piece = rest.split_off(..count).unwrap_or_default();
            if is_result {
                vector[at..at + count].copy_from_slice(piece);
            } else {
                reduction.reduce(vector, at, piece);
            }
        })
    }

    /// Takes notice of so many words as [`receive`](HalvingDoubling::receive) does, where there is
    /// no vector: the times of an exchange do not depend on what is exchanged.
    ///
    /// # Errors
    /// As [`receive`](HalvingDoubling::receive).
    pub fn note_received(&mut self, from: usize, words: usize) -> Result<(), StreamFault> {
        self.take_in(from, words, |_, _, _| {})
    }

    /// Tells of each piece of so many words where it belongs, how long it is, and whether it is the
    /// result.
    fn take_in(
        &mut self,
        from: usize,
        mut words: usize,
        mut piece: impl FnMut(usize, usize, bool),
    ) -> Result<(), StreamFault> {
        let left = self.words_to_receive(from);
        if words > left {
            return Err(StreamFault::Surplus { surplus: words - left });
        }
        for transfer in self.receives.iter_mut().filter(|transfer| transfer.peer == from) {
            let count = words.min(transfer.left());
            let at = transfer.frontier();
            if transfer.result {
                // A result includes what this worker contributed, so it cannot be here before the
                // contribution has left; it would overwrite words that are still to be sent.
                let early = unsent_below(&self.sends, transfer.step, at..at + count);
                if early > 0 {
                    return Err(StreamFault::Early { early });
                }
            }
            piece(at, count, transfer.result);
            transfer.done += count;
            words -= count;
        }
        Ok(())
    }

    /// The words of the vector that come next in the stream to worker `to` and may be sent now;
    /// empty if more must be received first, or if all are sent. What follows behind a step's
    /// border is named after these were [`sent`](HalvingDoubling::sent).
    pub fn next_send(&self, to: usize) -> Range<usize> {
        let Some(send) = self.sends.iter().find(|send| send.peer == to && send.left() > 0) else {
            return 0..0;
        };
        let at = send.frontier();
        // By far the most common case: nothing has come yet that is to be passed on.
        let before = self.receives.iter().rev().find(|receive| receive.step < send.step);
        if before.is_some_and(|receive| receive.holds_back(at..send.part.end) == Some(at)) {
            return 0..0;
        }
        // What an earlier step has yet to receive into these words bounds what may be sent.
        let end = self
            .receives
            .iter()
            .filter(|receive| receive.step < send.step)
            .filter_map(|receive| receive.holds_back(at..send.part.end))
            .min()
            .unwrap_or(send.part.end);
        at..end
    }

    /// Notes that the first `words` of [`next_send`](HalvingDoubling::next_send) have been taken
    /// by the transport, which must have copied them: the vector will change.
    ///
    /// # Panics
    /// If these are more words than were named.
    pub fn sent(&mut self, to: usize, words: usize) {
        assert!(words <= self.next_send(to).len(), "only words that were named may be sent");
        if let Some(send) = self.sends.iter_mut().find(|send| send.peer == to && send.left() > 0) {
            send.done += words;
        }
    }

    /// Words still to come from a worker.
    pub fn words_to_receive(&self, from: usize) -> usize {
        self.receives.iter().filter(|receive| receive.peer == from).map(Transfer::left).sum()
    }

    /// Words still to go to a worker, whether or not they may be sent now.
    pub fn words_to_send(&self, to: usize) -> usize {
        self.sends.iter().filter(|send| send.peer == to).map(Transfer::left).sum()
    }

    /// Whether nothing is left to receive or to send: the vector is reduced.
    pub fn is_finished(&self) -> bool {
        self.sends.iter().chain(&self.receives).all(|transfer| transfer.left() == 0)
    }

    /// Whether words go to and come from this worker.
    pub fn is_peer(&self, rank: usize) -> bool {
        self.sends.iter().any(|send| send.peer == rank)
    }
}

impl Transfer {
    fn left(&self) -> usize {
        self.part.len() - self.done
    }

    /// Where in the vector its next word lies.
    fn frontier(&self) -> usize {
        self.part.start + self.done
    }

    /// The first of these words that it has still to receive.
    fn holds_back(&self, words: Range<usize>) -> Option<usize> {
        let is_open = self.left() > 0 && self.frontier() < words.end && self.part.end > words.start;
        is_open.then(|| self.frontier().max(words.start))
    }
}

/// Words of `part` that a step before this one has still to send.
fn unsent_below(sends: &[Transfer], step: usize, part: Range<usize>) -> usize {
    sends
        .iter()
        .filter(|send| send.step < step)
        .map(|send| {
            let overlap = send.frontier().max(part.start)..send.part.end.min(part.end);
            overlap.len()
        })
        .sum()
}

/// How a world of any size becomes a power of two.
pub(super) struct Fold {
    /// Workers that take part in halving and doubling.
    members: usize,
    surplus: usize,
}

enum Role {
    /// Gives its vector to `host` and gets the result back.
    Surplus { host: usize },
    /// Takes part as worker `index` of the power of two, for `guest` too.
    Member { index: usize, guest: Option<usize> },
}

impl Fold {
    pub(super) fn of(world: usize) -> Fold {
        let members = 1 << world.ilog2();
        Fold { members, surplus: world - members }
    }

    /// Whether there are workers that do not take part themselves.
    pub(super) fn has_surplus(&self) -> bool {
        self.surplus > 0
    }

    /// Workers that take part: a power of two.
    pub(super) fn members(&self) -> usize {
        self.members
    }

    /// Steps until each member holds one of `members` parts.
    pub(super) fn halvings(&self) -> u32 {
        self.members.ilog2()
    }

    fn role(&self, rank: usize) -> Role {
        if rank >= 2 * self.surplus {
            Role::Member { index: rank - self.surplus, guest: None }
        } else if rank.is_multiple_of(2) {
            Role::Surplus { host: rank + 1 }
        } else {
            Role::Member { index: rank / 2, guest: Some(rank - 1) }
        }
    }

    fn rank_of(&self, index: usize) -> usize {
        if index < self.surplus { 2 * index + 1 } else { index + self.surplus }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(words: usize) -> Reduction {
        Reduction::sums(words)
    }

    #[test]
    fn every_member_has_a_rank_and_every_surplus_rank_a_host() {
        for world in 1..=32 {
            let fold = Fold::of(world);
            let mut indices = Vec::new();
            for rank in 0..world {
                match fold.role(rank) {
                    Role::Member { index, guest } => {
                        assert_eq!(fold.rank_of(index), rank);
                        indices.push(index);
                        if let Some(guest) = guest {
                            assert!(
                                matches!(fold.role(guest), Role::Surplus { host } if host == rank)
                            );
                        }
                    }
                    Role::Surplus { host } => assert!(
                        matches!(fold.role(host), Role::Member { guest: Some(guest), .. } if guest == rank)
                    ),
                }
            }
            indices.sort_unstable();
            assert!(indices.into_iter().eq(0..fold.members()), "world {world}");
        }
    }

    #[test]
    fn four_workers_take_four_steps_of_halves_and_quarters() {
        let plan = HalvingDoubling::new(2, 4, sums(8));
        let sends: Vec<_> = plan.sends.iter().map(|send| (send.peer, send.part.clone())).collect();
        assert_eq!(sends, [(3, 4..8), (0, 0..2), (0, 2..4), (3, 0..4)]);
    }

    #[test]
    fn a_word_is_passed_on_once_earlier_steps_are_done_with_it() {
        let mut vector: Vec<u32> = (0..8).collect();
        let mut plan = HalvingDoubling::new(2, 4, sums(8));
        assert_eq!(plan.next_send(3), 4..8);
        assert_eq!(plan.next_send(0), 0..0);
        plan.receive(3, &mut vector, &[10]).expect("a first word");
        assert_eq!(plan.next_send(0), 0..1);
        // A partner that is ahead: its words lie where the first partner's are still to come.
        plan.receive(0, &mut vector, &[100, 100]).expect("the kept quarter");
        assert_eq!(plan.next_send(0), 0..1);
        plan.receive(3, &mut vector, &[10, 10, 10]).expect("the rest of the half");
        assert_eq!(vector, [10, 11, 112, 113, 4, 5, 6, 7]);
        assert_eq!(plan.next_send(0), 0..2);
    }

    #[test]
    fn a_result_that_comes_too_early_is_an_error() {
        let mut vector = vec![1; 4];
        let mut plan = HalvingDoubling::new(0, 2, sums(4));
        plan.sent(1, 1);
        plan.receive(1, &mut vector, &[5, 5]).expect("the partner's share");
        let early = plan.receive(1, &mut vector, &[7, 7]);
        assert_eq!(early, Err(StreamFault::Early { early: 1 }));
        assert_eq!(vector, [6, 6, 1, 1]);
        plan.receive(1, &mut vector, &[7]).expect("the word that was sent");
        assert_eq!(vector, [6, 6, 7, 1]);
    }

    #[test]
    fn words_beyond_the_end_are_an_error() {
        let mut vector = vec![1; 4];
        let mut plan = HalvingDoubling::new(0, 2, sums(4));
        let surplus = plan.receive(1, &mut vector, &[0; 5]);
        assert_eq!(surplus, Err(StreamFault::Surplus { surplus: 1 }));
        assert_eq!(vector, [1; 4]);
    }

    #[test]
    #[should_panic(expected = "only words that were named may be sent")]
    fn sending_words_that_were_not_named_is_a_bug() {
        HalvingDoubling::new(0, 2, sums(4)).sent(1, 3);
    }
}
