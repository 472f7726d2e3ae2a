//! The reentrancy guard: each thread knows whether it drives a host, and under whose lock it runs an
//! application's code. This decides which threads may not wait.
//!
//! ```text
//!   under the lock     a service, an observer, a closure of `with_stack`    every call of that host panics,
//!                                                                          which is contained; drops wait
//!   driver, no lock    a waker, an owner's or a service's drop              calls work, waits are refused
//! ```

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hosts that may call each other's code nested before the outermost is forgotten.
const NESTED: usize = 4;

/// The newest thread's number.
static LAST_THREAD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
    /// The host whose driver this thread is; 0: none.
    static DRIVES: Cell<u64> = const { Cell::new(0) };
    static CALLS: [Cell<u64>; NESTED] = const { [const { Cell::new(0) }; NESTED] };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A guard while which this thread runs an application's code under the lock of a host.
pub(crate) struct LockedCall {
    before: u64,
}

impl LockedCall {
    #[inline]
    pub(crate) fn of(host: u64) -> Self {
        let depth = DEPTH.get();
        DEPTH.set(depth + 1);
        Self { before: CALLS.with(|calls| calls[depth % NESTED].replace(host)) }
    }
}

impl Drop for LockedCall {
    #[inline]
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        CALLS.with(|calls| calls[depth % NESTED].set(self.before));
    }
}

/// Whether this thread runs code that `host` called under its lock.
pub(crate) fn is_called_under_lock_of(host: u64) -> bool {
    DEPTH.get() > 0 && CALLS.with(|calls| calls.iter().any(|call| call.get() == host))
}

/// Makes this thread the driver of `host`, from now on.
pub(crate) fn become_driver_of(host: u64) {
    DRIVES.set(host);
}

/// A guard while which this thread takes a step as a host's driver.
#[cfg(feature = "tokio")]
pub(crate) struct DriverGuard {
    before: u64,
}

#[cfg(feature = "tokio")]
impl DriverGuard {
    pub(crate) fn of(host: u64) -> Self {
        Self { before: DRIVES.replace(host) }
    }
}

#[cfg(feature = "tokio")]
impl Drop for DriverGuard {
    fn drop(&mut self) {
        DRIVES.set(self.before);
    }
}

/// This thread's number in this process; not 0. Unlike the standard library's, the number is there at the
/// end of the process, too.
pub(crate) fn thread_number() -> u64 {
    if THREAD.get() == 0 {
        THREAD.set(LAST_THREAD.fetch_add(1, Ordering::Relaxed) + 1);
    }
    THREAD.get()
}

/// Whether this thread is the driver of `host`.
pub(crate) fn is_driver_of(host: u64) -> bool {
    DRIVES.get() == host
}

/// Whether this thread is the driver of any host, and so must not wait for another driver.
pub(crate) fn is_any_driver() -> bool {
    DRIVES.get() != 0
}

/// The error of a wait on a driver's thread.
pub(crate) fn would_deadlock() -> std::io::Error {
    let text = "a thread that drives a host cannot wait: it is what would end the wait";
    std::io::Error::new(std::io::ErrorKind::Deadlock, text)
}
