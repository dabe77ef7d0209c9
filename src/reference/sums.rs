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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::layout::SCALE_COUNT;

    #[test]
    fn partials_add_up_and_the_largest_is_kept() {
        let fixed_point = FixedPoint::for_batch(16, &[1.0; SCALE_COUNT]);
        let (mut sums, mut maximum) = ([0, 5], 0);
        quantize(&fixed_point, 0, &[0.5, -0.25], &mut sums, &mut maximum);
        quantize(&fixed_point, 0, &[-0.75, 0.0], &mut sums, &mut maximum);
        let half = fixed_point.quantize(0, 0.5);
        assert_eq!(sums.map(|sum| sum as i32), [-half / 2, 5 - half / 2]);
        assert_eq!(f32::from_bits(maximum), 0.75);
    }

    #[test]
    fn what_is_not_finite_is_the_maximum() {
        let fixed_point = FixedPoint::for_batch(16, &[1.0; SCALE_COUNT]);
        let largest = |partials: [f32; 3]| {
            let mut maximum = 0;
            quantize(&fixed_point, 0, &partials, &mut [0; 3], &mut maximum);
            f32::from_bits(maximum)
        };
        assert_eq!(largest([1.0, f32::NEG_INFINITY, f32::MAX]), f32::INFINITY);
        assert!(largest([f32::INFINITY, f32::NAN, 1.0]).is_nan());
        assert!(largest([f32::INFINITY, -f32::NAN, 1.0]).is_nan());
    }
}
