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

mod header;
mod hello;

use serde::{Deserialize, Serialize};

pub use self::header::{CollectiveHeader, HEADER_WORDS, HeaderFault, HeaderMismatch, describe};
pub use self::hello::{Answer, Hello, HelloField, HelloMismatch};

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

#[cfg(test)]
mod tests {
    use super::*;

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
