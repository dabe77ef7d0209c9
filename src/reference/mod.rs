//! Forward and backward in plain Rust, named as the shaders are: the oracle they are compared with.
//!
//! | kernel | what it does |
//! |---|---|
//! | [`gather_images`](images::gather_images) | bytes to normalized images |
//! | [`convolution_forward`](convolution::convolution_forward) | convolution, activation, 2x2 pooling |
//! | [`dense_forward`](dense::dense_forward) | a fully connected layer with its activation |
//! | [`loss_head`](loss::loss_head) | softmax cross-entropy, right answers, gradient of the logits |
//! | [`dense_backward_weights`](dense::dense_backward_weights) | gradients of weights and bias |
//! | [`dense_backward_input`](dense::dense_backward_input) | gradient of the layer's input |
//! | [`convolution_backward_weights`](convolution::convolution_backward_weights) | gradients of weights and bias |
//! | [`convolution_backward_input`](convolution::convolution_backward_input) | gradient of the layer's input |
//! | [`quantize`](sums::quantize) | a tile's partial gradients to fixed-point sums |
//!
//! [`network`] strings them together, [`engine`] runs them over a worker's samples. The kernels are
//! generic over [`f32` and `f64`](float::Float): the first trains, the second is held against
//! finite differences. Operations keep the order in which they are written, so the bits are the
//! same on every machine.

pub mod activation;
pub mod convolution;
pub mod dense;
pub mod engine;
pub mod float;
pub mod images;
pub mod loss;
pub mod network;
pub mod sums;
#[cfg(test)]
mod testing;
mod vector;
