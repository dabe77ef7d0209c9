//! The time that state machines are given: they never ask a clock.

use std::ops::Add;
use std::time::Duration;

/// A moment, as the time since an origin that the caller has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Duration);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(Duration::ZERO);

    /// The moment that lies so long after the origin.
    pub const fn after_origin(since: Duration) -> Time {
        Time(since)
    }

    /// The time since an earlier moment; zero if it is not earlier.
    pub fn since(self, earlier: Time) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_run_backwards() {
        let (early, late) = (Time::ZERO, Time::ZERO + Duration::from_secs(2));
        assert_eq!(late.since(early), Duration::from_secs(2));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(late + Duration::MAX, Time::after_origin(Duration::MAX));
    }
}
