//! Signals: interrupts, which set [`Stop`], and SIGUSR1, which asks for statistics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, reason};
use crate::limits::INTERRUPT_CHECK_TIME;

/// Whether the command was asked to stop. Clones share the answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Has SIGINT and SIGTERM end the process with status 130, for commands with nothing to finish.
pub(crate) fn end_at_interrupt() -> Result<(), Failure> {
    let stop = watch(|| {})?;
    let end = move || {
        while !stop.is_set() {
            std::thread::park_timeout(INTERRUPT_CHECK_TIME);
        }
        crate::failure::complain!("pagewire: interrupted");
        std::process::exit(130);
    };
    let thread = std::thread::Builder::new().name("interrupt".into());
    thread.spawn(end).map(drop).map_err(|e| Failure::because("handling signals", reason(&e)))
}

/// Calls a function at each SIGHUP from now on, on a thread of its own, in place of the end.
pub(crate) fn on_hangup(call: impl Fn() + Send + 'static) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::because("handling signals", reason(&e));
    let mut signals = Signals::new([SIGHUP]).map_err(failed)?;
    let watching = move || signals.forever().for_each(|_| call());
    let thread = std::thread::Builder::new().name("hangup".into());
    thread.spawn(watching).map(drop).map_err(failed)
}

/// Watches SIGINT and SIGTERM (the first sets `Stop`, the second ends the process at once) and
/// SIGUSR1, which calls `on_usr1`, on a thread of its own.
pub(crate) fn watch(on_usr1: impl Fn() + Send + 'static) -> Result<Stop, Failure> {
    let failed = |e: std::io::Error| Failure::because("handling signals", reason(&e));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1]).map_err(failed)?;
    let stop = Stop::default();
    let seen = stop.clone();
    let watching = move || {
        for signal in signals.forever() {
            match signal {
                SIGUSR1 => on_usr1(),
                signal if seen.is_set() => {
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
                _ => seen.set(),
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(watching).map_err(failed)?;
    Ok(stop)
}
