//! Shares by measured speed: when the plan changes, and to which.
//!
//! Every worker of a view feeds its own balancer with the same figures, which the step's maxima carry
//! to all: how long each of them has computed. All arithmetic is in integers, so all come to the same
//! plan at the same step, on any mix of machines, and no message says so.
//!
//! A worker's cost has a fixed part, which does not shrink with its share, and a part for each tile.
//! Both are learnt from the times before and after a change of its share. As long as it has always
//! had the same share, the fixed part is taken for zero: a first change may then be too small, never
//! too large, and what it shows corrects the next one.
//!
//! What keeps the plan still: a time is the median of an interval; a change must promise to make the
//! slowest worker faster by an eighth; and a change that has not kept half of its promise makes the
//! next one wait longer, unless that one promises a quarter.

use std::num::NonZero;

use super::plan::{Cost, Plan};

/// A change must promise at least this part of the slowest worker's time.
const GAIN_MIN: u64 = 8;

/// A change that promises this part of it does not wait.
const GAIN_LARGE: u64 = 4;

/// Most intervals that a change waits after others that did not keep their promise.
const PATIENCE_MAX: u32 = 31;

/// After so many intervals a worker without a tile gets one for a step, to see how fast it is now;
/// then after twice as many, and so on up to the maximum.
const PROBE_AFTER: u32 = 4;
const PROBE_AFTER_MAX: u32 = 64;

/// The fixed part of a time is at most all but this part of it: short differences are uncertain.
const TILES_PART_MIN: u64 = 8;

/// Times of an interval that are kept: what a median needs, however long the interval is.
const TIMES_MAX: usize = 256;

/// Makes a view's plans.
#[derive(Clone, Debug)]
pub struct Balancer {
    /// Steps between changes; none: the plan stays equal.
    interval: Option<NonZero<u32>>,
    plan: Plan,
    /// The plan of the next step, if it is another one: it has a tile for the worker of this rank.
    probe: Option<(usize, Plan)>,
    workers: Vec<Worker>,
    /// Steps of the interval so far.
    steps: u32,
    /// Intervals since the last change.
    intervals: u32,
    /// Intervals that a change of no large gain waits after the last one.
    patience: u32,
    /// What the last change must have reached to have kept its promise.
    promise_ns: Option<u64>,
    changes: u64,
}

/// What is known of a worker.
#[derive(Clone, Debug, Default)]
struct Worker {
    /// Microseconds, of the interval's steps.
    times: Vec<u32>,
    fixed_ns: u64,
    /// None for one that never had a tile.
    tile_ns: Option<u64>,
    /// Its last tiles and the time that they took, nanoseconds.
    last: Option<(u32, u64)>,
    /// Intervals since it had a tile, and after how many it gets one to see.
    idle: u32,
    probe_after: u32,
}

impl Balancer {
    /// Starts with equal shares.
    ///
    /// # Panics
    /// If there is no worker.
    pub fn new(workers: usize, tiles: u32, interval: Option<NonZero<u32>>) -> Balancer {
        let times_max = interval.map_or(0, |steps| (steps.get() as usize).min(TIMES_MAX));
        let worker = || Worker {
            times: Vec::with_capacity(times_max),
            probe_after: PROBE_AFTER,
            ..Worker::default()
        };
        Balancer {
            interval: interval.filter(|_| workers > 1),
            plan: Plan::equal(workers, tiles),
            probe: None,
            workers: (0..workers).map(|_| worker()).collect(),
            steps: 0,
            intervals: 0,
            patience: 0,
            promise_ns: None,
            changes: 0,
        }
    }

    /// The plan of the next step.
    pub fn plan(&self) -> &Plan {
        self.probe.as_ref().map_or(&self.plan, |(_, plan)| plan)
    }

    /// How often the plan has changed. A tile that is only lent for a step is no change.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Takes note of a completed step of `tiles` tiles: how many microseconds each worker has
    /// computed, by rank. Says whether the plan has changed.
    ///
    /// # Panics
    /// If there are not as many times as workers.
    pub fn observe(&mut self, tiles: u32, computed_us: &[u32]) -> bool {
        assert_eq!(computed_us.len(), self.workers.len(), "a time a worker");
        let Some(interval) = self.interval else { return false };
        // Only whole batches can be compared.
        if tiles != self.plan.total() {
            return false;
        }
        if let Some((rank, _)) = self.probe.take() {
            self.workers[rank].learn(1, computed_us[rank]);
            return false;
        }
        self.steps += 1;
        // The interval's last steps count.
        if interval.get() - self.steps < TIMES_MAX as u32 {
            for (worker, &us) in self.workers.iter_mut().zip(computed_us) {
                worker.times.push(us);
            }
        }
        if self.steps < interval.get() {
            return false;
        }
        self.steps = 0;
        self.end_interval()
    }

    fn end_interval(&mut self) -> bool {
        let mut longest_ns = 0;
        for (worker, &tiles) in self.workers.iter_mut().zip(self.plan.tiles()) {
            let median = median(&mut worker.times);
            worker.times.clear();
            worker.learn(tiles, median);
            longest_ns = longest_ns.max(nanoseconds(median));
            worker.idle = if tiles == 0 { worker.idle + 1 } else { 0 };
        }
        self.intervals += 1;
        if let Some(promise_ns) = self.promise_ns.take() {
            self.patience = match longest_ns <= promise_ns {
                true => 0,
                false => (2 * self.patience + 1).min(PATIENCE_MAX),
            };
        }
        let costs = self.costs();
        let best = Plan::fastest(&costs, self.plan.total());
        let (now, then) = (self.plan.longest(&costs), best.longest(&costs));
        let gain = now.saturating_sub(then);
        let waited = self.intervals > self.patience;
        if gain > now / GAIN_LARGE || (gain > now / GAIN_MIN && waited) {
            self.promise_ns = Some(longest_ns.saturating_sub(gain / 2));
            self.plan = best;
            self.intervals = 0;
            self.changes += 1;
            return true;
        }
        self.plan_probe();
        false
    }

    /// Lends a tile to a worker that has been without one for long.
    fn plan_probe(&mut self) {
        let due = |worker: &Worker| worker.idle >= worker.probe_after;
        let Some(rank) = self.workers.iter().position(due) else { return };
        let worker = &mut self.workers[rank];
        worker.idle = 0;
        worker.probe_after = (2 * worker.probe_after).min(PROBE_AFTER_MAX);
        self.probe = Some((rank, self.plan.with_tile_for(rank)));
    }

    fn costs(&self) -> Vec<Cost> {
        // Nothing changes for one that never had a tile until a tile was lent to it.
        let slowest = self.workers.iter().filter_map(|worker| worker.tile_ns).max().unwrap_or(1);
        let cost = |worker: &Worker| Cost {
            fixed_ns: worker.fixed_ns,
            tile_ns: worker.tile_ns.unwrap_or(slowest),
        };
        self.workers.iter().map(cost).collect()
    }
}

impl Worker {
    /// Takes note that so many tiles took so long.
    fn learn(&mut self, tiles: u32, us: u32) {
        let ns = nanoseconds(us);
        match (tiles, self.last, self.tile_ns) {
            (0, _, _) => self.fixed_ns = ns,
            (_, Some((before, ns_before)), _) if before != tiles => {
                let difference = i128::from(ns) - i128::from(ns_before);
                let slope = difference / (i128::from(tiles) - i128::from(before));
                let most = ns / u64::from(tiles);
                let least = most / TILES_PART_MIN;
                let tile_ns = u64::try_from(slope).unwrap_or(0).clamp(least.max(1), most.max(1));
                self.tile_ns = Some(tile_ns);
                self.fixed_ns = ns.saturating_sub(tile_ns * u64::from(tiles));
            }
            // The same tiles as before took longer, or less long: so it is with any number of them.
            // Half of the way, against noise.
            (_, Some(_), Some(tile_ns)) => {
                let expected = Cost { fixed_ns: self.fixed_ns, tile_ns }.of(tiles).max(1);
                let smoothed = expected / 2 + ns / 2;
                let scale = |part: u64| {
                    (u128::from(part) * u128::from(smoothed) / u128::from(expected)) as u64
                };
                self.fixed_ns = scale(self.fixed_ns);
                self.tile_ns = Some(scale(tile_ns).max(1));
            }
            _ => self.tile_ns = Some((ns / u64::from(tiles)).max(1)),
        }
        self.last = Some((tiles, ns));
    }
}

fn nanoseconds(us: u32) -> u64 {
    1_000 * u64::from(us)
}

/// The upper one of the two in the middle; 0 of nothing.
fn median(times: &mut [u32]) -> u32 {
    if times.is_empty() {
        return 0;
    }
    let middle = times.len() / 2;
    *times.select_nth_unstable(middle).1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    const INTERVAL: u32 = 10;

    fn balancer(workers: usize, tiles: u32) -> Balancer {
        Balancer::new(workers, tiles, NonZero::new(INTERVAL))
    }

    /// Microseconds that the plan takes each worker, with noise of so many thousandths.
    fn times(plan: &Plan, costs: &[(u64, u64)], noise: u64, random: &mut u64) -> Vec<u32> {
        let times = plan.tiles().iter().zip(costs).map(|(&tiles, &(fixed, tile))| {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let drawn = (*random >> 33) % (2 * noise + 1);
            let time = fixed + tile * u64::from(tiles);
            (time * (1_000 - noise + drawn) / 1_000) as u32
        });
        times.collect()
    }

    /// Runs so many intervals and returns the number of changes in them.
    fn run(balancer: &mut Balancer, costs: &[(u64, u64)], noise: u64, intervals: u32) -> u64 {
        let (mut random, before) = (intervals.into(), balancer.changes());
        let tiles = balancer.plan().total();
        for _ in 0..intervals * INTERVAL {
            let times = times(balancer.plan(), costs, noise, &mut random);
            balancer.observe(tiles, &times);
        }
        balancer.changes() - before
    }

    #[test]
    fn a_worker_four_times_slower_gets_few_tiles() {
        let mut balancer = balancer(3, 8);
        assert_eq!(balancer.plan().tiles(), [3, 3, 2]);
        run(&mut balancer, &[(100, 1_000), (100, 4_000), (100, 1_000)], 20, 3);
        assert_eq!(balancer.plan().tiles(), [4, 1, 3]);
        // It recovers, and is seen to.
        run(&mut balancer, &[(100, 1_000), (100, 1_000), (100, 1_000)], 20, 3);
        assert_eq!(balancer.plan().longest(&[Cost { fixed_ns: 0, tile_ns: 1 }; 3]), 3);
    }

    #[test]
    fn the_plan_changes_once_an_interval_at_most() {
        let mut balancer = balancer(2, 64);
        let mut last = 0;
        for step in 1..=500 {
            // Whoever has most tiles is slowest, which no sane machine does.
            let us: Vec<u32> = balancer.plan().tiles().iter().map(|&t| 10 + t * t * t).collect();
            if balancer.observe(64, &us) {
                assert!(step - last >= INTERVAL, "step {step}, after {last}");
                last = step;
            }
        }
    }

    #[test]
    fn without_an_interval_the_plan_stays() {
        let mut balancer = Balancer::new(2, 8, None);
        for _ in 0..100 {
            assert!(!balancer.observe(8, &[1, 1_000]));
        }
        assert_eq!(balancer.plan(), &Plan::equal(2, 8));
    }

    #[test]
    fn a_single_hiccup_changes_nothing() {
        let mut balancer = balancer(2, 8);
        for step in 0..100 {
            let us = if step % 10 == 3 { 900_000 } else { 4_000 };
            assert!(!balancer.observe(8, &[us, 4_000]));
        }
    }

    #[test]
    fn a_short_batch_says_nothing() {
        let mut balancer = balancer(2, 8);
        for _ in 0..100 {
            assert!(!balancer.observe(3, &[2_000, 100]));
        }
    }

    #[test]
    fn a_worker_without_a_tile_is_looked_at_again() {
        let slow = [(0, 1_000), (0, 50_000)];
        let mut balancer = balancer(2, 8);
        run(&mut balancer, &slow, 0, 4);
        assert_eq!(balancer.plan().tiles(), [8, 0]);
        // Looking costs a slow step, and ever fewer of them.
        let mut random = 0;
        let mut probes = Vec::new();
        for step in 0..1_000 {
            let us = times(balancer.plan(), &slow, 0, &mut random);
            if balancer.plan().tiles()[1] > 0 {
                probes.push(step);
            }
            balancer.observe(8, &us);
        }
        let gaps: Vec<i32> = probes.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.len() >= 3 && gaps.windows(2).all(|pair| pair[0] < pair[1]), "{probes:?}");
        // Once it is fast again it gets its part.
        run(&mut balancer, &[(0, 1_000), (0, 1_000)], 0, 100);
        assert_eq!(balancer.plan().tiles(), [4, 4]);
    }

    #[test]
    fn more_workers_than_tiles_are_all_tried() {
        let costs = [(0, 9_000), (0, 9_000), (0, 1_000)];
        let mut balancer = balancer(3, 2);
        assert_eq!(balancer.plan().tiles(), [1, 1, 0]);
        run(&mut balancer, &costs, 0, 4);
        assert_eq!(balancer.plan().tiles(), [0, 1, 1], "the lent tile");
        run(&mut balancer, &costs, 0, 4);
        assert_eq!(balancer.plan().tiles(), [0, 0, 2]);
    }

    #[test]
    fn a_time_that_does_not_shrink_with_the_share_is_understood() {
        // A worker that is late by a fixed time, whatever it computes: the others' times do not
        // matter until they are as long.
        let mut balancer = balancer(3, 8);
        run(&mut balancer, &[(0, 1_000), (20_000, 1_000), (0, 1_000)], 10, 200);
        let tiles = balancer.plan().tiles();
        assert!(tiles[1] <= 1, "{tiles:?}");
        assert!(balancer.changes() < 10, "{}", balancer.changes());
    }

    proptest! {
        // The same cases in every run: bounds that hold against noise cannot flicker.
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0), ..Default::default() })]

        #[test]
        fn plans_come_close_to_the_best_and_stay(
            speeds in proptest::collection::vec((0u64..2_000, 500u64..5_000), 2..6),
            tiles in 2u32..64,
        ) {
            let mut balancer = balancer(speeds.len(), tiles);
            run(&mut balancer, &speeds, 10, 60);
            prop_assert_eq!(balancer.plan().total(), tiles);
            let costs: Vec<Cost> = speeds
                .iter()
                .map(|&(fixed, tile)| Cost { fixed_ns: 1_000 * fixed, tile_ns: 1_000 * tile })
                .collect();
            let best = Plan::fastest(&costs, tiles).longest(&costs);
            let slowest_tile = 1_000 * speeds.iter().map(|&(_, tile)| tile).max().unwrap();
            // What is not worth a change (a seventh of the best) with noise, and a tile that noise
            // has put elsewhere.
            let longest = balancer.plan().longest(&costs);
            prop_assert!(longest <= best + best / 6 + slowest_tile, "{longest} against {best}");
            // Sixty intervals later nothing is left to do.
            let changes = run(&mut balancer, &speeds, 10, 60);
            prop_assert!(changes <= 3, "{changes} changes");
        }

        #[test]
        fn equal_workers_keep_equal_shares(
            workers in 2usize..6,
            tiles in 1u32..20,
            fixed in 0u64..5_000,
        ) {
            // Noise of 2 % in each step.
            let mut balancer = balancer(workers, tiles);
            run(&mut balancer, &vec![(fixed, 1_000); workers], 20, 100);
            let plan = balancer.plan();
            let (fewest, most) = (plan.tiles().iter().min(), plan.tiles().iter().max());
            prop_assert!(most.unwrap() - fewest.unwrap() <= 1, "{plan:?}");
        }

        #[test]
        fn nothing_overflows_and_the_fastest_has_tiles(
            us in proptest::collection::vec(proptest::collection::vec(any::<u32>(), 3), 100),
            tiles in 1u32..3_000,
        ) {
            let (mut one, mut other) =
                (Balancer::new(3, tiles, NonZero::new(3)), Balancer::new(3, tiles, NonZero::new(3)));
            for us in us {
                prop_assert_eq!(one.observe(tiles, &us), other.observe(tiles, &us));
                prop_assert_eq!(one.plan(), other.plan());
                prop_assert_eq!(one.plan().total(), tiles);
                prop_assert!(one.plan().tiles().iter().any(|&tiles| tiles > 0));
            }
        }
    }
}
