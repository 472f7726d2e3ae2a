//! The calls that have no safe form: this crate's only unsafe code.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::UnshareFlags;

/// Bytes in the smallest page of every machine that Pagewire runs on.
const PAGE: usize = pagewire_mem::PAGE_SIZE;

/// Pages that were touched although their file had become shorter.
static LOST_PAGES: AtomicU64 = AtomicU64::new(0);

/// How many pages of mapped files were touched after a truncation.
pub(crate) fn lost_pages() -> u64 {
    LOST_PAGES.load(Ordering::Relaxed)
}

/// From now on, touching a page of a mapped file beyond the file's end reads zeros instead of
/// ending the process. The server notices by the file's length and aborts the connection; without
/// this, any thread that sums or copies payload in between would take all connections down.
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

/// Moves this thread into a network namespace of its own, which ends with the last thread, socket
/// and device in it.
pub(crate) fn new_network_namespace() -> io::Result<()> {
    // SAFETY: only the network namespace is left; descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.map_err(io::Error::from)
}

/// The time-stamp counter, which goes on at one rate whatever the processor does; nanoseconds where
/// there is none.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the counter, and Linux lets programs read it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ticks() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

/// Zero-copy sends of a kernel socket that are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelCompletion {
    pub(crate) sends: u32,
    /// The kernel copied after all.
    pub(crate) copied: bool,
}

/// Has a kernel socket heed `MSG_ZEROCOPY`.
pub(crate) fn set_kernel_zerocopy(socket: impl AsFd) -> io::Result<()> {
    let (fd, on) = (socket.as_fd().as_raw_fd(), 1i32);
    let len = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the value is a live `int`, and `len` its size.
    let done = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const on).cast(), len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes a completion from a kernel socket's error queue, if one is there.
pub(crate) fn take_kernel_completion(socket: impl AsFd) -> io::Result<Option<KernelCompletion>> {
    /// Room for one control message with an error and an address, aligned as it must be.
    #[repr(C, align(8))]
    struct Control([u8; 128]);
    let mut control = Control([0; 128]);
    // SAFETY: all-zero bytes are a valid `msghdr`: no name, no vector, no control.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    let (fd, flags) = (socket.as_fd().as_raw_fd(), libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
    // SAFETY: `message` names `control` with its length, and nothing else.
    if unsafe { libc::recvmsg(fd, &raw mut message, flags) } < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    }
    // SAFETY: `message` is as the kernel left it, with `control` still behind it.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: null, or a header within `control`, which is aligned for it.
    let Some(about) = (unsafe { header.as_ref() }) else {
        return Err(io::Error::other("an error queue gave no control message"));
    };
    let kind = (about.cmsg_level, about.cmsg_type);
    let kinds = [(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)];
    if !kinds.contains(&kind) {
        return Err(io::Error::other("an error queue gave something else than an error"));
    }
    // SAFETY: `header` is the valid header of a message.
    let data = unsafe { libc::CMSG_DATA(header) };
    // SAFETY: a message of this kind begins with the structure, and `control` has room for it; it
    // need not be aligned.
    let error = unsafe { data.cast::<libc::sock_extended_err>().read_unaligned() };
    if error.ee_origin != ORIGIN_ZEROCOPY {
        return Err(io::Error::from_raw_os_error(error.ee_errno.cast_signed()));
    }
    let sends = error.ee_data.wrapping_sub(error.ee_info).wrapping_add(1);
    Ok(Some(KernelCompletion { sends, copied: error.ee_code & ZEROCOPY_COPIED != 0 }))
}

/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` of Linux's `errqueue.h`.
const ORIGIN_ZEROCOPY: u8 = 5;
const ZEROCOPY_COPIED: u8 = 1;
