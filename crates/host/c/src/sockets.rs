//! Linux's calls on one descriptor: the kernel's, or the network's that the descriptor is of.
//!
//! Each function has the type of the C library's function of its name without `pw_`, which the compiler checks.
//! `fcntl` and `ioctl`, variadic in C, take their argument as a machine word: on x86-64 and AArch64 Linux a variadic
//! call passes it in the same register.

#![allow(
    unsafe_code,
    unused_unsafe,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call's pointers come from one caller, under one contract"
)]

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use pagewire::Host;
use pagewire_posix::raw::Raw;
use pagewire_posix::{Descriptors, Errno};

use crate::boundary::{Answer, Failure, Inside, Result, answer, fail_with, panicked};
use crate::epoll;
use crate::network::{self, Owner, owner};

/// A call's result in the form of C.
pub(crate) trait IntoAnswer<T> {
    fn into_answer(self) -> T;
}

impl IntoAnswer<c_int> for () {
    fn into_answer(self) -> c_int {
        0
    }
}

impl IntoAnswer<c_int> for c_int {
    fn into_answer(self) -> c_int {
        self
    }
}

impl IntoAnswer<c_int> for usize {
    fn into_answer(self) -> c_int {
        c_int::try_from(self).unwrap_or(c_int::MAX)
    }
}

impl IntoAnswer<ssize_t> for usize {
    fn into_answer(self) -> ssize_t {
        self as ssize_t
    }
}

/// Runs a call on the network with this index.
pub(crate) fn on<T: Answer, R: IntoAnswer<T>>(
    index: usize,
    call: impl FnOnce(&Descriptors<Host>) -> core::result::Result<R, Errno>,
) -> T {
    let _inside = Inside::enter();
    let done = catch_unwind(AssertUnwindSafe(|| {
        network::with_network(index, |network| call(&network.files))
    }));
    match done {
        Ok(Ok(Ok(done))) => done.into_answer(),
        // The frequent failure, `EAGAIN`, has no text.
        Ok(Ok(Err(errno))) => fail_with(errno),
        Ok(Err(failure)) => answer(|| Err(failure)),
        Err(_) => answer(|| Err(panicked())),
    }
}

/// Functions of C that are the kernel's, or a network's: whose the first argument is.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $kernel:ident($fd:ident: c_int $(, $arg:ident: $kind:ty)*) -> $out:ty
        $([raises unless $flags:expr])? => |$files:ident| $call:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C library's function. The payload of a send with `MSG_ZEROCOPY` stays readable until its
        /// notification was received.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($fd: c_int $(, $arg: $kind)*) -> $out {
            let Owner::Network(index) = owner($fd) else {
                // SAFETY: the caller's promise for the C library's function.
                return unsafe { libc::$kernel($fd $(, $arg)*) };
            };
            // SAFETY: the caller's promise is that of the call.
            let done = on(index, |$files| unsafe { $call });
            $(if done == <$out as Answer>::FAILED {
                raise_broken_pipe(index, $fd, $flags);
            })?
            done
        }
    )*};
}

/// After a failed send: a stream whose peer or whose own end is gone raises `SIGPIPE`, as in Linux, unless `flags` has
/// `MSG_NOSIGNAL`. The error number is left alone.
#[cold]
pub(crate) fn raise_broken_pipe(index: usize, fd: c_int, flags: c_int) {
    let failed = std::io::Error::last_os_error();
    if failed.raw_os_error() != Some(libc::EPIPE) || flags & libc::MSG_NOSIGNAL != 0 {
        return;
    }
    let mut kind = [0; 4];
    let known = network::network(index).is_ok_and(|network| {
        network.files.getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, &mut kind).is_ok()
    });
    if known && i32::from_ne_bytes(kind) == libc::SOCK_STREAM {
        // SAFETY: no memory is passed.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    crate::boundary::set_errno(libc::EPIPE);
}

/// Checks that the two functions have the same type.
macro_rules! same {
    ($($name:ident = $kernel:ident($($kind:ty),*) -> $out:ty;)*) => {
        $(const _: [unsafe extern "C" fn($($kind),*) -> $out; 2] = [$name, libc::$kernel];)*
    };
}

calls! {
    /// `bind(2)`.
    pw_bind = bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int
        => |files| Raw(files).bind(fd, addr, len);
    /// `listen(2)`.
    pw_listen = listen(fd: c_int, backlog: c_int) -> c_int => |files| files.listen(fd, backlog);
    /// `accept(2)`.
    pw_accept = accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int
        => |files| Raw(files).accept4(fd, addr, len, 0);
    /// `accept4(2)`.
    pw_accept4 = accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int
        => |files| Raw(files).accept4(fd, addr, len, flags);
    /// `connect(2)`.
    pw_connect = connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int
        => |files| Raw(files).connect(fd, addr, len);
    /// `getsockname(2)`.
    pw_getsockname = getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int
        => |files| Raw(files).getsockname(fd, addr, len);
    /// `getpeername(2)`.
    pw_getpeername = getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int
        => |files| Raw(files).getpeername(fd, addr, len);
    /// `getsockopt(2)`.
    pw_getsockopt = getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t)
        -> c_int => |files| Raw(files).getsockopt(fd, level, name, value, len);
    /// `setsockopt(2)`.
    pw_setsockopt = setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t)
        -> c_int => |files| Raw(files).setsockopt(fd, level, name, value, len);
    /// `shutdown(2)`.
    pw_shutdown = shutdown(fd: c_int, how: c_int) -> c_int => |files| files.shutdown(fd, how);
    /// `read(2)`.
    pw_read = read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t => |files| Raw(files).read(fd, buf, len);
    /// `readv(2)`.
    pw_readv = readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t
        => |files| Raw(files).readv(fd, iov, count);
    /// `recv(2)`.
    pw_recv = recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t
        => |files| Raw(files).recvfrom(fd, buf, len, flags, ptr::null_mut(), ptr::null_mut());
    /// `recvfrom(2)`.
    pw_recvfrom = recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr,
        addr_len: *mut socklen_t) -> ssize_t
        => |files| Raw(files).recvfrom(fd, buf, len, flags, addr, addr_len);
    /// `recvmsg(2)`.
    pw_recvmsg = recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t
        => |files| Raw(files).recvmsg(fd, message, flags);
    /// `recvmmsg(2)`.
    pw_recvmmsg = recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int,
        timeout: *mut timespec) -> c_int => |files| Raw(files).recvmmsg(fd, messages, count, flags, timeout);
    /// `write(2)`.
    pw_write = write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t
        [raises unless 0] => |files| Raw(files).write(fd, buf, len);
    /// `writev(2)`.
    pw_writev = writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t
        [raises unless 0] => |files| Raw(files).writev(fd, iov, count);
    /// `send(2)`.
    pw_send = send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t
        [raises unless flags] => |files| Raw(files).sendto(fd, buf, len, flags, ptr::null(), 0);
    /// `sendto(2)`.
    pw_sendto = sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr,
        addr_len: socklen_t) -> ssize_t [raises unless flags] => |files| Raw(files).sendto(fd, buf, len, flags, addr, addr_len);
    /// `sendmsg(2)`.
    pw_sendmsg = sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t
        [raises unless flags] => |files| Raw(files).sendmsg(fd, message, flags);
    /// `sendmmsg(2)`.
    pw_sendmmsg = sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
        [raises unless flags] => |files| Raw(files).sendmmsg(fd, messages, count, flags);
    /// `ioctl(2)`.
    pw_ioctl = ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int
        => |files| Raw(files).ioctl(fd, request, argument.cast());
}

same! {
    pw_bind = bind(c_int, *const sockaddr, socklen_t) -> c_int;
    pw_listen = listen(c_int, c_int) -> c_int;
    pw_accept = accept(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    pw_accept4 = accept4(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
    pw_connect = connect(c_int, *const sockaddr, socklen_t) -> c_int;
    pw_read = read(c_int, *mut c_void, size_t) -> ssize_t;
    pw_write = write(c_int, *const c_void, size_t) -> ssize_t;
    pw_recvmmsg = recvmmsg(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int;
}

/// `fcntl(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let kind = owner(fd);
    if let Owner::Network(index) = kind {
        return on(index, |files| files.fcntl(fd, command, argument as c_int));
    }
    // SAFETY: the caller's promise for the C library's function.
    let done = unsafe { libc::fcntl(fd, command, argument) };
    let duplicates = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    if duplicates && done >= 0 && kind != Owner::Kernel {
        epoll::share(fd, done);
    }
    done
}

/// `socket(2)`: of the network in use for IPv4 and IPv6, of the kernel otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn pw_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain != libc::AF_INET && domain != libc::AF_INET6 {
        // SAFETY: no memory is passed.
        return unsafe { libc::socket(domain, kind, protocol) };
    }
    answer(|| match network::used()? {
        Some(index) => socket_on(index, domain, kind, protocol),
        // SAFETY: no memory is passed.
        None => match unsafe { libc::socket(domain, kind, protocol) } {
            -1 => Err(Failure::last()),
            fd => Ok(fd),
        },
    })
}

/// A socket of the network with this index.
pub(crate) fn socket_on(
    index: usize,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> Result<c_int> {
    Ok(network::network(index)?.files.socket(domain, kind, protocol)?)
}

/// `close(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_close(fd: c_int) -> c_int {
    match owner(fd) {
        Owner::Network(index) => {
            if network::is_forked() {
                network::release(fd);
                // SAFETY: the number's last use by this process.
                return unsafe { libc::close(fd) };
            }
            on(index, |files| files.close(fd))
        }
        kind => {
            if kind != Owner::Kernel {
                epoll::forget(fd);
            }
            // SAFETY: the caller's promise: nothing else uses the number.
            unsafe { libc::close(fd) }
        }
    }
}

/// `fstat(2)`: a descriptor of a network is a socket.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fstat(fd: c_int, status: *mut libc::stat) -> c_int {
    let Owner::Network(index) = owner(fd) else {
        // SAFETY: the caller's promise for the C library's function.
        return unsafe { libc::fstat(fd, status) };
    };
    answer(|| {
        if !network::network(index)?.files.owns(fd) {
            return Err(Errno::BADF.into());
        }
        // SAFETY: null, or valid to be written, says the caller; all of its bytes may be zero.
        let status = unsafe {
            if status.is_null() {
                return Err(Errno::FAULT.into());
            }
            status.write_bytes(0, 1);
            &mut *status
        };
        (status.st_mode, status.st_nlink) = (libc::S_IFSOCK | 0o777, 1);
        (status.st_ino, status.st_blksize) = (fd as _, 4096);
        Ok(0)
    })
}

/// The name of the call's error, such as `"EAGAIN"`; empty for a number without one.
#[unsafe(no_mangle)]
pub extern "C" fn pw_errno_name(errno: c_int) -> *const c_char {
    crate::boundary::errno_name(errno).as_ptr()
}
