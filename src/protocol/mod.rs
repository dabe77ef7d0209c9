//! Decisions without IO: no sockets, no clocks, no threads, no GPU.

pub mod collective;
pub mod message;
pub mod ring;
