//! Wake-ups: the descriptor that the device waits on, and the eventfds of the rings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};

use super::aio::Aio;
use crate::wake_event::WakeEvent;

/// Events taken from the kernel at once; their identity does not matter.
const EVENTS: usize = 16;

/// Everything that can wake the device, edge-triggered: the other side's eventfds are not read.
#[derive(Debug)]
pub(super) struct Events {
    epoll: OwnedFd,
}

impl Events {
    pub(super) fn new(wake: &WakeEvent) -> io::Result<Self> {
        let events = Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? };
        events.watch(wake.fd())?;
        Ok(events)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Wakes the device when `fd` is written to.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(0), flags)?)
    }

    /// Ends the watch. Before the descriptor is closed: the other side has the same file open.
    pub(super) fn forget(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Takes the events that woke the device. One system call.
    pub(super) fn clear(&self) {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; EVENTS];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = epoll::wait(&self.epoll, events.as_mut_slice(), Some(&now));
    }
}

/// Signals guests and front ends through their eventfds.
#[derive(Debug)]
pub(super) enum Signals {
    /// By the kernel: never waits, whatever the front end does with the file.
    Kernel(&'static Aio),
    /// By a write, which a trusted front end does not make wait.
    Write,
}

impl Signals {
    /// For front ends that may or may not be trusted.
    pub(super) fn new(trusted: bool) -> io::Result<Self> {
        if trusted { Ok(Self::Write) } else { Aio::shared().map(Self::Kernel) }
    }

    /// Takes a descriptor of a front end as an eventfd; `None` if it is something else.
    pub(super) fn take(&self, fd: OwnedFd) -> Option<OwnedFd> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
        if link.as_os_str() != "anon_inode:[eventfd]" {
            return None;
        }
        if matches!(self, Self::Write) {
            // Without this, a full counter would block; a trusted front end does not undo it.
            rustix::io::ioctl_fionbio(&fd, true).ok()?;
        }
        Some(fd)
    }

    /// Signals an eventfd; `false`: the kernel refused, usually for lack of memory.
    fn send(&self, fd: &OwnedFd) -> bool {
        #[cfg(test)]
        if tests::refuses() {
            return false;
        }
        match self {
            Self::Kernel(aio) => aio.signal(fd.as_fd()).is_ok(),
            // A full counter is unread: the guest has a signal pending.
            Self::Write => {
                let written = rustix::io::write(fd, &1u64.to_ne_bytes());
                matches!(written, Ok(_) | Err(rustix::io::Errno::AGAIN))
            }
        }
    }
}

/// An eventfd of the other side, and whether a signal is pending.
#[derive(Debug, Default)]
pub(super) struct PeerEvent {
    fd: Option<OwnedFd>,
    pending: bool,
}

impl PeerEvent {
    /// Replaces the eventfd; a pending signal is forgotten.
    pub(super) fn set(&mut self, fd: Option<OwnedFd>) {
        *self = Self { fd, pending: false };
    }

    pub(super) fn is_there(&self) -> bool {
        self.fd.is_some()
    }

    /// Whether the kernel refused a signal, which [`retry`](Self::retry) sends again.
    pub(super) fn is_pending(&self) -> bool {
        self.pending
    }

    /// Signals it; `false`: the kernel refused, and the signal is pending from now on.
    pub(super) fn signal(&mut self, signals: &Signals) -> bool {
        self.pending = self.fd.as_ref().is_some_and(|fd| !signals.send(fd));
        !self.pending
    }

    /// Sends an pending signal; `true`: there was one, and it is sent.
    pub(super) fn retry(&mut self, signals: &Signals) -> bool {
        self.pending && self.signal(signals)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    thread_local!(static REFUSED: Cell<u32> = const { Cell::new(0) });

    /// Refuses the next `n` signals that this thread sends.
    pub(in super::super) fn refuse(n: u32) {
        REFUSED.set(n);
    }

    pub(super) fn refuses() -> bool {
        let left = REFUSED.get();
        REFUSED.set(left.saturating_sub(1));
        left > 0
    }
}
