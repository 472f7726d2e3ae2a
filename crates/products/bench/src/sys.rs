//! The calls of the measurements that have no safe form: this crate's only unsafe code.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use bytes::Bytes;
use pagewire::memory::{Access, PAGE_SIZE, Region};
use rustix::thread::UnshareFlags;

/// Moves this thread into a new network namespace, which ends with what uses it.
pub(crate) fn new_network_namespace() -> io::Result<()> {
    // SAFETY: only the network namespace is left; descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.map_err(io::Error::from)
}

/// The use of a thread, or of the whole process, so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    /// Voluntary context switches.
    pub(crate) switches: u64,
}

pub(crate) fn thread_usage() -> Usage {
    usage(libc::RUSAGE_THREAD)
}

pub(crate) fn process_usage() -> Usage {
    usage(libc::RUSAGE_SELF)
}

/// Processor time of this thread so far, exactly. It uses the C library: valgrind has no vDSO.
pub(crate) fn thread_time() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is one `timespec`, which outlives the call; a failure leaves the zeroes.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn usage(who: libc::c_int) -> Usage {
    // SAFETY: all zeroes is a valid `rusage`: integers only.
    let mut all: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is one `rusage`, which outlives the call; a failure leaves the zeroes.
    unsafe { libc::getrusage(who, &raw mut all) };
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec.unsigned_abs())
            + Duration::from_micros(t.tv_usec.unsigned_abs())
    };
    Usage {
        user: time(all.ru_utime),
        system: time(all.ru_stime),
        switches: all.ru_nvcsw.unsigned_abs(),
    }
}

/// Asks the system for huge pages for the whole pages of a buffer; without them, small ones do.
pub(crate) fn prefer_huge_pages(bytes: &mut [u8]) {
    let skip = bytes.as_ptr().align_offset(PAGE_SIZE).min(bytes.len());
    let Some(whole) = bytes.get_mut(skip..) else { return };
    let len = whole.len() - whole.len() % PAGE_SIZE;
    // SAFETY: the range is page-aligned, and lies in one live allocation that is borrowed for as long
    // as the call lasts; this advice changes no byte of it.
    let _ = unsafe { libc::madvise(whole.as_mut_ptr().cast(), len, libc::MADV_HUGEPAGE) };
}

/// A region of memory that is not written any more.
pub(crate) fn region_of(bytes: Bytes) -> Region {
    let base = NonNull::from(&*bytes).cast();
    let len = bytes.len();
    // SAFETY: `bytes` keeps one allocation of `len` bytes at `base`, which never changes while it
    // lives, and the region keeps it; nothing is written through the region.
    unsafe { Region::adopt(base, len, Access::Private, false, Box::new(bytes)) }
}

/// Sets an option of a kernel socket whose value is one `int`.
pub(crate) fn set_socket_option(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the option's value is `len` bytes at the address of `value`, which outlives the call.
    let set = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Addresses into which the kernel maps what a socket received (`TCP_ZEROCOPY_RECEIVE`).
pub(crate) struct KernelWindow {
    base: NonNull<libc::c_void>,
    len: usize,
}

/// `TCP_ZEROCOPY_RECEIVE` of `linux/tcp.h`, and the first three fields of its structure.
const TCP_ZEROCOPY_RECEIVE: libc::c_int = 35;

#[repr(C)]
struct ZerocopyReceive {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
}

impl KernelWindow {
    /// Reserves `len` bytes for a socket.
    pub(crate) fn new(socket: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let (prot, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, socket.as_raw_fd(), 0) };
        match NonNull::new(base) {
            Some(base) if base.as_ptr() != libc::MAP_FAILED => Ok(Self { base, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Maps what can be mapped, shows it to `see`, and unmaps it. Returns the bytes mapped, and those
    /// to read before more can be mapped.
    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        see: impl FnOnce(&[u8]),
    ) -> io::Result<(usize, usize)> {
        let address = self.base.as_ptr().addr() as u64;
        let length = u32::try_from(self.len).unwrap_or(u32::MAX);
        let mut ask = ZerocopyReceive { address, length, recv_skip_hint: 0 };
        let mut len = size_of::<ZerocopyReceive>() as libc::socklen_t;
        // SAFETY: the kernel reads and writes `len` bytes of `ask`, and puts pages into
        // `address..address+length`, which is all ours and of which no reference exists now.
        let got = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                TCP_ZEROCOPY_RECEIVE,
                (&raw mut ask).cast(),
                &raw mut len,
            )
        };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        let mapped = (ask.length as usize).min(self.len);
        if mapped > 0 {
            // SAFETY: the kernel just mapped `mapped` bytes here, received ones that it never
            // writes again; the slice ends before they are taken out.
            see(unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), mapped) });
            // SAFETY: only our own range, of which no reference exists any more.
            unsafe { libc::madvise(self.base.as_ptr(), mapped, libc::MADV_DONTNEED) };
        }
        Ok((mapped, ask.recv_skip_hint as usize))
    }
}

impl Drop for KernelWindow {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, of which no reference exists any more.
        unsafe { libc::munmap(self.base.as_ptr(), self.len) };
    }
}

/// A tap of the kernel with defaults: no offloads, one queue, unlimited; writes do not wait.
pub(crate) fn open_tap(name: &str) -> io::Result<OwnedFd> {
    let fd = OwnedFd::from(File::options().read(true).write(true).open("/dev/net/tun")?);
    rustix::io::ioctl_fionbio(&fd, true)?;
    // SAFETY: all zeroes is a valid `ifreq`: arrays and unions of integers and null pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // A name has one byte less than there is room for: it ends with a zero.
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which outlives the call.
    let set = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if set == 0 { Ok(fd) } else { Err(io::Error::last_os_error()) }
}

/// The timestamp counter, which has a constant rate; nanoseconds where there is none.
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
