//! Which algorithm reduces a vector of which size, and how the prediction held.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::protocol::cost_model::{Link, choose};
use crate::protocol::exchange::{Algorithm, Strategy};

/// A group's choices so far. All workers with the same strategy and link choose alike.
#[derive(Debug)]
pub struct Selection {
    strategy: Strategy,
    world: usize,
    /// What the choice goes by, if there is one to make.
    link: Option<Link>,
    /// By the vector's bytes.
    uses: BTreeMap<u64, Use>,
}

#[derive(Debug)]
struct Use {
    algorithm: Algorithm,
    predicted: Option<Duration>,
    /// Why this algorithm.
    reason: String,
    count: u64,
    total: Duration,
}

/// One size's algorithm, with the model's time and the measured ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelectionReport {
    /// Of the vector.
    pub bytes: u64,
    pub algorithm: Algorithm,
    /// By the cost model; nothing if the algorithm was given.
    pub predicted_us: Option<f64>,
    /// The mean over all vectors of this size, each from when it was handed over, or was next in
    /// the queue, until it was reduced: waiting for slower workers is part of it.
    pub measured_us: f64,
    /// Vectors of this size.
    pub count: u64,
    /// Why this algorithm.
    pub reason: String,
}

/// Sizes that are told apart. A program with more of them has its choice, but not its report.
const SIZES_MAX: usize = 256;

impl Selection {
    /// `link` may be left out if the strategy leaves no choice; else the ring is taken.
    pub fn new(strategy: Strategy, world: usize, link: Option<Link>) -> Selection {
        Selection { strategy, world, link, uses: BTreeMap::new() }
    }

    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// What was measured, if anything was.
    pub fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// The algorithm for a vector of so many bytes.
    pub fn algorithm(&mut self, bytes: u64) -> Algorithm {
        if let Some(used) = self.uses.get(&bytes) {
            return used.algorithm;
        }
        let (algorithm, predicted, reason) = match (self.strategy.fixed(), &self.link) {
            (None, Some(link)) => {
                let choice = choose(self.world, bytes, link);
                tracing::info!("{}", choice.sentence);
                (choice.algorithm, Some(choice.predicted), choice.sentence)
            }
            (fixed, _) => {
                let algorithm = fixed.unwrap_or(Algorithm::Ring);
                (algorithm, None, format!("--algorithm {algorithm}"))
            }
        };
        if self.uses.len() < SIZES_MAX {
            let (count, total) = (0, Duration::ZERO);
            self.uses.insert(bytes, Use { algorithm, predicted, reason, count, total });
        }
        algorithm
    }

    /// Notes how long a vector of so many bytes took.
    pub fn note(&mut self, bytes: u64, took: Duration) {
        if let Some(used) = self.uses.get_mut(&bytes) {
            used.count += 1;
            used.total += took;
        }
    }

    /// What was chosen and how long it took, by size.
    pub fn report(&self) -> Vec<SelectionReport> {
        let microseconds = |duration: Duration| duration.as_secs_f64() * 1e6;
        self.uses
            .iter()
            .filter(|(_, used)| used.count > 0)
            .map(|(&bytes, used)| SelectionReport {
                bytes,
                algorithm: used.algorithm,
                predicted_us: used.predicted.map(microseconds),
                measured_us: microseconds(used.total.div_f64(used.count as f64)),
                count: used.count,
                reason: used.reason.clone(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { latency_ns: 50_000, overhead_ns: 0, picoseconds_per_byte: 800 };

    #[test]
    fn sizes_are_chosen_for_and_reported_apart() {
        let mut selection = Selection::new(Strategy::Auto, 8, Some(LINK));
        assert_eq!(selection.algorithm(247_000), Algorithm::HalvingDoubling);
        assert_eq!(selection.algorithm(4), Algorithm::Direct);
        selection.note(4, Duration::from_micros(60));
        selection.note(4, Duration::from_micros(100));
        let report = selection.report();
        assert_eq!(report.len(), 1, "what was not used is not reported");
        let used = &report[0];
        assert_eq!((used.bytes, used.algorithm, used.count), (4, Algorithm::Direct, 2));
        assert_eq!(used.measured_us, 80.0);
        assert!(used.predicted_us.is_some() && used.reason.contains("predicted"));
    }

    #[test]
    fn a_fixed_strategy_predicts_nothing() {
        let mut selection = Selection::new(Strategy::Ring, 8, None);
        assert_eq!(selection.algorithm(4), Algorithm::Ring);
        selection.note(4, Duration::from_micros(60));
        assert_eq!(selection.report()[0].predicted_us, None);
    }

    #[test]
    fn many_sizes_do_not_fill_the_memory() {
        let mut selection = Selection::new(Strategy::Auto, 2, Some(LINK));
        for bytes in 0..10 * SIZES_MAX as u64 {
            selection.algorithm(bytes);
            selection.note(bytes, Duration::from_micros(1));
        }
        assert_eq!(selection.report().len(), SIZES_MAX);
    }
}
