//! How a connection begins, whatever it is for: the first words of both sides, and how it can fail.

use std::fmt;
use std::net::SocketAddr;

use quinn::{Connection, ConnectionError, RecvStream, SendStream, TransportErrorCode};

use super::door::Caller;
use super::peer::abort_of;
use super::{NetError, wire};
use crate::protocol::greeting::Greeting;
use crate::protocol::message::{HelloMismatch, PREAMBLE, PREAMBLE_BYTES, check_preamble};

/// One try to connect or to be connected to, which failed.
pub(super) enum Failed {
    /// Another try or another peer may fare better.
    Retry(String),
    /// The peer holds another key.
    OtherKey,
    /// Nothing will change this.
    Final(NetError),
}

impl Failed {
    pub(super) fn mismatch(address: SocketAddr, mismatch: Box<HelloMismatch>) -> Failed {
        Failed::Final(NetError::Mismatch { address, mismatch })
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Retry(text) => f.write_str(text),
            Failed::OtherKey => f.write_str("it holds another cluster key, or none"),
            Failed::Final(error) => error.fmt(f),
        }
    }
}

impl From<ConnectionError> for Failed {
    fn from(error: ConnectionError) -> Self {
        if let Some(abort) = abort_of(&error) {
            return Failed::Final(NetError::Aborted(abort));
        }
        match &error {
            ConnectionError::TransportError(error) if is_key_alert(error.code.into()) => {
                Failed::OtherKey
            }
            ConnectionError::ConnectionClosed(close) if is_key_alert(close.error_code.into()) => {
                Failed::OtherKey
            }
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
            {
                Failed::Retry("it takes no more connections: its group is formed".to_owned())
            }
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::APPLICATION_ERROR =>
            {
                Failed::Retry("it gave up".to_owned())
            }
            ConnectionError::TimedOut => Failed::Retry("no answer".to_owned()),
            error => Failed::Retry(error.to_string()),
        }
    }
}

/// Whether a transport's error code is one of the TLS alerts about a peer's certificate.
fn is_key_alert(code: u64) -> bool {
    const CRYPTO_ERROR: u64 = 0x100;
    const BAD_CERTIFICATE: u64 = 42;
    const CERTIFICATE_UNKNOWN: u64 = 46;
    const UNKNOWN_CA: u64 = 48;
    const ACCESS_DENIED: u64 = 49;
    const DECRYPT_ERROR: u64 = 51;
    const CERTIFICATE_REQUIRED: u64 = 116;
    let alerts = [
        BAD_CERTIFICATE,
        CERTIFICATE_UNKNOWN,
        UNKNOWN_CA,
        ACCESS_DENIED,
        DECRYPT_ERROR,
        CERTIFICATE_REQUIRED,
    ];
    code.checked_sub(CRYPTO_ERROR).is_some_and(|alert| alerts.contains(&alert))
}

/// The connecting side's first words, for whatever the connection is; the answer comes next.
pub(super) async fn greet(
    connecting: quinn::Connecting,
    address: SocketAddr,
    greeting: &Greeting,
) -> Result<(Connection, SendStream, RecvStream), Failed> {
    let connection = connecting.await?;
    let (mut send, mut receive) = connection.open_bi().await?;
    let words = [&PREAMBLE[..], &frame(greeting)?].concat();
    send.write_all(&words).await.map_err(write_failed)?;
    read_preamble(&mut receive, address).await?;
    Ok((connection, send, receive))
}

/// The accepting side's first words: hears what the caller wants.
pub(super) async fn hear(
    address: SocketAddr,
    connecting: Result<quinn::Connecting, ConnectionError>,
) -> Result<Caller, Failed> {
    let connection = connecting?.await?;
    let (mut send, mut receive) = connection.accept_bi().await?;
    send.write_all(&PREAMBLE).await.map_err(write_failed)?;
    if let Err(failed) = read_preamble(&mut receive, address).await {
        let_answer_arrive(&mut send).await;
        return Err(failed);
    }
    let greeting = read_frame(&mut receive).await?;
    // A socket for both IPv6 and IPv4 sees the latter's addresses in disguise.
    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
    Ok(Caller { address, connection, send, receive, greeting })
}

/// Closing at once would overtake the answer that says why.
pub(super) async fn let_answer_arrive(send: &mut SendStream) {
    // The stream may already be gone on the other side.
    let _ = send.finish();
    let _ = send.stopped().await;
}

async fn read_preamble(receive: &mut RecvStream, address: SocketAddr) -> Result<(), Failed> {
    let mut preamble = [0; PREAMBLE_BYTES];
    receive.read_exact(&mut preamble).await.map_err(read_failed)?;
    check_preamble(&preamble)
        .map_err(|mismatch| Failed::Final(NetError::Version { address, mismatch }))
}

pub(super) async fn read_frame<T: serde::de::DeserializeOwned>(
    receive: &mut RecvStream,
) -> Result<T, Failed> {
    let garbled = |error: wire::WireError| Failed::Retry(format!("it sent {error}"));
    let mut prefix = [0; wire::PREFIX_BYTES];
    receive.read_exact(&mut prefix).await.map_err(read_failed)?;
    let mut message = vec![0; wire::frame_length(prefix).map_err(garbled)?];
    receive.read_exact(&mut message).await.map_err(read_failed)?;
    wire::decode(&message).map_err(garbled)
}

pub(super) fn frame<T: serde::Serialize>(message: &T) -> Result<Vec<u8>, Failed> {
    wire::encode_frame(message)
        .map_err(|error| Failed::Final(NetError::Settings(format!("handshake: {error}"))))
}

pub(super) fn read_failed(error: quinn::ReadExactError) -> Failed {
    match error {
        quinn::ReadExactError::ReadError(quinn::ReadError::ConnectionLost(error)) => error.into(),
        error => Failed::Retry(error.to_string()),
    }
}

pub(super) fn write_failed(error: quinn::WriteError) -> Failed {
    match error {
        quinn::WriteError::ConnectionLost(error) => error.into(),
        error => Failed::Retry(error.to_string()),
    }
}
