//! The optimizer on the host, in strict `f32`.
