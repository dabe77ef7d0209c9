//! Decisions without IO: no sockets, no clocks, no threads, no GPU.
//!
//! State machines take messages and the [time](time::Time), and say what is to be sent; the shell
//! around them ([`net`](crate::net)), the simulation and the tests run the same ones.
//!
//! | file | what it holds |
//! |---|---|
//! | `collective` | what is reduced, and which collective a vector belongs to |
//! | `exchange`, `ring`, `halving_doubling`, `direct` | all-reduces: one interface, three algorithms |
//! | `cost_model` | how long each would take |
//! | `membership` | views: who works together, and how that changes |
//! | `plan`, `balancer` | who computes which tiles, and when that changes |
//! | `parameter_server`, `star` | which gradients a server counts and who goes on; slices and nodes |
//! | `message`, `greeting` | what peers say to each other |
//! | `link` | the emulated network card |
//! | `time` | the time that is passed in |

pub mod balancer;
pub mod collective;
pub mod cost_model;
pub mod direct;
pub mod exchange;
pub mod greeting;
pub mod halving_doubling;
pub mod link;
pub mod membership;
pub mod message;
pub mod parameter_server;
pub mod plan;
pub mod pulls;
pub mod ring;
pub mod star;
pub mod time;
