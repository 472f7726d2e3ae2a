//! Numbers: whose each is, and how a network reserves them in the kernel.
//!
//! A number of a network is, for the kernel, a directory opened with `O_PATH`: reading, writing and waiting on it
//! fail with `EBADF`, in calls that reach the kernel by mistake and in programs that inherit it.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use pagewire_posix::limits::MAX_DESCRIPTORS;
use pagewire_posix::{Errno, Fd, Numbering};

/// The owner of each number: 0 for the kernel, an index plus 1 for a network, [`SET`].
static OWNERS: [AtomicU16; MAX_DESCRIPTORS] = [const { AtomicU16::new(0) }; MAX_DESCRIPTORS];

/// An epoll instance of the kernel's that also watches descriptors of networks.
const SET: u16 = u16::MAX;

/// An epoll instance of the kernel's, so far without members of networks.
const INSTANCE: u16 = u16::MAX - 1;

/// Whose a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Kernel,
    /// The network with this index.
    Network(usize),
    /// The kernel: an epoll instance that was made here, without members of networks.
    Instance,
    /// The kernel: an epoll instance with members of networks.
    Set,
}

/// The owner of `fd`.
#[inline]
pub(crate) fn owner(fd: Fd) -> Owner {
    let number = usize::try_from(fd).ok().and_then(|at| OWNERS.get(at));
    match number.map_or(0, |owner| owner.load(Ordering::Acquire)) {
        0 => Owner::Kernel,
        SET => Owner::Set,
        INSTANCE => Owner::Instance,
        index => Owner::Network(usize::from(index) - 1),
    }
}

/// Notes whose `fd` is. Fails for a number beyond the table.
pub(crate) fn mark(fd: Fd, owner: Owner) -> Result<(), Errno> {
    let at = usize::try_from(fd).map_err(|_| Errno::BADF)?;
    let value = match owner {
        Owner::Kernel => 0,
        Owner::Network(index) => index as u16 + 1,
        Owner::Instance => INSTANCE,
        Owner::Set => SET,
    };
    OWNERS.get(at).ok_or(Errno::MFILE)?.store(value, Ordering::Release);
    Ok(())
}

/// The number is the kernel's again, without being closed: something else has it now.
pub(crate) fn release(fd: Fd) {
    let _ = mark(fd, Owner::Kernel);
}

/// The numbers of the network with this index.
pub(super) fn numbers_of(index: usize) -> Vec<Fd> {
    (0..MAX_DESCRIPTORS as Fd).filter(|&fd| owner(fd) == Owner::Network(index)).collect()
}

/// In a child process: no number is a network's any more.
pub(super) fn forget_all() {
    for owner in &OWNERS {
        if owner.load(Ordering::Relaxed) != 0 {
            owner.store(0, Ordering::Relaxed);
        }
    }
}

/// The numbers of one network.
pub(super) struct Reserved {
    value: u16,
}

impl Reserved {
    pub(super) fn new(index: usize) -> Self {
        Self { value: index as u16 + 1 }
    }

    fn mark(&self, fd: c_int) -> Result<Fd, Errno> {
        match usize::try_from(fd).ok().and_then(|at| OWNERS.get(at)) {
            Some(owner) => owner.store(self.value, Ordering::Release),
            None => {
                close(fd);
                return Err(Errno::MFILE);
            }
        }
        crate::stdio::follow(fd);
        Ok(fd)
    }
}

impl Numbering for Reserved {
    fn open(&self, least: Fd) -> Result<Option<Fd>, Errno> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::fcntl(blank()?, libc::F_DUPFD_CLOEXEC, least) };
        if fd < 0 { Err(last()) } else { self.mark(fd).map(Some) }
    }

    fn claim(&self, fd: Fd) -> Result<(), Errno> {
        // A program that is executed finds something at the numbers of its standard streams.
        let flags = if fd <= 2 { 0 } else { libc::O_CLOEXEC };
        // SAFETY: no memory is passed.
        let made = unsafe { libc::dup3(blank()?, fd, flags) };
        if made < 0 { Err(last()) } else { self.mark(fd).map(drop) }
    }

    fn close(&self, fd: Fd) {
        let owner = usize::try_from(fd).ok().and_then(|at| OWNERS.get(at));
        // A number that was taken over by the kernel's own `dup2` is not closed.
        let is_ours = |owner: &AtomicU16| {
            owner.compare_exchange(self.value, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if owner.is_some_and(is_ours) {
            close(fd);
        }
    }
}

/// The least number of this library's own descriptors, where the process may have twice as many: programs count on the
/// lowest free numbers. Below 1,024: the kernel reads the sets of `select` to the end of its table of descriptors, and
/// an `fd_set` has no more.
const LEAST_INTERNAL: u64 = 896;

/// The least number of this library's own descriptors in this process.
pub(crate) fn least_internal() -> Fd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is this function's.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (limit.rlim_cur / 2).min(LEAST_INTERNAL) as Fd
}

/// An internal descriptor with a high number, if there is one.
pub(crate) fn moved_up(fd: c_int) -> c_int {
    // SAFETY: no memory is passed.
    let high = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, least_internal()) };
    if high < 0 {
        return fd;
    }
    close(fd);
    high
}

/// The descriptor whose duplicates reserve numbers.
fn blank() -> Result<c_int, Errno> {
    static BLANK: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(blank) = BLANK.get() {
        return Ok(blank.as_raw_fd());
    }
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(last());
    }
    let fd = moved_up(fd);
    // SAFETY: just opened, and nobody else's. A second one of a race is closed at once.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(BLANK.get_or_init(|| fd).as_raw_fd())
}

fn close(fd: c_int) {
    // SAFETY: the caller owns the number.
    unsafe { libc::close(fd) };
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
