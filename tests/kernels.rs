use annulet::config::Kernels;
use annulet::data::dataset::*;
use annulet::gpu::*;
use annulet::model::layout::*;
use annulet::model::*;
use annulet::numerics::fixed_point::*;
use annulet::reference::engine::ReferenceEngine;
use std::sync::Arc;

fn dataset(train: usize, test: usize) -> Dataset {
    let mut state = 12345u64;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32
    };
    let mut set = |n: usize| {
        let mut pixels = Vec::new();
        let mut labels = Vec::new();
        for _ in 0..n {
            labels.push((next() % 10) as u8);
            for _ in 0..784 {
                let v = next();
                pixels.push(if v & 0x300 == 0 { v as u8 } else { 0 });
            }
        }
        ImageSet { pixels, labels }
    };
    Dataset {
        name: "random".into(),
        train: set(train),
        test: set(test),
        normalization: Normalization { scale: 0.011, offset: -0.8 },
        sha256: [0; 32],
    }
}

#[test]
fn whole_step() {
    for model in ModelKind::ALL {
        let data = Arc::new(dataset(200, 40));
        let mut engine = Engine::open(
            EngineSettings {
                adapter: std::env::var("ADAPTER").unwrap_or("best".into()).parse().unwrap(),
                kernels: Kernels::Portable,
                model,
                dataset: data.clone(),
                samples_per_step: 128,
                cores: 1,
                sums: Sums::Exact,
            },
            &mut |d, t| eprint!("{d}/{t} "),
        )
        .unwrap();
        let mut reference = ReferenceEngine::new(model, data.clone());
        let parameters = initial::initial_parameters(3);
        for n in [1usize, 5, 16, 17, 33, 100] {
            let samples: Vec<u32> = (0..n as u32).map(|i| (i * 7) % 200).collect();
            let fp = FixedPoint::for_batch(n, &[INITIAL_MAXIMUM; SCALE_COUNT]);
            engine.begin_step(&parameters, &samples, &fp).unwrap();
            reference.begin_step(&parameters, &samples, &fp);
            for (b, bucket) in BUCKETS.iter().enumerate() {
                let mut got = vec![0; bucket.words()];
                let mut want = vec![0; bucket.words()];
                engine.finish_bucket(b, &mut got).unwrap();
                reference.finish_bucket(b, &mut want);
                let base = bucket.parameter_range().start;
                for (i, t) in bucket.tensor_specs().iter().enumerate() {
                    let r = t.offset - base..t.offset - base + t.count;
                    let k = bucket.first_tensor + i;
                    let worst = r
                        .clone()
                        .map(|j| {
                            (fp.dequantize(k, got[j] as i32) - fp.dequantize(k, want[j] as i32))
                                .abs()
                        })
                        .fold(0.0, f64::max);
                    let size =
                        r.map(|j| fp.dequantize(k, want[j] as i32).abs()).fold(0.0, f64::max);
                    let m = bucket.sum_words() + i;
                    eprintln!(
                        "{model:?} {n} {} worst {worst:.2e} of {size:.2e} max {} {}",
                        t.name,
                        f32::from_bits(got[m]),
                        f32::from_bits(want[m])
                    );
                    assert!(worst < 1e-4 * size + 1e-6);
                }
                if bucket.statistics {
                    let s = bucket.parameter_range().len();
                    eprintln!("{:?} {:?}", &got[s..s + 3], &want[s..s + 3]);
                }
            }
        }
        let (mut a, mut b) = (vec![], vec![]);
        engine.logits(&parameters, 3..40, &mut a).unwrap();
        reference.logits(&parameters, 3..40, &mut b);
        let w = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        eprintln!("logits {w:e}");
        assert!(w < 1e-5 && a.len() == b.len());
    }
}
