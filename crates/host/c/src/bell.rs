//! [`Bell`]: how a network wakes a thread that sleeps in the kernel.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
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
        #[allow(unsafe_code)]
        // SAFETY: no memory is passed; a descriptor that was made is nobody else's.
        let fd = unsafe {
            let fd = libc::eventfd(0, flags);
            if fd < 0 {
                return Err(Failure::last());
            }
            <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(network::moved_up(fd))
        };
        Ok(Arc::new(Self { fd, rung: AtomicBool::new(false) }))
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    /// Makes the descriptor unreadable. What wakes from now on rings again: look after this.
    pub(crate) fn quiet(&self) {
        if self.rung.load(Ordering::Acquire) {
            self.transfer(false);
            // After the read: a bell that rings between the two would be read with the flag still set.
            self.rung.swap(false, Ordering::AcqRel);
        }
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    #[allow(unsafe_code)]
    fn transfer(&self, ring: bool) {
        let mut count = 1u64;
        // SAFETY: the eight bytes are this function's. A full or an empty counter is as good.
        unsafe {
            match ring {
                true => libc::write(self.raw(), (&raw const count).cast(), 8),
                false => libc::read(self.raw(), (&raw mut count).cast(), 8),
            };
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
