//! The kernels put together: one forward and backward pass over a few samples.

use super::convolution::{
    convolution_backward_input, convolution_backward_weights, convolution_forward,
};
use super::dense::{dense_backward_input, dense_backward_weights, dense_forward};
use super::float::Float;
use super::loss::loss_head;
use crate::model::ModelKind;
use crate::model::layers::{CONV1, CONV2, Convolution, Dense, FC1, FC2, FC3, IMAGE_PIXELS};
use crate::model::layout::{
    CONV1_BIAS, CONV1_WEIGHT, CONV2_BIAS, CONV2_WEIGHT, FC1_BIAS, FC1_WEIGHT, FC2_BIAS, FC2_WEIGHT,
    FC3_BIAS, FC3_WEIGHT, PARAMETERS, TensorSpec,
};

/// The model with the values of one pass. The buffers grow to the largest pass and stay.
///
/// A pass is: fill what [`begin`](Network::begin) returns, call [`forward`](Network::forward),
/// then, for gradients, [`backward`](Network::backward). With N samples every buffer is exactly
/// N samples long.
#[derive(Clone, Debug)]
pub struct Network<F> {
    model: ModelKind,
    /// (N, 1, 28, 28).
    images: Vec<F>,
    conv1: ConvolutionValues<F>,
    conv2: ConvolutionValues<F>,
    fc1: DenseValues<F>,
    fc2: DenseValues<F>,
    /// Its output is the logits.
    fc3: DenseValues<F>,
    losses: Vec<F>,
    right: Vec<bool>,
    /// The gradient of the flat parameter vector.
    d_parameters: Vec<F>,
}

/// What a backward pass found.
#[derive(Clone, Copy, Debug)]
pub struct Gradients<'a, F> {
    /// (N) cross-entropy of each sample.
    pub losses: &'a [F],
    /// (N) whether the largest logit was the label's.
    pub right: &'a [bool],
    /// The gradient of the sum of the losses, in the order of the flat parameter vector.
    pub d_parameters: &'a [F],
}

/// `pooled` and `d_pooled` are (N, D, P, P), `slopes` (N, D, O, O).
#[derive(Clone, Debug)]
struct ConvolutionValues<F> {
    pooled: Vec<F>,
    slopes: Vec<F>,
    d_pooled: Vec<F>,
}

/// Both (N, O). The gradient is that of the linear output, before the activation.
#[derive(Clone, Debug)]
struct DenseValues<F> {
    output: Vec<F>,
    d_output: Vec<F>,
}

impl<F: Float> Network<F> {
    pub fn new(model: ModelKind) -> Network<F> {
        Network {
            model,
            images: Vec::new(),
            conv1: ConvolutionValues::new(),
            conv2: ConvolutionValues::new(),
            fc1: DenseValues::new(),
            fc2: DenseValues::new(),
            fc3: DenseValues::new(),
            losses: Vec::new(),
            right: Vec::new(),
            d_parameters: vec![F::ZERO; PARAMETERS],
        }
    }

    /// Begins a pass over `samples` samples; their images (N, 1, 28, 28) go where it points.
    pub fn begin(&mut self, samples: usize) -> &mut [F] {
        self.conv1.resize(&CONV1, samples);
        self.conv2.resize(&CONV2, samples);
        self.fc1.resize(&FC1, samples);
        self.fc2.resize(&FC2, samples);
        self.fc3.resize(&FC3, samples);
        self.losses.resize(samples, F::ZERO);
        self.right.resize(samples, false);
        self.images.resize(samples * IMAGE_PIXELS, F::ZERO);
        &mut self.images
    }

    /// The logits (N, 10) of the images under `parameters`, the flat vector.
    pub fn forward(&mut self, parameters: &[F]) -> &[F] {
        let tensor = |spec: &TensorSpec| &parameters[spec.range()];
        let model = self.model;
        let activation = Some(model.activation());
        let Network { images, conv1, conv2, fc1, fc2, fc3, .. } = self;

        let (weights, bias) = (tensor(&CONV1_WEIGHT), tensor(&CONV1_BIAS));
        let (pooled, slopes) = (&mut conv1.pooled, &mut conv1.slopes);
        convolution_forward(&CONV1, model, weights, bias, images, pooled, slopes);

        let (weights, bias) = (tensor(&CONV2_WEIGHT), tensor(&CONV2_BIAS));
        let (pooled, slopes) = (&mut conv2.pooled, &mut conv2.slopes);
        convolution_forward(&CONV2, model, weights, bias, &conv1.pooled, pooled, slopes);

        let (weights, bias) = (tensor(&FC1_WEIGHT), tensor(&FC1_BIAS));
        dense_forward(&FC1, activation, weights, bias, &conv2.pooled, &mut fc1.output);

        let (weights, bias) = (tensor(&FC2_WEIGHT), tensor(&FC2_BIAS));
        dense_forward(&FC2, activation, weights, bias, &fc1.output, &mut fc2.output);

        let (weights, bias) = (tensor(&FC3_WEIGHT), tensor(&FC3_BIAS));
        dense_forward(&FC3, None, weights, bias, &fc2.output, &mut fc3.output);
        &fc3.output
    }

    /// Losses and gradients after [`forward`](Network::forward) with the same parameters;
    /// `labels` is (N).
    ///
    /// # Panics
    /// If a label is 10 or more, or there is not one for each sample.
    pub fn backward(&mut self, parameters: &[F], labels: &[u8]) -> Gradients<'_, F> {
        let weights = |spec: &TensorSpec| &parameters[spec.range()];
        let activation = Some(self.model.activation());
        let Network { images, conv1, conv2, fc1, fc2, fc3, losses, right, d_parameters, .. } = self;

        loss_head(&fc3.output, labels, losses, right, &mut fc3.d_output);

        let (d_weights, d_bias) = gradients(d_parameters, &FC3_WEIGHT, &FC3_BIAS);
        dense_backward_weights(&FC3, &fc2.output, &fc3.d_output, d_weights, d_bias);
        let (input, d_input) = (&fc2.output, &mut fc2.d_output);
        let d_output = &fc3.d_output;
        dense_backward_input(&FC3, activation, weights(&FC3_WEIGHT), input, d_output, d_input);

        let (d_weights, d_bias) = gradients(d_parameters, &FC2_WEIGHT, &FC2_BIAS);
        dense_backward_weights(&FC2, &fc1.output, &fc2.d_output, d_weights, d_bias);
        let (input, d_input) = (&fc1.output, &mut fc1.d_output);
        let d_output = &fc2.d_output;
        dense_backward_input(&FC2, activation, weights(&FC2_WEIGHT), input, d_output, d_input);

        // The slopes of the pooling below fc1 hold the derivative of the activation.
        let (d_weights, d_bias) = gradients(d_parameters, &FC1_WEIGHT, &FC1_BIAS);
        dense_backward_weights(&FC1, &conv2.pooled, &fc1.d_output, d_weights, d_bias);
        let (input, d_input) = (&conv2.pooled, &mut conv2.d_pooled);
        let d_output = &fc1.d_output;
        dense_backward_input(&FC1, None, weights(&FC1_WEIGHT), input, d_output, d_input);

        let (d_weights, d_bias) = gradients(d_parameters, &CONV2_WEIGHT, &CONV2_BIAS);
        let (slopes, d_pooled) = (&conv2.slopes, &conv2.d_pooled);
        convolution_backward_weights(&CONV2, &conv1.pooled, slopes, d_pooled, d_weights, d_bias);
        let d_input = &mut conv1.d_pooled;
        convolution_backward_input(&CONV2, weights(&CONV2_WEIGHT), slopes, d_pooled, d_input);

        let (d_weights, d_bias) = gradients(d_parameters, &CONV1_WEIGHT, &CONV1_BIAS);
        let (slopes, d_pooled) = (&conv1.slopes, &conv1.d_pooled);
        convolution_backward_weights(&CONV1, images, slopes, d_pooled, d_weights, d_bias);

        Gradients { losses, right, d_parameters }
    }
}

impl<F: Float> ConvolutionValues<F> {
    fn new() -> ConvolutionValues<F> {
        ConvolutionValues { pooled: Vec::new(), slopes: Vec::new(), d_pooled: Vec::new() }
    }

    fn resize(&mut self, layer: &Convolution, samples: usize) {
        let planes = samples * layer.out_channels;
        self.pooled.resize(planes * layer.pooled_side() * layer.pooled_side(), F::ZERO);
        self.slopes.resize(planes * layer.out_side() * layer.out_side(), F::ZERO);
        self.d_pooled.resize(planes * layer.pooled_side() * layer.pooled_side(), F::ZERO);
    }
}

impl<F: Float> DenseValues<F> {
    fn new() -> DenseValues<F> {
        DenseValues { output: Vec::new(), d_output: Vec::new() }
    }

    fn resize(&mut self, layer: &Dense, samples: usize) {
        self.output.resize(samples * layer.outputs, F::ZERO);
        self.d_output.resize(samples * layer.outputs, F::ZERO);
    }
}

/// The gradients of a layer's weights and of its bias, which follows them in the flat vector.
fn gradients<'a, F>(
    d_parameters: &'a mut [F],
    weight: &TensorSpec,
    bias: &TensorSpec,
) -> (&'a mut [F], &'a mut [F]) {
    d_parameters[weight.offset..bias.range().end].split_at_mut(weight.count)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{H, TOLERANCE, inner, values};
    use super::*;
    use crate::model::TENSORS;
    use crate::model::initial::initial_parameters;

    /// A network that has seen a forward pass over these images, and the sum of its losses.
    fn pass(
        model: ModelKind,
        parameters: &[f64],
        images: &[f64],
        labels: &[u8],
    ) -> (Network<f64>, f64) {
        let mut network = Network::new(model);
        network.begin(labels.len()).copy_from_slice(images);
        network.forward(parameters);
        let loss = network.backward(parameters, labels).losses.iter().sum();
        (network, loss)
    }

    /// Which piece of the piecewise smooth function was evaluated.
    fn piece(network: &Network<f64>) -> Vec<bool> {
        let Network { conv1, conv2, fc1, fc2, .. } = network;
        [&conv1.slopes, &conv2.slopes, &fc1.output, &fc2.output]
            .iter()
            .flat_map(|values| values.iter().map(|&value| value > 0.0))
            .collect()
    }

    /// Along a random direction through all elements of a tensor, and along a few single elements.
    #[test]
    fn backward_is_the_derivative() {
        let labels = [2, 9, 0];
        let images = values(5, labels.len() * IMAGE_PIXELS);
        let parameters: Vec<f64> = initial_parameters(1).into_iter().map(f64::from).collect();
        for model in ModelKind::ALL {
            let (mut network, _) = pass(model, &parameters, &images, &labels);
            let piece_here = piece(&network);
            let d_parameters = network.backward(&parameters, &labels).d_parameters.to_vec();
            for (k, tensor) in TENSORS.iter().enumerate() {
                let mut directions = vec![values(k as u32, tensor.count)];
                for i in (0..tensor.count).step_by(tensor.count.div_ceil(4)) {
                    directions.push((0..tensor.count).map(|j| f64::from(i == j)).collect());
                }
                for (number, direction) in directions.iter().enumerate() {
                    // The directions through all elements are long: the step is along a unit
                    // vector.
                    let length = inner(direction, direction).sqrt();
                    let at = |distance: f64| {
                        let mut moved = parameters.clone();
                        for (p, d) in moved[tensor.range()].iter_mut().zip(direction) {
                            *p += distance / length * d;
                        }
                        let (network, loss) = pass(model, &moved, &images, &labels);
                        if model == ModelKind::LeNet5 {
                            assert!(piece(&network) == piece_here, "no kink within a difference");
                        }
                        loss
                    };
                    let difference = (at(H) - at(-H)) / (2.0 * H);
                    let derivative = inner(&d_parameters[tensor.range()], direction) / length;
                    assert!(
                        (difference - derivative).abs() <= TOLERANCE,
                        "{} {}, direction {number}: {derivative}, by difference {difference}",
                        model.name(),
                        tensor.name
                    );
                }
            }
        }
    }

    #[test]
    fn a_smaller_pass_after_a_larger_one_sees_nothing_of_it() {
        let parameters = initial_parameters(1);
        let images: Vec<f32> = values(5, 3 * IMAGE_PIXELS).iter().map(|&v| v as f32).collect();
        let one = |network: &mut Network<f32>| {
            network.begin(1).copy_from_slice(&images[..IMAGE_PIXELS]);
            let logits = network.forward(&parameters).to_vec();
            (logits, network.backward(&parameters, &[4]).d_parameters.to_vec())
        };
        let mut used = Network::new(ModelKind::LeNet5);
        used.begin(3).copy_from_slice(&images);
        used.forward(&parameters);
        used.backward(&parameters, &[1, 2, 3]);
        assert_eq!(one(&mut used), one(&mut Network::new(ModelKind::LeNet5)));
    }
}
