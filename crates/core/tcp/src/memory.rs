//! [`MemoryAccount`]: the memory that all sockets of a host together pin, and the windows that their
//! peers were promised.
//!
//! ```text
//!   limit |<-------------------- used --------------------->|<- promised ->|<--- free --->|
//!         | copies | unread | beyond gaps | datagrams | kept |   windows    | a quarter of it for each
//!         |<- a quarter is for copies only ->|
//! ```

use std::sync::Arc;

use pagewire_mem::{Instant, Returns};

use crate::inbound::window;
use crate::limits::{
    COMPACT_FACTOR, COPIES_PART, DATAGRAM_PART, DATAGRAM_RESERVE, FIRST_OVERHEAD, MEMORY_SHARE,
    PROMISE_EPOCH, PROMISE_RESERVE, RECEIVE_RESERVE, SMALL_SEGMENT,
};

/// The memory that all sockets of a host together may pin: for data that is unread or beyond a gap,
/// for datagrams, for what applications took by reference and keep, and for copies that wait to be
/// sent or acknowledged.
///
/// A connection may pin a quarter of the free memory ([`MEMORY_SHARE`]), received and to be sent. The
/// windows that peers were promised are not free. So a few connections are not limited, N connections
/// have one part in N + 4 each, and some is always left for the next (the dynamic threshold of
/// Choudhury and Hahne, 1998).
///
/// Windows that are promised leave a quarter free ([`PROMISE_RESERVE`]), of which connections that hold
/// nothing get a few segments. A peer is promised its window when the window is announced. The promise ends when the data arrives, or
/// after half a second of silence: thousands of idle connections have open windows, and send little.
/// Copies of what is sent may take a quarter of the memory ([`COPIES_PART`]) whatever was promised. Beyond
/// that they may take what is free, but at most half of the memory for received data: peers that do not
/// read must not keep others from being read. In the last eighth of the memory
/// ([`RECEIVE_RESERVE`]) even data within the window is refused, if the connection holds more than its
/// share or, but for two segments, the data lies beyond a gap. Half of that eighth is for connections
/// that hold nothing, and half of that for those whose application has read before. There a super-frame
/// counts up to the length of one on a wire ([`RESERVE_SEGMENT`](crate::limits::RESERVE_SEGMENT)).
/// Received data never exceeds the limit.
///
/// Datagrams in sockets may have half of the memory ([`DATAGRAM_PART`]): a socket may pin a quarter of
/// what is free of it. A socket without a datagram gets one if a connection that holds nothing would get
/// room, or, of a small part of the memory ([`DATAGRAM_RESERVE`]), if there is any.
///
/// Where received data lies in a device's memory, the limit is at most what the device has left
/// ([`set_room`](Self::set_room)): pages are pinned whole, so they may be more than what is charged.
#[derive(Clone, Debug)]
pub struct MemoryAccount {
    /// Bytes of all memory, and the part of it for copies only.
    all: usize,
    own: usize,
    /// Bytes that received data may pin: the rest, and at most what it pins and what the device has left.
    limit: usize,
    most: usize,
    /// Bytes that wait in queues of received data.
    queued: usize,
    /// The part of `queued` that datagrams pin.
    datagrams: usize,
    /// Bytes of the host's own pages that are in use.
    copies: usize,
    /// Memory that applications took by reference and keep.
    kept: Option<Arc<Returns>>,
    /// Bytes promised in this epoch, and in the one before.
    promised: [usize; 2],
    /// Number of the epoch; each is [`PROMISE_EPOCH`] long.
    epoch: u32,
    /// Sixteenths of a byte of memory that a received byte pins, and what was seen of it in this epoch.
    overhead: u32,
    seen: Overhead,
}

/// The memory that received data pinned, and its bytes, both summed up.
#[derive(Clone, Copy, Debug, Default)]
struct Overhead {
    pinned: usize,
    bytes: usize,
}

/// The part of a connection's window that its peer was promised.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promise {
    bytes: u32,
    /// The epoch in which the promise was made, which it outlives by one.
    epoch: u32,
}

impl Default for MemoryAccount {
    /// No limit.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl MemoryAccount {
    /// An account of `all` bytes.
    pub const fn new(all: usize) -> Self {
        let own = all / COPIES_PART;
        let limit = all - own;
        Self {
            all,
            own,
            limit,
            most: limit,
            queued: 0,
            datagrams: 0,
            copies: 0,
            kept: None,
            promised: [0; 2],
            epoch: 0,
            overhead: FIRST_OVERHEAD,
            seen: Overhead { pinned: 0, bytes: 0 },
        }
    }

    /// An account of which received data may pin `bytes`.
    pub const fn for_received(bytes: usize) -> Self {
        Self::new(bytes.saturating_mul(COPIES_PART) / (COPIES_PART - 1))
    }

    /// Counts what applications keep, too.
    #[must_use]
    pub fn with_kept(self, kept: &Arc<Returns>) -> Self {
        Self { kept: Some(Arc::clone(kept)), ..self }
    }

    /// Sets the limit to the use plus `room`, the bytes that the receiving device has left for unread data.
    pub fn set_room(&mut self, room: usize) {
        let there = self.taken().saturating_add(room);
        self.limit = if there < self.most { there } else { self.most };
    }

    /// Lets promises expire that were made two epochs ago.
    #[inline]
    pub fn handle_time(&mut self, now: Instant) {
        let epoch = (now.as_millis() / PROMISE_EPOCH.as_millis() as u64) as u32;
        let [this, _] = self.promised;
        self.promised = match epoch.wrapping_sub(self.epoch) {
            0 => return,
            1 => [0, this],
            _ => [0, 0],
        };
        self.epoch = epoch;
        let Overhead { pinned, bytes } = core::mem::take(&mut self.seen);
        if bytes > 0 {
            let overhead = pinned.saturating_mul(16).div_ceil(bytes);
            self.overhead = overhead.clamp(16, 16 * COMPACT_FACTOR) as u32;
        }
    }

    /// A connection that received data holds `bytes` unread bytes now, which pin `pinned` bytes of memory.
    #[inline]
    pub const fn note_overhead(&mut self, pinned: usize, bytes: usize) {
        // Small ones cost a piece of a page, whatever their windows.
        if bytes < SMALL_SEGMENT {
            return;
        }
        self.seen.pinned = self.seen.pinned.saturating_add(pinned);
        self.seen.bytes = self.seen.bytes.saturating_add(bytes);
    }

    /// The peer of a connection was promised a window of `bytes`, in the place of the promise before. The
    /// promise is the memory that so many bytes will pin.
    #[inline]
    pub const fn promise(&mut self, promise: &mut Promise, bytes: u32) {
        let bytes = bytes.saturating_mul(self.overhead) / 16;
        if promise.bytes == bytes && (promise.epoch == self.epoch || bytes == 0) {
            return;
        }
        let [this, last] = &mut self.promised;
        match self.epoch.wrapping_sub(promise.epoch) {
            0 => *this = this.saturating_sub(promise.bytes as usize),
            1 => *last = last.saturating_sub(promise.bytes as usize),
            _ => {}
        }
        *this = this.saturating_add(bytes as usize);
        *promise = Promise { bytes, epoch: self.epoch };
    }

    /// Bytes in the account.
    pub const fn all(&self) -> usize {
        self.all
    }

    /// Bytes of it that received data may pin.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes of it that are pinned.
    #[inline]
    pub fn used(&self) -> usize {
        self.received().saturating_add(self.copies)
    }

    /// Bytes of it that received data pins, also what applications keep.
    #[inline]
    pub fn received(&self) -> usize {
        self.queued.saturating_add(self.kept.as_ref().map_or(0, |kept| kept.kept()))
    }

    /// Bytes of those for received data that are pinned, also by copies beyond their own part.
    #[inline]
    pub fn taken(&self) -> usize {
        self.received().saturating_add(self.copies.saturating_sub(self.own))
    }

    /// Bytes of windows that peers were promised and have not used.
    #[inline]
    pub const fn promised(&self) -> usize {
        let [this, last] = self.promised;
        this.saturating_add(last)
    }

    /// A connection whose queues pinned `before` bytes pins `after` now.
    pub const fn charge(&mut self, before: usize, after: usize) {
        self.queued = self.queued.saturating_sub(before).saturating_add(after);
    }

    /// Sets the bytes of the host's own pages that are in use.
    #[inline]
    pub const fn set_copies(&mut self, bytes: usize) {
        self.copies = bytes;
    }

    /// Bytes of it that datagrams pin.
    pub const fn datagrams(&self) -> usize {
        self.datagrams
    }

    /// Datagrams pinned `before` bytes and pin `after` now.
    #[inline]
    pub const fn charge_datagrams(&mut self, before: usize, after: usize) {
        self.charge(before, after);
        self.datagrams = self.datagrams.saturating_sub(before).saturating_add(after);
    }

    /// Whether a socket whose datagrams pin `held` bytes may take one that pins `len` more.
    #[inline]
    pub fn takes_datagram(&self, held: usize, len: usize) -> bool {
        let part = (self.limit / DATAGRAM_PART).saturating_sub(self.datagrams);
        if held == 0 {
            // A query, while connections are not read: also if the device has little left.
            let own = self.datagrams.saturating_add(len) <= self.most / DATAGRAM_RESERVE
                && self.taken().saturating_add(len) <= self.most;
            return own || (len <= part && self.has_room(len, false, false));
        }
        let (ample, len) = (self.ample(), held.saturating_add(len));
        len <= part / MEMORY_SHARE && len <= ample / MEMORY_SHARE
    }

    /// Bytes that copies of what is sent may still pin: a device with little memory left does not bound them.
    #[inline]
    pub fn free_for_copies(&self) -> usize {
        let (own, beyond) =
            (self.own.saturating_sub(self.copies), self.copies.saturating_sub(self.own));
        let free = self.most.saturating_sub(self.taken()).saturating_sub(self.promised());
        own + free.min((self.most / 2).saturating_sub(beyond))
    }

    /// Bytes that windows may promise together, the pinned ones included.
    #[inline]
    pub const fn promisable(&self) -> usize {
        self.limit - self.limit / PROMISE_RESERVE
    }

    /// Bytes that one connection may receive now, what it pins already included.
    #[inline]
    pub fn allowance(&self) -> usize {
        let free = self.promisable().saturating_sub(self.taken()).saturating_sub(self.promised());
        (free / MEMORY_SHARE).saturating_mul(16) / self.overhead as usize
    }

    /// Bytes that data which the peer was promised may pin of one connection in the last eighth.
    pub(crate) fn share(&self) -> usize {
        self.limit.saturating_sub(self.taken()) / MEMORY_SHARE
    }

    /// The first window of a connection, of `window` bytes if memory allows, for segments of `mss` bytes.
    pub fn first_window(&self, window: u16, mss: u16) -> u16 {
        let least = window::least(mss.into()) as usize;
        window.min(u16::try_from(self.allowance().max(least)).unwrap_or(u16::MAX))
    }

    /// Whether `len` bytes more leave the last eighth untouched.
    pub(crate) fn is_ample(&self, len: usize) -> bool {
        len <= self.ample()
    }

    /// Bytes that may be pinned before the last eighth is begun.
    pub(crate) fn ample(&self) -> usize {
        (self.limit - self.limit / RECEIVE_RESERVE).saturating_sub(self.taken())
    }

    /// Whether there is room for `len` bytes; `reads`: has read before, `holds`: has unread data.
    pub(crate) fn has_room(&self, len: usize, reads: bool, holds: bool) -> bool {
        let kept = match (reads, holds) {
            (true, _) => 0,
            (false, false) => self.limit / (4 * RECEIVE_RESERVE),
            (false, true) => self.limit / (2 * RECEIVE_RESERVE),
        };
        self.taken().saturating_add(len) <= self.limit - kept
    }
}

#[cfg(test)]
#[path = "tests/memory.rs"]
mod tests;
