//! Byte path, step S2: the send queue keeps data until the peer has acknowledged it.
//!
//! ```text
//!   start            acked so far                 sent so far             end
//!   |---- frag 0 ----|------ frag 1 ------|-- frag 2 --|------ frag 3 ----|
//!                        ^ una                  ^ cursor: where the last slice ended
//! ```
//!
//! The queue knows fragments by the sequence number of their first byte, and releases each when its
//! last byte is acknowledged. Slices that a device still holds keep the memory alive.

use std::collections::VecDeque;

use pagewire_mem::{Completion, Frag, FragVec, MAX_FRAGS};

use crate::limits::{COMPACT_FACTOR, MAX_SEND_FRAGS, SMALL_SEGMENT};
use crate::seq::Seq;

/// Fragments by sequence range.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    entries: VecDeque<QueuedFrag>,
    /// First byte not acknowledged.
    una: Seq,
    /// The number after the last byte.
    end: Seq,
    /// Bytes of memory that the fragments pin, each counted alone.
    pinned: usize,
    /// Index of the entry where the last slice ended: where the next one most likely begins.
    cursor: u32,
    /// The last byte ends a record: the next fragment begins a segment.
    record_ended: bool,
}

#[derive(Debug)]
struct QueuedFrag {
    start: Seq,
    /// Begins a segment: the fragment before it ends a record, or has another completion.
    apart: bool,
    frag: Frag,
}

impl QueuedFrag {
    fn end(&self) -> Seq {
        self.start + self.frag.len() as u32
    }
}

impl SendQueue {
    /// An empty queue whose first byte will be `start`.
    pub(crate) fn new(start: Seq) -> Self {
        Self { una: start, end: start, ..Self::default() }
    }

    /// Bytes queued and not acknowledged.
    pub(crate) fn len(&self) -> u32 {
        self.end.since(self.una)
    }

    /// The number after the last byte; a FIN has it.
    pub(crate) fn end(&self) -> Seq {
        self.end
    }

    /// The charge for pinned memory, see
    /// [`ReceiveQueue::charge`](crate::inbound::receive_queue::ReceiveQueue::charge).
    #[inline]
    pub(crate) fn charge(&self) -> usize {
        self.pinned.min(COMPACT_FACTOR * self.len() as usize + SMALL_SEGMENT)
    }

    /// Whether this many more fragments may be queued.
    pub(crate) fn has_room_for(&self, frags: usize) -> bool {
        frags <= MAX_SEND_FRAGS.saturating_sub(self.entries.len())
    }

    /// Appends a fragment. Neighbours in memory are merged to fragments of up to `longest` bytes.
    pub(crate) fn push(&mut self, frag: Frag, longest: usize) {
        if frag.is_empty() {
            return;
        }
        let len = frag.len() as u32;
        let frag = match self.entries.back_mut() {
            // Without the bound a growing fragment would never be released.
            Some(last) if !self.record_ended && last.frag.len() + frag.len() <= longest => {
                let before = last.frag.pinned();
                match last.frag.try_append(frag) {
                    Ok(()) => {
                        self.pinned += last.frag.pinned() - before;
                        self.end += len;
                        return;
                    }
                    Err(frag) => frag,
                }
            }
            _ => frag,
        };
        self.push_entry(frag, false);
    }

    /// Lets `grow` add bytes to the last fragment, unless it ends a record, and returns its result.
    /// If that makes it longer than `longest`, the bytes just added become the next fragment.
    pub(crate) fn grow_last<T>(
        &mut self,
        longest: usize,
        grow: impl FnOnce(&mut Frag) -> T,
    ) -> Option<T> {
        if self.record_ended {
            return None;
        }
        let last = self.entries.back_mut()?;
        let (len, pinned) = (last.frag.len(), last.frag.pinned());
        let result = grow(&mut last.frag);
        self.end += (last.frag.len() - len) as u32;
        self.pinned += last.frag.pinned() - pinned;
        // Without the bound a growing fragment would never be released.
        if last.frag.len() > longest && len > 0 {
            let front = last.frag.split_to(len);
            let (start, frag) =
                (last.start + len as u32, core::mem::replace(&mut last.frag, front));
            self.entries.push_back(QueuedFrag { start, apart: false, frag });
        }
        Some(result)
    }

    /// Appends a fragment without merging. It begins a segment if `apart`.
    pub(crate) fn push_single(&mut self, frag: Frag, apart: bool) {
        if !frag.is_empty() {
            self.push_entry(frag, apart);
        }
    }

    fn push_entry(&mut self, frag: Frag, apart: bool) {
        let (start, len) = (self.end, frag.len() as u32);
        let apart = core::mem::take(&mut self.record_ended) || apart;
        self.pinned += frag.pinned();
        self.entries.push_back(QueuedFrag { start, apart, frag });
        self.end += len;
    }

    pub(crate) fn begins_segment(&self, seq: Seq) -> bool {
        if seq == self.end {
            return self.record_ended;
        }
        let index = self.find(seq);
        self.entries.get(index).is_some_and(|e| e.apart && e.start == seq)
    }

    /// The next fragment begins a segment.
    pub(crate) fn end_record(&mut self) {
        self.record_ended = true;
    }

    /// Everything before `seq` is acknowledged. Returns how many bytes of it are new.
    pub(crate) fn ack_to(&mut self, seq: Seq) -> u32 {
        let seq = seq.min(self.end);
        let acked = seq.saturating_since(self.una);
        self.una += acked;
        while let Some(entry) = self.entries.pop_front_if(|e| e.end().le(seq)) {
            self.pinned -= entry.frag.pinned();
            self.cursor = self.cursor.saturating_sub(1);
        }
        acked
    }

    /// Slices up to `len` bytes from `start` on, of one segment and [`MAX_FRAGS`] fragments.
    pub(crate) fn slice(&mut self, start: Seq, len: u32) -> (FragVec, u32) {
        let mut out = FragVec::new();
        let mut taken = 0;
        let mut index = self.find(start);
        while taken < len && out.len() < MAX_FRAGS {
            let Some(entry) = self.entries.get(index) else { break };
            if entry.apart && taken > 0 {
                break;
            }
            let offset = (start + taken).saturating_since(entry.start) as usize;
            let want = (len - taken) as usize;
            let part = if offset == 0 && entry.frag.len() <= want {
                entry.frag.clone()
            } else {
                entry.frag.slice(offset..offset + want)
            };
            taken += part.len() as u32;
            let used_up = offset + part.len() >= entry.frag.len();
            out.push(part);
            if used_up {
                index += 1;
            }
        }
        self.cursor = index as u32;
        (out, taken)
    }

    /// Replaces lent memory by copies from `copy`. `false`: some memory stays, as copies failed.
    pub(crate) fn keep_lent(&mut self, mut copy: impl FnMut(&Frag) -> Option<FragVec>) -> bool {
        let mut all = true;
        let is_lent = |frag: &Frag| frag.completion().is_some_and(Completion::lends);
        let mut entries = VecDeque::with_capacity(self.entries.len());
        for QueuedFrag { mut start, mut apart, frag } in core::mem::take(&mut self.entries) {
            match is_lent(&frag).then(|| copy(&frag)) {
                Some(Some(copies)) => {
                    for frag in copies {
                        let len = frag.len() as u32;
                        entries.push_back(QueuedFrag {
                            start,
                            apart: core::mem::take(&mut apart),
                            frag,
                        });
                        start += len;
                    }
                }
                kept => {
                    all &= kept.is_none();
                    entries.push_back(QueuedFrag { start, apart, frag });
                }
            }
        }
        self.pinned = entries.iter().map(|e| e.frag.pinned()).sum();
        self.entries = entries;
        self.cursor = 0;
        all
    }

    /// The index of the entry that holds byte `seq`: the cursor's, or by bisection.
    fn find(&self, seq: Seq) -> usize {
        let hint = self.cursor as usize;
        if self.entries.get(hint).is_some_and(|e| e.start.le(seq) && seq.lt(e.end())) {
            return hint;
        }
        self.entries.partition_point(|e| e.end().le(seq))
    }

    /// Drops everything, as Linux first the bytes from `unsent` on: completions follow this order.
    pub(crate) fn clear(&mut self, unsent: Seq) {
        let first = self.entries.partition_point(|e| e.start.lt(unsent));
        drop(self.entries.split_off(first));
        self.entries = VecDeque::new();
        self.una = self.end;
        self.pinned = 0;
        self.cursor = 0;
    }

    pub(crate) fn shrink(&mut self) {
        if self.entries.is_empty() && self.entries.capacity() > 0 {
            self.entries = VecDeque::new();
            self.cursor = 0;
        }
    }

    #[inline]
    pub(crate) fn has_heap(&self) -> bool {
        self.entries.capacity() > 0
    }
}

#[cfg(test)]
#[path = "tests/send_queue.rs"]
mod tests;
