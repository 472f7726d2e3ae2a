//! Byte path, step R1: the tap reads a frame with one `readv`, and the kernel fills pages.
//!
//! ```text
//!   readv: [virtio header | predicted headers][spare bytes of the current run][the next run]
//!           front                              bulk writer
//! ```
//!
//! Payload begins where the last payload of the flow ended, not at the next page: Linux cuts super-frames at
//! multiples of the MSS. So super-frames of any length fill pages without holes.
//!
//! A header shorter than predicted leaves payload at the end of `front`, a longer one leaves
//! header bytes at the start of the pages. Both are corrected here, so that the head of a packet
//! with fragments is exactly its headers.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use pagewire_mem::copy::copy_bytes;
use pagewire_mem::{CopyLedger, CopyReason, FragVec, HEAD_CAPACITY, Instant, PacketBuf};
use rustix::io::Errno;

use super::limits::{MAX_FRAME, SMALL_PAYLOAD, VNET_HEADER};
use super::predict::{Seen, Verdict};
use super::{Receiver, Tap, TapQueue, errno, sys};
use crate::vnet::{self, Received};
use crate::{DeviceCounters, DeviceError};
use pagewire_mem::link::headers::{self, Layout, ParseError, Transport};
use pagewire_mem::link::{Level, QueueMemory, Steering, offload};

impl Tap {
    /// Receives up to `max` frames at the back of `frames`; returns how many.
    #[inline]
    pub(super) fn receive_burst(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        let Self { queues, counters, receiver, steering, .. } = self;
        receiver.pool.drain();
        queues.dedicate(steering);
        queues.tidy(now);
        steering.drain();
        let mut received = 0;
        let read = |fd: BorrowedFd<'_>, queue: &mut TapQueue| {
            receiver.receive(fd, queue, steering, counters, ledger)
        };
        let take = |packet| {
            frames.push_back(packet);
            received += 1;
        };
        let read = queues.read_each(max, read, take);
        steering.note_levels();
        match read {
            Ok(()) => Ok(received),
            Err(error) if errno(&error) == Errno::BADFD => Err(DeviceError::Closed),
            Err(error) => {
                let what = format!("receive from tap {}", self.name);
                Err(DeviceError::System { what, source: error })
            }
        }
    }
}

impl Receiver {
    /// Receives one frame by a queue of the tap; `None`: one was dropped, and counted.
    pub(super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        queue: &mut TapQueue,
        steering: &mut Steering,
        counters: &mut DeviceCounters,
        ledger: &mut CopyLedger,
    ) -> io::Result<Option<PacketBuf>> {
        if queue.predictor.wants_fresh_page() {
            queue.bulk.align();
        }
        let mut guess = queue.predictor.header_len();
        let mut limit = MAX_FRAME + 1 - guess;
        if !self.reserve(queue, steering.memory_mut(queue.interface_queue), limit) {
            // Without pages, frames that fit the head still come in: acknowledgements free pages.
            (guess, limit) = (HEAD_CAPACITY + 1, 0);
        }
        counters.syscalls += 1;
        let front = self.front.get_mut(..VNET_HEADER + guess).unwrap_or_default();
        let n = sys::read_frame(fd, front, &mut queue.bulk, limit)?;
        let Some((header, len)) =
            self.front.first_chunk::<VNET_HEADER>().zip(n.checked_sub(VNET_HEADER))
        else {
            counters.rx_dropped_malformed += 1;
            return Ok(None);
        };
        if limit == 0 && len > HEAD_CAPACITY {
            counters.rx_dropped_memory += 1;
            return Ok(None);
        }
        let Some(about) = vnet::decode(header, len).filter(|_| len <= MAX_FRAME && len > 0) else {
            counters.rx_dropped_malformed += 1;
            return Ok(None);
        };
        let packet = self.packet(queue, about, len, guess.min(len), counters, ledger);
        let placed = packet.and_then(|packet| self.judge(packet, queue, steering, ledger));
        match placed {
            Ok(packet) => {
                counters.rx_frames += 1;
                counters.rx_bytes += len as u64;
                ledger.note(CopyReason::DeviceRx, packet.frag_len());
                Ok(Some(packet))
            }
            Err(Lost::Malformed) => {
                counters.rx_dropped_malformed += 1;
                Ok(None)
            }
            Err(Lost::Memory) => {
                counters.rx_dropped_memory += 1;
                Ok(None)
            }
        }
    }

    /// Makes sure that a queue has `bytes` bytes spare: of registered memory while that has pages.
    fn reserve(
        &mut self,
        queue: &mut TapQueue,
        memory: Option<&mut QueueMemory>,
        bytes: usize,
    ) -> bool {
        queue.fill(memory.as_ref().map(|memory| memory.level()));
        if let Some(memory) = memory {
            if queue.short && memory.has(bytes) {
                queue.bulk.abandon();
                queue.short = false;
            }
            if !queue.short {
                if memory.reserve(&mut queue.bulk, bytes) {
                    return true;
                }
                // Too few pages are reserved there for a frame.
                queue.bulk.abandon();
                queue.short = true;
            }
        }
        queue.bulk.reserve(&mut self.pool, bytes)
    }

    /// Finds the queue of the interface that a frame's flow belongs to. On return the payload lies in that
    /// queue's memory, or in the default queue's; otherwise it was copied out.
    fn judge(
        &mut self,
        mut packet: PacketBuf,
        queue: &TapQueue,
        steering: &mut Steering,
        ledger: &mut CopyLedger,
    ) -> Result<PacketBuf, Lost> {
        let interface_queue = steering.queue_of(packet.head());
        let payload = packet.frag_len();
        let registered = queue.registered.as_ref().filter(|_| !queue.short);
        if interface_queue == queue.interface_queue || payload == 0 {
            if let Some(level) = &queue.registered
                && payload > SMALL_PAYLOAD
            {
                let placed = if queue.short { 0 } else { payload };
                level.note(placed, payload - placed);
            }
        } else {
            if let Some(memory) = steering.memory_mut(interface_queue) {
                memory.level().note(0, payload);
            }
            if registered.is_some() && queue.interface_queue != 0 {
                self.move_out(&mut packet, ledger).ok_or(Lost::Memory)?;
            }
        }
        Ok(packet)
    }

    /// Moves a frame's payload out of registered memory, whose application sees its own flows only.
    fn move_out(&mut self, packet: &mut PacketBuf, ledger: &mut CopyLedger) -> Option<()> {
        let mut moved = FragVec::new();
        for frag in packet.take_frags() {
            let why = CopyReason::Misplaced;
            let (parts, n) = self.small.write_frag(&mut self.pool, &frag, ledger, why);
            append(&mut moved, parts);
            if n < frag.len() {
                return None;
            }
        }
        moved.into_iter().try_for_each(|frag| packet.push_frag(frag).ok())
    }

    /// Makes a packet of the `len` bytes just read: `split` in `front`, the rest behind the writer.
    fn packet(
        &mut self,
        queue: &mut TapQueue,
        about: Received,
        len: usize,
        split: usize,
        counters: &mut DeviceCounters,
        ledger: &mut CopyLedger,
    ) -> Result<PacketBuf, Lost> {
        let (layout, shown) = self.layout(queue, len, split);
        let mut packet = PacketBuf::for_rx();
        packet.rx_checksum = about.checksum;
        if let Some(said) = about.gso {
            let head = self.front.get(VNET_HEADER..VNET_HEADER + shown).unwrap_or_default();
            let gso = offload::super_frame(said, layout.as_ref(), head, len);
            packet.gso = Some(gso.map_err(|_| Lost::Malformed)?);
        }

        // The head ends behind the headers. Small frames of unknown transport are control traffic;
        // the head holds them whole and they need no page.
        let known = layout.filter(|l| l.transport != Transport::Other || len > HEAD_CAPACITY);
        let headers = known.map_or(len.min(HEAD_CAPACITY), |layout| layout.payload);
        let shown = self.show(queue, headers, split, shown);
        let bytes = self.front.get(VNET_HEADER..VNET_HEADER + shown).unwrap_or_default();
        let payload = len - headers;
        let verdict = match known {
            Some(layout) => {
                // Bytes beyond the IP packet's own length are padding, not payload.
                let real = layout.end.min(len) - headers;
                let at = queue.address(0) + headers.saturating_sub(split);
                let end = queue.address(len.min(layout.end).saturating_sub(split));
                let seen = Seen { head: bytes, layout, payload: real, at, end };
                let verdict = queue.predictor.observe(&seen);
                counters.rx_payload_bytes += real as u64;
                if let Verdict::Keep { aligned } = verdict {
                    counters.rx_mispredicted += u64::from(headers != split);
                    counters.rx_aligned_bytes += if aligned { real as u64 } else { 0 };
                }
                verdict
            }
            None => queue.predictor.observe_other(payload),
        };
        let head = packet.append(headers).ok_or(Lost::Malformed)?;
        head.copy_from_slice(bytes.get(..headers).ok_or(Lost::Malformed)?);
        if payload == 0 {
            return Ok(packet);
        }
        let frags = match verdict {
            Verdict::Small => self.copy_out(queue, headers, len, split, ledger),
            Verdict::Keep { .. } => self.keep(queue, headers, len, split, ledger),
        };
        for frag in frags.ok_or(Lost::Memory)? {
            packet.push_frag(frag).map_err(|_| Lost::Memory)?;
        }
        Ok(packet)
    }

    /// Finds the headers, moving more first bytes to `front` if needed; returns how many are there.
    fn layout(&mut self, queue: &TapQueue, len: usize, split: usize) -> (Option<Layout>, usize) {
        let mut shown = split;
        loop {
            let bytes = self.front.get(VNET_HEADER..VNET_HEADER + shown).unwrap_or_default();
            let need = match headers::parse(bytes) {
                Ok(layout) if layout.payload <= shown => return (Some(layout), shown),
                Ok(layout) => layout.payload,
                Err(ParseError::Need(need)) => need,
                Err(ParseError::NotIp) => return (None, shown),
            };
            // Each turn moves more, up to the head's capacity.
            let now = self.show(queue, need.min(len), split, shown);
            if now <= shown {
                return (None, shown);
            }
            shown = now;
        }
    }

    /// Moves the frame's first `want` bytes to `front` as far as they fit: `shown` are there.
    fn show(&mut self, queue: &TapQueue, want: usize, split: usize, shown: usize) -> usize {
        let want = want.min(HEAD_CAPACITY);
        if want <= shown {
            return shown;
        }
        let to = self.front.iter_mut().skip(VNET_HEADER + split);
        let from = queue.bulk.spare_bytes(want - split).flatten();
        split + to.zip(from).map(|(to, from)| *to = *from).count()
    }

    /// Copies a small payload out of the bulk data's way, to room of its own in a page that several share.
    /// So a receive queue that holds nothing else need not copy it again.
    fn copy_out(
        &mut self,
        queue: &TapQueue,
        headers: usize,
        len: usize,
        split: usize,
        ledger: &mut CopyLedger,
    ) -> Option<FragVec> {
        let Self { pool, carver, front, .. } = self;
        let mut room = carver.room(pool, len - headers)?;
        let mut rest = room.bytes_mut();
        let early = front.get(VNET_HEADER + headers.min(split)..VNET_HEADER + split)?;
        // Header bytes beyond the split come first in the pages.
        let mut skip = headers.saturating_sub(split);
        for bytes in core::iter::once(early).chain(queue.bulk.spare_bytes(len - split)) {
            let payload = bytes.get(skip.min(bytes.len())..)?;
            skip = skip.saturating_sub(bytes.len());
            let n = copy_bytes(rest, payload, ledger, CopyReason::SmallSegment);
            rest = rest.get_mut(n..)?;
        }
        Some(core::iter::once(room.commit(0..len - headers)).collect())
    }

    /// Leaves the payload in place.
    fn keep(
        &mut self,
        queue: &mut TapQueue,
        headers: usize,
        len: usize,
        split: usize,
        ledger: &mut CopyLedger,
    ) -> Option<FragVec> {
        let mut frags = FragVec::new();
        if headers < split {
            // The headers were shorter than predicted. The payload behind them moves into pages.
            let early = self.front.get(VNET_HEADER + headers..VNET_HEADER + split)?;
            let (parts, n) =
                self.small.write(&mut self.pool, early, ledger, CopyReason::LinearHead);
            if n < early.len() {
                return None;
            }
            append(&mut frags, parts);
        }
        let (mut left, mut skip) = (len - split, headers.saturating_sub(split));
        while left > 0 {
            let mut frag = queue.bulk.commit(left);
            if frag.is_empty() {
                return None;
            }
            left -= frag.len();
            let early = skip.min(frag.len());
            frag.advance(early);
            skip -= early;
            if !frag.is_empty() {
                frags.push(frag);
            }
        }
        Some(frags)
    }
}

impl TapQueue {
    /// Uses pages of this memory, or of the tap's own, from here on.
    pub(super) fn fill(&mut self, memory: Option<&Arc<Level>>) {
        let same = match (memory, &self.registered) {
            (Some(new), Some(old)) => Arc::ptr_eq(new, old),
            (new, old) => new.is_none() && old.is_none(),
        };
        if !same {
            self.bulk.abandon();
            self.registered = memory.cloned();
            self.short = false;
        }
    }

    /// Address of the spare byte `n` bytes on.
    fn address(&self, mut n: usize) -> usize {
        for (at, len) in self.bulk.spare_runs() {
            if n <= len {
                return at.addr().get() + n;
            }
            n -= len;
        }
        0
    }
}

enum Lost {
    Malformed,
    Memory,
}

/// Appends `parts`, joining adjacent ones.
fn append(frags: &mut FragVec, parts: FragVec) {
    for part in parts {
        let part = match frags.last_mut() {
            Some(last) => match last.try_append(part) {
                Ok(()) => continue,
                Err(part) => part,
            },
            None => part,
        };
        frags.push(part);
    }
}
