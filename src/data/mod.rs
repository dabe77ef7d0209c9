//! Images and labels: files, the synthetic digits, the order of the samples.

pub mod dataset;
