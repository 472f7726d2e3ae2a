//! The two calls of this directory that have no safe form.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::thread::{UnshareFlags, unshare_unsafe};

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

/// Moves this process, which has one thread, into new user, network and mount namespaces.
pub(super) fn new_namespaces() -> io::Result<()> {
    let flags = UnshareFlags::NEWUSER | UnshareFlags::NEWNET | UnshareFlags::NEWNS;
    // SAFETY: the flags do not stop sharing descriptors, so none is used that others have closed.
    Ok(unsafe { unshare_unsafe(flags) }?)
}
