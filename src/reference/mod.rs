//! Forward and backward in plain Rust, named as the shaders are: the oracle they are compared with.
