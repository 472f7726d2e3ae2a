//! The calls of this directory, and of the sandbox, that have no safe form.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The user namespace that a namespace belongs to (`linux/nsfs.h`).
const NS_GET_USERNS: u64 = 0xb701;

/// The descriptor that this process was started with, under the number that its arguments say.
/// Programs started from here on do not get it.
pub(super) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number is only asked about, and the call fails if it is no open descriptor.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(fd, fcntl_getfd(fd)? | FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open, as the call above found. The parent made it for this process
    // alone and named it in the arguments; nothing else here opens or closes it: this is the first
    // thing that the process does, before it has threads.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes the standard streams of this process, for good: nothing may print from here on.
pub(super) fn close_standard_streams() {
    for number in 0..=2 {
        // SAFETY: this process has one thread, which uses none of them from here on: the standard library opens
        // nothing by these numbers, and takes errors about them for success.
        unsafe { rustix::io::close(number) };
    }
}

/// Closes what else this process has inherited, but the standard streams: a program may start this one with any
/// descriptors. (Linux before 5.9 has no such call.)
pub(super) fn close_all_but(kept: BorrowedFd<'_>) {
    let kept = kept.as_raw_fd();
    for (first, last) in [(3, kept - 1), (kept + 1, RawFd::MAX)] {
        // SAFETY: this is the first thing that the helper does: it has opened nothing, so it owns nothing but `kept`,
        // which is in neither range. The call takes numbers only, and fails for an empty range.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

/// Moves this thread into new namespaces. With a user namespace among them, it must be the only one.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    let flags = flags.difference(UnshareFlags::FILES);
    // SAFETY: the flags do not stop sharing descriptors, so none is used that others have closed.
    Ok(unsafe { unshare_unsafe(flags) }?)
}

/// The user namespace that owns this namespace.
pub(super) fn owner(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: NS_GET_USERNS takes no argument. It returns a new descriptor, close-on-exec, or -1.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as _) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for this call, and nothing else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
