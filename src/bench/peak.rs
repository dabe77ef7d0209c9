//! What the processor could do: multiply-adds a second, from a loop that does nothing else.

use std::time::{Duration, Instant};

/// How long each thread computes.
const DURATION: Duration = Duration::from_millis(60);
/// Sums that grow side by side, enough to hide the latency of a multiply-add.
const SUMS: usize = 10;
/// Rounds between two looks at the clock.
const ROUNDS: usize = 20_000;

/// Multiply-adds in `f32` a second of so many threads together.
pub fn multiply_adds_per_s(threads: usize) -> f64 {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one_thread)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .sum()
    })
}

fn one_thread() -> f64 {
    let (rounds, lanes) = widest();
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < DURATION {
        // The compiler must not know what comes of it.
        std::hint::black_box(rounds(std::hint::black_box(0.5)));
        done += ROUNDS * SUMS * lanes;
    }
    done as f64 / start.elapsed().as_secs_f64()
}

/// [`ROUNDS`] rounds with the widest vectors of this processor, and how many values one has.
fn widest() -> (fn(f32) -> f32, usize) {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has what the function needs.
            return (|x| unsafe { avx512(x) }, 16);
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
        {
            // SAFETY: as above.
            return (|x| unsafe { avx2(x) }, 8);
        }
    }
    (plain, 4)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(x: f32) -> f32 {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_reduce_add_ps, _mm512_set1_ps};
    let factor = _mm512_set1_ps(x);
    let mut sums = [factor; SUMS];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, factor);
        }
    }
    let mut total = 0.0;
    for sum in sums {
        total += _mm512_reduce_add_ps(sum);
    }
    total
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(x: f32) -> f32 {
    use std::arch::x86_64::{_mm256_cvtss_f32, _mm256_fmadd_ps, _mm256_set1_ps};
    let factor = _mm256_set1_ps(x);
    let mut sums = [factor; SUMS];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, factor);
        }
    }
    let mut total = 0.0;
    for sum in sums {
        total += _mm256_cvtss_f32(sum);
    }
    total
}

/// What every processor has vectors of four for; multiplied and added apart, since few have both
/// in one instruction without being asked.
fn plain(x: f32) -> f32 {
    let mut sums = [[x; 4]; SUMS];
    for _ in 0..ROUNDS {
        for sum in sums.as_flattened_mut() {
            *sum = *sum * x + x;
        }
    }
    sums.as_flattened().iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_converges_to_the_same_sum_a_lane() {
        // s = s / 2 + 1 / 2 stays at 1.
        let (rounds, _) = widest();
        assert!(rounds(0.5) >= SUMS as f32 * 0.999);
        assert!((plain(0.5) - 4.0 * SUMS as f32).abs() < 1e-3);
        assert!(multiply_adds_per_s(1) > 0.0);
    }
}
