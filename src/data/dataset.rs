//! A data set in memory: images as bytes, labels, and what is derived from them.

/// Images with labels. Sample `i` is `pixels[i * 784..(i + 1) * 784]`, row-major, 0 = background.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSet {
    /// (N, 28, 28) grey values.
    pub pixels: Vec<u8>,
    /// (N) classes, each below 10.
    pub labels: Vec<u8>,
}

/// What turns a pixel into the network's input: `pixel * scale + offset`, each operation rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    pub scale: f32,
    pub offset: f32,
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
    /// SHA-256 over both sets as used, limits applied.
    pub sha256: [u8; 32],
}
