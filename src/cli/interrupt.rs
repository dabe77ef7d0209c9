//! Ctrl-C and SIGTERM: once ends the run after the current step, twice at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::output::note;

/// What the signals have asked for so far.
///
/// SIGHUP is left as it is: it ends the program, whose workers then end too, unless the user has
/// started it with `nohup`.
pub struct Interrupt {
    /// End the run after the current step.
    pub stop: Arc<AtomicBool>,
    /// End it now.
    pub abort: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts to listen. With `lone`, no launcher is there to look at [`Interrupt::abort`]: the
    /// process ends itself.
    pub fn install(lone: bool) -> Interrupt {
        let interrupt = Interrupt { stop: Arc::default(), abort: Arc::default() };
        let (stop, abort) = (interrupt.stop.clone(), interrupt.abort.clone());
        std::thread::spawn(move || {
            let heard = listen(|| {
                if !stop.swap(true, Ordering::Relaxed) {
                    note("stopping after the current step; once more to stop at once");
                } else if lone {
                    std::process::exit(130);
                } else {
                    abort.store(true, Ordering::Relaxed);
                }
            });
            if let Err(error) = heard {
                tracing::warn!("Ctrl-C will end the run without a last checkpoint: {error}");
            }
        });
        interrupt
    }
}

/// Calls `heard` for each signal, for ever.
fn listen(mut heard: impl FnMut()) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        #[cfg(unix)]
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        loop {
            #[cfg(unix)]
            tokio::select! {
                pressed = tokio::signal::ctrl_c() => pressed?,
                _ = terminate.recv() => {}
            }
            #[cfg(not(unix))]
            tokio::signal::ctrl_c().await?;
            heard();
        }
    })
}
