//! Calls that make, duplicate, close and map descriptors, and that move data between two of them.

#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call's pointers come from one caller, under one contract"
)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{FILE, off_t, size_t, ssize_t};
use pagewire_posix::Errno;
use pagewire_posix::raw::Raw;
use std::os::fd::BorrowedFd;

use crate::boundary::{Failure, answer};
use crate::network::{self, Owner, owner};
use crate::sockets::{on, raise_broken_pipe};
use crate::{epoll, stdio};

/// `dup(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_dup(fd: c_int) -> c_int {
    match owner(fd) {
        Owner::Network(index) => on(index, |files| files.dup(fd)),
        kind => {
            // SAFETY: no memory is passed.
            let made = unsafe { libc::dup(fd) };
            if made >= 0 && kind != Owner::Kernel {
                epoll::share(fd, made);
            }
            made
        }
    }
}

/// `dup2(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_dup2(fd: c_int, to: c_int) -> c_int {
    if fd == to {
        // SAFETY: no memory is passed; the number is checked, and nothing else happens.
        return unsafe { libc::dup2(fd, to) };
    }
    pw_dup3(fd, to, 0)
}

/// `dup3(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    match (owner(fd), owner(to)) {
        (Owner::Network(index), Owner::Network(other)) if index == other => {
            on(index, |files| files.dup3(fd, to, flags))
        }
        (Owner::Network(index), before) => {
            on(index, |files| files.dup3(fd, to, flags).inspect(|_| drop_file(to, before)))
        }
        (kind, before) => {
            // SAFETY: no memory is passed.
            let made = unsafe { libc::dup3(fd, to, flags) };
            if made >= 0 {
                if before != Owner::Kernel {
                    network::release(to);
                }
                drop_file(to, before);
                if kind != Owner::Kernel {
                    epoll::share(fd, to);
                }
            }
            made
        }
    }
}

/// Closes the file that a number named before `dup3` gave the number away.
fn drop_file(fd: c_int, before: Owner) {
    match before {
        Owner::Network(index) => {
            if let Ok(network) = network::network(index) {
                let _ = network.files.close(fd);
            }
        }
        Owner::Set | Owner::Instance => epoll::drop_set(fd),
        Owner::Kernel => {}
    }
}

/// `fdopen(3)`: of a network's descriptor, a stream that calls this library.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if !matches!(owner(fd), Owner::Network(_)) || mode.is_null() {
        // SAFETY: the caller's promise for the C library's function.
        return unsafe { libc::fdopen(fd, mode) };
    }
    let mut stream = std::ptr::null_mut();
    let _: c_int = answer(|| {
        // SAFETY: a C string, says the caller.
        stream = stdio::open(fd, unsafe { CStr::from_ptr(mode) })?;
        Ok(0)
    });
    stream
}

/// `fileno(3)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fileno(stream: *mut FILE) -> c_int {
    // SAFETY: the caller's promise for the C library's function.
    stdio::number(stream).unwrap_or_else(|| unsafe { libc::fileno(stream) })
}

/// An address may be of a network from now on.
pub(crate) fn note_map() {
    MAPPED.store(true, Ordering::Release);
}

/// Whether a socket was ever mapped: before, no address is of a network.
static MAPPED: AtomicBool = AtomicBool::new(false);

/// `mmap(2)`: of a stream of a network, addresses for `TCP_ZEROCOPY_RECEIVE`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let index = match owner(fd) {
        Owner::Network(index) if flags & libc::MAP_ANONYMOUS == 0 => index,
        // SAFETY: the caller's promise for the C library's function.
        _ => return unsafe { libc::mmap(addr, len, prot, flags, fd, offset) },
    };
    answer(|| {
        if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
            return Err(Failure::new(Errno::INVAL, "a socket is mapped where there is room"));
        }
        let network = network::network(index)?;
        note_map();
        let at = network.files.mmap_reserve(fd, len, prot, flags, offset)?;
        Ok(std::ptr::with_exposed_provenance_mut(at))
    })
}

/// `munmap(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_munmap(addr: *mut c_void, len: size_t) -> c_int {
    match mapped_by(addr) {
        Some(network) => answer(|| Ok(network.files.munmap(addr.addr(), len).map(|()| 0)?)),
        // SAFETY: the caller's promise for the C library's function.
        None => unsafe { libc::munmap(addr, len) },
    }
}

/// `madvise(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    match mapped_by(addr) {
        Some(network) => {
            answer(|| Ok(network.files.madvise(addr.addr(), len, advice).map(|()| 0)?))
        }
        // SAFETY: the caller's promise for the C library's function.
        None => unsafe { libc::madvise(addr, len, advice) },
    }
}

fn mapped_by(addr: *mut c_void) -> Option<std::sync::Arc<network::Network>> {
    if !MAPPED.load(Ordering::Acquire) {
        return None;
    }
    network::all().into_iter().find(|network| network.files.is_mapped(addr.addr()))
}

/// `sendfile(2)`: from a file of the kernel's to a stream of a network. The file is read once.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    len: size_t,
) -> ssize_t {
    let index = match (owner(to), owner(from)) {
        (Owner::Network(index), _) => index,
        (_, Owner::Network(_)) => return answer(|| Err(Errno::INVAL.into())),
        // SAFETY: the caller's promise for the C library's function.
        _ => return unsafe { libc::sendfile(to, from, offset, len) },
    };
    let sent = answer(|| {
        let network = network::network(index)?;
        if from < 0 || matches!(owner(from), Owner::Network(_)) {
            return Err(if from < 0 { Errno::BADF } else { Errno::INVAL }.into());
        }
        // SAFETY: null or valid, says the caller. Without an offset, the file's own counts, and moves.
        let at = unsafe {
            match offset.is_null() {
                true => libc::lseek(from, 0, libc::SEEK_CUR),
                false => offset.read_unaligned(),
            }
        };
        if at < 0 {
            return Err(if offset.is_null() { Failure::last() } else { Errno::INVAL.into() });
        }
        let mut moved = at as u64;
        // SAFETY: the caller keeps the descriptor open while the call lasts.
        let file = unsafe { BorrowedFd::borrow_raw(from) };
        let sent = network.files.sendfile(to, file, &mut moved, len)?;
        let moved = moved as off_t;
        // SAFETY: as above.
        unsafe {
            match offset.is_null() {
                true => drop(libc::lseek(from, moved, libc::SEEK_SET)),
                false => offset.write_unaligned(moved),
            }
        }
        Ok(sent as ssize_t)
    });
    if sent < 0 {
        raise_broken_pipe(index, to, 0);
    }
    sent
}

/// `splice(2)`: between a network's pipe and its sockets, or the kernel's.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_splice(
    from: c_int,
    from_offset: *mut libc::loff_t,
    to: c_int,
    to_offset: *mut libc::loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    match (owner(from), owner(to)) {
        (Owner::Network(index), Owner::Network(other)) if index == other => {
            on(index, |files| Raw(files).splice(from, from_offset, to, to_offset, len, flags))
        }
        // A pipe of the kernel's holds no pages of a network's.
        (Owner::Network(_), _) | (_, Owner::Network(_)) => answer(|| Err(Errno::INVAL.into())),
        // SAFETY: the caller's promise for the C library's function.
        _ => unsafe { libc::splice(from, from_offset, to, to_offset, len, flags) },
    }
}

/// `pipe2(2)`: of the network in use, whose sockets can be spliced to it; of the kernel if there is none.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_pipe2(fds: *mut c_int, flags: c_int) -> c_int {
    answer(|| match network::used()? {
        Some(index) => {
            let network = network::network(index)?;
            // SAFETY: the caller's promise for the C library's function.
            unsafe { Raw(&network.files).pipe2(fds, flags) }?;
            Ok(0)
        }
        // SAFETY: the same.
        None => match unsafe { libc::pipe2(fds, flags) } {
            0 => Ok(0),
            _ => Err(Failure::last()),
        },
    })
}
