//! [`Bell`]: how a network wakes a thread that sleeps in the kernel.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use crate::boundary::{Failure, Result};
use crate::network;

/// A descriptor that is readable from a wake-up to the next [`quiet`](Self::quiet).
#[derive(Debug)]
pub(crate) struct Bell {
    fd: OwnedFd,
    rung: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, flags) };
        if fd < 0 {
            return Err(Failure::last());
        }
        // SAFETY: just made, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(network::moved_up(fd)) };
        Ok(Arc::new(Self { fd, rung: AtomicBool::new(false) }))
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    /// Makes the descriptor unreadable. What wakes from now on rings again: look after this. `readable`: the kernel
    /// said so, and knows of a waker that writes after its flag was taken back.
    pub(crate) fn quiet(&self, readable: bool) {
        if readable || self.rung.load(Ordering::Acquire) {
            self.transfer(false);
            // After the read: a bell that rings between the two would be read with the flag still set.
            self.rung.swap(false, Ordering::AcqRel);
        }
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Writes or reads the counter. A full or an empty one is as good.
    fn transfer(&self, ring: bool) {
        let mut count = 1u64;
        if ring {
            // SAFETY: the eight bytes are this function's.
            unsafe { libc::write(self.raw(), (&raw const count).cast(), 8) };
        } else {
            // SAFETY: the eight bytes are this function's.
            unsafe { libc::read(self.raw(), (&raw mut count).cast(), 8) };
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.transfer(true);
        }
    }
}
