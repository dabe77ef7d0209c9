//! Decisions without IO: no sockets, no clocks, no threads, no GPU.

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
