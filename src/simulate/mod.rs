//! Training steps in virtual time: what a topology would do on machines that are not here.
//!
//! A [`Scenario`] says who works together over what link; a [`Cell`] is what became of one,
//! measured by `bench topology` or [simulated](simulate) here, so that the two are compared field by
//! field.
//!
//! # What is real and what is a model
//!
//! The decisions are those that run: which words go where and when they may leave
//! ([`protocol::exchange`](crate::protocol::exchange), whose words are counted in place of moved),
//! which gradients count and who goes on
//! ([`protocol::parameter_server`](crate::protocol::parameter_server)), which algorithm is taken
//! ([`protocol::cost_model`](crate::protocol::cost_model)), and when a packet has passed a card
//! ([`protocol::link`](crate::protocol::link)). Around them an event queue (discrete-event
//! simulation, Nance 1971 for the terms) moves packets from node to node.
//!
//! A model is what is left: QUIC, of which there are a packet's size, the turns that connections
//! take and the time until a loss is noticed, and the processor ([`Machine`]), which is the overhead
//! `o` of LogP (Culler et al. 1993) for each packet, with the cost per byte of LogGP (Alexandrov et
//! al. 1995), and wake-ups, of which each hand-over between a node's threads is one. A test on one
//! small machine adds two things: all nodes share a few cores, and the timers of emulated cards run out
//! late. Without a processor and with whole shards in one packet, what comes out is Hockney's model
//! (1994).
//!
//! # Limits
//!
//! Congestion control is not modelled: a sender has as much in flight as its card takes, so losses
//! cost their retransmission but no window, and what arrives at a full card waits in place of being
//! dropped. Switches between cards are perfect. Where a step has more than some million packets,
//! three workers of a ring stand for all, with the longest shard and the longest computing each, if
//! nothing random tells workers apart; else several packets move as one. Workers and servers are never lost.

mod all_reduce;
pub mod calibrate;
pub mod cell;
pub mod crossover;
pub mod machine;
mod network;
mod parallel;
mod record;
pub mod run;
pub mod scaling;
pub mod scenario;
mod servers;
pub mod validate;

pub use cell::{Cell, CellSource, NodeBytes, Staleness, StepTimes};
pub use crossover::{Axis, Crossover};
pub use machine::Machine;
pub use run::{Settings, SimulateError, simulate};
pub use scaling::Scaling;
pub use scenario::{
    Compute, ComputeSyntaxError, Scenario, ScenarioSyntaxError, ServerCount, Slowdown, Topology,
};
pub use validate::{Comparison, Validation};
