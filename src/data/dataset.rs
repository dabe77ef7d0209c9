//! A data set in memory: images as bytes, labels, and what is derived from them.

use sha2::{Digest, Sha256};

use crate::model::layers::IMAGE_PIXELS;

/// Images with labels. Sample `i` is `pixels[i * 784..(i + 1) * 784]`, row-major, 0 = background.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSet {
    /// (N, 28, 28) grey values.
    pub pixels: Vec<u8>,
    /// (N) classes, each below 10.
    pub labels: Vec<u8>,
}

impl ImageSet {
    /// Samples of the set.
    pub fn count(&self) -> usize {
        self.labels.len()
    }

    /// (28, 28) grey values of one sample.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn image(&self, index: usize) -> &[u8] {
        &self.pixels[index * IMAGE_PIXELS..(index + 1) * IMAGE_PIXELS]
    }

    /// Keeps the first samples and gives the memory of the others back.
    fn keep_first(&mut self, count: usize) {
        self.labels.truncate(count);
        self.labels.shrink_to_fit();
        self.pixels.truncate(count * IMAGE_PIXELS);
        self.pixels.shrink_to_fit();
    }
}

/// What turns a pixel into the network's input: `pixel * scale + offset`, each operation rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    pub scale: f32,
    pub offset: f32,
}

impl Normalization {
    /// Zero mean and unit standard deviation over all pixels of a set.
    ///
    /// With `mean` and `std` (over the population) of `pixel / 255`, as PyTorch users write them
    /// for `Normalize`: `scale = 1 / (255 std)`, `offset = -mean / std`. In the sums `S` of the N
    /// pixels and `Q` of their squares this is `N / sqrt(N Q - S^2)` and `-S / sqrt(N Q - S^2)`:
    /// everything under the root is an exact integer, each of the few operations behind it is
    /// correctly rounded in `f64`, and the result is rounded to `f32` once, so every machine finds
    /// the same bits.
    ///
    /// A set whose pixels are all equal has no deviation; it is only centred, `scale = 1 / 255`,
    /// so that its inputs are about 0 and nothing becomes infinite.
    pub fn of(pixels: &[u8]) -> Normalization {
        let (mut sum, mut squares) = (0u64, 0u64);
        // A row of 2^16 pixels keeps its sums within 32 bits, where they are added faster.
        for row in pixels.chunks(1 << 16) {
            sum += u64::from(row.iter().map(|&p| u32::from(p)).sum::<u32>());
            squares += u64::from(row.iter().map(|&p| u32::from(p) * u32::from(p)).sum::<u32>());
        }
        let count = pixels.len() as u64;
        let under_root = u128::from(count) * u128::from(squares) - u128::from(sum).pow(2);
        if under_root == 0 {
            let mean = if count == 0 { 0.0 } else { sum as f64 / (255 * count) as f64 };
            return Normalization { scale: (1.0f64 / 255.0) as f32, offset: -mean as f32 };
        }
        let root = (under_root as f64).sqrt();
        Normalization { scale: (count as f64 / root) as f32, offset: (-(sum as f64) / root) as f32 }
    }
}

/// A training set and a test set that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// `fashion-mnist`, `mnist`, `synthetic`, or the folder's name.
    pub name: String,
    pub train: ImageSet,
    pub test: ImageSet,
    /// From the whole training set, before any limit is applied.
    pub normalization: Normalization,
    /// SHA-256 over both sets as used, limits applied, and the normalization.
    pub sha256: [u8; 32],
}

/// How many samples of each set are used: the first ones, or all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleLimits {
    pub train: Option<usize>,
    pub test: Option<usize>,
}

impl Dataset {
    /// Derives the normalization, applies the limits, and hashes what is left.
    ///
    /// A limit above a set's size keeps the whole set, as `[:N]` does in Python.
    pub fn new(
        name: impl Into<String>,
        mut train: ImageSet,
        mut test: ImageSet,
        limits: SampleLimits,
    ) -> Dataset {
        for set in [&train, &test] {
            assert_eq!(set.pixels.len(), set.count() * IMAGE_PIXELS, "an image for each label");
        }
        let normalization = Normalization::of(&train.pixels);
        for (set, limit) in [(&mut train, limits.train), (&mut test, limits.test)] {
            if let Some(limit) = limit.filter(|&limit| limit < set.count()) {
                set.keep_first(limit);
            }
        }
        let sha256 = hash(&train, &test, normalization);
        Dataset { name: name.into(), train, test, normalization, sha256 }
    }
}

/// The name is left out: the same bytes in another folder train the same bits. The normalization
/// is part of it, since under a limit it depends on samples that are not hashed.
fn hash(train: &ImageSet, test: &ImageSet, normalization: Normalization) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(b"annulet dataset 1\0");
    hasher.update(normalization.scale.to_le_bytes());
    hasher.update(normalization.offset.to_le_bytes());
    for set in [train, test] {
        // The count fixes the length of both fields behind it.
        hasher.update((set.count() as u64).to_le_bytes());
        hasher.update(&set.labels);
        hasher.update(&set.pixels);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(count: usize, salt: usize) -> ImageSet {
        ImageSet {
            pixels: (0..count * IMAGE_PIXELS).map(|i| ((i * 31 + salt) % 256) as u8).collect(),
            labels: (0..count).map(|i| (i % 10) as u8).collect(),
        }
    }

    fn dataset(limits: SampleLimits) -> Dataset {
        Dataset::new("test", set(20, 1), set(10, 2), limits)
    }

    #[test]
    fn normalization_is_that_of_the_textbook() {
        let pixels: Vec<u8> = (0..70_000u32).map(|i| (i * i % 253) as u8).collect();
        let count = pixels.len() as f64;
        let mean = pixels.iter().map(|&p| f64::from(p) / 255.0).sum::<f64>() / count;
        let variance =
            pixels.iter().map(|&p| (f64::from(p) / 255.0 - mean).powi(2)).sum::<f64>() / count;
        let normalization = Normalization::of(&pixels);
        // The textbook's sums are off by less than count * 2^-53 = 1e-11, an f32 by 2^-24 = 6e-8.
        let expected_scale = 1.0 / (255.0 * variance.sqrt());
        let expected_offset = -mean / variance.sqrt();
        assert!((f64::from(normalization.scale) / expected_scale - 1.0).abs() < 6.1e-8);
        assert!((f64::from(normalization.offset) / expected_offset - 1.0).abs() < 6.1e-8);
    }

    #[test]
    fn two_values_become_minus_one_and_one() {
        let normalization = Normalization::of(&[0, 255, 255, 0]);
        assert_eq!(normalization, Normalization { scale: 2.0 / 255.0, offset: -1.0 });
    }

    #[test]
    fn equal_pixels_are_only_centred() {
        for pixel in [0u8, 7, 255] {
            let Normalization { scale, offset } = Normalization::of(&[pixel; 100]);
            assert_eq!(scale, 1.0 / 255.0);
            // One rounding of the product, one of each constant.
            assert!((f32::from(pixel) * scale + offset).abs() <= 2.0 * f32::EPSILON);
        }
        assert!(Normalization::of(&[]).offset.is_finite());
    }

    #[test]
    fn limits_keep_the_first_samples_and_the_normalization() {
        let whole = dataset(SampleLimits::default());
        let limited = dataset(SampleLimits { train: Some(3), test: Some(1) });
        assert_eq!(limited.train.labels, [0, 1, 2]);
        assert_eq!(limited.train.image(2), whole.train.image(2));
        assert_eq!(limited.test.count(), 1);
        assert_eq!(limited.normalization, whole.normalization);
        assert_ne!(limited.sha256, whole.sha256);
    }

    #[test]
    fn a_limit_above_the_size_keeps_all() {
        let limits = SampleLimits { train: Some(21), test: Some(usize::MAX) };
        assert_eq!(dataset(limits), dataset(SampleLimits::default()));
    }

    #[test]
    fn every_part_decides_the_hash() {
        let train = set(3, 1);
        let test = set(2, 2);
        let normalization = Normalization::of(&train.pixels);
        let base = hash(&train, &test, normalization);
        let changed_pixel = {
            let mut train = train.clone();
            train.pixels[783] ^= 1;
            hash(&train, &test, normalization)
        };
        let changed_label = {
            let mut test = test.clone();
            test.labels[1] ^= 1;
            hash(&train, &test, normalization)
        };
        let scale = normalization.scale.next_up();
        let changed_scale = hash(&train, &test, Normalization { scale, ..normalization });
        let offset = normalization.offset.next_up();
        let changed_offset = hash(&train, &test, Normalization { offset, ..normalization });
        let swapped = hash(&test, &train, normalization);
        let all = [base, changed_pixel, changed_label, changed_scale, changed_offset, swapped];
        for (i, one) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other != one), "{i}");
        }
    }
}
