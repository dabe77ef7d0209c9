//! Steps by parameter servers: workers compute gradients, servers hold parameters and apply them.
//!
//! [`protocol::parameter_server`](crate::protocol::parameter_server) decides, and
//! [`net::star`](crate::net::star) carries. A server's numbers are a [`slice`]; its [`node`] does what
//! the decisions say. The first server is the coordinator: it runs the trainer, whose
//! [`Update`](super::update::Update) is the one in [`update`], and hands out tasks; a [`worker`]
//! computes what it is told.
//!
//! **The learning rate of a push** in the asynchronous modes is that of its step, times the push's
//! share of the step's samples, so that the pushes of one step move the parameters as far as the one
//! update of a synchronous step would; with [`StalenessLr::Inverse`] it is also divided by one plus
//! the push's staleness.
//!
//! Before each evaluation and each checkpoint no more tasks are handed out until all are applied, so
//! that these show one state; asynchronous workers wait for each other there, and nowhere else.

mod layout;
mod node;
mod slice;
mod update;
mod worker;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::protocol::parameter_server::Mode;

pub use node::{ServerNode, WORDS_MAX, serve};
pub use update::{Coordinator, CoordinatorParts};
pub use worker::{ServedWorker, ServedWorkerParts};

/// How a run's parameter servers work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerPlan {
    pub mode: Mode,
    /// How many of them hold a slice each.
    pub servers: usize,
    pub staleness_lr: StalenessLr,
}

impl ServerPlan {
    /// The digest that all nodes must agree on, given that of the configuration and the data. A
    /// worker does as it is told, whatever the mode, so the plan is no part of it.
    pub fn digest(config_digest: &[u8; 32]) -> [u8; 32] {
        Sha256::new()
            .chain_update(b"annulet star 1\0")
            .chain_update(config_digest)
            .finalize()
            .into()
    }
}

/// How the learning rate of a push follows from its staleness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StalenessLr {
    /// Not at all.
    #[default]
    Constant,
    /// `lr / (1 + staleness)` (Zhang et al. 2016).
    Inverse,
}
