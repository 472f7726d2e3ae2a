//! The system calls of links over Unix sockets that gather and scatter. All of their `unsafe` is in
//! this file.

use std::ffi::c_int;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use pagewire_mem::{Frag, PageWriter};

use crate::limits::{MAX_RECEIVE_RUNS, MAX_SEND_VECTORS};

/// Pieces of memory that one call sends, in order.
pub(crate) struct Pieces<'a> {
    list: Vec<libc::iovec>,
    bytes: usize,
    _lent: PhantomData<&'a [u8]>,
}

impl<'a> Pieces<'a> {
    pub(crate) fn new() -> Self {
        Self { list: Vec::with_capacity(MAX_SEND_VECTORS), bytes: 0, _lent: PhantomData }
    }

    /// Whether `pieces` more pieces fit one call.
    pub(crate) fn has_room(&self, pieces: usize) -> bool {
        self.list.len() + pieces <= MAX_SEND_VECTORS
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push(&mut self, bytes: &'a [u8]) {
        self.add(bytes.as_ptr(), bytes.len());
    }

    /// The bytes from `skip` on.
    pub(crate) fn push_frag(&mut self, frag: &'a Frag, skip: usize) {
        if skip < frag.len() {
            self.add(frag.as_ptr().wrapping_add(skip), frag.len() - skip);
        }
    }

    fn add(&mut self, at: *const u8, len: usize) {
        if len > 0 && self.has_room(1) {
            self.list.push(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len });
            self.bytes += len;
        }
    }

    /// Sends them on a stream, without waiting; returns how many bytes it took.
    pub(crate) fn send(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.send_to(fd, &Name::NONE)
    }

    /// Sends them as one datagram to this address, without waiting.
    pub(crate) fn send_to(&self, fd: BorrowedFd<'_>, to: &Name) -> io::Result<usize> {
        // SAFETY: all zeroes is a valid `msghdr`: null pointers and lengths of zero.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = self.list.as_ptr().cast_mut();
        message.msg_iovlen = self.list.len() as _;
        if to.len > 0 {
            message.msg_name = (&raw const to.address).cast_mut().cast();
            message.msg_namelen = to.len;
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message, its address and its vectors outlive the call, and the kernel writes
        // to none of them. Each vector is readable for its length: it is part of a slice or of a
        // fragment that is borrowed for `'a`. Fragments are handed over as addresses; no reference
        // is formed over bytes that others may change.
        let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) };
        check(sent)
    }
}

/// Receives from a stream into the writer's spare bytes, at most `most`, without waiting. Returns
/// how many came, and for how many there was room; 0 came: the other end is closed.
pub(crate) fn receive(
    fd: BorrowedFd<'_>,
    writer: &mut PageWriter,
    most: usize,
) -> io::Result<(usize, usize)> {
    let (runs, used, room) = spare(writer, most);
    // SAFETY: all zeroes is a valid `msghdr`: null pointers and lengths of zero.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = runs.as_ptr().cast_mut();
    message.msg_iovlen = used as _;
    // SAFETY: each vector is writable for its length while the call lasts: spare bytes are written
    // by the holder of the writer only, which is borrowed exclusively, and no fragment covers them.
    let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    Ok((check(got)?, room))
}

/// A datagram that was received.
pub(crate) struct ReceivedDatagram {
    pub(crate) len: usize,
    /// The datagram was longer than there was room.
    pub(crate) cut: bool,
    pub(crate) from: Name,
}

/// Receives one datagram into the writer's spare bytes, at most `most`, without waiting.
pub(crate) fn receive_from(
    fd: BorrowedFd<'_>,
    writer: &mut PageWriter,
    most: usize,
) -> io::Result<ReceivedDatagram> {
    let (runs, used, _) = spare(writer, most);
    let mut from = Name::NONE;
    // SAFETY: all zeroes is a valid `msghdr`: null pointers and lengths of zero.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = runs.as_ptr().cast_mut();
    message.msg_iovlen = used as _;
    message.msg_name = (&raw mut from.address).cast();
    message.msg_namelen = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the vectors as in `receive`; the address is a live structure of the given length.
    let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let len = check(got)?;
    from.len = message.msg_namelen;
    Ok(ReceivedDatagram { len, cut: message.msg_flags & libc::MSG_TRUNC != 0, from })
}

/// The writer's spare runs, cut to `most` bytes: the vectors, the number in use, and their bytes.
fn spare(writer: &PageWriter, most: usize) -> ([libc::iovec; MAX_RECEIVE_RUNS], usize, usize) {
    let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let (mut list, mut used, mut room) = ([none; MAX_RECEIVE_RUNS], 0, 0);
    for (slot, (at, len)) in list.iter_mut().zip(writer.spare_runs()) {
        let len = len.min(most - room);
        if len == 0 {
            break;
        }
        *slot = libc::iovec { iov_base: at.as_ptr().cast(), iov_len: len };
        (used, room) = (used + 1, room + len);
    }
    (list, used, room)
}

/// The address of a Unix socket, as the kernel gave it.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    address: libc::sockaddr_un,
    len: libc::socklen_t,
}

impl Name {
    const NONE: Self =
        Self { address: libc::sockaddr_un { sun_family: 0, sun_path: [0; 108] }, len: 0 };

    /// Whether it names a socket: one that is not bound has no path.
    pub(crate) fn is_named(&self) -> bool {
        self.len as usize > size_of::<libc::sa_family_t>()
    }

    /// The bytes that count.
    fn path(&self) -> &[libc::c_char] {
        let len = (self.len as usize).saturating_sub(size_of::<libc::sa_family_t>());
        self.address.sun_path.get(..len).unwrap_or(&self.address.sun_path)
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.path().iter().map(|&c| c as u8).take_while(|&c| c != 0);
        write!(f, "{}", path.map(char::from).collect::<String>())
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.path() == other.path()
    }
}

fn check(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

const _: () = assert!(MAX_SEND_VECTORS <= c_int::MAX as usize);
