//! The adapters that are tested.

use annulet::gpu::{AdapterChoice, Gpu};

/// Runs a test on the best adapter and on the GL backend's, if there is one. Without any adapter
/// the test fails; without GL it says so and goes on.
pub fn on_each_adapter(test: impl Fn(&AdapterChoice)) {
    test(&AdapterChoice::Best);
    let gl = AdapterChoice::Backend(wgpu::Backend::Gl);
    match Gpu::open(&gl, wgpu::Features::empty()) {
        Ok(_) => test(&gl),
        Err(error) => eprintln!(
            "NOT TESTED ON GL, the packages libegl1 and libgl1-mesa-dri bring it: {error}"
        ),
    }
}
