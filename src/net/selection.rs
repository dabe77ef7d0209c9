//! Which algorithm reduces a vector of which size, and how the prediction held.
//!
//! The cost model knows two figures of a link, and no machine is as simple. So where it finds several
//! algorithms close to each other, the first vectors of a size are reduced by each of them in turn;
//! then all workers agree on the one that was the fastest for the slowest of them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::protocol::cost_model::{Link, choose};
use crate::protocol::exchange::{Algorithm, Strategy};

/// Vectors of a size that each contender reduces before one is settled on.
const TRIALS: usize = 11;

/// A group's choices so far. All workers with the same strategy and link that begin the same vectors
/// choose alike.
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
    /// The model's best first.
    contenders: Vec<Contender>,
    /// The contender that is taken: the model's best, until they have all been tried.
    favourite: usize,
    settled: bool,
    /// Vectors begun.
    begun: usize,
    /// Why the favourite.
    reason: String,
}

#[derive(Debug)]
struct Contender {
    algorithm: Algorithm,
    predicted: Option<Duration>,
    trials: Vec<Duration>,
    count: u64,
    total: Duration,
}

impl Contender {
    fn new(algorithm: Algorithm, predicted: Option<Duration>) -> Contender {
        let (trials, count, total) = (Vec::new(), 0, Duration::ZERO);
        Contender { algorithm, predicted, trials, count, total }
    }

    /// The median of the trials in nanoseconds.
    fn median_ns(&self) -> u32 {
        let mut trials = self.trials.clone();
        trials.sort_unstable();
        let median = trials.get(trials.len() / 2).copied().unwrap_or_default();
        u32::try_from(median.as_nanos()).unwrap_or(u32::MAX)
    }
}

impl Use {
    fn algorithm(&self) -> Algorithm {
        self.contenders[self.favourite].algorithm
    }

    /// Whether all trials are over and nobody has said yet who won them.
    fn awaits_verdict(&self) -> bool {
        !self.settled && self.contenders.iter().all(|c| c.trials.len() == TRIALS)
    }
}

/// One size's algorithm, with the model's time and the measured ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelectionReport {
    /// Of the vector.
    pub bytes: u64,
    pub algorithm: Algorithm,
    /// By the cost model; nothing if the algorithm was given.
    pub predicted_us: Option<f64>,
    /// The mean over the vectors of this size that it reduced, each from when it was handed over, or
    /// was next in the queue, until it was reduced: waiting for slower workers is part of it.
    pub measured_us: f64,
    /// Vectors of this size that it reduced.
    pub count: u64,
    /// Why this algorithm.
    pub reason: String,
}

/// Sizes that are told apart. A program with more of them has its choice, but not its report.
const SIZES_MAX: usize = 256;

impl Selection {
    /// Without a link, and if the strategy leaves a choice, the ring is taken.
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

    /// Whether the choice waits for the link to be measured.
    pub fn needs_link(&self) -> bool {
        self.strategy.fixed().is_none() && self.world > 1 && self.link.is_none()
    }

    pub fn set_link(&mut self, link: Link) {
        self.link = Some(link);
    }

    /// The algorithm that is taken for vectors of so many bytes, trials apart.
    pub fn algorithm(&mut self, bytes: u64) -> Algorithm {
        match self.uses.get(&bytes) {
            Some(used) => used.algorithm(),
            None => self.first_use(bytes).algorithm(),
        }
    }

    /// Whether vectors of so many bytes are reduced by one algorithm from now on.
    pub fn is_settled(&self, bytes: u64) -> bool {
        self.uses.get(&bytes).is_none_or(|used| used.settled)
    }

    /// The algorithm for the next vector of so many bytes, which is begun now.
    pub fn begin(&mut self, bytes: u64) -> Algorithm {
        if !self.uses.contains_key(&bytes) {
            let used = self.first_use(bytes);
            if self.uses.len() == SIZES_MAX {
                return used.algorithm();
            }
            self.uses.insert(bytes, used);
        }
        let used = self.uses.get_mut(&bytes).expect("it was just inserted");
        let turn = used.begun;
        used.begun += 1;
        if !used.settled && turn < TRIALS * used.contenders.len() {
            return used.contenders[turn % used.contenders.len()].algorithm;
        }
        used.algorithm()
    }

    /// Notes how long a vector of so many bytes took by an algorithm.
    pub fn note(&mut self, bytes: u64, algorithm: Algorithm, took: Duration) {
        let Some(used) = self.uses.get_mut(&bytes) else { return };
        let Some(contender) = used.contenders.iter_mut().find(|c| c.algorithm == algorithm) else {
            return;
        };
        contender.count += 1;
        contender.total += took;
        if !used.settled && contender.trials.len() < TRIALS {
            contender.trials.push(took);
        }
    }

    /// The times of this worker's trials that are over, in nanoseconds: the largest of each over all
    /// workers goes to [`Selection::settle`]. Empty if there is nothing to settle.
    pub fn trial_times(&self) -> Vec<u32> {
        let over = self.uses.values().filter(|used| used.awaits_verdict());
        over.flat_map(|used| used.contenders.iter().map(Contender::median_ns)).collect()
    }

    /// Settles on the algorithms that were fastest in the trials.
    ///
    /// # Panics
    /// If there are not as many times as [`Selection::trial_times`] gave.
    pub fn settle(&mut self, times: &[u32]) {
        let mut rest = times;
        for (bytes, used) in self.uses.iter_mut().filter(|(_, used)| used.awaits_verdict()) {
            let (own, others) = rest.split_at(used.contenders.len());
            rest = others;
            // Of equals, the model's favourite.
            let best = (0..own.len()).min_by_key(|&i| own[i]).unwrap_or(0);
            let measured: Vec<String> = used
                .contenders
                .iter()
                .zip(own)
                .map(|(contender, &ns)| {
                    let predicted = contender.predicted.unwrap_or_default();
                    let microseconds = f64::from(ns) / 1e3;
                    let predicted = predicted.as_secs_f64() * 1e6;
                    format!("{} {microseconds:.0} us ({predicted:.0})", contender.algorithm)
                })
                .collect();
            used.favourite = best;
            used.settled = true;
            used.reason = format!(
                "{} for {bytes} bytes among {} workers: measured (and predicted) {}",
                used.algorithm(),
                self.world,
                measured.join(", ")
            );
            tracing::info!("{}", used.reason);
        }
    }

    /// What was chosen and how long it took, by size.
    pub fn report(&self) -> Vec<SelectionReport> {
        let microseconds = |duration: Duration| duration.as_secs_f64() * 1e6;
        let mut reports = Vec::new();
        for (&bytes, used) in &self.uses {
            let favourite = &used.contenders[used.favourite];
            if favourite.count > 0 {
                reports.push(SelectionReport {
                    bytes,
                    algorithm: favourite.algorithm,
                    predicted_us: favourite.predicted.map(microseconds),
                    measured_us: microseconds(favourite.total.div_f64(favourite.count as f64)),
                    count: favourite.count,
                    reason: used.reason.clone(),
                });
            }
        }
        reports
    }

    fn first_use(&self, bytes: u64) -> Use {
        let (contenders, reason) = match (self.strategy.fixed(), &self.link) {
            (None, Some(link)) => {
                let choice = choose(self.world, bytes, link);
                let contenders = choice.contenders.into_iter();
                let contenders = contenders
                    .map(|(algorithm, predicted)| Contender::new(algorithm, Some(predicted)));
                (contenders.collect(), choice.sentence)
            }
            (fixed, _) => {
                let algorithm = fixed.unwrap_or(Algorithm::Ring);
                (vec![Contender::new(algorithm, None)], format!("--algorithm {algorithm}"))
            }
        };
        let settled = contenders.len() == 1;
        Use { contenders, favourite: 0, settled, begun: 0, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { latency_ns: 50_000, overhead_ns: 0, picoseconds_per_byte: 800 };

    fn took(microseconds: u64) -> Duration {
        Duration::from_micros(microseconds)
    }

    #[test]
    fn sizes_are_chosen_for_and_reported_apart() {
        let mut selection = Selection::new(Strategy::Auto, 8, Some(LINK));
        assert_eq!(selection.algorithm(247_000), Algorithm::HalvingDoubling);
        for microseconds in [60, 100] {
            assert_eq!(selection.begin(4), Algorithm::Direct);
            selection.note(4, Algorithm::Direct, took(microseconds));
        }
        let report = selection.report();
        assert_eq!(report.len(), 1, "what was not used is not reported");
        let used = &report[0];
        assert_eq!((used.bytes, used.algorithm, used.count), (4, Algorithm::Direct, 2));
        assert_eq!(used.measured_us, 80.0);
        assert!(used.predicted_us.is_some() && used.reason.contains("predicted"));
    }

    #[test]
    fn what_the_model_finds_close_is_tried_and_settled() {
        let mut selection = Selection::new(Strategy::Auto, 8, Some(LINK));
        // The model says 646 and 1,046 us; here it is the other way around.
        let truth = |algorithm| if algorithm == Algorithm::Ring { took(500) } else { took(700) };
        for turn in 0..2 * TRIALS {
            assert!(selection.trial_times().is_empty());
            let algorithm = selection.begin(247_000);
            let expected = [Algorithm::HalvingDoubling, Algorithm::Ring][turn % 2];
            assert_eq!(algorithm, expected);
            selection.note(247_000, algorithm, truth(algorithm));
        }
        assert!(!selection.is_settled(247_000));
        assert_eq!(selection.trial_times(), [700_000, 500_000]);
        // Another worker was slower.
        selection.settle(&[800_000, 600_000]);
        assert!(selection.is_settled(247_000));
        assert_eq!(selection.begin(247_000), Algorithm::Ring);
        assert!(selection.trial_times().is_empty());
        let report = &selection.report()[0];
        assert_eq!((report.algorithm, report.count), (Algorithm::Ring, TRIALS as u64));
        assert_eq!(
            report.reason,
            "ring for 247000 bytes among 8 workers: measured (and predicted) \
             halving-doubling 800 us (646), ring 600 us (1046)"
        );
    }

    #[test]
    fn a_vector_that_is_under_way_does_not_delay_the_trials_of_others() {
        let mut selection = Selection::new(Strategy::Auto, 8, Some(LINK));
        // More are begun than trials are needed before the first one is over.
        let begun: Vec<Algorithm> = (0..3 * TRIALS).map(|_| selection.begin(247_000)).collect();
        assert_eq!(begun[2 * TRIALS..], [Algorithm::HalvingDoubling; TRIALS]);
        for algorithm in begun {
            selection.note(247_000, algorithm, took(100));
        }
        assert_eq!(selection.trial_times().len(), 2);
    }

    #[test]
    fn a_fixed_strategy_predicts_nothing() {
        let mut selection = Selection::new(Strategy::Ring, 8, None);
        assert!(!selection.needs_link());
        assert_eq!(selection.begin(4), Algorithm::Ring);
        selection.note(4, Algorithm::Ring, took(60));
        assert_eq!(selection.report()[0].predicted_us, None);
    }

    #[test]
    fn many_sizes_do_not_fill_the_memory() {
        let mut selection = Selection::new(Strategy::Auto, 2, Some(LINK));
        for bytes in 0..10 * SIZES_MAX as u64 {
            let algorithm = selection.begin(bytes);
            selection.note(bytes, algorithm, took(1));
        }
        assert!(selection.report().len() <= SIZES_MAX);
        assert_eq!(selection.uses.len(), SIZES_MAX);
    }
}
