use annulet::config::Kernels;
use annulet::data::dataset::*;
use annulet::gpu::*;
use annulet::model::layout::*;
use annulet::model::*;
use annulet::numerics::fixed_point::*;
use std::sync::Arc;
use std::time::Instant;
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = s.rsplit(')').next().unwrap().split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) * 10.0
}
fn main() {
    let n: usize = std::env::args().nth(1).map_or(128, |a| a.parse().unwrap());
    let steps: usize = std::env::args().nth(2).map_or(20, |a| a.parse().unwrap());
    let set = |n: usize| ImageSet { pixels: (0..n * 784).map(|i| (i * 2654435761usize >> 9) as u8).collect(), labels: (0..n).map(|i| (i % 10) as u8).collect() };
    let data = Arc::new(Dataset { name: "x".into(), train: set(60000), test: set(10000), normalization: Normalization { scale: 0.011, offset: -0.8 }, sha256: [0; 32] });
    let t = Instant::now(); let c = cpu();
    let mut e = Engine::open(EngineSettings { adapter: "best".parse().unwrap(), kernels: Kernels::Portable, model: ModelKind::LeNet5, dataset: data, samples_per_step: n, sums: if std::env::var("PLAIN").is_ok() { Sums::Plain } else { Sums::Exact } }, &mut |_, _| ()).unwrap();
    println!("open {:.0} ms cpu {:.0}", t.elapsed().as_secs_f64() * 1e3, cpu() - c);
    let p = initial::initial_parameters(3);
    let fp = FixedPoint::for_batch(n, &[INITIAL_MAXIMUM; SCALE_COUNT]);
    let mut bufs: Vec<Vec<u32>> = BUCKETS.iter().map(|b| vec![0; b.words()]).collect();
    let mut times = vec![];
    let c0 = cpu();
    for s in 0..steps {
        let samples: Vec<u32> = (0..n as u32).map(|i| (i * 7 + s as u32 * 1000) % 60000).collect();
        let t = Instant::now();
        e.begin_step(&p, &samples, &fp).unwrap();
        let b = t.elapsed();
        for (i, w) in bufs.iter_mut().enumerate() { e.finish_bucket(i, w).unwrap(); }
        times.push(t.elapsed().as_secs_f64());
        if s == 0 { println!("begin {:?} first step {:?}", b, t.elapsed()); }
    }
    let us = (cpu() - c0) * 1e3 / (steps * n) as f64;
    times.sort_by(f64::total_cmp);
    println!("median step {:.2} ms = {:.0} images/s; best {:.0}; cpu {us:.0} us/image -> {:.0} images/s on two quiet cores", times[steps / 2] * 1e3, n as f64 / times[steps / 2], n as f64 / times[0], 2e6 / us);
}
