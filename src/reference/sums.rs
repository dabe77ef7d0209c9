//! From a tile's partial gradients to the words that workers reduce.

use crate::numerics::fixed_point::FixedPoint;

/// Quantizes the partials of scale `k` and adds them to fixed-point sums.
///
/// `partials` is f32 (n), `sums` i32 bits (n), added with wrap-around; `maximum` becomes at least
/// the bits of the largest `|partial|`. As bits a NaN is larger than infinity and infinity larger
/// than every number, so whatever is not finite is seen.
pub fn quantize(
    fixed_point: &FixedPoint,
    k: usize,
    partials: &[f32],
    sums: &mut [u32],
    maximum: &mut u32,
) {
    debug_assert_eq!(partials.len(), sums.len());
    for (sum, &partial) in sums.iter_mut().zip(partials) {
        *sum = sum.wrapping_add(fixed_point.quantize(k, partial) as u32);
        *maximum = (*maximum).max(partial.to_bits() & 0x7fff_ffff);
    }
}
