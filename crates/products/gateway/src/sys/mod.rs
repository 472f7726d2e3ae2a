//! System calls without a safe form: gathering writes and scattering reads. All of this crate's
//! `unsafe` is here and in the file below.

#![allow(unsafe_code)]

pub(crate) mod datagrams;

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use pagewire::memory::Spare;
use pagewire::services::Parts;
use smallvec::SmallVec;

use crate::limits::GATHER;

/// The request whether the next byte is where urgent data ends, from `asm-generic/sockios.h`.
const SIOCATMARK: libc::c_ulong = 0x8905;

/// The result of a gathering write, or of a scattering read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes that the socket took, or gave.
    pub(crate) bytes: usize,
    /// The socket took all that it was offered, or filled all that it was lent, and may have room, or data, for more.
    pub(crate) all: bool,
}

/// Writes fragments where they lie, as many bytes as the socket has room for. `WouldBlock`: none.
/// Memory that a guest has taken away is `EFAULT`.
pub(crate) fn write_parts(fd: BorrowedFd<'_>, parts: Parts<'_>) -> io::Result<Moved> {
    let mut pieces = Pieces::new();
    let mut offered = 0;
    for (frag, len) in parts.take(GATHER) {
        let len = len.min(frag.len());
        pieces.push(frag.as_ptr(), len);
        offered += len;
    }
    let fd = fd.as_raw_fd();
    let n = match pieces.only() {
        Some(piece) => {
            // SAFETY: as for several pieces below.
            unsafe { libc::send(fd, piece.iov_base, piece.iov_len, libc::MSG_NOSIGNAL) }
        }
        None => {
            let message = pieces.message();
            // SAFETY: each piece is readable for its length while the call lasts, because the
            // fragment is borrowed. It is handed to the kernel as an address; no reference is formed
            // over bytes that others may change. The kernel writes to none of them.
            unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) }
        }
    };
    check(n).map(|bytes| Moved { bytes, all: bytes == offered })
}

/// Reads into spare pages, as many bytes as there are and have room. No byte: the stream has ended.
pub(crate) fn read_spare(fd: BorrowedFd<'_>, spare: &mut Spare<'_>) -> io::Result<Moved> {
    let mut pieces = Pieces::new();
    let mut lent = 0;
    for (at, len) in spare.runs().take(GATHER) {
        pieces.push(at.as_ptr(), len);
        lent += len;
    }
    let fd = fd.as_raw_fd();
    let n = match pieces.only() {
        Some(piece) => {
            // SAFETY: as for several pieces below.
            unsafe { libc::recv(fd, piece.iov_base, piece.iov_len, 0) }
        }
        None => {
            // SAFETY: each piece is writable for its length while the call lasts: spare bytes are
            // written only by the holder of `spare`, which is borrowed exclusively, and no fragment
            // covers them yet.
            unsafe { libc::readv(fd, pieces.as_ptr(), pieces.count() as c_int) }
        }
    };
    check(n).map(|bytes| Moved { bytes, all: bytes == lent })
}

/// Whether the next byte to read is where urgent data ends.
pub(crate) fn is_at_mark(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut at: c_int = 0;
    // SAFETY: SIOCATMARK writes one `int`, which outlives the call.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), SIOCATMARK as _, &raw mut at) };
    check(done as isize).map(|_| at != 0)
}

/// Whether the other end of a TCP connection has acknowledged all that was sent. A socket of another kind has nothing to
/// wait for.
pub(crate) fn is_delivered(fd: BorrowedFd<'_>) -> bool {
    // `struct tcp_info`, from `linux/tcp.h`: segments without an acknowledgement, and bytes that were not sent yet.
    const UNACKED: usize = 24;
    const NOT_SENT: usize = 144;
    let mut info = [0_u8; NOT_SENT + 4];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `len` bytes, which the array has, and the length; both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let is_zero = |at: usize| info.get(at..at + 4).is_none_or(|word| word == [0; 4]);
    done != 0 || (is_zero(UNACKED) && is_zero(NOT_SENT))
}

/// The number of the network namespace that a socket is of; a connected Unix socket is of its client's
/// (`SO_NETNS_COOKIE`, Linux 5.14).
pub(crate) fn netns_cookie(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `len` bytes, which the number has, and the length; both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    check(done as isize).map(|_| cookie)
}

/// Has a later `bind` choose no port: `connect` chooses one that is free for its destination
/// (`IP_BIND_ADDRESS_NO_PORT`, which holds for IPv6, too).
pub(crate) fn bind_without_port(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_option(fd, (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT), &1_i32.to_ne_bytes())
}

/// Has a socket send and receive by one interface (`SO_BINDTODEVICE`).
pub(crate) fn bind_to_interface(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    set_option(fd, (libc::SOL_SOCKET, libc::SO_BINDTODEVICE), name.as_bytes())
}

fn set_option(fd: BorrowedFd<'_>, (level, name): (c_int, c_int), value: &[u8]) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: the value is readable for its length while the call lasts, which only reads it.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), len) };
    check(done as isize).map(drop)
}

/// Addresses and lengths for one gathering or scattering call.
struct Pieces(SmallVec<[libc::iovec; GATHER]>);

impl Pieces {
    fn new() -> Self {
        Self(SmallVec::new())
    }

    fn push(&mut self, at: *const u8, len: usize) {
        if len > 0 && self.0.len() < GATHER {
            self.0.push(libc::iovec { iov_base: at.cast_mut().cast::<c_void>(), iov_len: len });
        }
    }

    /// The piece, if there is just one: its call spares the kernel the vector, a tenth of a microsecond or two.
    fn only(&self) -> Option<libc::iovec> {
        match self.0.as_slice() {
            [piece] => Some(*piece),
            _ => None,
        }
    }

    fn as_ptr(&self) -> *const libc::iovec {
        self.0.as_ptr()
    }

    fn count(&self) -> usize {
        self.0.len()
    }

    /// A message of these pieces, valid while they are neither moved nor changed.
    fn message(&mut self) -> libc::msghdr {
        // SAFETY: all zeroes is a valid `msghdr`: null pointers and lengths of zero.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = self.0.as_mut_ptr();
        message.msg_iovlen = self.0.len() as _;
        message
    }
}

fn check(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}
