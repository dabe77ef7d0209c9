//! The state that a view begins with, brought to everybody by one all-reduce.
//!
//! The source contributes its state's words, everybody else zeros, so that the sum is the source's
//! state, bit by bit. Two words of maxima tell where the run stands. It costs as much as one step's
//! gradients, and twice or three times as much with an optimizer that has a state.

use crate::config::OptimizerConfig;
use crate::model::layout::{PARAMETERS, SCALE_COUNT};
use crate::numerics::optimizer::{Optimizer, OptimizerState, StateError, state_names};
use crate::protocol::collective::Reduction;

use super::trainer::TrainingState;
use super::views::{Joined, Standing};

/// Words before the vectors: steps completed and updates made, low half first.
const COUNTERS: usize = 4;

/// Words behind the state: whether anybody has not reported, and whether anybody wants to stop.
const FLAGS: usize = 2;

/// What this worker contributes, and how it is reduced.
pub(super) fn contribution(
    joined: &Joined,
    state: &TrainingState,
    standing: Standing,
) -> (Reduction, Vec<u32>) {
    let mut words = match (joined.copies(), joined.is_source()) {
        (false, _) => Vec::new(),
        (true, true) => encode(state),
        (true, false) => vec![0; encode(state).len()],
    };
    let reduction = Reduction::new(words.len(), FLAGS);
    // Whoever copies the state has done nothing behind it yet.
    let behind = joined.is_behind();
    words.push(u32::from(behind || !standing.reported));
    words.push(u32::from(!behind && standing.stopped));
    (reduction, words)
}

/// Where everybody stands.
pub(super) fn standing(reduced: &[u32]) -> Standing {
    let [.., unreported, stopped] = reduced else { unreachable!("the flags are always there") };
    Standing { reported: *unreported == 0, stopped: *stopped != 0 }
}

/// The state in the reduced words.
///
/// # Errors
/// If it is no state of this optimizer, which only a worker that breaks the protocol can cause.
pub(super) fn state(
    config: &OptimizerConfig,
    reduced: &[u32],
) -> Result<TrainingState, StateError> {
    let (counters, words) = reduced.split_at(COUNTERS);
    let counter = |at: usize| u64::from(counters[at]) | u64::from(counters[at + 1]) << 32;
    let floats = |words: &[u32]| words.iter().map(|&word| f32::from_bits(word)).collect();
    let (parameters, words) = words.split_at(PARAMETERS);
    let (maxima, words) = words.split_at(SCALE_COUNT);
    let vectors = state_names(config)
        .iter()
        .zip(words.chunks(PARAMETERS))
        .map(|(name, words)| ((*name).to_owned(), floats(words)))
        .collect();
    Ok(TrainingState {
        step: counter(0),
        parameters: floats(parameters),
        optimizer: Optimizer::restore(config, OptimizerState { steps: counter(2), vectors })?,
        maxima: std::array::from_fn(|k| f32::from_bits(maxima[k])),
    })
}

fn encode(state: &TrainingState) -> Vec<u32> {
    let optimizer = state.optimizer.state();
    let halves = |counter: u64| [counter as u32, (counter >> 32) as u32];
    let vectors = optimizer.vectors.iter().flat_map(|(_, vector)| vector);
    let floats = state.parameters.iter().chain(&state.maxima).chain(vectors);
    let counters = [halves(state.step), halves(optimizer.steps)].concat();
    counters.into_iter().chain(floats.map(|value| value.to_bits())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunConfig;

    #[test]
    fn a_state_survives_its_words_for_every_optimizer() {
        for optimizer in [
            OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
            OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
            OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 },
        ] {
            let config = RunConfig { optimizer, ..RunConfig::default() };
            let mut original = TrainingState::initial(&config);
            let gradients: Vec<f32> = (0..PARAMETERS).map(|i| (i as f32).sin()).collect();
            original.optimizer.step(&mut original.parameters, &gradients, 0.1).expect("finite");
            original.step = (7 << 32) + 3;
            original.maxima[2] = 0.125;
            let mut words = encode(&original);
            words.extend([0, 1]);
            let copy = state(&optimizer, &words).expect("its own words");
            assert_eq!(copy.sha256(), original.sha256());
            assert_eq!(standing(&words), Standing { reported: true, stopped: true });
        }
    }
}
