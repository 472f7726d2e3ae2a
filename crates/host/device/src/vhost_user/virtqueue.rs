//! A split virtqueue in memory that another side writes (Virtio 1.2, section 2.7). The unsafe code
//! of this device is here and in `window`.
//!
//! ```text
//!   descriptors   num × [address 8 | length 4 | flags 2 | next 2]            driver writes
//!   available     [flags 2 | index 2 | num × head 2 | used_event 2]          driver writes
//!   used          [flags 2 | index 2 | num × [id 4 | length 4] | avail_event 2]   device writes
//! ```
//!
//! Everything is read and written as whole atomics, once: concurrent writes cause invalid values,
//! never a data race. `chain` and `vring` check the values. Both sides' halves are here, because
//! the test double of a guest uses the same ring.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::window::Window;

/// The descriptor goes on with another.
pub(super) const DESC_NEXT: u16 = 1;
/// The device writes the buffer (else it reads).
pub(super) const DESC_WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub(super) const DESC_INDIRECT: u16 = 4;
/// In the available ring's flags: the device need not interrupt.
const NO_INTERRUPT: u16 = 1;
/// In the used ring's flags: the driver need not kick.
const NO_NOTIFY: u16 = 1;

// The ring's numbers are little-endian (Virtio 1.2, section 1.4), and used without conversion.
const _: () = assert!(cfg!(target_endian = "little"), "written for little-endian machines");

/// A descriptor, as it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Desc {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    pub(super) next: u16,
}

impl Desc {
    /// Makes one of its 16 bytes in memory.
    pub(super) fn from_words(addr: u64, rest: u64) -> Self {
        Self { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }

    /// The second eight bytes of the descriptor.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn rest(&self) -> u64 {
        u64::from(self.len) | u64::from(self.flags) << 32 | u64::from(self.next) << 48
    }
}

/// A part of a ring: `offset` in a window.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) window: Window,
    pub(super) offset: usize,
}

/// A ring of `size` entries, a power of two, whose three parts were checked to lie in their windows.
pub(super) struct Ring {
    desc: NonNull<u8>,
    avail: NonNull<u8>,
    used: NonNull<u8>,
    size: u16,
    /// Keep the three parts mapped.
    _windows: [Window; 3],
}

// SAFETY: the pointers lead into mappings that the windows keep, and are only used for atomics.
unsafe impl Send for Ring {}

/// Bytes of the descriptor table of a ring of `size`.
pub(super) const fn desc_bytes(size: u16) -> usize {
    size as usize * 16
}

/// Bytes of the available ring.
pub(super) const fn avail_bytes(size: u16) -> usize {
    6 + size as usize * 2
}

/// Bytes of the used ring.
pub(super) const fn used_bytes(size: u16) -> usize {
    6 + size as usize * 8
}

impl Ring {
    /// A ring over three parts; `None` if one does not lie in its window, is not aligned as Virtio
    /// 1.2 section 2.7 has it (16, 2 and 4 bytes), or `size` is no power of two.
    pub(super) fn new(desc: &Part, avail: &Part, used: &Part, size: u16) -> Option<Self> {
        if !size.is_power_of_two() {
            return None;
        }
        Some(Self {
            desc: checked(desc, desc_bytes(size), 16)?,
            avail: checked(avail, avail_bytes(size), 2)?,
            used: checked(used, used_bytes(size), 4)?,
            size,
            _windows: [desc.window.clone(), avail.window.clone(), used.window.clone()],
        })
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }

    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    /// Descriptor `index`, whose two halves are each read once; `None` beyond the table.
    pub(super) fn desc(&self, index: u16) -> Option<Desc> {
        if index >= self.size {
            return None;
        }
        let at = usize::from(index) * 16;
        // SAFETY: `index < size`, so both words lie in the table that `new` checked, aligned to 8.
        let addr = unsafe { word64(self.desc, at) }.load(Ordering::Relaxed);
        // SAFETY: as above.
        let rest = unsafe { word64(self.desc, at + 8) }.load(Ordering::Relaxed);
        Some(Desc::from_words(addr, rest))
    }

    /// Driver: writes descriptor `index`.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn set_desc(&self, index: u16, desc: Desc) {
        if index < self.size {
            let at = usize::from(index) * 16;
            // SAFETY: as in `desc`.
            unsafe { word64(self.desc, at) }.store(desc.addr, Ordering::Relaxed);
            // SAFETY: as in `desc`.
            unsafe { word64(self.desc, at + 8) }.store(desc.rest(), Ordering::Relaxed);
        }
    }

    fn avail_word(&self, at: usize) -> &AtomicU16 {
        debug_assert!(at + 2 <= avail_bytes(self.size));
        // SAFETY: private; called with offsets of the flags, the index, a slot below `size` and
        // the word behind them, all within `avail_bytes`, which `new` checked, and even.
        unsafe { word16(self.avail, at) }
    }

    fn used_word(&self, at: usize) -> &AtomicU16 {
        debug_assert!(at + 2 <= used_bytes(self.size));
        // SAFETY: as in `avail_word`, within `used_bytes`.
        unsafe { word16(self.used, at) }
    }

    /// How many heads the driver ever made available. Acquire pairs with the driver's release.
    pub(super) fn avail_index(&self) -> u16 {
        self.avail_word(2).load(Ordering::Acquire)
    }

    /// The head at `index` of the available ring.
    pub(super) fn avail_entry(&self, index: u16) -> u16 {
        self.avail_word(4 + self.slot(index) * 2).load(Ordering::Relaxed)
    }

    /// Driver: puts `head` at `index`.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn set_avail_entry(&self, index: u16, head: u16) {
        self.avail_word(4 + self.slot(index) * 2).store(head, Ordering::Relaxed);
    }

    /// Driver: makes everything before `index` available.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn set_avail_index(&self, index: u16) {
        self.avail_word(2).store(index, Ordering::Release);
    }

    /// How many entries the device ever used.
    pub(super) fn used_index(&self) -> u16 {
        self.used_word(2).load(Ordering::Acquire)
    }

    /// Driver: the used entry at `index`: the head and the bytes written.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn used_entry(&self, index: u16) -> (u32, u32) {
        let at = 4 + self.slot(index) * 8;
        // SAFETY: a slot below `size`: within `used_bytes`, and aligned to 4.
        let id = unsafe { word32(self.used, at) }.load(Ordering::Relaxed);
        // SAFETY: as above.
        let len = unsafe { word32(self.used, at + 4) }.load(Ordering::Relaxed);
        (id, len)
    }

    /// Device: writes the used entry at `index`.
    pub(super) fn set_used_entry(&self, index: u16, head: u16, len: u32) {
        let at = 4 + self.slot(index) * 8;
        // SAFETY: as in `used_entry`.
        unsafe { word32(self.used, at) }.store(u32::from(head), Ordering::Relaxed);
        // SAFETY: as in `used_entry`.
        unsafe { word32(self.used, at + 4) }.store(len, Ordering::Relaxed);
    }

    /// Device: publishes everything before `index`. Release pairs with the driver's acquire.
    pub(super) fn set_used_index(&self, index: u16) {
        self.used_word(2).store(index, Ordering::Release);
    }

    /// Device: whether the driver wants an interrupt for the entries `old..new` just published.
    pub(super) fn wants_call(&self, old: u16, new: u16, event_index: bool) -> bool {
        // Virtio 1.2, section 2.7.10: the index is stored before the event is read; the driver does
        // the reverse, with a barrier of its own.
        fence(Ordering::SeqCst);
        if event_index {
            let event = self.avail_word(4 + usize::from(self.size) * 2).load(Ordering::Relaxed);
            return passed(event, old, new);
        }
        self.avail_word(0).load(Ordering::Relaxed) & NO_INTERRUPT == 0
    }

    /// Driver: the used entry from which on it wants an interrupt; `None`: none at all.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn ask_call(&self, from: Option<u16>, event_index: bool) {
        if event_index {
            let event = from.unwrap_or(self.used_index().wrapping_sub(1));
            let at = 4 + usize::from(self.size) * 2;
            self.avail_word(at).store(event, Ordering::Relaxed);
        } else {
            let flags = if from.is_some() { 0 } else { NO_INTERRUPT };
            self.avail_word(0).store(flags, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Device: asks to be kicked for entries beyond `from`. Read the index again afterwards.
    pub(super) fn ask_kick(&self, from: u16, event_index: bool) {
        if event_index {
            let at = 4 + usize::from(self.size) * 8;
            self.used_word(at).store(from, Ordering::Relaxed);
        } else {
            self.used_word(0).store(0, Ordering::Relaxed);
        }
        // Pairs with the driver's barrier between its index and its read of this.
        fence(Ordering::SeqCst);
    }

    /// Device: asks for no kicks. With the event index, by an event just behind `from`.
    pub(super) fn spare_kick(&self, from: u16, event_index: bool) {
        if event_index {
            let at = 4 + usize::from(self.size) * 8;
            self.used_word(at).store(from.wrapping_sub(1), Ordering::Relaxed);
        } else {
            self.used_word(0).store(NO_NOTIFY, Ordering::Relaxed);
        }
    }

    /// Driver: whether the device wants to be kicked for the entries `old..new` just made available.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn wants_kick(&self, old: u16, new: u16, event_index: bool) -> bool {
        fence(Ordering::SeqCst);
        if event_index {
            let event = self.used_word(4 + usize::from(self.size) * 8).load(Ordering::Relaxed);
            return passed(event, old, new);
        }
        self.used_word(0).load(Ordering::Relaxed) & NO_NOTIFY == 0
    }
}

/// Whether entry `event` is among `old..new` (Virtio 1.2, section 2.7.7.2).
fn passed(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The address of `len` bytes of a part, if they lie in its window, aligned.
fn checked(part: &Part, len: usize, align: usize) -> Option<NonNull<u8>> {
    let at = part.window.address(part.offset, len)?;
    at.as_ptr().addr().is_multiple_of(align).then_some(at)
}

/// # Safety
/// `at..at + 2` behind `base` is mapped, writable and aligned while the result lives, and only
/// reached as atomics or by copies in `asm!` in this process.
unsafe fn word16<'a>(base: NonNull<u8>, at: usize) -> &'a AtomicU16 {
    // SAFETY: the caller's promise.
    let word = unsafe { base.add(at) };
    // SAFETY: the caller's promise.
    unsafe { AtomicU16::from_ptr(word.as_ptr().cast::<u16>()) }
}

/// # Safety
/// As [`word16`], for four bytes.
unsafe fn word32<'a>(base: NonNull<u8>, at: usize) -> &'a AtomicU32 {
    // SAFETY: the caller's promise.
    let word = unsafe { base.add(at) };
    // SAFETY: the caller's promise.
    unsafe { AtomicU32::from_ptr(word.as_ptr().cast::<u32>()) }
}

/// # Safety
/// As [`word16`], for eight bytes.
unsafe fn word64<'a>(base: NonNull<u8>, at: usize) -> &'a AtomicU64 {
    // SAFETY: the caller's promise.
    let word = unsafe { base.add(at) };
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(word.as_ptr().cast::<u64>()) }
}
