//! The shaders against the reference: each kernel of the portable set by itself, then whole steps
//! of every kernel set through the engine.
//!
//! Everything runs on the best adapter, which must be there, and on the GL backend if it has one.

mod adapters;
mod bench;
mod portable_kernels;
mod steps;
mod values;
