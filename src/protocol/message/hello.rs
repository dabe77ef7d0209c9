//! Who a worker is: what both sides of a new connection tell each other and compare.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::protocol::exchange::Strategy;

/// Who a worker is and which run it takes part in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Names the run; two runs with the same key are told apart by it.
    pub run_id: String,
    /// [`RunConfig::digest`](crate::config::RunConfig::digest): configuration and data set.
    pub config_digest: [u8; 32],
    /// Workers that take part.
    pub world_size: u32,
    /// The view's generation.
    pub generation: u32,
    /// The worker's index in the view.
    pub rank: u32,
    /// How the worker chooses algorithms; workers that choose differently would wait for each
    /// other.
    pub strategy: Strategy,
}

impl Hello {
    /// Checks that `peer` takes part in the same run as `self`, as one of the expected ranks.
    pub fn check(&self, peer: &Hello, expected_ranks: &[u32]) -> Result<(), Box<HelloMismatch>> {
        let field = if peer.run_id != self.run_id {
            HelloField::RunId
        } else if peer.config_digest != self.config_digest {
            HelloField::ConfigDigest
        } else if peer.world_size != self.world_size {
            HelloField::WorldSize
        } else if peer.generation != self.generation {
            HelloField::Generation
        } else if peer.strategy != self.strategy {
            HelloField::Strategy
        } else if !expected_ranks.contains(&peer.rank) {
            return Err(self.unexpected(peer.clone(), expected_ranks.to_vec()));
        } else {
            return Ok(());
        };
        Err(Box::new(HelloMismatch { field, ours: self.clone(), theirs: peer.clone() }))
    }

    /// The mismatch of a peer whose rank is none of those that are expected here.
    pub fn unexpected(&self, peer: Hello, expected: Vec<u32>) -> Box<HelloMismatch> {
        let field = HelloField::Rank { expected };
        Box::new(HelloMismatch { field, ours: self.clone(), theirs: peer })
    }
}

/// The first field in which two workers' [`Hello`]s do not fit. Its text names both by rank, so
/// that it reads the same on both sides.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct HelloMismatch {
    pub field: HelloField,
    pub ours: Hello,
    pub theirs: Hello,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloField {
    RunId,
    ConfigDigest,
    WorldSize,
    Generation,
    Strategy,
    /// The ranks that were expected in this place.
    Rank {
        expected: Vec<u32>,
    },
}

impl fmt::Display for HelloMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HelloMismatch { field, ours, theirs } = self;
        let mut differs = |name: &str, theirs_value: &str, ours_value: &str, advice: &str| {
            let (their_rank, our_rank) = (theirs.rank, ours.rank);
            write!(
                f,
                "{name} differs: rank {their_rank} has {theirs_value}, \
                 rank {our_rank} has {ours_value}; {advice}"
            )
        };
        match field {
            HelloField::RunId => differs(
                "run id",
                &format!("{:?}", theirs.run_id),
                &format!("{:?}", ours.run_id),
                "a worker of another run holds this address, or was given the wrong run id",
            ),
            HelloField::ConfigDigest => differs(
                "config digest",
                &hex(&theirs.config_digest),
                &hex(&ours.config_digest),
                "give every worker the same configuration, --rebalance and data set",
            ),
            HelloField::WorldSize => differs(
                "world size",
                &theirs.world_size.to_string(),
                &ours.world_size.to_string(),
                "give every worker the same list of workers",
            ),
            HelloField::Generation => differs(
                "generation",
                &theirs.generation.to_string(),
                &ours.generation.to_string(),
                "one of the two missed a change of the group; start it again",
            ),
            HelloField::Strategy => differs(
                "algorithm",
                theirs.strategy.name(),
                ours.strategy.name(),
                "give every worker the same --algorithm",
            ),
            HelloField::Rank { expected } => {
                let expected: Vec<String> = expected.iter().map(u32::to_string).collect();
                let expected = match expected.as_slice() {
                    [] => "no other rank".to_owned(),
                    ranks => format!("rank {}", ranks.join(" or ")),
                };
                write!(
                    f,
                    "rank differs: rank {} met rank {} where {expected} was expected; give every \
                     worker its own rank and the same list of workers, in the same order",
                    ours.rank, theirs.rank
                )
            }
        }
    }
}

/// The answer to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Welcome(Hello),
    /// The peer's [`HelloMismatch`] as text.
    Refuse(String),
}

fn hex(bytes: &[u8; 32]) -> String {
    // 16 digits tell two digests apart and can be compared by eye.
    bytes[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            run_id: "quiet-fox".into(),
            config_digest: [0x11; 32],
            world_size: 4,
            generation: 0,
            rank: 1,
            strategy: Strategy::Auto,
        }
    }

    #[test]
    fn each_field_of_a_hello_is_named() {
        let ours = hello();
        let peer = Hello { rank: 2, ..hello() };
        assert_eq!(ours.check(&peer, &[2]), Ok(()));
        assert_eq!(ours.check(&peer, &[0, 2]), Ok(()));
        let both = ours.check(&peer, &[0, 3]).expect_err("neither").to_string();
        assert!(both.contains("where rank 0 or 3 was expected"), "{both}");
        let cases = [
            (
                Hello { run_id: "loud-fox".into(), ..peer.clone() },
                "run id differs: rank 2 has \"loud-fox\", rank 1 has \"quiet-fox\"",
            ),
            (
                Hello { config_digest: [0x22; 32], ..peer.clone() },
                "config digest differs: rank 2 has 2222222222222222…, rank 1 has 1111111111111111…",
            ),
            (
                Hello { world_size: 3, ..peer.clone() },
                "world size differs: rank 2 has 3, rank 1 has 4",
            ),
            (
                Hello { generation: 7, ..peer.clone() },
                "generation differs: rank 2 has 7, rank 1 has 0",
            ),
            (
                Hello { strategy: Strategy::Ring, ..peer.clone() },
                "algorithm differs: rank 2 has ring, rank 1 has auto",
            ),
            (
                Hello { rank: 3, ..peer },
                "rank differs: rank 1 met rank 3 where rank 2 was expected",
            ),
        ];
        for (theirs, text) in cases {
            let mismatch = ours.check(&theirs, &[2]).expect_err(text).to_string();
            assert!(mismatch.starts_with(text), "{mismatch}");
        }
    }
}
