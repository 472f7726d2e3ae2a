//! The calls as a C program makes them: pointers, lengths, structures. Every pointer of a caller
//! is resolved here and nowhere else.
//!
//! The methods of [`Raw`] take what the functions of that name in `libc` take, and return `Ok` with what
//! those return, or the error number. A null pointer to memory that a call needs is `EFAULT`; other bad
//! pointers cannot be distinguished from good ones here.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call's pointers come from one caller, under one contract"
)]

mod many;
mod mapping;

use std::io::{IoSlice, IoSliceMut};
use std::ptr;
use std::time::Duration;

use libc::{c_int, c_short, c_ulong, c_void, iovec, msghdr, sockaddr, socklen_t};

use crate::backend::Backend;
use crate::descriptors::Descriptors;
use crate::events::Events;
use crate::file::epoll::{EpollEvent, EpollOp};
use crate::limits::{MAX_CONTROL, MAX_DESCRIPTORS, MAX_DROPPED, MAX_IOV, MAX_OPTION, MAX_RW_BYTES};
use crate::message::{RawRange, ReceiveMessage, SendMessage};
use crate::{Errno, Fd, PollFd, SockAddr};

use mapping::TCP_ZEROCOPY_RECEIVE;

type Result<T> = core::result::Result<T, Errno>;

/// A table of descriptors, for C callers.
#[derive(Debug)]
pub struct Raw<'d, B: Backend>(pub &'d Descriptors<B>);

/// Bytes of the longest address that a caller may pass (`sockaddr_storage`).
const MAX_ADDRESS: usize = 128;

/// A piece of memory, of which a call uses at most [`MAX_RW_BYTES`], as on Linux.
fn single(start: *const c_void, len: usize) -> RawRange {
    RawRange { start: start.cast(), len: len.min(MAX_RW_BYTES) }
}

/// Memory of the caller as a slice; nothing of it for a length of 0.
///
/// # Safety
/// `start` is null, or `len` bytes behind it are readable for `'a`, and not written.
unsafe fn bytes<'a>(start: *const u8, len: usize) -> Result<&'a [u8]> {
    match (start.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno::FAULT),
        // SAFETY: not null, so readable, says the caller.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(start, len) }),
    }
}

/// Elements in the caller's memory to write to; none for a count of 0.
///
/// # Safety
/// `start` is null, or `count` elements behind it are the callee's alone for `'a`.
unsafe fn slice_mut<'a, T>(start: *mut T, count: usize) -> Result<&'a mut [T]> {
    match (start.is_null(), count) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Errno::FAULT),
        // SAFETY: not null, so ours to write, says the caller.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts_mut(start, count) }),
    }
}

/// Ranges as slices.
///
/// # Safety
/// Every range is readable for `'a`.
pub(crate) unsafe fn borrow<'a>(ranges: &[RawRange]) -> Vec<IoSlice<'a>> {
    let slice = |range: &RawRange| {
        // SAFETY: the caller promises readable memory; a range of no bytes is not read.
        let bytes = unsafe { bytes(range.start, range.len) };
        IoSlice::new(bytes.unwrap_or_default())
    };
    ranges.iter().map(slice).collect()
}

/// An address that the caller passed; `None` for a null pointer.
///
/// # Safety
/// `addr` is null, or `len` bytes behind it are readable for `'a`.
unsafe fn address<'a>(addr: *const sockaddr, len: socklen_t) -> Result<Option<&'a [u8]>> {
    if len as usize > MAX_ADDRESS {
        return Err(Errno::INVAL);
    }
    if addr.is_null() {
        return Ok(None);
    }
    // SAFETY: readable, says the caller.
    unsafe { bytes(addr.cast(), len as usize) }.map(Some)
}

/// Writes an address where the caller wants it, cut to the room there is, and its whole length.
///
/// # Safety
/// `addr` is null, or as many bytes behind it as `*len` says are writable; `len` is then valid.
unsafe fn put_address(
    name: Option<&SockAddr>,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<()> {
    if addr.is_null() {
        return Ok(());
    }
    if len.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: not null, and valid, says the caller.
    let room = unsafe { len.read_unaligned() } as usize;
    if room > i32::MAX as usize {
        return Err(Errno::INVAL);
    }
    let name = name.map_or(&[][..], SockAddr::as_bytes);
    // SAFETY: writable for as many bytes as `*len` says.
    let into = unsafe { slice_mut(addr.cast::<u8>(), room.min(name.len())) }?;
    into.copy_from_slice(&name[..into.len()]);
    // SAFETY: not null, and valid, says the caller.
    unsafe { len.write_unaligned(name.len() as socklen_t) };
    Ok(())
}

/// The pieces of an I/O vector: as Linux, no more than [`MAX_RW_BYTES`] of them together.
///
/// # Safety
/// `iov` points to `count` elements, each of which is null or names readable (and, for a call that
/// receives, writable) memory.
unsafe fn pieces(iov: *const iovec, count: usize, too_many: Errno) -> Result<Vec<RawRange>> {
    if count > MAX_IOV {
        return Err(too_many);
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    if iov.is_null() {
        return Err(Errno::FAULT);
    }
    let mut left = MAX_RW_BYTES;
    let piece = |at: usize| {
        // SAFETY: not null, so it points to `count` elements.
        let v = unsafe { iov.wrapping_add(at).read_unaligned() };
        if v.iov_len > isize::MAX as usize {
            return Err(Errno::INVAL);
        }
        let len = v.iov_len.min(left);
        left -= len;
        Ok(RawRange { start: v.iov_base.cast_const().cast(), len })
    };
    (0..count).map(piece).collect()
}

/// Whether one of the pieces is certainly no memory of the caller's.
fn is_fault(ranges: &[RawRange]) -> bool {
    ranges.iter().any(|range| range.start.is_null() && range.len > 0)
}

/// The pieces to receive into.
///
/// # Safety
/// Every piece is null or writable for `'a`, and they do not overlap.
unsafe fn pieces_mut<'a>(ranges: &[RawRange]) -> Result<Vec<IoSliceMut<'a>>> {
    let piece = |range: &RawRange| {
        // SAFETY: writable, says the caller.
        unsafe { slice_mut(range.start.cast_mut(), range.len) }.map(IoSliceMut::new)
    };
    ranges.iter().map(piece).collect()
}

/// The calls, under one contract.
macro_rules! calls {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident(
        &$self:ident $(, $arg:ident: $kind:ty)*
    ) -> $out:ty $call:block)*) => {
        impl<B: Backend> Raw<'_, B> {$(
            $(#[$doc])*
            ///
            /// # Safety
            /// Each pointer, those in structures included, is null or valid for the length beside it: to be
            /// read, or written and the callee's alone, while the call lasts. The payload of a call with
            /// `MSG_ZEROCOPY` is so until its notification was received.
            $vis unsafe fn $name(&$self $(, $arg: $kind)*) -> $out {
                // SAFETY: the contract above, which the caller keeps; null was checked where it may come.
                unsafe { $call }
            }
        )*}
    };
}

calls! {
    /// `bind(2)`.
    pub fn bind(&self, fd: Fd, addr: *const sockaddr, len: socklen_t) -> Result<()> {
        let addr = address(addr, len)?;
        self.0.bind(fd, addr.ok_or(Errno::FAULT)?)
    }

    /// `connect(2)`.
    pub fn connect(&self, fd: Fd, addr: *const sockaddr, len: socklen_t) -> Result<()> {
        let addr = address(addr, len)?;
        self.0.connect(fd, addr.ok_or(Errno::FAULT)?)
    }

    /// `accept4(2)`.
    pub fn accept4(
        &self, fd: Fd, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int
    ) -> Result<Fd> {
        let (fd, peer) = self.0.accept4(fd, flags)?;
        put_address(Some(&peer), addr, len).inspect_err(|_| {
            let _ = self.0.close(fd);
        })?;
        Ok(fd)
    }

    /// `getsockname(2)`.
    pub fn getsockname(&self, fd: Fd, addr: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
        let name = self.0.getsockname(fd)?;
        put_address(Some(&name), addr, len)
    }

    /// `getpeername(2)`.
    pub fn getpeername(&self, fd: Fd, addr: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
        let name = self.0.getpeername(fd)?;
        put_address(Some(&name), addr, len)
    }

    /// `read(2)`.
    pub fn read(&self, fd: Fd, buf: *mut c_void, len: usize) -> Result<usize> {
        let range = single(buf, len);
        self.readv_ranges(fd, &[range])
    }

    /// `readv(2)`.
    pub fn readv(&self, fd: Fd, iov: *const iovec, count: c_int) -> Result<usize> {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        let ranges = pieces(iov, count, Errno::INVAL)?;
        self.readv_ranges(fd, &ranges)
    }

    fn readv_ranges(&self, fd: Fd, ranges: &[RawRange]) -> Result<usize> {
        self.check(ranges, fd, false)?;
        let mut iov = pieces_mut(ranges)?;
        self.0.readv(fd, &mut iov)
    }

    /// `recvfrom(2)`; `recv(2)` with a null `addr`.
    pub fn recvfrom(
        &self, fd: Fd, buf: *mut c_void, len: usize, flags: c_int, addr: *mut sockaddr,
        addr_len: *mut socklen_t
    ) -> Result<usize> {
        let range = [single(buf, len)];
        if is_fault(&range) && flags & libc::MSG_TRUNC == 0 {
            return Err(self.0.before_fault(fd, false));
        }
        // With MSG_TRUNC, a stream's bytes are dropped and the memory is not touched.
        let mut dropped;
        let mut iov = if is_fault(&range) {
            // Zeroed by the allocator: pages that are not touched take no memory.
            dropped = vec![0; range[0].len.min(MAX_DROPPED)];
            vec![IoSliceMut::new(&mut dropped)]
        } else {
            pieces_mut(&range)?
        };
        let mut message = ReceiveMessage { iov: &mut iov, ..Default::default() };
        let n = self.0.recvmsg(fd, &mut message, flags)?;
        put_address(message.name.as_ref(), addr, addr_len)?;
        Ok(n)
    }

    /// `recvmsg(2)`.
    pub fn recvmsg(&self, fd: Fd, message: *mut msghdr, flags: c_int) -> Result<usize> {
        let header = message.as_mut().ok_or(Errno::FAULT)?;
        // As Linux, before anything is taken.
        if !header.msg_name.is_null() && (header.msg_namelen as i32) < 0 {
            return Err(Errno::INVAL);
        }
        let ranges = pieces(header.msg_iov, header.msg_iovlen, Errno::MSGSIZE)?;
        self.check(&ranges, fd, false)?;
        let mut iov = pieces_mut(&ranges)?;
        if header.msg_controllen > i32::MAX as usize {
            return Err(Errno::NOBUFS);
        }
        let control_len = if header.msg_control.is_null() { 0 } else { header.msg_controllen };
        let control = slice_mut(header.msg_control.cast(), control_len)?;
        let mut received = ReceiveMessage { iov: &mut iov, control, ..Default::default() };
        let n = self.0.recvmsg(fd, &mut received, flags)?;
        header.msg_flags = received.flags;
        header.msg_controllen = received.control_len as _;
        if !header.msg_name.is_null() {
            put_address(received.name.as_ref(), header.msg_name.cast(), &mut header.msg_namelen)?;
        }
        Ok(n)
    }

    /// `write(2)`.
    pub fn write(&self, fd: Fd, buf: *const c_void, len: usize) -> Result<usize> {
        self.writev_ranges(fd, &[single(buf, len)])
    }

    /// `writev(2)`.
    pub fn writev(&self, fd: Fd, iov: *const iovec, count: c_int) -> Result<usize> {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        let ranges = pieces(iov, count, Errno::INVAL)?;
        self.writev_ranges(fd, &ranges)
    }

    fn writev_ranges(&self, fd: Fd, ranges: &[RawRange]) -> Result<usize> {
        self.check(ranges, fd, true)?;
        let iov = borrow(ranges);
        self.0.writev(fd, &iov)
    }

    /// `sendto(2)`; `send(2)` with a null `addr`.
    pub fn sendto(
        &self, fd: Fd, buf: *const c_void, len: usize, flags: c_int, addr: *const sockaddr,
        addr_len: socklen_t
    ) -> Result<usize> {
        let name = address(addr, addr_len)?;
        self.send_ranges(fd, name, &[single(buf, len)], &[], flags)
    }

    /// `sendmsg(2)`.
    pub fn sendmsg(&self, fd: Fd, message: *const msghdr, flags: c_int) -> Result<usize> {
        let header = message.as_ref().ok_or(Errno::FAULT)?;
        let ranges = pieces(header.msg_iov, header.msg_iovlen, Errno::MSGSIZE)?;
        if !header.msg_name.is_null() && (header.msg_namelen as i32) < 0 {
            return Err(Errno::INVAL);
        }
        let name_len = (header.msg_namelen as usize).min(MAX_ADDRESS) as socklen_t;
        let name = address(header.msg_name.cast_const().cast(), name_len)?;
        let name = name.filter(|name| !name.is_empty());
        if header.msg_controllen > MAX_CONTROL {
            return Err(Errno::NOBUFS);
        }
        let control = bytes(header.msg_control.cast_const().cast(), header.msg_controllen)?;
        self.send_ranges(fd, name, &ranges, control, flags)
    }

    fn send_ranges(
        &self, fd: Fd, name: Option<&[u8]>, ranges: &[RawRange], control: &[u8], flags: c_int
    ) -> Result<usize> {
        self.check(ranges, fd, true)?;
        if flags & libc::MSG_ZEROCOPY != 0 {
            return self.0.sendmsg_zerocopy(fd, name, ranges, control, flags);
        }
        let iov = borrow(ranges);
        self.0.sendmsg(fd, &SendMessage { name, iov: &iov, control }, flags)
    }

    /// `setsockopt(2)`.
    pub fn setsockopt(
        &self, fd: Fd, level: c_int, name: c_int, value: *const c_void, len: socklen_t
    ) -> Result<()> {
        let len = usize::try_from(len as i32).map_err(|_| Errno::INVAL)?;
        let value = bytes(value.cast(), len.min(MAX_OPTION))?;
        self.0.setsockopt(fd, level, name, value)
    }

    /// `getsockopt(2)`.
    pub fn getsockopt(
        &self, fd: Fd, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t
    ) -> Result<()> {
        if len.is_null() {
            return Err(Errno::FAULT);
        }
        let room = len.read_unaligned() as i32;
        let room = usize::try_from(room).map_err(|_| Errno::INVAL)?;
        let written = {
            let out = slice_mut(value.cast(), room.min(MAX_OPTION))?;
            if (level, name) == (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) {
                self.zerocopy_receive(fd, out)?
            } else {
                self.0.getsockopt(fd, level, name, out)?
            }
        };
        len.write_unaligned(written as socklen_t);
        Ok(())
    }

    /// `ioctl(2)`, for the requests of [`Descriptors::ioctl`], whose argument points to an `int`.
    pub fn ioctl(&self, fd: Fd, request: c_ulong, argument: *mut c_int) -> Result<()> {
        let mut value = 0;
        if !argument.is_null() {
            value = argument.read_unaligned();
        }
        self.0.ioctl(fd, request, &mut value)?;
        if argument.is_null() {
            return Err(Errno::FAULT);
        }
        argument.write_unaligned(value);
        Ok(())
    }

    /// `poll(2)`, with its timeout in milliseconds.
    pub fn poll(&self, fds: *mut libc::pollfd, count: usize, timeout_ms: c_int) -> Result<usize> {
        // As Linux: more than there can be descriptors.
        if count > MAX_DESCRIPTORS {
            return Err(Errno::INVAL);
        }
        let fds = slice_mut(fds, count)?;
        let entry = |fd: &libc::pollfd| PollFd {
            fd: fd.fd,
            events: Events::from_bits_retain(u32::from(fd.events as u16)),
            revents: Events::empty(),
        };
        let mut entries: Vec<_> = fds.iter().map(entry).collect();
        let ready = self.0.poll(&mut entries, milliseconds(timeout_ms))?;
        for (fd, entry) in fds.iter_mut().zip(&entries) {
            fd.revents = entry.revents.bits() as c_short;
        }
        Ok(ready)
    }

    /// `epoll_ctl(2)`.
    pub fn epoll_ctl(
        &self, epoll: Fd, op: c_int, fd: Fd, event: *mut libc::epoll_event
    ) -> Result<()> {
        let event = || {
            if event.is_null() {
                return Err(Errno::FAULT);
            }
            let event = ptr::read_unaligned(event);
            Ok(EpollEvent { events: Events::from_bits_retain(event.events), data: event.u64 })
        };
        let op = match op {
            libc::EPOLL_CTL_ADD => EpollOp::Add(event()?),
            libc::EPOLL_CTL_MOD => EpollOp::Modify(event()?),
            libc::EPOLL_CTL_DEL => EpollOp::Delete,
            _ => return Err(Errno::INVAL),
        };
        self.0.epoll_ctl(epoll, op, fd)
    }

    /// `epoll_wait(2)`, with its timeout in milliseconds.
    pub fn epoll_wait(
        &self, epoll: Fd, events: *mut libc::epoll_event, max: c_int, timeout_ms: c_int
    ) -> Result<usize> {
        let max = usize::try_from(max).ok().filter(|&max| max > 0).ok_or(Errno::INVAL)?;
        let events = slice_mut(events, max.min(MAX_IOV))?;
        let mut found = vec![EpollEvent::default(); events.len()];
        let n = self.0.epoll_wait(epoll, &mut found, milliseconds(timeout_ms))?;
        for (event, found) in events.iter_mut().zip(&found[..n]) {
            *event = libc::epoll_event { events: found.events.bits(), u64: found.data };
        }
        Ok(n)
    }

    /// `pipe2(2)`.
    pub fn pipe2(&self, fds: *mut c_int, flags: c_int) -> Result<()> {
        if fds.is_null() {
            return Err(Errno::FAULT);
        }
        let (read, write) = self.0.pipe2(flags)?;
        fds.cast::<[c_int; 2]>().write_unaligned([read, write]);
        Ok(())
    }
}

impl<B: Backend> Raw<'_, B> {
    fn check(&self, ranges: &[RawRange], fd: Fd, sending: bool) -> Result<()> {
        if is_fault(ranges) { Err(self.0.before_fault(fd, sending)) } else { Ok(()) }
    }

    /// `splice(2)`. Neither pipes nor sockets have offsets: a pointer to one is `ESPIPE`.
    pub fn splice(
        &self,
        from: Fd,
        from_offset: *const i64,
        to: Fd,
        to_offset: *const i64,
        len: usize,
        flags: u32,
    ) -> Result<usize> {
        if !from_offset.is_null() || !to_offset.is_null() {
            return Err(Errno::SPIPE);
        }
        self.0.splice(from, to, len, flags)
    }
}

/// A timeout in milliseconds: negative is for ever.
fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}
