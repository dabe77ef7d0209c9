//! Notices when nothing moves.

use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// See the [module](self).
pub(super) struct StallWatch {
    ticks: Interval,
    /// Where everything stood at the last tick.
    position: (u64, u64),
    ticks_without_move: u32,
}

impl StallWatch {
    /// Looks so often.
    pub(super) fn new(warning: Duration) -> StallWatch {
        let warning = warning.max(Duration::from_millis(1));
        let mut ticks = interval_at(Instant::now() + warning, warning);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        StallWatch { ticks, position: (0, 0), ticks_without_move: 0 }
    }

    /// How long the position has been the same, at a tick at which it still is.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, position: (u64, u64)) -> Option<Duration> {
        let mut ticked = false;
        while self.ticks.poll_tick(cx).is_ready() {
            ticked = true;
        }
        if !ticked {
            return None;
        }
        if position != self.position {
            self.position = position;
            self.ticks_without_move = 0;
            return None;
        }
        self.ticks_without_move += 1;
        Some(self.ticks.period() * self.ticks_without_move)
    }
}
