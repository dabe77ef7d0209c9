//! Variables that graphics drivers read when the first adapter is looked for.

use crate::config::Kernels;

/// The variables of a process that computes with these kernels on this many cores; those that the
/// user has set already are left alone.
///
/// - `LP_NUM_THREADS`: Mesa's lavapipe makes a thread a core in each process unless told otherwise,
///   so several workers would fight. 0 means that the submitting thread computes by itself, which
///   saves waking another one for each dispatch; it is right where one core is all there is, and
///   for the lane kernels, which use a device a core.
/// - `LP_NATIVE_VECTOR_WIDTH`: 16 lanes a vector where the processor has AVX-512. With AVX2 the
///   default of 8 lanes is as fast and compiles in half of the time.
/// - `NODEVICE_SELECT`: Mesa's layer that prefers the desktop's GPU looks for a desktop, and
///   complains on a machine without one.
pub fn driver_environment(kernels: Kernels, cores: usize) -> Vec<(&'static str, String)> {
    let portable = matches!(kernels, Kernels::Portable);
    let threads = if portable && cores > 1 { cores } else { 0 };
    let mut variables = vec![("LP_NUM_THREADS", threads.to_string())];
    if has_avx512() {
        variables.push(("LP_NATIVE_VECTOR_WIDTH", "512".to_owned()));
    }
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        variables.push(("NODEVICE_SELECT", "1".to_owned()));
    }
    variables.retain(|(name, _)| std::env::var_os(name).is_none());
    variables
}

/// Sets [`driver_environment`] for this process.
///
/// # Safety
/// No other thread may be running: reading and changing the environment at once is undefined.
pub unsafe fn set_driver_environment(kernels: Kernels, cores: usize) {
    for (name, value) in driver_environment(kernels, cores) {
        // SAFETY: the caller's promise.
        unsafe { std::env::set_var(name, value) };
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
