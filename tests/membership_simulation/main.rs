//! Whole training runs in virtual time, with members that crash, stall, part, leave and come.
//!
//! Each seed decides a run: its size, its delays, and what goes wrong when. After every event the
//! invariants of `checks.rs` are checked. The seeds of one call are spread over all cores.
//!
//! - `ANNULET_SIMULATION_SEED=N` repeats one seed and prints what happens.
//! - `ANNULET_SIMULATION_SEEDS=N` runs the first N seeds, for a longer soak.

mod checks;
mod engine;
mod events;
mod faults;
mod network;
mod node;
mod random;
mod schedule;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use checks::Statistics;
use world::World;

/// Enough to meet every fault in every phase many times, in a few seconds.
const SEEDS: u64 = 20_000;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: not a number")))
}

fn run(seed: u64, trace: bool) -> Statistics {
    World::new(seed, trace).run()
}

#[test]
fn every_run_ends_with_the_quiet_runs_result() {
    if let Some(seed) = number("ANNULET_SIMULATION_SEED") {
        let statistics = run(seed, true);
        println!("{statistics:#?}");
        return;
    }
    let seeds = number("ANNULET_SIMULATION_SEEDS").unwrap_or(SEEDS);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, began) = (AtomicU64::new(0), Instant::now());
    let work = || {
        let mut sum = Statistics::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return sum;
            }
            match catch_unwind(AssertUnwindSafe(|| run(seed, false))) {
                Ok(statistics) => sum.add(&statistics),
                Err(panic) => {
                    eprintln!(
                        "seed {seed} fails; repeat it with:\n  ANNULET_SIMULATION_SEED={seed} cargo \
                         test --release --test membership_simulation -- --nocapture"
                    );
                    next.store(seeds, Ordering::Relaxed);
                    std::panic::resume_unwind(panic);
                }
            }
        }
    };
    let total = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut total = Statistics::default();
        for thread in threads {
            match thread.join() {
                Ok(statistics) => total.add(&statistics),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        total
    });
    println!("{seeds} seeds in {:.1} s: {total:#?}", began.elapsed().as_secs_f64());
    // A simulation in which something never happens says nothing about it.
    if seeds >= SEEDS {
        total.assert_everything_happened();
    }
}
