//! Adding to an eventfd that another process has open too, without ever waiting: by the kernel's
//! asynchronous I/O, of which only the notification is used.
//!
//! ```text
//!   write(eventfd)            waits while the counter is full, unless O_NONBLOCK is set: a flag of
//!                             the open file, which any holder of the file may clear
//!   io_submit(read nothing)   completes at once; the kernel adds 1 to the eventfd that the request
//!                             names, and where the counter is full it stays full
//! ```
//!
//! Checking the counter first (`poll`) leaves a gap; `pwritev2` refuses `RWF_NOWAIT` for eventfds.

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, memfd_create};

use super::limits::{NOTICES, NOTICES_READ};

/// A context of asynchronous I/O (`io_setup(2)`), and a file to read nothing from.
#[derive(Debug)]
pub(super) struct Aio {
    context: libc::c_ulong,
    nothing: OwnedFd,
}

/// `struct iocb` of `linux/aio_abi.h`. The key and the read's flags, ordered by endianness, are 0.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent([u64; 4]);

const _: () = assert!(size_of::<Request>() == 64 && size_of::<IoEvent>() == 32);

/// `IOCB_CMD_PREAD`.
const READ: u16 = 0;
/// `IOCB_FLAG_RESFD`: `event_fd` is signalled on completion.
const TELL: u32 = 1;

/// The context of the whole process: the system has few, and releasing one takes milliseconds.
static SHARED: OnceLock<Aio> = OnceLock::new();

impl Aio {
    /// Fails where the kernel has no asynchronous I/O, or the system's contexts are used up.
    pub(super) fn shared() -> io::Result<&'static Self> {
        match SHARED.get() {
            Some(aio) => Ok(aio),
            None => {
                let made = Self::new()?;
                Ok(SHARED.get_or_init(|| made))
            }
        }
    }

    fn new() -> io::Result<Self> {
        // Not `/dev/null`: the process may have given up opening files.
        let nothing = memfd_create("pagewire-nothing", MemfdFlags::CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes one `aio_context_t`, an unsigned long, which outlives it.
        let made =
            unsafe { libc::syscall(libc::SYS_io_setup, c_long::from(NOTICES), &raw mut context) };
        check(made)?;
        Ok(Self { context, nothing })
    }

    /// Adds 1 to an eventfd, at most to a full counter.
    ///
    /// # Errors
    /// Where `fd` is no eventfd, or the kernel has no memory.
    pub(super) fn signal(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self.submit(fd) {
            // Unread events fill their queue; they are not needed.
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {
                self.forget_completions();
                self.submit(fd)
            }
            done => done,
        }
    }

    fn submit(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut request = Request {
            opcode: READ,
            fd: self.nothing.as_raw_fd() as u32,
            flags: TELL,
            event_fd: fd.as_raw_fd() as u32,
            ..Request::default()
        };
        let mut requests = [&raw mut request];
        let requests = requests.as_mut_ptr();
        let one: c_long = 1;
        // SAFETY: the kernel reads one pointer and the request that it points to, both live, while
        // the call lasts; the request is to read no bytes, so no memory is written, then or later.
        check(unsafe { libc::syscall(libc::SYS_io_submit, self.context, one, requests) })
    }

    fn forget_completions(&self) {
        let mut read = [IoEvent::default(); NOTICES_READ];
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (least, most): (c_long, c_long) = (0, NOTICES_READ as c_long);
        let into = read.as_mut_ptr();
        // SAFETY: the kernel writes at most `most` completions, for which there is room, and reads
        // one time span; both outlive the call.
        let _ = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.context, least, most, into, &raw const none)
        };
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: the context is ours and used no more; nothing is under way in it.
        let _ = unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn check(result: c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
