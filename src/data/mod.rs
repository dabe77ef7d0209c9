//! Images and labels: files, the synthetic digits, the order of the samples.
//!
//! A run asks a [`DatasetRequest`] for its [`Dataset`]; the trainer takes its batches from a
//! [`Sampler`]; `predict` reads its pictures with [`image::read_png`].

pub mod class_names;
pub mod dataset;
pub mod error;
pub mod idx;
pub mod image;
pub mod plan;
pub mod promise;
pub mod sampler;
pub mod source;
pub mod synthetic;

pub use dataset::{Dataset, ImageSet, Normalization};
pub use error::DataError;
pub use plan::DataPlan;
pub use promise::DatasetPromise;
pub use sampler::Sampler;
pub use source::{DatasetChoice, DatasetRequest, LoadedDataset, SearchRoots};
