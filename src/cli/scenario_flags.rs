//! The flags that say which scenarios are swept, shared by `bench topology` and `simulate`.

use std::str::FromStr;

use clap::Args;

use crate::model::layout::PARAMETERS;
use crate::protocol::link::LinkProfile;
use crate::simulate::{Compute, Scenario, Slowdown, Topology};

use super::CommandError;

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
    /// Links, as for `annulet train --link`: each node has one card
    #[arg(long, value_name = "LINK,...", value_delimiter = ',')]
    links: Vec<LinkProfile>,
    /// How long one worker takes for a whole batch, such as 20ms; each takes its share of it, without
    /// using the CPU (synthetic compute). Or kernels: as long as they take here
    #[arg(long, value_name = "TIME|kernels", default_value = "20ms")]
    compute: Compute,
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
        let parse = || {
            let (rank, ms) = text.split_once(':')?;
            let delay = std::time::Duration::from_millis(ms.parse::<u32>().ok()?.into());
            Some(Straggler(Some(Slowdown { rank: rank.parse().ok()?, delay })))
        };
        parse().ok_or_else(|| "write RANK:MS, such as 1:20, or none".to_owned())
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
                            compute: self.compute,
                            elements,
                            straggler: *straggler,
                        }));
                    }
                }
            }
        }
        let all = scenarios.len();
        scenarios.retain(|scenario| {
            let has_straggler = |slow: Slowdown| slow.rank < scenario.workers;
            scenario.is_possible() && scenario.straggler.is_none_or(has_straggler)
        });
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
