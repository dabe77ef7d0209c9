//! What is compared: how many workers, in which topology, over which link, computing for how long.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::protocol::exchange::Strategy;
use crate::protocol::link::{self, LinkProfile};
use crate::protocol::parameter_server::Mode;

/// One cell of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    pub workers: usize,
    pub topology: Topology,
    /// Each node has one card of this kind.
    pub link: LinkProfile,
    pub compute: Compute,
    /// Elements of the gradient, 4 bytes each.
    pub elements: usize,
    /// A worker that is slower than the others.
    pub straggler: Option<Slowdown>,
}

/// Who adds up gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// The workers among themselves.
    AllReduce(Strategy),
    /// So many parameter servers, each with an equal slice.
    Servers { mode: Mode, servers: ServerCount },
}

/// How many parameter servers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerCount {
    Fixed(usize),
    /// As many as workers.
    Workers,
}

/// How long a worker computes in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compute {
    /// As long as the kernels take on this machine.
    Kernels,
    /// So long for the whole batch by one worker, without using the CPU; each worker takes its
    /// share of it.
    Synthetic { batch: Duration },
    /// As long as the steps of a run that was recorded, drawn at random with their jitter; likewise
    /// without using the CPU.
    Trace {
        /// The whole batch by one worker, on average.
        batch: Duration,
        /// Tells traces apart.
        digest: u32,
    },
}

/// A worker whose computing takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slowdown {
    pub rank: usize,
    /// Added to each step.
    pub delay: Duration,
}

impl Scenario {
    /// Nodes that are parameter servers and nothing else.
    pub fn servers(&self) -> usize {
        match self.topology {
            Topology::AllReduce(_) => 0,
            Topology::Servers { servers: ServerCount::Fixed(count), .. } => count,
            Topology::Servers { servers: ServerCount::Workers, .. } => self.workers,
        }
    }

    /// Whether so many workers can be in this topology, of which at least one gradient must count,
    /// and the slow one is among them.
    pub fn is_possible(&self) -> bool {
        let counts = match self.topology {
            Topology::Servers { mode: Mode::Backup { spare }, .. } => spare < self.workers,
            _ => self.workers > 0,
        };
        counts && self.straggler.is_none_or(|straggler| straggler.rank < self.workers)
    }

    /// How long a step would take if messages cost nothing, given what each worker computes in one,
    /// in any unit: as long as the slowest worker whose gradients are waited for.
    ///
    /// # Panics
    /// If there are no workers.
    pub fn step_without_messages(&self, compute: &[f64]) -> f64 {
        let mut sorted = compute.to_vec();
        sorted.sort_by(f64::total_cmp);
        match self.topology {
            // Nobody waits: as many pushes as workers are a step.
            Topology::Servers { mode: Mode::Async { bound: None }, .. } => {
                sorted.len() as f64 / sorted.iter().map(|time| 1.0 / time).sum::<f64>()
            }
            Topology::Servers { mode: Mode::Backup { spare }, .. } => {
                sorted[sorted.len().saturating_sub(1 + spare)]
            }
            // Within the bound a fast worker runs ahead once, and then waits like all others.
            _ => sorted[sorted.len() - 1],
        }
    }

    /// Bytes of the gradient.
    pub fn bytes(&self) -> u64 {
        4 * self.elements as u64
    }
}

/// What is wrong with the text of a time to compute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no time to compute; write a time such as 20ms, or kernels")]
pub struct ComputeSyntaxError {
    text: String,
}

/// A [trace](Compute::Trace) is read from a run, not written here.
impl FromStr for Compute {
    type Err = ComputeSyntaxError;

    fn from_str(text: &str) -> Result<Compute, ComputeSyntaxError> {
        if text == "kernels" {
            return Ok(Compute::Kernels);
        }
        let batch = link::parse_duration(text);
        batch
            .map(|batch| Compute::Synthetic { batch })
            .ok_or_else(|| ComputeSyntaxError { text: text.to_owned() })
    }
}

/// What is wrong with a topology's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no topology; write ring, halving-doubling, direct, auto, or server, async, \
     staleness=S, backup=K, each with *N or *workers for several servers, such as server*4"
)]
pub struct ScenarioSyntaxError {
    text: String,
}

impl FromStr for Topology {
    type Err = ScenarioSyntaxError;

    fn from_str(text: &str) -> Result<Topology, ScenarioSyntaxError> {
        let parse = || {
            let all_reduce = Strategy::ALL.into_iter().find(|strategy| strategy.name() == text);
            if let Some(strategy) = all_reduce {
                return Some(Topology::AllReduce(strategy));
            }
            let (mode, servers) = match text.split_once('*') {
                None => (text, ServerCount::Fixed(1)),
                Some((mode, "workers")) => (mode, ServerCount::Workers),
                Some((mode, count)) => {
                    let count = count.parse().ok().filter(|&count| count > 0)?;
                    (mode, ServerCount::Fixed(count))
                }
            };
            let mode = match mode.split_once('=') {
                None if mode == "server" => Mode::Sync,
                None if mode == "async" => Mode::Async { bound: None },
                Some(("staleness", bound)) => Mode::bounded(bound.parse().ok()?),
                Some(("backup", spare)) => Mode::backup(spare.parse().ok()?),
                _ => return None,
            };
            Some(Topology::Servers { mode, servers })
        };
        parse().ok_or_else(|| ScenarioSyntaxError { text: text.to_owned() })
    }
}

/// As it is parsed.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mode, servers) = match self {
            Topology::AllReduce(strategy) => return f.pad(strategy.name()),
            Topology::Servers { mode, servers } => (mode, servers),
        };
        let mode = match mode {
            Mode::Sync => "server".to_owned(),
            Mode::Async { bound: None } => "async".to_owned(),
            Mode::Async { bound: Some(bound) } => format!("staleness={bound}"),
            Mode::Backup { spare } => format!("backup={spare}"),
        };
        match servers {
            ServerCount::Fixed(1) => f.pad(&mode),
            ServerCount::Fixed(count) => f.pad(&format!("{mode}*{count}")),
            ServerCount::Workers => f.pad(&format!("{mode}*workers")),
        }
    }
}

impl FromStr for Slowdown {
    type Err = String;

    fn from_str(text: &str) -> Result<Slowdown, String> {
        let parse = || {
            let (rank, ms) = text.split_once(':')?;
            let ms: f64 = ms.strip_suffix("ms").unwrap_or(ms).parse().ok()?;
            let delay = Duration::try_from_secs_f64(ms / 1e3).ok()?;
            Some(Slowdown { rank: rank.parse().ok()?, delay })
        };
        parse().ok_or_else(|| format!("{text:?}: write RANK:MS, such as 1:20"))
    }
}

/// As it is parsed.
impl fmt::Display for Slowdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}ms", self.rank, self.delay.as_secs_f64() * 1e3))
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: &Duration| format!("{}ms", time.as_secs_f64() * 1e3);
        f.pad(&match self {
            Compute::Kernels => "real kernels".to_owned(),
            Compute::Synthetic { batch } => format!("synthetic compute {}", ms(batch)),
            Compute::Trace { batch, digest } => {
                format!(
                    "synthetic compute {:.3}ms by trace {digest:08x}",
                    batch.as_secs_f64() * 1e3
                )
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_is_read_as_it_is_written() {
        let texts = [
            "ring",
            "halving-doubling",
            "direct",
            "auto",
            "server",
            "server*4",
            "server*workers",
            "async",
            "staleness=3*2",
            "backup=1",
        ];
        for text in texts {
            assert_eq!(text.parse::<Topology>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_topology_is_refused_with_its_text() {
        for text in ["", "rings", "server*0", "server*x", "staleness", "backup=-1", "ring*2"] {
            let error = text.parse::<Topology>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("{text:?} is no topology")), "{error}");
        }
    }

    #[test]
    fn a_time_to_compute_is_read() {
        let batch = Duration::from_micros(1_500);
        assert_eq!("1.5ms".parse(), Ok(Compute::Synthetic { batch }));
        assert_eq!("kernels".parse(), Ok(Compute::Kernels));
        for text in ["", "20", "-1ms", "kernel"] {
            let error = text.parse::<Compute>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is no time")), "{error}");
        }
    }

    #[test]
    fn servers_are_counted() {
        let scenario = |topology: &str| Scenario {
            workers: 3,
            topology: topology.parse().unwrap(),
            link: "lan-1g".parse().unwrap(),
            compute: Compute::Kernels,
            elements: 10,
            straggler: None,
        };
        let servers =
            ["ring", "server", "server*2", "async*workers"].map(|t| scenario(t).servers());
        assert_eq!(servers, [0, 1, 2, 3]);
        assert_eq!(scenario("ring").bytes(), 40);
    }

    #[test]
    fn a_step_without_messages_takes_as_long_as_whom_one_waits_for() {
        let scenario = |topology: &str| Scenario {
            workers: 3,
            topology: topology.parse().unwrap(),
            link: "lan-1g".parse().unwrap(),
            compute: Compute::Kernels,
            elements: 10,
            straggler: None,
        };
        let step = |topology| scenario(topology).step_without_messages(&[4.0, 1.0, 2.0]);
        assert_eq!(step("ring"), 4.0);
        assert_eq!(step("staleness=3"), 4.0);
        assert_eq!(step("backup=1"), 2.0);
        assert_eq!(step("async"), 3.0 / 1.75);
        assert!(scenario("backup=2").is_possible() && !scenario("backup=3").is_possible());
        let straggler = |text: &str| Some(text.parse().unwrap());
        assert!(Scenario { straggler: straggler("2:1"), ..scenario("ring") }.is_possible());
        assert!(!Scenario { straggler: straggler("3:1"), ..scenario("ring") }.is_possible());
    }

    #[test]
    fn a_slowdown_is_read_as_it_is_written() {
        let slowdown = "2:1.5ms".parse::<Slowdown>().unwrap();
        assert_eq!(slowdown, Slowdown { rank: 2, delay: Duration::from_micros(1_500) });
        assert_eq!(slowdown.to_string(), "2:1.5ms");
        assert_eq!("0:20".parse::<Slowdown>().unwrap().to_string(), "0:20ms");
        assert!("1".parse::<Slowdown>().is_err() && "1:-1".parse::<Slowdown>().is_err());
    }
}
