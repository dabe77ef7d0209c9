//! LeNet-5 on Fashion-MNIST with Burn's wgpu backend: images per second of whole training steps.
//!
//! A step is what annulet's step is: a batch goes to the device, forward, loss, backward, the
//! optimizer, and the loss is read back. Batches are taken in file order, which is already random
//! in Fashion-MNIST. One JSON line on stdout reports the figures; everything else goes to stderr.

mod fashion_mnist;
mod lenet;

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, DeviceKind, Int, Tensor, TensorData};
use clap::Parser;
use serde_json::json;

use fashion_mnist::{IMAGE_SIDE, TrainingSet};
use lenet::LeNet;

/// The version that Cargo.toml pins.
const BURN_VERSION: &str = "0.22.1";

#[derive(Parser)]
#[command(about = "Times Burn's wgpu backend on annulet's work and prints one JSON line")]
struct Arguments {
    /// Folder with Fashion-MNIST's four gzip files
    #[arg(long, default_value = "/usr/share/datasets/fashion-mnist")]
    data: PathBuf,
    /// Samples of one step
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    batch: u32,
    /// Steps before the clock starts; the first one compiles and tunes the kernels
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    warmup: u32,
    /// Timed steps
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Learning rate
    #[arg(long, default_value_t = 0.05)]
    lr: f64,
    /// Seed of the initial parameters
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let arguments = Arguments::parse();
    let data = TrainingSet::read(&arguments.data)?;
    let device = Device::wgpu(DeviceKind::DefaultDevice).autodiff();
    device.seed(arguments.seed);
    let adapter = device.identity().map(|identity| identity.name);
    let mut training = Training::new(&device, arguments.lr);
    eprintln!("burn: {adapter:?}; the first step compiles and tunes the kernels");

    let mut batches = data.batches(arguments.batch as usize);
    let mut losses = Vec::new();
    let mut step = |training: &mut Training| -> Result<(), Box<dyn Error>> {
        let (pixels, labels) = batches.next().ok_or("the batches ran out")?;
        let loss = training.step(pixels, labels)?;
        if !loss.is_finite() {
            return Err(
                format!("loss {loss} after {} steps: nothing was trained", losses.len()).into()
            );
        }
        losses.push(loss);
        Ok(())
    };

    step(&mut training)?;
    let first_step_s = started.elapsed().as_secs_f64();
    eprintln!("burn: first step done {first_step_s:.1} s after the start");
    for _ in 1..arguments.warmup {
        step(&mut training)?;
    }
    // The last update may still be queued when its loss has been read.
    device.sync()?;
    let timed = Instant::now();
    for _ in 0..arguments.steps {
        step(&mut training)?;
    }
    device.sync()?;
    let timed_s = timed.elapsed().as_secs_f64();

    let images = f64::from(arguments.batch) * f64::from(arguments.steps);
    let report = json!({
        "peer": "burn",
        "version": BURN_VERSION,
        "fusion": cfg!(feature = "fusion"),
        "autotune": cfg!(feature = "autotune"),
        "adapter": adapter,
        "batch": arguments.batch,
        "steps": arguments.steps,
        "warmup_steps": arguments.warmup,
        // From the start of the process, as annulet's `first_step_ms`.
        "first_step_s": first_step_s,
        "images_per_s": images / timed_s,
        "step_ms": 1e3 * timed_s / f64::from(arguments.steps),
        "first_loss": losses[0],
        "last_loss": mean(&losses[losses.len().saturating_sub(10)..]),
    });
    println!("{report}");
    Ok(())
}

/// The model with its optimizer.
struct Training {
    device: Device,
    /// Taken out for the duration of an update, which consumes the model and returns it.
    model: Option<LeNet>,
    optimizer: ModuleOptimizer,
    lr: f64,
}

impl Training {
    fn new(device: &Device, lr: f64) -> Self {
        // Burn damps the gradient by default; PyTorch and annulet do not.
        let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
        Training {
            device: device.clone(),
            model: Some(LeNet::new(device)),
            optimizer: SgdConfig::new().with_momentum(Some(momentum)).init(),
            lr,
        }
    }

    /// One whole training step over pixels (N, 1, 28, 28) and labels (N); the mean loss.
    fn step(&mut self, pixels: Vec<f32>, labels: Vec<i32>) -> Result<f32, Box<dyn Error>> {
        let model = self.model.take().ok_or("a step failed before this one")?;
        let count = labels.len();
        let images = TensorData::new(pixels, [count, 1, IMAGE_SIDE, IMAGE_SIDE]);
        let images = Tensor::<4>::from_data(images, &self.device);
        let labels = Tensor::<1, Int>::from_data(TensorData::new(labels, [count]), &self.device);

        let loss =
            CrossEntropyLossConfig::new().init(&self.device).forward(model.forward(images), labels);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.optimizer.step(self.lr, model, gradients));
        Ok(loss.try_into_scalar::<f32>()?)
    }
}

fn mean(values: &[f32]) -> f32 {
    values.iter().sum::<f32>() / values.len() as f32
}
