//! The optimizer on the host, in strict `f32`.
//!
//! Every replica applies the same update to the same bits, so the arithmetic is fixed to the last
//! rounding: multiplication, addition, division and square root are IEEE operations in the order
//! given at each rule, none of them fused; what depends on the step alone is computed in `f64` and
//! rounded once.

use std::ops::Range;

use crate::config::OptimizerConfig;
use crate::model::PARAMETERS;

/// The update rule with its state.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    config: OptimizerConfig,
    /// Updates made so far.
    steps: u64,
    /// Parameters that it updates: [`PARAMETERS`], or those of a slice.
    length: usize,
    /// One vector of that length for each of [`state_names`].
    vectors: Vec<Vec<f32>>,
}

/// An optimizer's state in a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerState {
    /// Updates made so far.
    pub steps: u64,
    /// Named vectors in the order of the flat parameter vector.
    pub vectors: Vec<(String, Vec<f32>)>,
}

/// The names of a rule's state vectors, which are PyTorch's, but for `momentum`, which is called
/// `momentum_buffer` there.
pub fn state_names(config: &OptimizerConfig) -> &'static [&'static str] {
    match config {
        OptimizerConfig::Sgd { momentum: 0.0, .. } => &[],
        OptimizerConfig::Sgd { .. } => &["momentum"],
        OptimizerConfig::AdamW { .. } => &["exp_avg", "exp_avg_sq"],
    }
}

/// An update left a parameter infinite or not a number: the run has diverged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a parameter is no longer a finite number")]
pub struct NotFinite;

/// A state that does not belong to the optimizer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error(
        "the state has the vectors [{found}], {optimizer} needs [{expected}]: resume with the \
         optimizer that the checkpoint was written with"
    )]
    Names { optimizer: &'static str, found: String, expected: String },
    #[error("the state vector `{name}` has {found} elements instead of {PARAMETERS}")]
    Length { name: String, found: usize },
    #[error("the state vector `{name}` holds a value that is not a finite number")]
    NotFinite { name: String },
}

impl Optimizer {
    /// The rule with nothing learned yet: all state is 0.
    pub fn new(config: &OptimizerConfig) -> Optimizer {
        let vectors = state_names(config).iter().map(|_| vec![0.0; PARAMETERS]).collect();
        Optimizer { config: *config, steps: 0, length: PARAMETERS, vectors }
    }

    /// The rule as it was when [`state`](Optimizer::state) was taken.
    pub fn restore(
        config: &OptimizerConfig,
        state: OptimizerState,
    ) -> Result<Optimizer, StateError> {
        let expected = state_names(config);
        if !state.vectors.iter().map(|(name, _)| name).eq(expected) {
            let found: Vec<&str> = state.vectors.iter().map(|(name, _)| name.as_str()).collect();
            return Err(StateError::Names {
                optimizer: config.name(),
                found: found.join(", "),
                expected: expected.join(", "),
            });
        }
        for (name, vector) in &state.vectors {
            if vector.len() != PARAMETERS {
                return Err(StateError::Length { name: name.clone(), found: vector.len() });
            }
            if !all_finite(vector) {
                return Err(StateError::NotFinite { name: name.clone() });
            }
        }
        let vectors = state.vectors.into_iter().map(|(_, vector)| vector).collect();
        Ok(Optimizer { config: *config, steps: state.steps, length: PARAMETERS, vectors })
    }

    /// What [`restore`](Optimizer::restore) needs to go on with the same bits.
    pub fn state(&self) -> OptimizerState {
        let names = state_names(&self.config).iter().map(|&name| name.to_owned());
        let vectors = names.zip(self.vectors.iter().cloned()).collect();
        OptimizerState { steps: self.steps, vectors }
    }

    /// Updates made so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The rule for a part of what this one updates. Every rule treats each parameter by itself, so
    /// the parts together make the same updates as the whole.
    ///
    /// # Panics
    /// If the part is not within it.
    pub fn part(&self, range: Range<usize>) -> Optimizer {
        Optimizer {
            config: self.config,
            steps: self.steps,
            length: range.len(),
            vectors: self.vectors.iter().map(|vector| vector[range.clone()].to_vec()).collect(),
        }
    }

    /// The state's vectors, one behind the other.
    pub fn to_words(&self) -> Vec<u32> {
        self.vectors.iter().flatten().map(|value| value.to_bits()).collect()
    }

    /// Puts the state of a [`part`](Optimizer::part) back, as `words` from its
    /// [`to_words`](Optimizer::to_words) after `steps` updates. Whether there were as many words as
    /// belong there; else nothing has changed.
    ///
    /// # Panics
    /// If the range is not within it.
    pub fn put_back(&mut self, range: Range<usize>, steps: u64, words: &[u32]) -> bool {
        if words.len() != self.vectors.len() * range.len() {
            return false;
        }
        self.steps = steps;
        if !range.is_empty() {
            for (vector, words) in self.vectors.iter_mut().zip(words.chunks_exact(range.len())) {
                for (value, &word) in vector[range.clone()].iter_mut().zip(words) {
                    *value = f32::from_bits(word);
                }
            }
        }
        true
    }

    /// Updates `parameters` with the mean `gradients`, both in the order of the flat vector.
    ///
    /// # Errors
    /// If a parameter is not finite afterwards; then parameters and state are of no use any more.
    ///
    /// # Panics
    /// If a slice is not as long as the rule's own vectors: [`PARAMETERS`], or its part of them.
    pub fn step(
        &mut self,
        parameters: &mut [f32],
        gradients: &[f32],
        lr: f32,
    ) -> Result<(), NotFinite> {
        assert_eq!(parameters.len(), self.length);
        assert_eq!(gradients.len(), self.length);
        self.steps += 1;
        match (self.config, self.vectors.as_mut_slice()) {
            (OptimizerConfig::Sgd { weight_decay, .. }, []) => {
                sgd(parameters, gradients, lr, weight_decay);
            }
            (OptimizerConfig::Sgd { momentum, nesterov, weight_decay }, [buffer]) => {
                sgd_momentum(parameters, gradients, buffer, lr, momentum, nesterov, weight_decay);
            }
            (
                OptimizerConfig::AdamW { beta1, beta2, epsilon, weight_decay },
                [exp_avg, exp_avg_sq],
            ) => {
                let factors =
                    AdamWFactors::new(self.steps, lr, beta1, beta2, epsilon, weight_decay);
                adamw(parameters, gradients, exp_avg, exp_avg_sq, &factors);
            }
            _ => unreachable!("new and restore make the vectors that state_names lists"),
        }
        if all_finite(parameters) { Ok(()) } else { Err(NotFinite) }
    }
}

/// `d = g + weight_decay * p`, `p = p - lr * d`.
fn sgd(parameters: &mut [f32], gradients: &[f32], lr: f32, weight_decay: f32) {
    for (p, &g) in parameters.iter_mut().zip(gradients) {
        let d = g + weight_decay * *p;
        *p -= lr * d;
    }
}

/// PyTorch's form of momentum, in which the learning rate scales the sum rather than each term:
/// `d = g + weight_decay * p`, `m = momentum * m + d`, `p = p - lr * m`, or with Nesterov's look
/// ahead (Sutskever et al. 2013) `p = p - lr * (d + momentum * m)`. Since `m` begins with 0, it is
/// `d` after the first step.
fn sgd_momentum(
    parameters: &mut [f32],
    gradients: &[f32],
    buffer: &mut [f32],
    lr: f32,
    momentum: f32,
    nesterov: bool,
    weight_decay: f32,
) {
    for ((p, &g), m) in parameters.iter_mut().zip(gradients).zip(buffer) {
        let d = g + weight_decay * *p;
        *m = momentum * *m + d;
        *p -= lr * if nesterov { d + momentum * *m } else { *m };
    }
}

/// What AdamW multiplies with in a step.
struct AdamWFactors {
    /// `1 - lr * weight_decay`.
    keep: f32,
    beta1: f32,
    /// `1 - beta1`.
    gain1: f32,
    beta2: f32,
    /// `1 - beta2`.
    gain2: f32,
    /// `lr / (1 - beta1^t)`.
    step_size: f32,
    /// `sqrt(1 - beta2^t)`.
    correction2: f32,
    epsilon: f32,
}

impl AdamWFactors {
    /// For update `t`, counted from 1. The powers come from the `libm` crate, which is the same
    /// arithmetic on every machine.
    fn new(
        t: u64,
        lr: f32,
        beta1: f32,
        beta2: f32,
        epsilon: f32,
        weight_decay: f32,
    ) -> AdamWFactors {
        let [lr, b1, b2, decay] = [lr, beta1, beta2, weight_decay].map(f64::from);
        let t = t as f64;
        AdamWFactors {
            keep: (1.0 - lr * decay) as f32,
            beta1,
            gain1: (1.0 - b1) as f32,
            beta2,
            gain2: (1.0 - b2) as f32,
            step_size: (lr / (1.0 - libm::pow(b1, t))) as f32,
            correction2: (1.0 - libm::pow(b2, t)).sqrt() as f32,
            epsilon,
        }
    }
}

/// AdamW (Loshchilov and Hutter 2019): Adam (Kingma and Ba 2015) with the decay of the weights
/// apart from the gradient.
/// `p = p * keep`, `m = beta1 * m + gain1 * g`, `v = beta2 * v + gain2 * (g * g)`,
/// `p = p - (step_size * m) / (sqrt(v) / correction2 + epsilon)`.
fn adamw(
    parameters: &mut [f32],
    gradients: &[f32],
    exp_avg: &mut [f32],
    exp_avg_sq: &mut [f32],
    f: &AdamWFactors,
) {
    let moments = exp_avg.iter_mut().zip(exp_avg_sq);
    for ((p, &g), (m, v)) in parameters.iter_mut().zip(gradients).zip(moments) {
        *m = f.beta1 * *m + f.gain1 * g;
        *v = f.beta2 * *v + f.gain2 * (g * g);
        *p = *p * f.keep - (f.step_size * *m) / (v.sqrt() / f.correction2 + f.epsilon);
    }
}

/// Whether no value is infinite or NaN: their exponent bits are all ones. Without an early exit,
/// so that it becomes vector instructions.
fn all_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    !values.iter().fold(false, |found, value| found | (value.to_bits() & EXPONENT == EXPONENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SGD: OptimizerConfig =
        OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    const ADAMW: OptimizerConfig =
        OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };

    fn ramp(scale: f32) -> Vec<f32> {
        (0..PARAMETERS).map(|i| scale * (i % 201) as f32 - 100.0 * scale).collect()
    }

    #[test]
    fn a_first_step_with_momentum_is_a_plain_one() {
        let plain = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        let (mut with, mut without) = (ramp(0.01), ramp(0.01));
        Optimizer::new(&SGD).step(&mut with, &ramp(0.3), 0.05).unwrap();
        Optimizer::new(&plain).step(&mut without, &ramp(0.3), 0.05).unwrap();
        assert_eq!(with, without);
    }

    #[test]
    fn a_restored_optimizer_goes_on_with_the_same_bits() {
        for config in [SGD, ADAMW] {
            let mut optimizer = Optimizer::new(&config);
            let mut parameters = ramp(0.01);
            for step in 0..3 {
                optimizer.step(&mut parameters, &ramp(0.1 * step as f32), 0.01).unwrap();
            }
            let mut restored = Optimizer::restore(&config, optimizer.state()).unwrap();
            assert_eq!(restored, optimizer);
            let mut others = parameters.clone();
            optimizer.step(&mut parameters, &ramp(0.2), 0.01).unwrap();
            restored.step(&mut others, &ramp(0.2), 0.01).unwrap();
            assert_eq!(parameters, others);
            assert_eq!(restored.steps(), 4);
        }
    }

    #[test]
    fn a_state_of_another_optimizer_is_refused() {
        let error = Optimizer::restore(&ADAMW, Optimizer::new(&SGD).state()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the state has the vectors [momentum], adamw needs [exp_avg, exp_avg_sq]: resume with \
             the optimizer that the checkpoint was written with"
        );
    }

    #[test]
    fn a_damaged_state_is_refused() {
        let mut short = Optimizer::new(&SGD).state();
        short.vectors[0].1.pop();
        let error = Optimizer::restore(&SGD, short).unwrap_err();
        assert_eq!(error, StateError::Length { name: "momentum".into(), found: PARAMETERS - 1 });

        let mut infinite = Optimizer::new(&SGD).state();
        infinite.vectors[0].1[77] = f32::NEG_INFINITY;
        let error = Optimizer::restore(&SGD, infinite).unwrap_err();
        assert_eq!(error, StateError::NotFinite { name: "momentum".into() });
    }

    #[test]
    fn divergence_is_seen_in_any_place() {
        for (place, value) in [(0, f32::NAN), (31_007, f32::INFINITY), (PARAMETERS - 1, 3e38)] {
            let mut gradients = ramp(0.1);
            gradients[place] = value;
            let result = Optimizer::new(&SGD).step(&mut ramp(0.1), &gradients, 2.0);
            assert_eq!(result, Err(NotFinite), "{place}: {value}");
        }
    }

    #[test]
    fn parts_make_the_same_updates_as_the_whole() {
        let sgd = OptimizerConfig::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.1 };
        let adamw =
            OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.1 };
        for config in [sgd, adamw] {
            let mut whole = Optimizer::new(&config);
            let mut parameters: Vec<f32> = (0..PARAMETERS).map(|i| (i as f32).sin()).collect();
            let gradients: Vec<f32> = (0..PARAMETERS).map(|i| (i as f32).cos()).collect();
            whole.step(&mut parameters, &gradients, 0.1).unwrap();
            let (mut parted, mut parts) = (parameters.clone(), whole.clone());
            whole.step(&mut parameters, &gradients, 0.1).unwrap();
            for range in [0..1_000, 1_000..1_000, 1_000..PARAMETERS] {
                let mut part = parts.part(range.clone());
                part.step(&mut parted[range.clone()], &gradients[range.clone()], 0.1).unwrap();
                assert!(parts.put_back(range, part.steps(), &part.to_words()));
                parts.steps = 1;
            }
            parts.steps = 2;
            assert_eq!(parted, parameters);
            assert_eq!(parts, whole);
            assert!(!parts.put_back(0..1, 2, &[0; 7]));
        }
    }
}
