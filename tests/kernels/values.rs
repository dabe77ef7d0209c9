//! Numbers to compute with, and how far rounding may take two results apart.

use annulet::numerics::fixed_point::TILE_SAMPLES;

/// The unit roundoff of f32: half the distance from 1 to the next number.
pub const UNIT: f64 = 1.0 / (1 << 24) as f64;

/// How far a chain of so many rounded operations takes a sum of products, relative to the sum of
/// the terms' magnitudes: gamma_n of Higham 2002, section 3.1. It holds in whatever order the terms
/// are added, if no term passes through more operations than that.
pub fn gamma(operations: usize) -> f64 {
    let n = operations as f64 * UNIT;
    n / (1.0 - n)
}

/// `count` values in [-1, 1) by formula, different for each seed.
pub fn values(seed: u32, count: usize) -> Vec<f32> {
    words(seed, count).map(|word| (f64::from(word) / f64::from(1u32 << 31) - 1.0) as f32).collect()
}

/// `count` words by formula.
pub fn words(seed: u32, count: usize) -> impl Iterator<Item = u32> {
    (0..count as u32).map(move |i| {
        let mut x = i.wrapping_add(seed.wrapping_mul(0x9e37_79b9));
        for multiplier in [0x85eb_ca6b, 0xc2b2_ae35] {
            x = (x ^ (x >> 16)).wrapping_mul(multiplier);
        }
        x ^ (x >> 15)
    })
}

pub fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

pub fn magnitudes(values: &[f64]) -> Vec<f64> {
    values.iter().map(|v| v.abs()).collect()
}

/// Fails with the first value that lies farther from what is wanted than its bound.
pub fn assert_close(what: &str, got: &[f32], want: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let (error, bound) = ((f64::from(got) - want).abs(), bound(i));
        assert!(error <= bound, "{what}[{i}] is {got}, not {want}: off by {error:e} > {bound:e}");
    }
}

/// From (N, features) to (tiles, features, 16). The quads behind the last sample get NaN: no kernel
/// may let them count; the rest of the last sample's own quad gets `filler`.
pub fn to_tiles(values: &[f32], features: usize, filler: f32) -> Vec<f32> {
    let samples = values.len() / features;
    let tiles = samples.div_ceil(TILE_SAMPLES);
    let mut packed = vec![f32::NAN; tiles * features * TILE_SAMPLES];
    for sample in 0..samples.next_multiple_of(4) {
        let (tile, place) = (sample / TILE_SAMPLES, sample % TILE_SAMPLES);
        for feature in 0..features {
            packed[(tile * features + feature) * TILE_SAMPLES + place] =
                if sample < samples { values[sample * features + feature] } else { filler };
        }
    }
    packed
}

/// From (tiles, features, 16) to (N, features).
pub fn from_tiles(packed: &[f32], features: usize, samples: usize) -> Vec<f32> {
    (0..samples * features)
        .map(|i| {
            let (sample, feature) = (i / features, i % features);
            let (tile, place) = (sample / TILE_SAMPLES, sample % TILE_SAMPLES);
            packed[(tile * features + feature) * TILE_SAMPLES + place]
        })
        .collect()
}
