//! Networks by handle: opening, closing, use, their frames, their ledger and counts.

#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call's pointers come from one caller, under one contract"
)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::{MutexGuard, PoisonError};

use libc::{size_t, ssize_t};
use pagewire::device::{FrameError, FramesEnd};
use pagewire_posix::Errno;

use crate::boundary::{Failure, Result, answer, text};
use crate::epoll;
use crate::network::{self, Network};

/// Starts a network from its text. See `pagewire.h`.
///
/// # Safety
/// `config` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_host_open(config: *const c_char) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let config = unsafe { text(config) }?;
        if network::is_forked() {
            epoll::forget_all();
        }
        Ok(network::open(config)? as c_int)
    })
}

/// Ends a network. See `pagewire.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_host_close(host: c_int) -> c_int {
    answer(|| {
        network::close(usize::try_from(host).map_err(|_| Errno::BADF)?)?;
        Ok(0)
    })
}

/// Makes a network that of `pw_socket`; -1: the kernel. See `pagewire.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_host_use(host: c_int) -> c_int {
    answer(|| {
        network::choose(usize::try_from(host).ok())?;
        Ok(0)
    })
}

/// The network of `pw_socket`; -1 with `ENODEV`: the kernel. See `pagewire.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_host_used() -> c_int {
    answer(|| Ok(network::used()?.ok_or(Errno::NODEV)? as c_int))
}

/// A socket of a network. See `pagewire.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_host_socket(
    host: c_int,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    answer(|| Ok(network::named(host)?.files.socket(domain, kind, protocol)?))
}

/// Counts of payload bytes. See `pagewire.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ledger {
    size: size_t,
    copied: u64,
    by_device: u64,
    sent_frames: u64,
    received_frames: u64,
}

/// Fills in the counts of a network. See `pagewire.h`.
///
/// # Safety
/// `into` is null, or valid for as many bytes as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_ledger_get(host: c_int, into: *mut Ledger) -> c_int {
    answer(|| {
        if into.is_null() {
            return Err(Errno::FAULT.into());
        }
        // SAFETY: not null, so the first field is valid, says the caller.
        let size = unsafe { (&raw const (*into).size).read_unaligned() };
        let most = size_of::<Ledger>();
        if size < size_of::<size_t>() + size_of::<u64>() {
            return Err(Failure::new(Errno::INVAL, "the ledger's size is not set: use sizeof"));
        }
        let stats = network::named(host)?.host().stats();
        let all: u64 = stats.ledger.iter().map(|(_, bytes)| bytes).sum();
        let copied = stats.ledger.ours();
        let ledger = Ledger {
            size: size.min(most),
            copied,
            by_device: all.saturating_sub(copied),
            sent_frames: stats.device.tx_frames,
            received_frames: stats.device.rx_frames,
        };
        // SAFETY: valid for `size` bytes, says the caller; no more than the structure has are read.
        unsafe { into.cast::<u8>().copy_from((&raw const ledger).cast(), size.min(most)) };
        Ok(0)
    })
}

/// Calls a function of the program with each count of a network. See `pagewire.h`.
///
/// # Safety
/// `each` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_counts_each(
    host: c_int,
    each: Option<unsafe extern "C" fn(*mut c_void, *const c_char, u64)>,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let each = each.ok_or(Errno::FAULT)?;
        let stats = network::named(host)?.host().stats();
        let counts = stats.counters.iter().chain(stats.device.iter());
        let copies = stats.ledger.iter().map(|(reason, bytes)| (reason.name(), bytes));
        for (name, value) in counts.chain(copies) {
            let name = CString::new(name).unwrap_or_default();
            // SAFETY: the caller's promise; no lock is held.
            unsafe { each(context, name.as_ptr(), value) };
        }
        Ok(0)
    })
}

/// The counts of a network as text. See `pagewire.h`.
///
/// # Safety
/// `into` is null, or `len` bytes behind it are valid to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_stats_text(host: c_int, into: *mut c_char, len: size_t) -> ssize_t {
    answer(|| {
        let report = network::named(host)?.host().stats().to_string();
        if into.is_null() && len > 0 {
            return Err(Errno::FAULT.into());
        }
        if let Some(room) = len.checked_sub(1) {
            let n = room.min(report.len());
            // SAFETY: `n` and one more are at most `len` bytes, valid to be written, says the caller.
            unsafe {
                into.cast::<u8>().copy_from(report.as_ptr(), n);
                into.add(n).write(0);
            }
        }
        Ok(report.len() as ssize_t)
    })
}

/// Runs `call` with the program's end of a link of frames.
fn with_frames<T>(host: c_int, call: impl FnOnce(&mut FramesEnd) -> Result<T>) -> Result<T> {
    let network = network::named(host)?;
    call(&mut *frames(&network)?)
}

fn frames(network: &Network) -> Result<MutexGuard<'_, FramesEnd>> {
    let frames = network.frames.as_ref();
    let frames =
        frames.ok_or_else(|| Failure::new(Errno::NODEV, "the network's link is not frames"))?;
    Ok(frames.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Gives a frame to the network. See `pagewire.h`.
///
/// # Safety
/// `frame` is null, or `len` bytes behind it are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_frames_send(host: c_int, frame: *const c_void, len: size_t) -> ssize_t {
    answer(|| {
        if frame.is_null() {
            return Err(Errno::FAULT.into());
        }
        // SAFETY: not null, so readable, says the caller.
        let frame = unsafe { std::slice::from_raw_parts(frame.cast::<u8>(), len) };
        with_frames(host, |end| match end.send(frame) {
            Ok(()) => Ok(len as ssize_t),
            Err(why) => Err(Failure::new(frame_errno(&why), why)),
        })
    })
}

fn frame_errno(error: &FrameError) -> Errno {
    match error {
        FrameError::Full => Errno::AGAIN,
        FrameError::Closed => Errno::NETDOWN,
        _ => Errno::INVAL,
    }
}

/// Takes a frame from the network. See `pagewire.h`.
///
/// # Safety
/// `into` is null, or `len` bytes behind it are valid to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_frames_receive(host: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    answer(|| {
        if into.is_null() {
            return Err(Errno::FAULT.into());
        }
        // SAFETY: not null, so valid to be written, says the caller.
        let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), len) };
        with_frames(host, |end| match end.receive(into) {
            Some(n) => Ok(n as ssize_t),
            None if end.is_closed() => Err(Errno::NETDOWN.into()),
            None => {
                end.arm();
                Err(Errno::AGAIN.into())
            }
        })
    })
}

/// The descriptor that is readable when the network has frames. See `pagewire.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_frames_fd(host: c_int) -> c_int {
    answer(|| {
        with_frames(host, |end| {
            let fd = end.wait_fd().map(|fd| fd.as_raw_fd());
            Ok(fd.ok_or(Errno::NODEV)?)
        })
    })
}
