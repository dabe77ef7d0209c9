//! LeNet as data: the layers with their shapes, the flat parameter layout, the initial values.

pub mod initial;
pub mod layers;
pub mod layout;

pub use layers::{Activation, ModelKind, Pooling};
pub use layout::{Bucket, PARAMETERS, TENSORS};
