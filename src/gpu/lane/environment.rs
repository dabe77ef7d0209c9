//! What Mesa's software driver reads from the environment, once, when it is first used.

use std::ffi::OsStr;

/// Sets Mesa's variables for the lane set, save those that the user has set:
///
/// - `LP_NUM_THREADS=0`: a device computes in the thread that feeds it. A dispatch costs a
///   microsecond then and not tens; parallelism comes from several devices.
/// - `LP_NATIVE_VECTOR_WIDTH=512` where the processor has AVX-512: 16 lanes a vector. With AVX2 the
///   default of 8 lanes is as fast and compiles in half of the time.
///
/// # Safety
/// No other thread may run yet: the environment is not protected against readers. Call it first in
/// `main`.
pub unsafe fn prepare_environment() {
    let mut variables = vec![("LP_NUM_THREADS", "0")];
    if has_avx512() {
        variables.push(("LP_NATIVE_VECTOR_WIDTH", "512"));
    }
    for (name, value) in variables {
        if std::env::var_os(name).is_none() {
            // SAFETY: the caller vouches that no other thread runs.
            unsafe { std::env::set_var(name, OsStr::new(value)) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}
