//! The tap driver's system calls. All of its `unsafe` is in this file.

use std::ffi::{c_int, c_ulong, c_void};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use pagewire_mem::{Frag, MAX_FRAGS, PageWriter};

use super::limits::{MAX_NAME, VNET_HEADER};

/// A header buffer and the most fragments or runs a packet has.
const MAX_IOVECS: usize = 1 + MAX_FRAGS;

/// Offloads in both directions: work that the kernel may leave to the driver.
const OFFLOADS: c_ulong =
    (libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN) as c_ulong;

/// `linux/if_tun.h`, since Linux 6.2: super-frames of UDP. The kernel accepts the two only together.
const TUN_F_USO: c_ulong = 0x20 | 0x40;

/// The step of attaching that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Open,
    Attach,
    Offload,
}

/// The number of queues of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queues {
    One,
    /// Several, each attached by a call.
    Many,
    /// Several, of a tap that does not exist yet.
    ManyOfNew,
}

/// `linux/if_tun.h`: only make a device, do not open an existing one.
const IFF_TUN_EXCL: c_int = 0x8000;
const TUNSETQUEUE: c_ulong = 0x4004_54d9;
const IFF_ATTACH_QUEUE: c_int = 0x0200;
const IFF_DETACH_QUEUE: c_int = 0x0400;

/// The user who may attach queues (`linux/if_tun.h`).
const TUNSETOWNER: c_ulong = 0x4004_54cc;

/// The kernel's number for users that it cannot name (`linux/highuid.h`), and that of `nobody`.
const OVERFLOW_USER: u32 = 65534;

/// Keeps other users of the network namespace from attaching a queue. The user is given by its number in
/// this user namespace, and may have none there: then it is the namespace's root.
pub(super) fn own(fd: BorrowedFd<'_>) -> io::Result<()> {
    let set = |user: u32| {
        // SAFETY: TUNSETOWNER takes its argument by value.
        let set = unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETOWNER as _, c_ulong::from(user)) };
        check(set as isize).map(drop)
    };
    let [first, second] = owners(rustix::process::geteuid().as_raw());
    set(first).or_else(|_| set(second))
}

/// Numbers that may be this user's, the likelier one first.
fn owners(user: u32) -> [u32; 2] {
    // A user without a number in this user namespace has this one, which there is another user's.
    if user == OVERFLOW_USER { [0, user] } else { [user, 0] }
}

/// Attaches a detached queue, or detaches it: the kernel then delivers nothing there.
pub(super) fn set_attached(fd: BorrowedFd<'_>, attached: bool) -> io::Result<()> {
    // SAFETY: all zeroes is a valid `ifreq`: arrays and unions of integers and null pointers.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    let flag = if attached { IFF_ATTACH_QUEUE } else { IFF_DETACH_QUEUE };
    request.ifr_ifru.ifru_flags = flag as libc::c_short;
    // SAFETY: TUNSETQUEUE reads one `ifreq`, which outlives the call.
    let set = unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETQUEUE as _, &raw mut request) };
    check(set as isize).map(drop)
}

/// Opens a queue of the tap called `name`, or makes it. Returns the name that the kernel gave it.
pub(super) fn attach(name: &str, kind: Queues) -> Result<(OwnedFd, String), (Step, io::Error)> {
    let open = File::options().read(true).write(true).open("/dev/net/tun");
    let fd = OwnedFd::from(open.map_err(|e| (Step::Open, e))?);
    rustix::io::ioctl_fionbio(&fd, true).map_err(|e| (Step::Open, e.into()))?;
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    match kind {
        Queues::One => {}
        Queues::Many => flags |= libc::IFF_MULTI_QUEUE,
        Queues::ManyOfNew => flags |= libc::IFF_MULTI_QUEUE | IFF_TUN_EXCL,
    }
    // SAFETY: all zeroes is a valid `ifreq`: arrays and unions of integers and null pointers.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    for (to, from) in request.ifr_name.iter_mut().take(MAX_NAME).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which outlives the call.
    let set = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    check(set as isize).map_err(|e| (Step::Attach, e))?;
    let name = request.ifr_name.iter().take_while(|&&c| c != 0).map(|&c| char::from(c as u8));
    let name = name.collect();

    let size = VNET_HEADER as c_int;
    // SAFETY: TUNSETVNETHDRSZ reads one `int`, which outlives the call.
    let set = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const size) };
    check(set as isize).map_err(|e| (Step::Offload, e))?;
    set_offloads(fd.as_fd(), OFFLOADS).map_err(|e| (Step::Offload, e))?;
    Ok((fd, name))
}

fn set_offloads(fd: BorrowedFd<'_>, offloads: c_ulong) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    let set = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, offloads) };
    check(set as isize).map(drop)
}

/// Takes super-frames of UDP from the kernel, on top of the other offloads; whether the kernel has them.
pub(super) fn take_uso(fd: BorrowedFd<'_>) -> bool {
    set_offloads(fd, OFFLOADS | TUN_F_USO).is_ok()
}

/// Sends one frame: `head` and then `frags`, gathered by the kernel in one call.
pub(super) fn write_frame(fd: BorrowedFd<'_>, head: &[u8], frags: &[Frag]) -> io::Result<usize> {
    let mut iovecs = Iovecs::new();
    iovecs.push(head.as_ptr(), head.len());
    for frag in frags {
        iovecs.push(frag.as_ptr(), frag.len());
    }
    // SAFETY: each vector is readable for its length while the call lasts: `head` is a live slice,
    // and a fragment's bytes are valid for reads while it is borrowed. They are handed to the
    // kernel as addresses; no reference is formed over bytes that others may change.
    let n = unsafe { libc::writev(fd.as_raw_fd(), iovecs.as_ptr(), iovecs.count()) };
    check(n)
}

/// Receives one frame: the first bytes into `head`, the rest into the writer's spare bytes, at most
/// `limit` there. A longer frame is truncated silently.
pub(super) fn read_frame(
    fd: BorrowedFd<'_>,
    head: &mut [u8],
    writer: &mut PageWriter,
    mut limit: usize,
) -> io::Result<usize> {
    let mut iovecs = Iovecs::new();
    iovecs.push(head.as_mut_ptr(), head.len());
    for (at, len) in writer.spare_runs() {
        let len = len.min(limit);
        iovecs.push(at.as_ptr(), len);
        limit -= len;
    }
    // SAFETY: each vector is writable for its length while the call lasts: `head` is an exclusive
    // slice; spare bytes are written only by the holder of the writer, which is borrowed
    // exclusively, and no fragment covers them yet.
    let n = unsafe { libc::readv(fd.as_raw_fd(), iovecs.as_ptr(), iovecs.count()) };
    check(n)
}

/// Addresses and lengths for one gathering or scattering call.
struct Iovecs {
    list: [libc::iovec; MAX_IOVECS],
    used: usize,
}

impl Iovecs {
    fn new() -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { list: [none; MAX_IOVECS], used: 0 }
    }

    /// Adds a piece; a packet never has more than there is room for.
    fn push(&mut self, at: *const u8, len: usize) {
        if len > 0
            && let Some(slot) = self.list.get_mut(self.used)
        {
            *slot = libc::iovec { iov_base: at.cast_mut().cast::<c_void>(), iov_len: len };
            self.used += 1;
        }
    }

    fn as_ptr(&self) -> *const libc::iovec {
        self.list.as_ptr()
    }

    fn count(&self) -> c_int {
        self.used as c_int
    }
}

fn check(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_belongs_to_the_namespace_s_root_before_it_belongs_to_nobody() {
        assert_eq!(owners(0), [0, 0]);
        assert_eq!(owners(1000), [1000, 0]);
        assert_eq!(owners(OVERFLOW_USER), [0, OVERFLOW_USER]);
    }
}
