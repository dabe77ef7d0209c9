//! The header before each vector: it finds workers that are out of step, at once and by name.

use std::fmt;

use crate::protocol::collective::{CollectiveId, Content, Reduction};
use crate::protocol::exchange::Algorithm;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, any, prop, prop_assert_eq, prop_oneof, proptest};
    use proptest::strategy::Strategy as Generator;

    use super::*;

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
}
