//! Streams of the C library (`FILE`) over a network's descriptors.
//!
//! The C library's own streams read and write by the kernel's calls, which no renaming reaches. `open` makes one
//! that calls this library. Where a network's socket becomes number 0, 1 or 2, as in servers that put their peer
//! there, `follow` replaces `stdin`, `stdout` or `stderr` by such a stream, which also serves whatever has the
//! number later.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{FILE, off64_t, size_t, ssize_t};

use crate::boundary::{Failure, Result};
use crate::sockets::{pw_close, pw_read, pw_write};

/// What the C library calls for a stream, as `<stdio.h>` has it.
#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// The descriptor of each stream of this module's.
static STREAMS: Mutex<Vec<(usize, c_int)>> = Mutex::new(Vec::new());

fn streams() -> MutexGuard<'static, Vec<(usize, c_int)>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The descriptor of a stream that this module made.
pub(crate) fn number(stream: *mut FILE) -> Option<c_int> {
    streams().iter().find(|(known, _)| *known == stream.addr()).map(|(_, fd)| *fd)
}

/// What the functions of a stream get.
struct Cookie {
    fd: c_int,
    /// The stream's address, by which [`STREAMS`] knows it.
    stream: AtomicUsize,
}

/// A stream over a descriptor.
pub(crate) fn open(fd: c_int, mode: &CStr) -> Result<*mut FILE> {
    let functions =
        Functions { read: Some(read), write: Some(write), seek: None, close: Some(close) };
    let cookie = Box::into_raw(Box::new(Cookie { fd, stream: AtomicUsize::new(0) }));
    // SAFETY: the mode is a C string; the cookie lives until the stream is closed.
    let stream = unsafe { fopencookie(cookie.cast(), mode.as_ptr(), functions) };
    if stream.is_null() {
        let why = Failure::last();
        // SAFETY: made above, and no stream has it.
        drop(unsafe { Box::from_raw(cookie) });
        return Err(why);
    }
    // SAFETY: as above; nobody else knows the stream yet.
    unsafe { &*cookie }.stream.store(stream.addr(), Ordering::Relaxed);
    streams().push((stream.addr(), fd));
    Ok(stream)
}

/// # Safety
/// The cookie is of an open stream.
unsafe fn descriptor(cookie: *mut c_void) -> c_int {
    // SAFETY: of an open stream, says the caller.
    unsafe { &*cookie.cast::<Cookie>() }.fd
}

unsafe extern "C" fn read(cookie: *mut c_void, into: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's call for an open stream.
    let fd = unsafe { descriptor(cookie) };
    // SAFETY: the C library's memory, valid for `len` bytes.
    unsafe { pw_read(fd, into.cast(), len) }
}

/// The C library takes less than all for an error.
unsafe extern "C" fn write(cookie: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's call for an open stream.
    let fd = unsafe { descriptor(cookie) };
    // SAFETY: the C library's memory, valid for `len` bytes.
    let all = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) };
    let mut rest = all;
    while !rest.is_empty() {
        // SAFETY: the bytes are borrowed.
        let n = unsafe { pw_write(fd, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(n).ok().and_then(|n| rest.get(n..)) {
            Some(left) if left.len() < rest.len() => rest = left,
            _ => break,
        }
    }
    (all.len() - rest.len()) as ssize_t
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: the C library's last call for an open stream.
    let cookie = unsafe { Box::from_raw(cookie.cast::<Cookie>()) };
    streams().retain(|(known, _)| *known != cookie.stream.load(Ordering::Relaxed));
    pw_close(cookie.fd)
}

/// A network's descriptor has this number from now on.
pub(crate) fn follow(fd: c_int) {
    #[cfg(target_env = "gnu")]
    if (0..=2).contains(&fd) {
        standard(fd);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = fd;
}

/// Replaces a standard stream, once.
#[cfg(target_env = "gnu")]
fn standard(fd: c_int) {
    unsafe extern "C" {
        static mut stdin: *mut FILE;
        static mut stdout: *mut FILE;
        static mut stderr: *mut FILE;
    }
    let (place, mode) = match fd {
        0 => (&raw mut stdin, c"r"),
        1 => (&raw mut stdout, c"w"),
        _ => (&raw mut stderr, c"w"),
    };
    // SAFETY: a variable of the C library's, which programs may set.
    if number(unsafe { *place }).is_some() {
        return;
    }
    let Ok(stream) = open(fd, mode) else { return };
    if fd == 2 {
        // SAFETY: a new stream; no memory is passed.
        unsafe { libc::setvbuf(stream, ptr::null_mut(), libc::_IONBF, 0) };
    }
    // SAFETY: as above. A program gives such a number to a socket before its threads use the stream.
    unsafe { *place = stream };
}
