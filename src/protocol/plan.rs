//! Plans: which worker computes which tiles of a step. The result never depends on it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// What a step costs a worker: a fixed part, and a part for each of its tiles. Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    pub fixed_ns: u64,
    pub tile_ns: u64,
}

impl Cost {
    /// For so many tiles.
    pub fn of(self, tiles: u32) -> u64 {
        self.tile_ns.saturating_mul(tiles.into()).saturating_add(self.fixed_ns)
    }
}

/// Each worker's number of tiles. A worker's tiles are consecutive, and stand behind those of the
/// workers with lower ranks; a worker may have none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Plan {
    /// By rank.
    tiles: Vec<u32>,
}

impl Plan {
    /// As equal as can be; the first workers have the larger shares.
    ///
    /// # Panics
    /// If there is no worker.
    pub fn equal(workers: usize, tiles: u32) -> Plan {
        assert!(workers > 0, "a plan is for workers");
        let share = |rank: u64| {
            let (tiles, workers) = (u64::from(tiles), workers as u64);
            (tiles / workers + u64::from(rank < tiles % workers)) as u32
        };
        Plan { tiles: (0..workers as u64).map(share).collect() }
    }

    /// One with which the worker that takes longest takes as short as can be, given what steps cost
    /// the workers: each tile goes to the worker that would be done with it first, to the lower rank
    /// where two would be.
    ///
    /// # Panics
    /// If there is no worker.
    pub fn fastest(costs: &[Cost], tiles: u32) -> Plan {
        assert!(!costs.is_empty(), "a plan is for workers");
        let mut plan = Plan { tiles: vec![0; costs.len()] };
        let next = |(rank, cost): (usize, &Cost)| Reverse((cost.of(1), rank));
        let mut done_first: BinaryHeap<_> = costs.iter().enumerate().map(next).collect();
        for _ in 0..tiles {
            let Some(Reverse((_, rank))) = done_first.pop() else { break };
            plan.tiles[rank] += 1;
            done_first.push(Reverse((costs[rank].of(plan.tiles[rank] + 1), rank)));
        }
        plan
    }

    /// The same, save that `to` gets a tile of the worker that has most.
    pub fn with_tile_for(&self, to: usize) -> Plan {
        let mut plan = self.clone();
        let most = (0..plan.tiles.len()).rev().max_by_key(|&rank| plan.tiles[rank]);
        if let Some(from) = most.filter(|&from| plan.tiles[from] > 0) {
            plan.tiles[from] -= 1;
            plan.tiles[to] += 1;
        }
        plan
    }

    /// Each worker's number of tiles, by rank.
    pub fn tiles(&self) -> &[u32] {
        &self.tiles
    }

    /// The tiles of a whole batch.
    pub fn total(&self) -> u32 {
        self.tiles.iter().sum()
    }

    /// A worker's tiles of a batch of `tiles` tiles. A batch that is not whole is shared in the same
    /// proportion.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn run(&self, tiles: u32, rank: usize) -> Range<u32> {
        let before: u64 = self.tiles[..rank].iter().copied().map(u64::from).sum();
        let after = before + u64::from(self.tiles[rank]);
        let (tiles, total) = (u64::from(tiles), u64::from(self.total().max(1)));
        // Below `tiles`, hence no cast loses anything.
        (before * tiles / total) as u32..(after * tiles / total) as u32
    }

    /// How long the worker takes that takes longest.
    pub fn longest(&self, costs: &[Cost]) -> u64 {
        self.tiles.iter().zip(costs).map(|(&tiles, cost)| cost.of(tiles)).max().unwrap_or(0)
    }

    /// How many tiles other workers compute than with another plan.
    pub fn moved_from(&self, other: &Plan) -> u32 {
        let pairs = self.tiles.iter().zip(&other.tiles);
        pairs.map(|(tiles, before)| tiles.saturating_sub(*before)).sum()
    }
}

/// The sentence that is logged.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, tiles) in self.tiles.iter().enumerate() {
            let separator = match rank {
                0 => "",
                _ if rank + 1 == self.tiles.len() => " and ",
                _ => ", ",
            };
            write!(f, "{separator}{tiles}")?;
        }
        write!(f, " of {} tiles", self.total())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn costs() -> impl Strategy<Value = Vec<Cost>> {
        let cost = (0u64..1_000_000, 1u64..1_000_000)
            .prop_map(|(fixed_ns, tile_ns)| Cost { fixed_ns, tile_ns });
        proptest::collection::vec(cost, 1..6)
    }

    /// The smallest possible time of the slowest worker, by bisection over times.
    fn shortest_possible(costs: &[Cost], tiles: u32) -> u64 {
        let room = |time: u64| -> u64 {
            let room = |cost: &Cost| time.saturating_sub(cost.fixed_ns) / cost.tile_ns;
            costs.iter().map(room).sum()
        };
        let fixed = costs.iter().map(|cost| cost.fixed_ns).max().unwrap();
        let (mut low, mut high) = (fixed, 1 << 40);
        while low < high {
            let middle = (low + high) / 2;
            if room(middle) >= tiles.into() { high = middle } else { low = middle + 1 }
        }
        low
    }

    proptest! {
        #[test]
        fn runs_make_up_every_batch(costs in costs(), tiles in 0u32..70, batch in 0u32..70) {
            for plan in [Plan::fastest(&costs, tiles), Plan::equal(costs.len(), tiles)] {
                prop_assert_eq!(plan.total(), tiles);
                let batch = if tiles == 0 { 0 } else { batch };
                let mut next = 0;
                for rank in 0..costs.len() {
                    let run = plan.run(batch, rank);
                    prop_assert_eq!(run.start, next);
                    next = run.end;
                    prop_assert!(batch != tiles || run.len() as u32 == plan.tiles()[rank]);
                }
                prop_assert_eq!(next, batch);
            }
        }

        #[test]
        fn no_plan_is_faster(costs in costs(), tiles in 0u32..70) {
            let plan = Plan::fastest(&costs, tiles);
            prop_assert_eq!(plan.longest(&costs), shortest_possible(&costs, tiles));
        }

        #[test]
        fn whoever_is_slower_in_all_has_no_more(costs in costs(), tiles in 0u32..70) {
            let plan = Plan::fastest(&costs, tiles);
            for (a, fast) in costs.iter().enumerate() {
                for (b, slow) in costs.iter().enumerate() {
                    if fast.fixed_ns < slow.fixed_ns && fast.tile_ns < slow.tile_ns {
                        prop_assert!(plan.tiles()[a] >= plan.tiles()[b]);
                    }
                }
            }
        }
    }

    #[test]
    fn plans_in_figures() {
        let cost = |tile_ns| Cost { fixed_ns: 0, tile_ns };
        assert_eq!(Plan::equal(3, 8).tiles(), [3, 3, 2]);
        assert_eq!(Plan::equal(3, 2).tiles(), [1, 1, 0]);
        assert_eq!(Plan::fastest(&[cost(10), cost(40), cost(10)], 8).tiles(), [4, 1, 3]);
        assert_eq!(Plan::fastest(&[cost(10), cost(999)], 8).tiles(), [8, 0]);
        let plan = Plan::fastest(&[cost(10), cost(40), cost(10)], 8);
        assert_eq!((0..3).map(|rank| plan.run(5, rank)).collect::<Vec<_>>(), [0..2, 2..3, 3..5]);
        assert_eq!(plan.moved_from(&Plan::equal(3, 8)), 2);
        assert_eq!(plan.with_tile_for(1).tiles(), [3, 2, 3]);
        assert_eq!(plan.to_string(), "4, 1 and 3 of 8 tiles");
        // Nobody has a tile to give.
        assert_eq!(Plan::equal(2, 0).with_tile_for(1).tiles(), [0, 0]);
    }
}
