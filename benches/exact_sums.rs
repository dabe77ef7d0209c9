//! What exact sums cost: whole gradient steps with exact fixed-point sums and with plain `f32` sums,
//! taking turns. `cargo bench --bench exact_sums [-- BATCH]`.
//!
//! Turns of one step, many of them, and medians: then what else the machine does meets both alike.

use std::sync::Arc;
use std::time::Instant;

use annulet::config::Kernels;
use annulet::data::dataset::{Dataset, ImageSet, Normalization};
use annulet::gpu::{AdapterChoice, Engine, EngineSettings, Sums};
use annulet::model::ModelKind;
use annulet::model::initial::initial_parameters;
use annulet::model::layers::IMAGE_PIXELS;
use annulet::model::layout::{BUCKETS, SCALE_COUNT};
use annulet::numerics::fixed_point::{FixedPoint, INITIAL_MAXIMUM};

const SAMPLES: usize = 4_096;
/// Steps with each kind of sum.
const PAIRS: usize = 100;

fn main() {
    // Cargo itself passes `--bench`.
    let batch = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(128);
    for kernels in [Kernels::Portable, Kernels::Lane] {
        let [mut exact, mut plain] =
            [Sums::Exact, Sums::Plain].map(|s| Bench::open(kernels, s, batch));
        println!(
            "{} kernels on {}, batch {batch}: ms a step, exact and plain",
            exact.engine.kernels(),
            exact.engine.adapter().label()
        );
        let mut pairs = Vec::with_capacity(PAIRS);
        for pair in 0..PAIRS {
            // Each goes first every other time.
            let (e, p) = if pair % 2 == 0 {
                let e = exact.run();
                (e, plain.run())
            } else {
                let p = plain.run();
                (exact.run(), p)
            };
            pairs.push((e, p));
        }
        for (name, times) in [
            ("exact", pairs.iter().map(|pair| pair.0).collect::<Vec<_>>()),
            ("plain", pairs.iter().map(|pair| pair.1).collect()),
        ] {
            let times: Vec<String> = times.iter().map(|ms| format!("{ms:.2}")).collect();
            println!("  {name}: {}", times.join(" "));
        }
        println!(
            "  medians: exact {:.3}, plain {:.3}, exact costs {:+.2} % (median of the pairs)",
            median(pairs.iter().map(|pair| pair.0)),
            median(pairs.iter().map(|pair| pair.1)),
            100.0 * (median(pairs.iter().map(|(e, p)| e / p)) - 1.0)
        );
    }
}

struct Bench {
    engine: Engine,
    parameters: Vec<f32>,
    indices: Vec<u32>,
    fixed_point: FixedPoint,
    words: Vec<Vec<u32>>,
}

impl Bench {
    fn open(kernels: Kernels, sums: Sums, batch: usize) -> Bench {
        let set = |samples: usize| ImageSet {
            pixels: (0..samples * IMAGE_PIXELS).map(|i| ((i * 2_654_435_761) >> 9) as u8).collect(),
            labels: (0..samples).map(|i| (i % 10) as u8).collect(),
        };
        let dataset = Arc::new(Dataset {
            name: "bench".to_owned(),
            train: set(SAMPLES),
            test: set(1),
            normalization: Normalization { scale: 0.011, offset: -0.8 },
            sha256: [0; 32],
        });
        let settings = EngineSettings {
            adapter: AdapterChoice::Best,
            kernels,
            model: ModelKind::LeNet5,
            dataset: dataset.into(),
            samples_per_step: batch,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            sums,
        };
        let mut bench = Bench {
            engine: Engine::open(settings, &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}")),
            parameters: initial_parameters(1),
            indices: (0..batch).map(|i| (i * 31 % SAMPLES) as u32).collect(),
            fixed_point: FixedPoint::for_batch(batch, &[INITIAL_MAXIMUM; SCALE_COUNT]),
            words: BUCKETS.iter().map(|bucket| vec![0; bucket.words()]).collect(),
        };
        bench.run();
        bench
    }

    /// Milliseconds of a step.
    fn run(&mut self) -> f64 {
        let start = Instant::now();
        let step = self.engine.begin_step(&self.parameters, &self.indices, &self.fixed_point);
        step.unwrap_or_else(|e| panic!("{e}"));
        for (bucket, words) in self.words.iter_mut().enumerate() {
            self.engine.finish_bucket(bucket, words).unwrap_or_else(|e| panic!("{e}"));
        }
        start.elapsed().as_secs_f64() * 1e3
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
