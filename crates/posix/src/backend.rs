//! What descriptors run on: a stack, a clock, and a way to wait.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pagewire_mem::Instant;
use pagewire_stack::Stack;

use crate::notice::{Notices, Signal};
use crate::{Errno, Fd};

/// A stack behind a lock, with a clock. Called from any thread.
pub trait Backend: Send + Sync {
    /// Sends every [`Event`](pagewire_stack::Event) to [`Notices::notify`], from any thread, with
    /// or without the stack's lock: it never calls back. Called once, before anything else.
    fn attach(&self, notices: Arc<Notices>);

    /// The present moment.
    fn now(&self) -> Instant;

    /// Runs `verb` on the stack, under its lock; then sends output and dispatches events.
    fn with<T>(&self, verb: impl FnOnce(&mut Stack, Instant) -> T) -> T;

    /// Blocks the calling thread until `signal` is set or the clock has reached `deadline` (`None`:
    /// for ever), while the stack goes on. May return early. Setting the signal unparks the thread.
    fn wait(&self, signal: &Signal, deadline: Option<Instant>);

    /// The time of day at the moment `at` of the clock, since 1970.
    fn time_of_day(&self, at: Instant) -> Duration {
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        today.saturating_sub(self.now().saturating_since(at))
    }

    /// The number for a new descriptor; `None` for the table's lowest free one, as Linux does.
    ///
    /// # Errors
    /// The error of the call that wants the descriptor.
    fn open_number(&self) -> Result<Option<Fd>, Errno> {
        Ok(None)
    }

    /// The descriptor `fd` is closed: a number from [`open_number`](Self::open_number) is free.
    fn close_number(&self, fd: Fd) {
        let _ = fd;
    }
}
