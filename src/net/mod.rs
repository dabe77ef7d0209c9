//! The tokio and quinn shell: identities, connections, the collective's driver.

pub mod identity;
pub mod wire;

/// A failure of the network or of a peer.
#[derive(Debug, thiserror::Error)]
pub enum NetError {}
