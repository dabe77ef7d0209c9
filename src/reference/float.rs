//! The two floats the reference is written for: `f32` trains, `f64` checks the derivatives.

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// What the kernels need of a float. The transcendental functions come from the `libm` crate:
/// plain Rust with the same bits on every machine, which the system's library does not promise.
pub trait Float:
    Copy
    + PartialOrd
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
{
    const ZERO: Self;
    const ONE: Self;
    /// A quarter: the weight of each value in a 2x2 average.
    const QUARTER: Self;

    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    fn tanh(self) -> Self;
}

impl Float for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const QUARTER: f32 = 0.25;

    fn exp(self) -> f32 {
        libm::expf(self)
    }

    fn ln(self) -> f32 {
        libm::logf(self)
    }

    fn tanh(self) -> f32 {
        libm::tanhf(self)
    }
}

impl Float for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const QUARTER: f64 = 0.25;

    fn exp(self) -> f64 {
        libm::exp(self)
    }

    fn ln(self) -> f64 {
        libm::log(self)
    }

    fn tanh(self) -> f64 {
        libm::tanh(self)
    }
}
