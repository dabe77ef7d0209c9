//! Ctrl-C and SIGTERM: once ends the run after the current step, twice at once. A worker among
//! others takes SIGTERM for a request to leave them.

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

/// The code of a process that was told twice to end.
const ENDED_AT_ONCE: i32 = 130;

impl Interrupt {
    /// Starts to listen. With `lone`, no launcher is there to look at [`Interrupt::abort`]: the
    /// process ends itself.
    pub fn install(lone: bool) -> Interrupt {
        let interrupt = Interrupt { stop: Arc::default(), abort: Arc::default() };
        interrupt.listen(move |interrupt, _| interrupt.end(lone));
        interrupt
    }

    /// The same for a worker among others, with the flag that ends the run for all: SIGTERM calls
    /// `leave` instead, and a second one ends the process at once.
    pub fn install_in_group(stop: Arc<AtomicBool>, mut leave: impl FnMut() + Send + 'static) {
        let interrupt = Interrupt { stop, abort: Arc::default() };
        let mut leaving = false;
        interrupt.listen(move |interrupt, signal| match signal {
            Signal::Interrupt => interrupt.end(true),
            Signal::Terminate if std::mem::replace(&mut leaving, true) => {
                std::process::exit(ENDED_AT_ONCE);
            }
            Signal::Terminate => {
                note("leaving the others, who go on; once more to stop at once");
                leave();
            }
        });
    }

    /// One signal more to end.
    fn end(&self, lone: bool) {
        if !self.stop.swap(true, Ordering::Relaxed) {
            note("stopping after the current step; once more to stop at once");
        } else if lone {
            std::process::exit(ENDED_AT_ONCE);
        } else {
            self.abort.store(true, Ordering::Relaxed);
        }
    }

    fn listen(&self, mut heard: impl FnMut(&Interrupt, Signal) + Send + 'static) {
        let interrupt = Interrupt { stop: self.stop.clone(), abort: self.abort.clone() };
        std::thread::spawn(move || {
            if let Err(error) = listen(|signal| heard(&interrupt, signal)) {
                tracing::warn!("Ctrl-C will end the run without a last checkpoint: {error}");
            }
        });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    Interrupt,
    Terminate,
}

/// Calls `heard` for each signal, for ever.
fn listen(mut heard: impl FnMut(Signal)) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        #[cfg(unix)]
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        loop {
            #[cfg(unix)]
            let signal = tokio::select! {
                pressed = tokio::signal::ctrl_c() => pressed.map(|()| Signal::Interrupt)?,
                _ = terminate.recv() => Signal::Terminate,
            };
            #[cfg(not(unix))]
            let signal = tokio::signal::ctrl_c().await.map(|()| Signal::Interrupt)?;
            heard(signal);
        }
    })
}
