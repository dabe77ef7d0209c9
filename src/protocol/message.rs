//! What workers say to each other: handshake, abort, and the header before each vector.
//!
//! A connection begins with a handshake on a bidirectional stream: both sides send the
//! [`PREAMBLE`], which never changes its form, so that two versions can name each other; then the
//! worker that connected sends its [`Hello`] (within a
//! [`Greeting`](super::greeting::Greeting)), and the other one an [`Answer`]. How these are turned
//! into bytes is the shell's matter.
//!
//! Vectors then travel on the same stream as little-endian `u32` words: for each collective, in
//! each direction that its algorithm uses, a [`CollectiveHeader`] and the algorithm's words. Where
//! a word stands says what it is; the header is there to find workers that are out of step, at once
//! and by name.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::collective::{CollectiveId, Content, Reduction};
use super::exchange::{Algorithm, Strategy};

/// Version of everything in this module and of the order in which it is sent.
pub const PROTOCOL_VERSION: u32 = 4;

/// The first bytes of a handshake, in both directions: a magic word and the protocol version.
pub const PREAMBLE: [u8; PREAMBLE_BYTES] = preamble(PROTOCOL_VERSION);

pub const PREAMBLE_BYTES: usize = 12;

const MAGIC: [u8; 8] = *b"annulet\0";

const fn preamble(version: u32) -> [u8; PREAMBLE_BYTES] {
    let [a, b, c, d] = version.to_le_bytes();
    let [m0, m1, m2, m3, m4, m5, m6, m7] = MAGIC;
    [m0, m1, m2, m3, m4, m5, m6, m7, a, b, c, d]
}

/// Checks a peer's preamble.
pub fn check_preamble(bytes: &[u8; PREAMBLE_BYTES]) -> Result<(), PreambleMismatch> {
    let (magic, version) = bytes.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(PreambleMismatch::Magic);
    }
    let theirs = u32::from_le_bytes(version.try_into().expect("four bytes follow the magic"));
    if theirs != PROTOCOL_VERSION {
        return Err(PreambleMismatch::Version { theirs });
    }
    Ok(())
}

/// The peer does not speak this version of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreambleMismatch {
    #[error("magic differs: the peer is not an annulet worker")]
    Magic,
    #[error(
        "protocol version differs: the peer has {theirs}, this worker has {PROTOCOL_VERSION}; \
         run the same annulet release everywhere"
    )]
    Version { theirs: u32 },
}

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

/// Why a worker leaves before the end, for its neighbours, which pass it on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abort {
    /// The worker that noticed first.
    pub rank: u32,
    /// The worker that is lost or broken, if one is.
    pub culprit: Option<u32>,
    pub reason: String,
}

/// The longest reason that is sent: with it, an [`Abort`] fits into the smallest packet.
pub const ABORT_REASON_BYTES_MAX: usize = 700;

impl Abort {
    /// An abort whose reason is cut, if it must be, between two characters.
    pub fn new(rank: u32, culprit: Option<u32>, mut reason: String) -> Abort {
        reason.truncate(reason.floor_char_boundary(ABORT_REASON_BYTES_MAX));
        Abort { rank, culprit, reason }
    }
}

/// What precedes each vector on its stream: which collective follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveHeader {
    pub id: CollectiveId,
    pub algorithm: Algorithm,
    /// Words of the vector.
    pub words: u32,
    /// How many of them are summed as pairs of 16-bit integers.
    pub pair_words: u32,
    /// How many of them are summed as integers.
    pub sum_words: u32,
    /// How many of them are summed as floats.
    pub float_words: u32,
    /// Collectives that this worker began before this one, in this view.
    pub sequence: u64,
}

/// Words of an encoded [`CollectiveHeader`].
pub const HEADER_WORDS: usize = 14;

/// Reads "ANLT" in a dump of the stream.
const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"ANLT");

impl CollectiveHeader {
    /// The header of a collective.
    ///
    /// # Panics
    /// If the vector is longer than `u32::MAX` words.
    pub fn new(
        id: CollectiveId,
        algorithm: Algorithm,
        reduction: Reduction,
        sequence: u64,
    ) -> CollectiveHeader {
        let words = u32::try_from(reduction.words()).expect("a vector has fewer than 2^32 words");
        // None is more than all words are.
        CollectiveHeader {
            id,
            algorithm,
            words,
            pair_words: reduction.pair_words as u32,
            sum_words: reduction.sum_words as u32,
            float_words: reduction.float_words as u32,
            sequence,
        }
    }

    pub fn encode(&self) -> [u32; HEADER_WORDS] {
        let CollectiveId { generation, step, attempt, content } = self.id;
        let (kind, index) = match content {
            Content::Gradients(bucket) => (0, bucket),
            Content::Evaluation => (1, 0),
            Content::Digest => (2, 0),
            Content::Probe => (3, 0),
            Content::Buffer => (4, 0),
            Content::State => (5, 0),
        };
        let algorithm = match self.algorithm {
            Algorithm::Ring => 0,
            Algorithm::HalvingDoubling => 1,
            Algorithm::Direct => 2,
        };
        [
            HEADER_MAGIC,
            self.sequence as u32,
            (self.sequence >> 32) as u32,
            generation,
            step as u32,
            (step >> 32) as u32,
            attempt,
            kind,
            index,
            algorithm,
            self.words,
            self.pair_words,
            self.sum_words,
            self.float_words,
        ]
    }

    pub fn decode(words: &[u32; HEADER_WORDS]) -> Result<CollectiveHeader, HeaderFault> {
        let &[
            magic,
            sequence_low,
            sequence_high,
            generation,
            step_low,
            step_high,
            attempt,
            kind,
            index,
            algorithm,
            words,
            pair_words,
            sum_words,
            float_words,
        ] = words;
        if magic != HEADER_MAGIC {
            return Err(HeaderFault::Magic { found: magic });
        }
        let content = match (kind, index) {
            (0, bucket) => Content::Gradients(bucket),
            (1, 0) => Content::Evaluation,
            (2, 0) => Content::Digest,
            (3, 0) => Content::Probe,
            (4, 0) => Content::Buffer,
            (5, 0) => Content::State,
            _ => return Err(HeaderFault::Content { kind, index }),
        };
        let algorithm = match algorithm {
            0 => Algorithm::Ring,
            1 => Algorithm::HalvingDoubling,
            2 => Algorithm::Direct,
            algorithm => return Err(HeaderFault::Algorithm { algorithm }),
        };
        Ok(CollectiveHeader {
            id: CollectiveId { generation, step: wide(step_low, step_high), attempt, content },
            algorithm,
            words,
            pair_words,
            sum_words,
            float_words,
            sequence: wide(sequence_low, sequence_high),
        })
    }

    /// Checks that the worker `rank` sent the header that this worker expects.
    pub fn check(&self, theirs: &CollectiveHeader, rank: usize) -> Result<(), HeaderMismatch> {
        if self == theirs {
            return Ok(());
        }
        Err(HeaderMismatch { rank, theirs: *theirs, ours: *self })
    }
}

/// Words that are no header: the peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    #[error("{found:#010x} where a collective's header must begin")]
    Magic { found: u32 },
    #[error("a collective of unknown content {kind}.{index}")]
    Content { kind: u32, index: u32 },
    #[error("a collective by an unknown algorithm {algorithm}")]
    Algorithm { algorithm: u32 },
}

/// Two workers that are out of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "out of step: rank {rank} sent {}, this worker is at {}",
    Described { header: theirs, other: ours },
    Described { header: ours, other: theirs }
)]
pub struct HeaderMismatch {
    /// The other worker's rank.
    pub rank: usize,
    pub theirs: CollectiveHeader,
    pub ours: CollectiveHeader,
}

/// A collective in words, as error texts and warnings name it.
pub fn describe(id: &CollectiveId) -> String {
    let CollectiveId { generation, step, attempt, content } = id;
    let mut text = match content {
        Content::Gradients(bucket) => format!("step {step} bucket {bucket}"),
        Content::Evaluation => format!("the evaluation at {step}"),
        Content::Digest => format!("the digest at {step}"),
        Content::Probe => format!("probe {step} of the link"),
        Content::Buffer => format!("buffer {step}"),
        Content::State => format!("the state after step {step}"),
    };
    if *attempt > 0 {
        text += &format!(" attempt {attempt}");
    }
    if *generation > 0 {
        text += &format!(" of generation {generation}");
    }
    text
}

/// A header in words, with those of its lesser fields in which it differs from another one.
struct Described<'a> {
    header: &'a CollectiveHeader,
    other: &'a CollectiveHeader,
}

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Described { header, other } = self;
        f.write_str(&describe(&header.id))?;
        if header.algorithm != other.algorithm {
            write!(f, " by {}", header.algorithm)?;
        }
        if header.words != other.words || header.sum_words != other.sum_words {
            write!(f, " with {} words ({} summed)", header.words, header.sum_words)?;
        }
        if header.pair_words != other.pair_words {
            write!(f, " with {} words as pairs of 16 bits", header.pair_words)?;
        }
        if header.float_words != other.float_words {
            write!(f, " with {} words as floats", header.float_words)?;
        }
        if header.sequence != other.sequence {
            write!(f, " (its collective {})", header.sequence)?;
        }
        Ok(())
    }
}

fn wide(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn hex(bytes: &[u8; 32]) -> String {
    // 16 digits tell two digests apart and can be compared by eye.
    bytes[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "…"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, any, prop, prop_assert_eq, prop_oneof, proptest};
    use proptest::strategy::Strategy as Generator;

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

    fn header() -> CollectiveHeader {
        let id =
            CollectiveId { generation: 0, step: 4, attempt: 0, content: Content::Gradients(1) };
        CollectiveHeader::new(id, Algorithm::Ring, Reduction::new(90, 10), 9)
    }

    fn contents() -> impl Generator<Value = Content> {
        prop_oneof![
            any::<u32>().prop_map(Content::Gradients),
            Just(Content::Evaluation),
            Just(Content::Digest),
            Just(Content::Probe),
            Just(Content::Buffer),
            Just(Content::State)
        ]
    }

    proptest! {
        #[test]
        fn headers_survive_encoding(
            (generation, step, attempt, content) in (any::<u32>(), any::<u64>(), any::<u32>(), contents()),
            (words, pair_words, sum_words, float_words, sequence) in
                (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>()),
            algorithm in prop::sample::select(&Algorithm::ALL[..]),
        ) {
            let id = CollectiveId { generation, step, attempt, content };
            let header =
                CollectiveHeader { id, algorithm, words, pair_words, sum_words, float_words, sequence };
            prop_assert_eq!(CollectiveHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn hostile_headers_are_errors(words in prop::array::uniform14(any::<u32>())) {
            if let Ok(header) = CollectiveHeader::decode(&words) {
                prop_assert_eq!(header.encode(), words);
            }
        }
    }

    #[test]
    fn a_header_without_its_magic_is_refused() {
        let mut words = header().encode();
        words[0] += 1;
        assert_eq!(
            CollectiveHeader::decode(&words),
            Err(HeaderFault::Magic { found: HEADER_MAGIC + 1 })
        );
        let mut words = header().encode();
        words[7] = 6;
        assert_eq!(
            CollectiveHeader::decode(&words),
            Err(HeaderFault::Content { kind: 6, index: 1 })
        );
        let mut words = header().encode();
        words[9] = 3;
        assert_eq!(CollectiveHeader::decode(&words), Err(HeaderFault::Algorithm { algorithm: 3 }));
    }

    #[test]
    fn a_mismatch_names_both_sides() {
        let ours = header();
        let mut theirs = ours;
        theirs.id.step = 5;
        theirs.id.content = Content::Gradients(0);
        let mismatch = ours.check(&theirs, 2).expect_err("another step");
        assert_eq!(
            mismatch.to_string(),
            "out of step: rank 2 sent step 5 bucket 0, this worker is at step 4 bucket 1"
        );
        let theirs = CollectiveHeader { sum_words: 100, ..ours };
        let mismatch = ours.check(&theirs, 2).expect_err("another reduction");
        assert_eq!(
            mismatch.to_string(),
            "out of step: rank 2 sent step 4 bucket 1 with 100 words (100 summed), \
             this worker is at step 4 bucket 1 with 100 words (90 summed)"
        );
        let theirs = CollectiveHeader { algorithm: Algorithm::Direct, ..ours };
        let mismatch = ours.check(&theirs, 2).expect_err("another algorithm");
        assert_eq!(
            mismatch.to_string(),
            "out of step: rank 2 sent step 4 bucket 1 by direct, \
             this worker is at step 4 bucket 1 by ring"
        );
        assert_eq!(ours.check(&ours, 2), Ok(()));
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

    #[test]
    fn versions_are_named() {
        assert_eq!(check_preamble(&PREAMBLE), Ok(()));
        assert_eq!(check_preamble(&preamble(7)), Err(PreambleMismatch::Version { theirs: 7 }));
        assert_eq!(check_preamble(b"GET / HTTP/1"), Err(PreambleMismatch::Magic));
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let abort = Abort::new(0, None, "é".repeat(ABORT_REASON_BYTES_MAX));
        assert_eq!(abort.reason.len(), ABORT_REASON_BYTES_MAX);
        let abort = Abort::new(0, None, format!("x{}", "é".repeat(ABORT_REASON_BYTES_MAX)));
        assert_eq!(abort.reason.len(), ABORT_REASON_BYTES_MAX - 1);
    }
}
