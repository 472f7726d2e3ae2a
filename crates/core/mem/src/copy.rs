//! `copy_payload`, the only function of the workspace that copies payload, and the ledger that counts copies.
//!
//! `crates/products/cli/tests/suite/tidy.rs` counts the lines that move bytes, here and elsewhere: a new one
//! fails there. A [`CopyReason`]'s name is the label of a metric. Memory that others may change is copied in
//! `asm!`, because a plain read would be a data race. Short copies use loops: `rep movsb` takes some thirty
//! cycles to begin.

use core::ptr::NonNull;

use crate::access::Access;
#[cfg(target_arch = "x86_64")]
use crate::limits::{PAGE_SIZE, SHORT_COPY, TRAILING};
use crate::reasons::Tally;

crate::reasons! {
    CopyReason: "Why payload was copied.";

    /// An ordinary `write`: the application keeps its buffer, we keep a copy.
    AppWrite = "app_write",
    /// An ordinary `read` into the application's buffer.
    AppRead = "app_read",
    /// Payload so small that a reference costs more than the copy.
    SmallSegment = "small_segment",
    /// A receive queue pinned far more memory than it had bytes, and was packed.
    Compact = "compact",
    /// Header prediction missed, and payload had landed behind the headers.
    LinearHead = "linear_head",
    /// The device cannot gather, or cannot reach this memory.
    DeviceLinearize = "device_linearize",
    /// A packet that loops back to this host gets private copies.
    LoopPrivate = "loop_private",
    /// Quoted in an ICMP error, or echoed.
    Icmp = "icmp",
    /// Bytes that somebody else may change, read through a snapshot.
    Snapshot = "snapshot",
    /// A fault wrapper damaged a private copy.
    Fault = "fault",
    /// A frame of another owner was moved out of the registered memory of a queue.
    Misplaced = "misplaced",
    /// At the device's boundary, sending: the kernel copies out of our pages.
    DeviceTx = "device_tx",
    /// At the device's boundary, receiving: the kernel copies into our pages.
    DeviceRx = "device_rx",
    /// At the boundary to a kernel's socket, sending: the kernel copies out of our pages.
    SocketTx = "socket_tx",
    /// At the boundary to a kernel's socket, receiving: the kernel copies into our pages.
    SocketRx = "socket_rx",
}

impl CopyReason {
    /// Whether the stack made the copy itself; `false` for copies at the boundary of a device, or of a
    /// kernel's socket.
    pub const fn is_ours(self) -> bool {
        !matches!(self, Self::DeviceTx | Self::DeviceRx | Self::SocketTx | Self::SocketRx)
    }
}

/// Payload bytes copied, by reason. One per host; connections keep one of their own where asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyLedger {
    bytes: Tally<CopyReason, { CopyReason::COUNT }>,
}

impl CopyLedger {
    /// Nothing copied yet.
    pub const fn new() -> Self {
        Self { bytes: Tally::new() }
    }

    /// Bytes copied for this reason.
    pub fn get(&self, reason: CopyReason) -> u64 {
        self.bytes.get(reason)
    }

    /// Bytes that the stack itself copied, for whatever reason.
    pub fn ours(&self) -> u64 {
        self.iter().filter(|(reason, _)| reason.is_ours()).map(|(_, n)| n).sum()
    }

    /// Every reason with its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (CopyReason, u64)> + '_ {
        self.bytes.iter()
    }

    /// Notes a copy that somebody else made: the kernel, at the boundary of a device or a socket.
    #[inline]
    pub fn note(&mut self, reason: CopyReason, bytes: usize) {
        self.bytes.note(reason, bytes as u64);
    }

    /// Adds another ledger to this one.
    pub fn add(&mut self, other: &Self) {
        self.bytes.add(&other.bytes);
    }
}

/// Copies as much of `src` as `dst` has room for, and counts it; returns how many bytes.
pub fn copy_bytes(
    dst: &mut [u8],
    src: &[u8],
    ledger: &mut CopyLedger,
    reason: CopyReason,
) -> usize {
    let n = dst.len().min(src.len());
    let to = NonNull::from(dst).cast::<u8>();
    // SAFETY: both slices have `n` bytes, and an exclusive one overlaps no other.
    unsafe { copy_payload(to, src.as_ptr(), n, Access::Private, ledger, reason) };
    n
}

/// Copies `len` bytes of payload and counts them.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes and `src` for reads. With [`Access::Private`] nobody
/// else writes `src` or reaches `dst` meanwhile, and the two do not overlap; pass
/// [`Access::Shared`] if that cannot be said of both.
#[inline]
pub(crate) unsafe fn copy_payload(
    dst: NonNull<u8>,
    src: *const u8,
    len: usize,
    access: Access,
    ledger: &mut CopyLedger,
    reason: CopyReason,
) {
    ledger.note(reason, len);
    #[cfg(target_arch = "x86_64")]
    if len > SHORT_COPY && trails(dst.as_ptr(), src) {
        // SAFETY: the caller's promise, and the length; it bears writers and overlap.
        return unsafe { copy_lines(dst.as_ptr(), src, len) };
    }
    match access {
        // SAFETY: the caller's promise.
        Access::Private => unsafe { core::ptr::copy_nonoverlapping(src, dst.as_ptr(), len) },
        // SAFETY: the caller's promise of both ranges; this copy bears writers and overlap.
        Access::Shared => unsafe { copy_shared(dst.as_ptr(), src, len) },
    }
}

/// A copy whose source may change under it: the compiler may assume nothing about the bytes.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes and `src` for reads.
#[inline]
#[cfg(target_arch = "x86_64")]
unsafe fn copy_shared(dst: *mut u8, src: *const u8, len: usize) {
    match len {
        // The string instruction takes some thirty cycles to begin: for a header or a small frame
        // more than the copy itself.
        // SAFETY: the caller's promise, and the length.
        16..64 => return unsafe { copy_short(dst, src, len) },
        // SAFETY: the caller's promise, and the length.
        64..=SHORT_COPY => return unsafe { copy_lines(dst, src, len) },
        // SAFETY: the caller's promise, and the length.
        8..16 => return unsafe { copy_words(dst, src, len) },
        _ => {}
    }
    // SAFETY: `rep movsb` reads and writes exactly `len` bytes, valid by the caller's promise. An
    // `asm!` block is opaque to the compiler, so a concurrent writer is no data race of the
    // abstract machine. The direction flag is clear on entry by the ABI.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Whether the destination lies a few bytes behind the source, pages left aside. Some processors
/// (Zen 3) then take every store of the string instruction, as in the C library's `memcpy`, for one
/// into what is still to be read, and copy byte by byte: eight times as slow.
#[cfg(target_arch = "x86_64")]
fn trails(dst: *const u8, src: *const u8) -> bool {
    let behind = dst.addr().wrapping_sub(src.addr()) % PAGE_SIZE;
    (1..TRAILING).contains(&behind)
}

/// `copy_shared` of 64 bytes or more, by sixty-four, without the string instruction. The last
/// sixty-four may cover some of those before, as in [`copy_short`].
///
/// # Safety
/// As [`copy_shared`], and `len` is at least 64.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_lines(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: reads and writes 64 bytes at `0, 64, …` as long as that is before `len - 64`, and at
    // `len - 64`: always within `len` bytes, valid by the caller's promise. Opaque as `copy_shared` is.
    unsafe {
        core::arch::asm!(
            "2:",
            "movups {a}, [{src} + {at}]",
            "movups {b}, [{src} + {at} + 16]",
            "movups {c}, [{src} + {at} + 32]",
            "movups {d}, [{src} + {at} + 48]",
            "movups [{dst} + {at}], {a}",
            "movups [{dst} + {at} + 16], {b}",
            "movups [{dst} + {at} + 32], {c}",
            "movups [{dst} + {at} + 48], {d}",
            "add {at}, 64",
            "cmp {at}, {last}",
            "jb 2b",
            "movups {a}, [{src} + {last}]",
            "movups {b}, [{src} + {last} + 16]",
            "movups {c}, [{src} + {last} + 32]",
            "movups {d}, [{src} + {last} + 48]",
            "movups [{dst} + {last}], {a}",
            "movups [{dst} + {last} + 16], {b}",
            "movups [{dst} + {last} + 32], {c}",
            "movups [{dst} + {last} + 48], {d}",
            at = inout(reg) 0usize => _,
            last = in(reg) len - 64,
            src = in(reg) src,
            dst = in(reg) dst,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// `copy_shared` of 16 bytes to 64, by sixteen. The last sixteen may cover some of those before.
///
/// # Safety
/// As [`copy_shared`], and `len` is at least 16.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_short(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: reads and writes at `0, 16, …` as long as that is before `len - 16`, and at `len - 16`:
    // always within `len` bytes, valid by the caller's promise. Opaque as `copy_shared` is.
    unsafe {
        core::arch::asm!(
            "2:",
            "movups {part}, [{src} + {at}]",
            "movups [{dst} + {at}], {part}",
            "add {at}, 16",
            "cmp {at}, {last}",
            "jb 2b",
            "movups {part}, [{src} + {last}]",
            "movups [{dst} + {last}], {part}",
            at = inout(reg) 0usize => _,
            last = in(reg) len - 16,
            src = in(reg) src,
            dst = in(reg) dst,
            part = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// `copy_shared` of 8 to 16 bytes: the first eight, and the last.
///
/// # Safety
/// As [`copy_shared`], and `len` is 8 to 16.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_words(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: eight bytes at 0 and at `len - 8`, within `len` bytes, valid by the caller's promise.
    // Opaque as `copy_shared` is.
    unsafe {
        core::arch::asm!(
            "mov {first}, [{src}]",
            "mov {end}, [{src} + {last}]",
            "mov [{dst}], {first}",
            "mov [{dst} + {last}], {end}",
            last = in(reg) len - 8,
            src = in(reg) src,
            dst = in(reg) dst,
            first = out(reg) _,
            end = out(reg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// The copy for aarch64: by 32 bytes, by 8, then byte by byte.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes and `src` for reads.
#[cfg(target_arch = "aarch64")]
unsafe fn copy_shared(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: each step reads and writes as many bytes as it takes from `left`, and none is taken that
    // is not there: exactly `len` bytes, valid by the caller's promise. An `asm!` block is opaque to the
    // compiler, so a concurrent writer is no data race of the abstract machine.
    unsafe {
        core::arch::asm!(
            "2:",
            "cmp {left}, #32",
            "b.lo 3f",
            "ldp {a:q}, {b:q}, [{src}], #32",
            "stp {a:q}, {b:q}, [{dst}], #32",
            "sub {left}, {left}, #32",
            "b 2b",
            "3:",
            "cmp {left}, #8",
            "b.lo 4f",
            "ldr {word}, [{src}], #8",
            "str {word}, [{dst}], #8",
            "sub {left}, {left}, #8",
            "b 3b",
            "4:",
            "cbz {left}, 5f",
            "ldrb {word:w}, [{src}], #1",
            "strb {word:w}, [{dst}], #1",
            "sub {left}, {left}, #1",
            "b 4b",
            "5:",
            left = inout(reg) len => _,
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            word = out(reg) _,
            a = out(vreg) _,
            b = out(vreg) _,
            options(nostack)
        );
    }
}

// In Rust it would be a data race, whose result the compiler may assume never to see.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "Pagewire runs on x86-64 and aarch64: memory that others may change is copied in assembly, \
     and there is none for this target (crates/core/mem/src/copy.rs)"
);
