//! Where a group's connections go out and come in: by an endpoint of its own, or by that of a
//! [`Station`](super::station), which outlives the group.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::{Connection, ConnectionError, RecvStream, SendStream, VarInt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::endpoint::Endpoint;
use crate::protocol::greeting::Greeting;

/// Somebody who has connected and said what for. The answer is still owed.
pub(super) struct Caller {
    pub(super) address: SocketAddr,
    pub(super) connection: Connection,
    pub(super) send: SendStream,
    pub(super) receive: RecvStream,
    pub(super) greeting: Greeting,
}

/// A connection from outside.
pub(super) enum Call {
    /// The transport's handshake has only begun.
    Incoming(SocketAddr, Result<quinn::Connecting, ConnectionError>),
    /// The station has listened already.
    Greeted(Box<Caller>),
}

/// A group's way out and in. Clones are the same door.
#[derive(Clone)]
pub(super) struct Door {
    endpoint: Endpoint,
    /// What the group needs where the endpoint is not its own.
    shared: Option<Arc<Shared>>,
}

struct Shared {
    callers: tokio::sync::Mutex<mpsc::Receiver<Caller>>,
    /// All connections of the group, which end with it while the endpoint lives on.
    connections: Mutex<Vec<Connection>>,
}

/// The longest wait, after closing, for the others to take note.
const DRAIN_MAX: Duration = Duration::from_secs(1);

impl Door {
    /// With an endpoint that nobody else uses.
    pub(super) fn own(endpoint: Endpoint) -> Door {
        Door { endpoint, shared: None }
    }

    /// With an endpoint that others use too, and which hands over those who call for this group.
    pub(super) fn shared(endpoint: Endpoint, callers: mpsc::Receiver<Caller>) -> Door {
        let callers = tokio::sync::Mutex::new(callers);
        let shared = Shared { callers, connections: Mutex::default() };
        Door { endpoint, shared: Some(Arc::new(shared)) }
    }

    /// Connects to an address; the handshake has only begun.
    pub(super) fn connect(
        &self,
        address: SocketAddr,
    ) -> Result<quinn::Connecting, quinn::ConnectError> {
        self.endpoint.connect(address)
    }

    /// Waits for a connection from outside; `None` once closed.
    pub(super) async fn accept(&self) -> Option<Call> {
        match &self.shared {
            None => {
                let (address, connecting) = self.endpoint.accept().await?;
                Some(Call::Incoming(address, connecting))
            }
            Some(shared) => {
                let caller = shared.callers.lock().await.recv().await?;
                Some(Call::Greeted(Box::new(caller)))
            }
        }
    }

    /// Notes a connection of the group.
    pub(super) fn note(&self, connection: &Connection) {
        if let Some(shared) = &self.shared {
            let mut connections = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.retain(|known| known.close_reason().is_none());
            connections.push(connection.clone());
        }
    }

    /// From now on, turns away whoever connects.
    pub(super) async fn refuse_connections(&self) {
        match &self.shared {
            None => self.endpoint.refuse_connections(),
            Some(shared) => shared.callers.lock().await.close(),
        }
    }

    /// Closes the group's connections and tells all peers why; waits until they cannot miss it,
    /// where the endpoint ends as well.
    pub(super) async fn close(&self, code: VarInt, reason: &[u8]) {
        match &self.shared {
            None => {
                self.endpoint.close(code, reason);
                let _ = timeout(DRAIN_MAX, self.endpoint.drained()).await;
            }
            Some(shared) => {
                let connections = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
                connections.iter().for_each(|connection| connection.close(code, reason));
            }
        }
    }
}
