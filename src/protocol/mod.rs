//! Decisions without IO: no sockets, no clocks, no threads, no GPU.

pub mod collective;
