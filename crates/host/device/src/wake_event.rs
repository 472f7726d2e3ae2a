//! [`WakeEvent`]: an eventfd by which one thread wakes another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd of this process.
#[derive(Debug)]
pub(crate) struct WakeEvent(OwnedFd);

impl WakeEvent {
    /// # Errors
    /// The system's, if the process has no descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor readable.
    pub(crate) fn wake(&self) {
        // Fails only when 2^64 - 1 wake-ups are unread; then the reader is awake anyhow.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Wake-ups since the last call; 0 if none has arrived yet.
    pub(crate) fn take(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.0, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
