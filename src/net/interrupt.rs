//! Ends a group from outside, whatever its communication thread is at.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

/// Raised once, from any thread, for a reason; clones are the same interrupt.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    reason: OnceLock<String>,
    notify: Notify,
}

impl Interrupt {
    /// Ends the group that was joined with this interrupt, or that is being joined. Only the first
    /// reason counts.
    pub fn raise(&self, reason: &str) {
        if self.shared.reason.set(reason.to_owned()).is_ok() {
            // The permit stays until the thread looks.
            self.shared.notify.notify_one();
        }
    }

    /// Waits until it is raised; one task may wait.
    pub(super) async fn raised(&self) -> String {
        loop {
            if let Some(reason) = self.shared.reason.get() {
                return reason.clone();
            }
            self.shared.notify.notified().await;
        }
    }
}
