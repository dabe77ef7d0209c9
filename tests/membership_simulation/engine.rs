//! A tiny deterministic engine: its state depends on every sample of every step, in order.

use super::random::mix;

/// Samples of a step.
const BATCH: u64 = 12;

/// What a worker trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Steps completed.
    pub step: u64,
    pub parameters: u64,
}

impl State {
    pub const INITIAL: State = State { step: 0, parameters: 42 };

    /// A worker's part of a step's sum: that of its share of the batch.
    pub fn contribution(&self, rank: usize, world: usize) -> u64 {
        let border = |rank: usize| rank as u64 * BATCH / world as u64;
        let sample = |i| mix(self.parameters ^ mix(self.step * BATCH + i));
        (border(rank)..border(rank + 1)).map(sample).fold(0, u64::wrapping_add)
    }

    /// The state after a step with this sum over the batch.
    pub fn after(&self, sum: u64) -> State {
        State { step: self.step + 1, parameters: mix(self.parameters ^ sum) }
    }
}

/// The states of an undisturbed run of so many steps, by steps completed.
pub fn undisturbed(steps: u64) -> Vec<State> {
    let mut states = vec![State::INITIAL];
    for _ in 0..steps {
        let last = states[states.len() - 1];
        states.push(last.after(last.contribution(0, 1)));
    }
    states
}
