//! Exact sums: partial gradients as 32-bit fixed point, whose integer sums do not depend on order.
//!
//! For scale `k` a partial `p` becomes `q = round(clamp(p * 2^e_k, -L, L))`, ties to even, with the
//! limit `L` so small that the sum over all partials of the global batch fits an `i32`. Exact
//! maxima of `|p|` travel beside the sums: if one exceeded its range every worker sees it, and the
//! step is redone with exponents that fit. It is a dynamic loss scale per tensor (Micikevicius et
//! al. 2018) with the integer sums of IntSGD (Mishchenko et al. 2021) and SwitchML (Sapio et al.
//! 2021).

use crate::config::Wire;
use crate::model::layout::{LOSS_SCALE, SCALE_COUNT};

/// Samples whose partial gradient is one `f32` sum.
pub const TILE_SAMPLES: usize = 16;

/// Bits left between a step's maximum and the range of the next step.
pub const HEADROOM_BITS: i32 = 3;

/// The largest `|partial|` assumed before the first step: the first step's true maxima replace it.
pub const INITIAL_MAXIMUM: f32 = 8.0;

/// Exponents are kept where `2^e` and `2^-e` are both normal `f32`s.
const EXPONENT_RANGE: std::ops::RangeInclusive<i32> = -126..=126;

/// `max |partial|` of each scale in the last accepted step: the state that the next step's
/// exponents are computed from. Kept in checkpoints.
pub type Maxima = [f32; SCALE_COUNT];

/// How a step's partials are turned into integers: the same on every worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedPoint {
    /// `e_k` for each tensor's gradient, then for the loss.
    pub exponents: [i32; SCALE_COUNT],
    /// `L` for each scale: an integer that is exact as `f32`.
    pub limits: [f32; SCALE_COUNT],
}

impl FixedPoint {
    /// The representation for a global batch of `samples`, given the maxima seen last, with sums of
    /// 32 bits.
    ///
    /// # Panics
    /// If `samples` is 0 or above `i32::MAX`: the configuration excludes both.
    pub fn for_batch(samples: usize, maxima: &Maxima) -> FixedPoint {
        FixedPoint::for_wire(Wire::I32, samples, maxima)
    }

    /// The same with sums of gradients that fit a wire; that of the loss always fits an `i32`.
    ///
    /// # Panics
    /// As [`FixedPoint::for_batch`], and if the batch has more tiles than the wire can sum.
    pub fn for_wire(wire: Wire, samples: usize, maxima: &Maxima) -> FixedPoint {
        assert!(samples > 0 && samples <= i32::MAX as usize, "a batch has samples");
        let largest_sum = match wire {
            Wire::I32 => i32::MAX as usize,
            Wire::I16 => i16::MAX as usize,
        };
        let gradient_limit = limit(largest_sum, samples.div_ceil(TILE_SAMPLES));
        // The loss is rounded once a sample, a gradient once a tile.
        let loss_limit = limit(i32::MAX as usize, samples);
        let limits: [f32; SCALE_COUNT] =
            std::array::from_fn(|k| if k == LOSS_SCALE { loss_limit } else { gradient_limit });
        let exponents = std::array::from_fn(|k| exponent_for(maxima[k], limits[k]));
        FixedPoint { exponents, limits }
    }

    /// `2^e_k`, what a partial is multiplied with; exact.
    pub fn factor(&self, k: usize) -> f32 {
        power_of_two(self.exponents[k])
    }

    /// The fixed-point integer of a partial; the shaders do the same.
    pub fn quantize(&self, k: usize, partial: f32) -> i32 {
        let scaled = partial * self.factor(k);
        scaled.clamp(-self.limits[k], self.limits[k]).round_ties_even() as i32
    }

    /// The scales whose maximum did not fit: then the step must be redone.
    pub fn exceeded(&self, maxima: &Maxima) -> impl Iterator<Item = usize> {
        let this = *self;
        let maxima = *maxima;
        (0..SCALE_COUNT).filter(move |&k| maxima[k] * this.factor(k) > this.limits[k])
    }

    /// The value of a sum of fixed-point integers.
    pub fn dequantize(&self, k: usize, sum: i32) -> f64 {
        f64::from(sum) * power_of_two_f64(-self.exponents[k])
    }

    /// The mean gradients `f32((S * 2^-e) / samples)` of one tensor's sums.
    pub fn mean(&self, k: usize, sums: &[u32], samples: u32, out: &mut [f32]) {
        assert_eq!(sums.len(), out.len());
        let unit = power_of_two_f64(-self.exponents[k]);
        let samples = f64::from(samples);
        for (out, &sum) in out.iter_mut().zip(sums) {
            *out = ((f64::from(sum as i32) * unit) / samples) as f32;
        }
    }
}

/// The largest `f32` integer of which `partials` add up to no more than `largest_sum`.
fn limit(largest_sum: usize, partials: usize) -> f32 {
    let largest = largest_sum / partials;
    assert!(largest > 0, "the configuration leaves every partial a bit");
    let rounded = largest as f32;
    if rounded as usize > largest { rounded.next_down() } else { rounded }
}

/// The largest exponent with `maximum * 2^(e + HEADROOM_BITS) <= limit`, kept in range.
fn exponent_for(maximum: f32, limit: f32) -> i32 {
    if maximum == 0.0 {
        // Nothing flowed through this tensor; any scale holds zeros, the largest wastes no bits.
        return *EXPONENT_RANGE.end();
    }
    let ratio = f64::from(limit) / f64::from(maximum);
    (floor_log2(ratio) - HEADROOM_BITS).clamp(*EXPONENT_RANGE.start(), *EXPONENT_RANGE.end())
}

/// `floor(log2(x))` of a positive normal double, from its exponent bits: exact on every machine.
fn floor_log2(x: f64) -> i32 {
    ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

fn power_of_two_f64(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_keep_every_sum_in_range() {
        for partials in [1, 2, 3, 7, 8, 100, 4_096, 1_000_003] {
            let limit = limit(i32::MAX as usize, partials) as i64;
            assert!(limit * partials as i64 <= i64::from(i32::MAX), "{partials}");
            // No more than one f32 step is given away.
            assert!(
                (limit as f64 * partials as f64) > f64::from(i32::MAX) * 0.998,
                "{partials}: {limit}"
            );
        }
    }

    #[test]
    fn sums_for_a_narrow_wire_fit_it() {
        for samples in [1, 100, 128, 1_024] {
            let fixed = FixedPoint::for_wire(Wire::I16, samples, &[0.3; SCALE_COUNT]);
            let tiles = samples.div_ceil(TILE_SAMPLES) as i32;
            let largest = fixed.quantize(0, f32::MAX) * tiles;
            assert!(largest <= i32::from(i16::MAX) && largest > 32_000, "{samples}: {largest}");
            // The loss is not narrowed.
            assert_eq!(
                fixed.limits[LOSS_SCALE],
                FixedPoint::for_batch(samples, &[0.3; SCALE_COUNT]).limits[LOSS_SCALE]
            );
        }
    }

    #[test]
    fn headroom_is_three_bits() {
        let maxima = [1.0; SCALE_COUNT];
        let fixed = FixedPoint::for_batch(128, &maxima);
        assert_eq!(fixed.exceeded(&maxima).count(), 0);
        assert_eq!(fixed.exceeded(&[8.0; SCALE_COUNT]).count(), 0);
        assert_eq!(fixed.exceeded(&[16.1; SCALE_COUNT]).count(), SCALE_COUNT);
    }

    #[test]
    fn a_maximum_that_is_not_finite_exceeds_or_is_not_a_number() {
        let fixed = FixedPoint::for_batch(16, &[1.0; SCALE_COUNT]);
        assert_eq!(fixed.exceeded(&[f32::INFINITY; SCALE_COUNT]).count(), SCALE_COUNT);
    }

    #[test]
    fn rounding_error_is_half_a_unit() {
        let fixed = FixedPoint::for_batch(1_000, &[0.37; SCALE_COUNT]);
        for i in -100..=100 {
            let partial = i as f32 * 0.0037;
            let back = fixed.dequantize(0, fixed.quantize(0, partial));
            let unit = fixed.dequantize(0, 1);
            assert!((back - f64::from(partial)).abs() <= 0.5 * unit);
        }
    }

    #[test]
    fn extreme_maxima_stay_in_the_exponent_range() {
        for maximum in [0.0, f32::MIN_POSITIVE, 1e-45, f32::MAX] {
            let fixed = FixedPoint::for_batch(16, &[maximum; SCALE_COUNT]);
            assert!(fixed.exponents.iter().all(|e| EXPONENT_RANGE.contains(e)));
        }
    }

    #[test]
    fn the_mean_divides_once() {
        let fixed = FixedPoint::for_batch(3, &[1.0; SCALE_COUNT]);
        let mut out = [0.0; 2];
        fixed.mean(0, &[fixed.quantize(0, 1.0) as u32, (-3i32) as u32], 3, &mut out);
        assert_eq!(out[0], 1.0f32 / 3.0);
        assert_eq!(out[1], (fixed.dequantize(0, -3) / 3.0) as f32);
    }
}
