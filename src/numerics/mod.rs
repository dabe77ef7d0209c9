//! Exact sums, the optimizer and its learning rate: what makes replicas agree to the bit.

pub mod fixed_point;
pub mod optimizer;
pub mod pairs;
pub mod schedule;
pub mod shared_exponent;
