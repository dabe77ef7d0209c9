//! The two inner loops of every kernel, in a shape that compilers turn into vector instructions.
//!
//! Multiplication and addition are rounded apart, never fused, so the bits do not depend on what
//! the processor offers.

use super::float::Float;

/// Partial sums of [`dot`]. Without them a dot product is one chain of dependent additions; with
/// 16 instead of 8 the convolutions' weight gradients were a third slower, for the sums at the end.
const LANES: usize = 8;

/// `sum[i] += factor * values[i]`.
pub(super) fn add_scaled<F: Float>(sum: &mut [F], factor: F, values: &[F]) {
    debug_assert_eq!(sum.len(), values.len());
    for (sum, &value) in sum.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

/// The dot product of two slices of equal length, in a fixed order: lane `l` adds up the elements
/// `l, l + 8, ...` of the full blocks; then come the elements behind those, then lane by lane.
pub(super) fn dot<F: Float>(a: &[F], b: &[F]) -> F {
    debug_assert_eq!(a.len(), b.len());
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [F::ZERO; LANES];
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for l in 0..LANES {
            lanes[l] += a[l] * b[l];
        }
    }
    let mut sum = F::ZERO;
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        sum += a * b;
    }
    for lane in lanes {
        sum += lane;
    }
    sum
}
