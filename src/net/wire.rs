//! Control messages as bytes: length-prefixed frames of bincode, with a limit on their size.
//!
//! No other file names the codec. A frame is the message's length in bytes as a little-endian
//! `u32`, then the message. Whatever arrives is checked against [`FRAME_BYTES_MAX`] before memory
//! is taken for it.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message: a group's addresses fit many times over.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

/// Bytes before each message.
pub const PREFIX_BYTES: usize = 4;

/// Bytes that are no message.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("a message of {bytes} bytes, above the limit of {FRAME_BYTES_MAX}")]
    TooLong { bytes: usize },
    #[error("{bytes} bytes follow the end of a message")]
    Trailing { bytes: usize },
    #[error("a message that cannot be decoded: {0}")]
    Decode(#[source] bincode::error::DecodeError),
    #[error("a message that cannot be encoded: {0}")]
    Encode(#[source] bincode::error::EncodeError),
}

/// The message without its length, as it fits where the length is known otherwise.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let bytes = bincode::serde::encode_to_vec(message, codec()).map_err(WireError::Encode)?;
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(WireError::TooLong { bytes: bytes.len() });
    }
    Ok(bytes)
}

/// The inverse of [`encode`]; the message must fill all of the bytes.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(WireError::TooLong { bytes: bytes.len() });
    }
    let (message, read) =
        bincode::serde::decode_from_slice(bytes, codec()).map_err(WireError::Decode)?;
    if read < bytes.len() {
        return Err(WireError::Trailing { bytes: bytes.len() - read });
    }
    Ok(message)
}

/// The message with its length before it.
pub fn encode_frame<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let message = encode(message)?;
    let length = u32::try_from(message.len()).expect("the limit is far below");
    Ok([&length.to_le_bytes()[..], &message].concat())
}

/// The length of the message behind this prefix, refused if it is above the limit.
pub fn frame_length(prefix: [u8; PREFIX_BYTES]) -> Result<usize, WireError> {
    let bytes = u32::from_le_bytes(prefix) as usize;
    if bytes > FRAME_BYTES_MAX {
        return Err(WireError::TooLong { bytes });
    }
    Ok(bytes)
}

fn codec() -> impl bincode::config::Config {
    // The limit also holds for every length within a message, so none makes the decoder allocate
    // more than a frame can hold.
    bincode::config::standard().with_limit::<FRAME_BYTES_MAX>()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::message::{ABORT_REASON_BYTES_MAX, Abort, Answer, Hello};

    fn hello() -> Hello {
        Hello {
            run_id: "quiet-fox".into(),
            config_digest: [7; 32],
            world_size: 300,
            generation: 2,
            rank: 1,
            strategy: crate::protocol::exchange::Strategy::Auto,
        }
    }

    #[test]
    fn messages_survive_their_frame() {
        for message in [Answer::Welcome(hello()), Answer::Refuse("run id differs".into())] {
            let frame = encode_frame(&message).expect("a small message");
            let (prefix, body) = frame.split_at(PREFIX_BYTES);
            let length = frame_length(prefix.try_into().expect("four bytes")).expect("small");
            assert_eq!(length, body.len());
            assert_eq!(decode::<Answer>(body).expect("its own bytes"), message);
        }
    }

    #[test]
    fn an_abort_fits_into_the_smallest_packet() {
        let abort = Abort::new(u32::MAX, Some(u32::MAX), "x".repeat(ABORT_REASON_BYTES_MAX));
        assert!(encode(&abort).expect("a small message").len() < 1_000);
    }

    #[test]
    fn lengths_above_the_limit_are_refused_before_memory_is_taken() {
        let prefix = |bytes: usize| (bytes as u32).to_le_bytes();
        assert_eq!(frame_length(prefix(FRAME_BYTES_MAX)).expect("at the limit"), FRAME_BYTES_MAX);
        for bytes in [FRAME_BYTES_MAX + 1, u32::MAX as usize] {
            assert!(matches!(frame_length(prefix(bytes)), Err(WireError::TooLong { .. })));
        }
        // Within a message: a string that claims to be 2^63 bytes long.
        let mut bytes = vec![1, 253];
        bytes.extend((1u64 << 63).to_le_bytes());
        assert!(matches!(decode::<Answer>(&bytes), Err(WireError::Decode(_))));
        let long = Answer::Refuse("x".repeat(FRAME_BYTES_MAX));
        assert!(matches!(encode(&long), Err(WireError::TooLong { .. })));
    }

    #[test]
    fn bytes_after_a_message_are_refused() {
        let mut bytes = encode(&hello()).expect("a small message");
        bytes.push(0);
        assert!(matches!(decode::<Hello>(&bytes), Err(WireError::Trailing { bytes: 1 })));
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_errors(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            // Decoding may succeed by chance; it must not panic, and then encodes to a message.
            if let Ok(message) = decode::<Answer>(&bytes) {
                encode(&message).expect("it was just decoded");
            }
            let _ = decode::<Hello>(&bytes);
            let _ = decode::<Abort>(&bytes);
        }

        #[test]
        fn a_cut_message_is_none(keep in 0usize..100) {
            let bytes = encode(&Answer::Welcome(hello())).expect("a small message");
            prop_assert!(decode::<Answer>(&bytes[..keep % bytes.len()]).is_err());
        }

        #[test]
        fn damaged_messages_are_errors_or_other_messages(at in 0usize..100, byte in any::<u8>()) {
            let message = Answer::Welcome(hello());
            let mut bytes = encode(&message).expect("a small message");
            let at = at % bytes.len();
            let intact = bytes[at] == byte;
            bytes[at] = byte;
            match decode::<Answer>(&bytes) {
                Ok(decoded) => prop_assert_eq!(decoded == message, intact),
                Err(_) => prop_assert!(!intact),
            }
        }
    }
}
