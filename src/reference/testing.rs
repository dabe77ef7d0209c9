//! What the kernels' tests share: values by formula, and finite differences.

/// `count` values in [-1, 1), different for each seed.
pub fn values(seed: u32, count: usize) -> Vec<f64> {
    let hash = |i: usize| {
        let mut x = (i as u32).wrapping_add(seed.wrapping_mul(0x9e37_79b9));
        for multiplier in [0x85eb_ca6b, 0xc2b2_ae35] {
            x = (x ^ (x >> 16)).wrapping_mul(multiplier);
        }
        x ^ (x >> 15)
    };
    (0..count).map(|i| f64::from(hash(i)) / f64::from(1u32 << 31) - 1.0).collect()
}

/// The inner product.
pub fn inner(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Half the distance of the two points of a finite difference.
pub const H: f64 = 1.0 / (1 << 17) as f64;

/// The functions tested are sums of up to a thousand terms of size 1. Rounding leaves an error of
/// a thousand times 2^-53 in them, hence 1.5e-8 in a difference divided by 2 `H`; a third
/// derivative of up to a thousand adds `H^2 / 6` of it, 1e-8. A wrong derivative errs by 1e-2.
pub const TOLERANCE: f64 = 1e-7;

/// Compares each component of `gradient` with the central difference of `f` at `point`.
pub fn assert_gradient(f: impl Fn(&[f64]) -> f64, point: &[f64], gradient: &[f64]) {
    assert_eq!(point.len(), gradient.len());
    for i in 0..point.len() {
        let at = |distance: f64| {
            let mut moved = point.to_vec();
            moved[i] += distance;
            f(&moved)
        };
        let difference = (at(H) - at(-H)) / (2.0 * H);
        assert!(
            (difference - gradient[i]).abs() <= TOLERANCE,
            "component {i}: the gradient is {}, the finite difference {difference}",
            gradient[i]
        );
    }
}
