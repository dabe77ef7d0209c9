//! The initial parameters: PyTorch's default distribution, from a seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::layout::{PARAMETERS, TENSORS};

/// The flat vector of initial parameters for `seed`.
///
/// Weights and biases are uniform in `[-1/sqrt(fan_in), 1/sqrt(fan_in))`, which is what PyTorch's
/// `kaiming_uniform_(a=sqrt(5))` (He et al. 2015) comes to. Only correctly rounded operations are
/// used, so every machine draws the same bits.
pub fn initial_parameters(seed: u64) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut parameters = Vec::with_capacity(PARAMETERS);
    for tensor in &TENSORS {
        let bound = 1.0 / (tensor.fan_in as f64).sqrt();
        parameters.extend((0..tensor.count).map(|_| {
            // 53 random bits give every double of the grid in [0, 1).
            let unit = (random.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
            (bound * (2.0 * unit - 1.0)) as f32
        }));
    }
    parameters
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn every_tensor_fills_its_range() {
        let parameters = initial_parameters(7);
        assert_eq!(parameters.len(), PARAMETERS);
        for tensor in &TENSORS {
            let bound = 1.0 / (tensor.fan_in as f32).sqrt();
            let values = &parameters[tensor.range()];
            assert!(values.iter().all(|v| v.abs() <= bound), "{}", tensor.name);
            let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            assert!(largest > 0.5 * bound, "{}", tensor.name);
        }
    }

    /// A run can only be repeated by a later release that draws the same values.
    #[test]
    fn a_seeds_values_never_change() {
        let mut hasher = Sha256::new();
        initial_parameters(0).iter().for_each(|value| hasher.update(value.to_le_bytes()));
        let digest: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, "d7a6759ad3f069a072a7793e65cffacce9dcd3846f0f5427edfb029b30e43c3b");
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(initial_parameters(1), initial_parameters(1));
        assert_ne!(initial_parameters(1), initial_parameters(2));
    }
}
