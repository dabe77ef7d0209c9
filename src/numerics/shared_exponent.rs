//! Exact sums of `f32` buffers: one exponent for a whole buffer, chosen from the largest value of
//! all workers, makes integers of the values, whose sums do not depend on order.

/// `x` becomes `round(x * 2^e)`, ties to even, with the largest `e` for which the sum over all
/// workers fits an `i32`.
///
/// Among `n` workers the sum is off by less than `n^2 / 2^30` of the largest value, and then rounded
/// once to `f32`: among 4 by `2^-26`, less than an `f32` resolves at that magnitude. Values much
/// smaller than the largest keep fewer digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExponent(i32);

impl SharedExponent {
    /// For values of up to `maximum` on each of `workers`.
    ///
    /// # Panics
    /// If the maximum is negative or not finite, or there are no workers or more than `i32::MAX`.
    pub fn new(maximum: f32, workers: usize) -> SharedExponent {
        assert!(maximum.is_finite() && maximum >= 0.0, "a maximum is a finite magnitude");
        assert!(workers > 0 && workers <= i32::MAX as usize, "there are workers");
        if maximum == 0.0 {
            return SharedExponent(0);
        }
        let limit = i32::MAX / workers as i32;
        // Limit and maximum have at most 31 significant bits, so their ratio is never rounded up to
        // a power of two that it does not reach.
        let ratio = f64::from(limit) / f64::from(maximum);
        SharedExponent(((ratio.to_bits() >> 52) & 0x7ff) as i32 - 1023)
    }

    pub fn quantize(self, value: f32) -> i32 {
        (f64::from(value) * power_of_two(self.0)).round_ties_even() as i32
    }

    /// The value of a sum of integers.
    pub fn dequantize(self, sum: i32) -> f32 {
        (f64::from(sum) * power_of_two(-self.0)) as f32
    }
}

/// Exact: an `f32`'s exponents, and 31 bits on either side, are all normal in `f64`.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sum_overflows_and_no_bit_is_wasted() {
        let smallest = f32::from_bits(1);
        for workers in [1, 2, 3, 7, 100] {
            for maximum in [smallest, 1e-30, 0.1, 1.0, 3.0, 16_777_215.0, f32::MAX] {
                let exponent = SharedExponent::new(maximum, workers);
                let largest = i64::from(exponent.quantize(maximum));
                let smallest = i64::from(exponent.quantize(-maximum));
                assert_eq!(smallest, -largest);
                assert!(largest * workers as i64 <= i64::from(i32::MAX));
                let next = SharedExponent(exponent.0 + 1);
                let doubled = f64::from(maximum) * power_of_two(next.0);
                assert!(doubled > f64::from(i32::MAX / workers as i32), "{maximum}, {workers}");
            }
        }
    }

    #[test]
    fn sums_are_as_close_as_the_docs_say() {
        let values = [0.1f32, -0.7, 0.333_333_34, 0.25];
        let exponent = SharedExponent::new(0.7, values.len());
        let sum = values.iter().map(|&value| exponent.quantize(value)).sum();
        let exact: f64 = values.iter().copied().map(f64::from).sum();
        let off = (f64::from(exponent.dequantize(sum)) - exact).abs();
        // n^2 / 2^30 of the largest, and half a unit in the last place of the sum (below 2^-5).
        let bound = 16.0 * 0.7 / f64::from(1 << 30) + f64::from(f32::EPSILON) / 64.0;
        assert!(off < bound, "{off} above {bound}");
    }

    #[test]
    fn zeros_stay_zeros() {
        let exponent = SharedExponent::new(0.0, 4);
        assert_eq!(exponent.dequantize(exponent.quantize(0.0)), 0.0);
    }
}
