//! Packet buffers: one handle on a frame, sent or received.
//!
//! ```text
//!   head (HEAD_CAPACITY bytes, inline)              payload
//!   0 ........ start ========= end ......... cap    frag 0 | frag 1 | … (at most MAX_FRAGS)
//!   \ headroom / \   headers   / \  tailroom  /
//!      push(n) moves start left      on the way out: each layer puts its header in front
//!      pull(n) moves start right     on the way in:  each layer takes its header off
//! ```
//!
//! The stack reads and writes only the head; fragments pass by reference.

use crate::copy::{CopyLedger, CopyReason};
use crate::frag::{Frag, FragVec};
use crate::limits::{HEAD_CAPACITY, MAX_FRAGS};

/// The protocol for which a super-frame is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over either: each segment is a datagram (Linux's `UDP_SEGMENT`).
    Udp,
}

/// A super-frame: the device (or software) cuts its payload into segments of `size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// The frame's protocol.
    pub kind: GsoKind,
    /// Payload bytes in each segment but the last.
    pub size: u16,
    /// Bytes from the start of the frame to the payload: the headers that are repeated.
    pub header_len: u16,
}

/// The work left for the transport checksum of a frame to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxChecksum {
    /// No work is left: the checksum is complete, or the frame has none.
    #[default]
    Done,
    /// The field holds the pseudo-header's sum; add the bytes from `start` (from the start of the
    /// frame) to the end, and store the complement at `start + offset`.
    Partial {
        /// Offset of the first summed byte in the frame.
        start: u16,
        /// The checksum field's offset from there.
        offset: u16,
    },
}

/// The state of the transport checksum of a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChecksum {
    /// Nothing: verify it.
    #[default]
    Unknown,
    /// The device verified it, or the frame never left the machine.
    Valid,
}

/// The place of a fragment.
const EMPTY: Frag = Frag::empty();

/// The unique handle on a frame.
#[derive(Clone, Debug)]
pub struct PacketBuf {
    head: [u8; HEAD_CAPACITY],
    start: u16,
    end: u16,
    frags: FragVec,
    frag_len: u32,
    /// Super-frame, if any: to be cut when sent, already joined when received.
    pub gso: Option<Gso>,
    /// Checksum work left, for sending.
    pub tx_checksum: TxChecksum,
    /// Checksum knowledge, from receiving.
    pub rx_checksum: RxChecksum,
    /// The sending connection maps what it receives: a device does well to fill pages with its data alone.
    pub maps: bool,
}

impl PacketBuf {
    /// An empty packet with all room of the head in front: to be built from the inside out.
    #[inline]
    pub fn for_tx() -> Self {
        const TX: PacketBuf = PacketBuf::with_window(HEAD_CAPACITY);
        TX
    }

    /// An empty packet with all room of the head behind: for a device to fill.
    #[inline]
    pub fn for_rx() -> Self {
        // A constant, which is copied as a whole.
        const RX: PacketBuf = PacketBuf::with_window(0);
        RX
    }

    const fn with_window(at: usize) -> Self {
        Self {
            head: [0; HEAD_CAPACITY],
            start: at as u16,
            end: at as u16,
            frags: FragVec::new_const(),
            frag_len: 0,
            gso: None,
            tx_checksum: TxChecksum::Done,
            rx_checksum: RxChecksum::Unknown,
            maps: false,
        }
    }

    /// Moves the packet out. The rest has no bytes; its marks stay.
    #[inline]
    pub fn take(&mut self) -> Self {
        let frags = core::mem::take(&mut self.frags);
        let &mut Self { head, start, end, frag_len, gso, tx_checksum, rx_checksum, maps, .. } =
            self;
        (self.start, self.frag_len) = (end, 0);
        Self { head, start, end, frags, frag_len, gso, tx_checksum, rx_checksum, maps }
    }

    /// Empties the packet and gives its head all its room in front, as [`for_tx`](Self::for_tx), to
    /// answer in it. Old bytes stay until they are overwritten.
    pub fn clear_for_tx(&mut self) {
        (self.start, self.end) = (HEAD_CAPACITY as u16, HEAD_CAPACITY as u16);
        self.frags.clear();
        self.frag_len = 0;
        self.gso = None;
        (self.tx_checksum, self.rx_checksum) = (TxChecksum::Done, RxChecksum::Unknown);
        self.maps = false;
    }

    /// The headers.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.head.get(usize::from(self.start)..usize::from(self.end)).unwrap_or_default()
    }

    /// The headers, mutable.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        self.head.get_mut(usize::from(self.start)..usize::from(self.end)).unwrap_or_default()
    }

    /// Room in front of the headers, in bytes.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.start)
    }

    /// Room behind the headers, in bytes.
    #[inline]
    pub fn tailroom(&self) -> usize {
        HEAD_CAPACITY - usize::from(self.end)
    }

    /// Bytes in the head: a difference, without the checks of a slice.
    #[inline]
    const fn head_len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Bytes in the head and in all fragments.
    #[inline]
    pub fn len(&self) -> usize {
        self.head_len() + self.frag_len as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes in all fragments.
    pub fn frag_len(&self) -> usize {
        self.frag_len as usize
    }

    /// Makes room for `n` bytes in front of the head and returns it; `None` if there is too little.
    #[inline]
    pub fn push(&mut self, n: usize) -> Option<&mut [u8]> {
        let start = usize::from(self.start).checked_sub(n)?;
        self.start = start as u16;
        self.head.get_mut(start..start + n)
    }

    /// Removes `n` bytes from the front of the head; `false`, and no change, if it has fewer.
    #[inline]
    pub fn pull(&mut self, n: usize) -> bool {
        if n > self.head_len() {
            return false;
        }
        self.start += n as u16;
        true
    }

    /// Makes room for `n` header bytes behind the head; `None` if there is too little.
    #[inline]
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() {
            return None;
        }
        let end = usize::from(self.end);
        self.end += n as u16;
        self.head.get_mut(end..end + n)
    }

    /// Appends header bytes behind the head; `false`, and no change, if there is too little room.
    ///
    /// By sixteen, as the bytes were copied to where they are: longer reads would span several writes, for
    /// which processors wait until they are in the cache.
    #[inline(always)]
    pub fn append_bytes(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self.append(bytes.len()) else { return false };
        let (mut to, mut from) = (room, bytes);
        step::<16>(&mut to, &mut from, usize::MAX);
        step::<8>(&mut to, &mut from, 1);
        step::<4>(&mut to, &mut from, 1);
        step::<2>(&mut to, &mut from, 1);
        step::<1>(&mut to, &mut from, 1);
        true
    }

    /// Truncates the head to its first `n` bytes.
    #[inline]
    pub fn truncate_head(&mut self, n: usize) {
        if n < self.head_len() {
            self.end = self.start + n as u16;
        }
    }

    /// The payload's fragments.
    #[inline]
    pub fn frags(&self) -> &[Frag] {
        &self.frags
    }

    /// Adds a fragment at the end; returns it if there are [`MAX_FRAGS`] already, or if the sum of
    /// lengths would be too long. Empty fragments are dropped, adjacent ones merged.
    #[inline(always)]
    pub fn push_frag(&mut self, frag: Frag) -> Result<(), Frag> {
        // The first one, which is the only one of most packets.
        if self.frags.is_empty() && !frag.is_empty() {
            self.frag_len = frag.len() as u32;
            // Made in its place: as an argument it would be written in parts and read as a whole, for which
            // processors wait until the parts are in the cache.
            self.frags.push(EMPTY);
            if let Some(place) = self.frags.last_mut() {
                // An empty fragment keeps nothing.
                core::mem::forget(core::mem::replace(place, frag));
            }
            return Ok(());
        }
        self.push_another(frag)
    }

    /// The slow part of `push_frag`.
    fn push_another(&mut self, frag: Frag) -> Result<(), Frag> {
        let len = frag.len() as u32;
        if self.frag_len.checked_add(len).is_none() {
            return Err(frag);
        }
        let rest = match self.frags.last_mut() {
            Some(last) => last.try_append(frag),
            None if frag.is_empty() => Ok(()),
            None => Err(frag),
        };
        if let Err(frag) = rest {
            if self.frags.len() >= MAX_FRAGS {
                return Err(frag);
            }
            self.frags.push(frag);
        }
        self.frag_len += len;
        Ok(())
    }

    /// Removes and returns all fragments.
    #[inline]
    pub fn take_frags(&mut self) -> FragVec {
        self.frag_len = 0;
        core::mem::take(&mut self.frags)
    }

    /// Makes sure that the head holds at least `n` bytes, by moving header bytes from fragments;
    /// `false`, and nothing moves, if the packet has fewer than `n` bytes or `n` is more than
    /// [`HEAD_CAPACITY`]. Header bytes are not payload and not counted.
    #[inline]
    pub fn linearize(&mut self, n: usize) -> bool {
        n <= self.head_len() || self.gather(n)
    }

    /// The slow part of `linearize`, where bytes have to move.
    fn gather(&mut self, n: usize) -> bool {
        let have = self.head_len();
        let need = n - have;
        if n > self.len() || n > HEAD_CAPACITY {
            return false;
        }
        if need > self.tailroom() {
            // Headers that were pulled left room in front: with all options, Ethernet, IP and TCP
            // are longer together than the head, but never any two of them.
            self.head.copy_within(usize::from(self.start)..usize::from(self.end), 0);
            (self.start, self.end) = (0, have as u16);
        }
        let mut uncounted = CopyLedger::new();
        let mut end = usize::from(self.end);
        let target = end + need;
        while end < target {
            let (Some(first), Some(room)) =
                (self.frags.first_mut(), self.head.get_mut(end..target))
            else {
                return false;
            };
            let moved = first.copy_to(0, room, &mut uncounted, CopyReason::LinearHead);
            first.advance(moved);
            end += moved;
            self.frag_len -= moved as u32;
            if first.is_empty() {
                self.frags.remove(0);
            }
        }
        self.end = end as u16;
        true
    }

    /// Truncates the packet (head first, then fragments) to its first `n` bytes.
    pub fn truncate(&mut self, n: usize) {
        let head = self.head_len();
        self.truncate_head(n);
        let mut left = n.saturating_sub(head);
        self.frags.retain(|frag| {
            frag.truncate(left);
            left -= frag.len();
            !frag.is_empty()
        });
        self.frag_len = self.frags.iter().map(|f| f.len() as u32).sum();
    }
}

/// Copies up to `times` pieces of `N` bytes, and goes on behind them.
#[inline(always)]
fn step<const N: usize>(to: &mut &mut [u8], from: &mut &[u8], times: usize) {
    for _ in 0..times {
        let Some((piece, later)) = from.split_first_chunk::<N>() else { return };
        let Some((place, behind)) = core::mem::take(to).split_first_chunk_mut::<N>() else {
            return;
        };
        *place = *piece;
        (*to, *from) = (behind, later);
    }
}
