//! Training steps in virtual time: what a topology would do on machines that are not here.
//!
//! A [`Scenario`] says who works together over what link; a [`Cell`] is what became of one,
//! measured by `bench topology` or simulated here, so that the two are compared field by field.

mod all_reduce;
pub mod cell;
pub mod machine;
mod network;
mod record;
pub mod run;
pub mod scaling;
pub mod scenario;
mod servers;

pub use cell::{Cell, CellSource, NodeBytes, Staleness, StepTimes};
pub use machine::Machine;
pub use run::{Settings, SimulateError, simulate};
pub use scaling::Scaling;
pub use scenario::{
    Compute, ComputeSyntaxError, Scenario, ScenarioSyntaxError, ServerCount, Slowdown, Topology,
};
