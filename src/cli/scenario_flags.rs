//! The flags that say which scenarios are swept, shared by `bench topology` and `simulate`.

use std::str::FromStr;

use clap::Args;

use crate::model::layout::PARAMETERS;
use crate::protocol::link::LinkProfile;
use crate::simulate::{Compute, Scenario, Slowdown, Topology};

use super::CommandError;
use super::compute_flag::ComputeFlag;

/// Every combination is a scenario.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sweep")]
pub struct ScenarioFlags {
    /// Workers
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u64).range(1..=WORKERS_MAX))]
    workers: Vec<u64>,
    /// Who adds up gradients: ring, halving-doubling, direct, auto, or parameter servers: server,
    /// async, staleness=S, backup=K, each with *N or *workers for several of them, such as server*4
    #[arg(long, value_name = "TOPOLOGY,...", value_delimiter = ',')]
    topologies: Vec<Topology>,
    /// Links, each node has one card: RATE/LATENCY/LOSS, such as 1gbit/0.5ms/0.1%, then jitter=TIME
    /// or queue=PACKETS; or loopback (no card), lan-1g (1gbit, 0.1 ms), lan-10g (10gbit, 0.05 ms),
    /// wifi (200mbit, 2 ms, 0.1%), wan (100mbit, 10 ms, 0.01%)
    #[arg(long, visible_alias = "link", value_name = "LINK,...", value_delimiter = ',')]
    links: Vec<LinkProfile>,
    /// How long one worker takes for a whole batch, such as 100ms; each takes its share of it, without
    /// using the CPU (synthetic compute). Or trace:RUN: so too, but as long as the steps of that
    /// recorded run took, with their jitter. Or kernels: as long as they take here
    #[arg(long, value_name = "TIME|trace:RUN|kernels", default_value = "100ms")]
    compute: ComputeFlag,
    /// Elements of the gradient [default: LeNet's 61706]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u64).range(1..=ELEMENTS_MAX))]
    elements: Vec<u64>,
    /// Make one worker slower: its computing takes MS longer in each step; or none
    #[arg(long, value_name = "RANK:MS,...", value_delimiter = ',', default_value = "none")]
    straggler: Vec<Straggler>,
}

/// As many nodes as anybody would start for this.
const WORKERS_MAX: u64 = 65_536;

/// 4 GiB of gradient.
const ELEMENTS_MAX: u64 = 1 << 30;

/// What `--straggler` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Straggler(Option<Slowdown>);

impl FromStr for Straggler {
    type Err = String;

    fn from_str(text: &str) -> Result<Straggler, String> {
        if text == "none" {
            return Ok(Straggler(None));
        }
        text.parse().map(|slow| Straggler(Some(slow)))
    }
}

/// What a sweep consists of where its flags are not given.
#[derive(Clone, Copy, Debug)]
pub struct SweepDefaults {
    pub workers: &'static [usize],
    pub topologies: &'static [&'static str],
    pub links: &'static [&'static str],
}

impl ScenarioFlags {
    /// Every scenario that is possible: the number of workers changes fastest, so that a topology's
    /// row over all of them is complete first.
    ///
    /// # Errors
    /// If none is.
    pub fn scenarios(&self, defaults: &SweepDefaults) -> Result<Vec<Scenario>, CommandError> {
        match self.compute {
            ComputeFlag::Plain(compute) => self.scenarios_with(compute, defaults),
            ComputeFlag::Trace(_) => Err(CommandError::Usage(
                "--compute trace: a recorded run's times are waited for by `annulet train` and \
                 `annulet bench topology` alone; write a time such as 100ms"
                    .into(),
            )),
        }
    }

    /// How workers compute.
    pub fn compute(&self) -> &ComputeFlag {
        &self.compute
    }

    /// As [`scenarios`](ScenarioFlags::scenarios), with this in place of what `--compute` says.
    ///
    /// # Errors
    /// If none is possible.
    pub fn scenarios_with(
        &self,
        compute: Compute,
        defaults: &SweepDefaults,
    ) -> Result<Vec<Scenario>, CommandError> {
        let workers = match self.workers.as_slice() {
            [] => defaults.workers.to_vec(),
            given => given.iter().map(|&count| count as usize).collect(),
        };
        let topologies = given_or(&self.topologies, defaults.topologies);
        let links = given_or(&self.links, defaults.links);
        let elements = match self.elements.as_slice() {
            [] => vec![PARAMETERS],
            given => given.iter().map(|&count| count as usize).collect(),
        };
        let mut scenarios = Vec::new();
        for &link in &links {
            for &elements in &elements {
                for Straggler(straggler) in &self.straggler {
                    for &topology in &topologies {
                        scenarios.extend(workers.iter().map(|&workers| Scenario {
                            workers,
                            topology,
                            link,
                            compute,
                            elements,
                            straggler: *straggler,
                        }));
                    }
                }
            }
        }
        let all = scenarios.len();
        scenarios.retain(Scenario::is_possible);
        if scenarios.is_empty() {
            return Err(CommandError::Usage(format!(
                "none of {all} scenarios is possible: --straggler names a worker that is not there, \
                 or as many workers are spare as there are; give more --workers"
            )));
        }
        Ok(scenarios)
    }
}

fn given_or<T: FromStr + Clone>(given: &[T], defaults: &[&str]) -> Vec<T> {
    if given.is_empty() {
        // What does not parse would be a mistake in this program, which a test finds.
        defaults.iter().filter_map(|text| text.parse().ok()).collect()
    } else {
        given.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        sweep: ScenarioFlags,
    }

    const DEFAULTS: SweepDefaults =
        SweepDefaults { workers: &[1, 2], topologies: &["ring", "server"], links: &["lan-1g"] };

    fn scenarios(flags: &str) -> Result<Vec<Scenario>, CommandError> {
        let arguments = ["program"].into_iter().chain(flags.split_whitespace());
        Program::try_parse_from(arguments)
            .unwrap_or_else(|error| panic!("{error}"))
            .sweep
            .scenarios(&DEFAULTS)
    }

    #[test]
    fn every_combination_is_a_scenario() {
        let swept = scenarios("").unwrap();
        let named: Vec<_> =
            swept.iter().map(|s| (s.topology.to_string(), s.workers, s.elements)).collect();
        let expected = [("ring", 1), ("ring", 2), ("server", 1), ("server", 2)]
            .map(|(topology, workers)| (topology.to_owned(), workers, PARAMETERS));
        assert_eq!(named, expected);
        let flags = "--workers 1,2,3 --topologies ring,async*2 --links 200mbit,1gbit/0.5ms \
                     --compute 5ms --elements 10,20 --straggler none,2:40";
        // 2 links, 2 sizes, 2 topologies: 3 without the straggler, 1 with it.
        assert_eq!(scenarios(flags).unwrap().len(), 2 * 2 * 2 * (3 + 1));
    }

    #[test]
    fn a_sweep_of_nothing_is_refused() {
        let error = scenarios("--workers 1 --topologies backup=1").unwrap_err().to_string();
        assert!(error.starts_with("none of 1 scenarios is possible"), "{error}");
    }
}
