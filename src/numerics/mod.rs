//! Exact sums and the optimizer: what makes replicas agree to the bit.

pub mod fixed_point;
pub mod optimizer;
