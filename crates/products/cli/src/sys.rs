//! Calls without a safe form: this crate's only unsafe code.
//!
//! A page of a mapped file vanishes when somebody shortens the file. The kernel's gathering write reports
//! such a page as `EFAULT`, a counted drop; a thread that touches it gets zeros from the `SIGBUS` handler
//! here. The connection is aborted; the server goes on.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use pagewire::memory::Frag;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::Pid;

use crate::limits::MAX_IO_SLICES;

/// Bytes in the smallest page of every machine that Pagewire runs on.
const PAGE: usize = pagewire::memory::PAGE_SIZE;

/// Pages that were touched although their file had become shorter.
static LOST_PAGES: AtomicU64 = AtomicU64::new(0);

/// How many pages of mapped files were touched after a truncation.
pub(crate) fn lost_pages() -> u64 {
    LOST_PAGES.load(Ordering::Relaxed)
}

/// From now on, touching a page of a mapped file beyond the file's end reads zeros instead of
/// ending the process; the server notices by the file's length and aborts the connection.
pub(crate) fn survive_truncated_files() -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `sigaction`: no handler, an empty mask, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: `action` is initialised and its handler has the signature that SA_SIGINFO asks for;
    // the handler itself only makes calls that are safe in a signal handler.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler installed with SA_SIGINFO, and it
    // stays as it is while the handler runs.
    let info = unsafe { &*info };
    // SAFETY: for SIGBUS the address field is the one that is set.
    let address = unsafe { info.si_addr() };
    let page = address.map_addr(|a| a & !(PAGE - 1));
    let fixed = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mapped = if info.si_code == libc::BUS_ADRERR {
        // SAFETY: the kernel just said that this page is mapped and has nothing behind it, so no
        // live value is in it; a page of zeros takes its place in a mapping that stays ours. `mmap`
        // is a plain system call: it allocates nothing, and leaves errno alone unless it fails.
        unsafe { libc::mmap(page, PAGE, libc::PROT_READ, fixed, -1, 0) }
    } else {
        libc::MAP_FAILED
    };
    if mapped == libc::MAP_FAILED {
        // SAFETY: async-signal-safe; the fault repeats and ends the process as it would have.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    } else {
        LOST_PAGES.fetch_add(1, Ordering::Relaxed);
    }
}

/// The descriptors above standard error that this process was started with.
#[derive(Debug)]
pub(crate) struct Inherited(Vec<RawFd>);

impl Inherited {
    /// To be called before this process opens anything.
    pub(crate) fn find() -> Self {
        let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut all: Vec<RawFd> = numbers.filter(|&number| number > 2).collect();
        // The directory's own is closed by now.
        // SAFETY: the numbers are only asked about.
        all.retain(|&number| fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).is_ok());
        Self(all)
    }

    /// Takes a descriptor by its number, or a copy of standard input, output or error. Programs that are
    /// started from here on do not get it. `None`: there is no such descriptor.
    pub(crate) fn take(&mut self, number: u32) -> Option<File> {
        let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().ok().map(File::from);
        match number {
            0 => return copy(io::stdin().as_fd()),
            1 => return copy(io::stdout().as_fd()),
            2 => return copy(io::stderr().as_fd()),
            _ => {}
        }
        let at = self.0.iter().position(|&one| u32::try_from(one) == Ok(number))?;
        // SAFETY: it was open when this process began, nothing here opened or closed it, and it is on
        // the list no more.
        let fd = unsafe { OwnedFd::from_raw_fd(self.0.swap_remove(at)) };
        fcntl_setfd(&fd, fcntl_getfd(&fd).ok()? | FdFlags::CLOEXEC).ok()?;
        Some(fd.into())
    }

    /// Closes those that were not taken.
    pub(crate) fn close(self) {
        for number in self.0 {
            // SAFETY: as above.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}

/// Removes variables from the environment. To be called before there are threads.
pub(crate) fn remove_variables(names: &[&str]) {
    for name in names {
        // SAFETY: this process has one thread, so nobody else reads the environment meanwhile.
        unsafe { std::env::remove_var(name) };
    }
}

/// Makes a child of this process, which goes on from here, too: `None` there. To be called before there are threads.
pub(crate) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: this process has one thread, so the child is a whole copy of it: no lock is held by a thread that
    // the child lacks.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        child if child > 0 => Ok(Pid::from_raw(child)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes fragments where they lie, in one call, at a place in a file or wherever `to` stands.
pub(crate) fn write_frags(
    to: BorrowedFd<'_>,
    frags: &[Frag],
    at: Option<u64>,
) -> io::Result<usize> {
    let pieces: Vec<libc::iovec> = frags
        .iter()
        .take(MAX_IO_SLICES)
        .map(|f| libc::iovec { iov_base: f.as_ptr().cast_mut().cast(), iov_len: f.len() })
        .collect();
    let (fd, first, count) = (to.as_raw_fd(), pieces.as_ptr(), pieces.len() as libc::c_int);
    let written = match at {
        Some(at) => {
            let at = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::FileTooLarge)?;
            // SAFETY: every piece is a fragment's memory, mapped and readable for its length while
            // `frags` lives; the kernel does not write to it.
            unsafe { libc::pwritev(fd, first, count, at) }
        }
        // SAFETY: as above.
        None => unsafe { libc::writev(fd, first, count) },
    };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}
