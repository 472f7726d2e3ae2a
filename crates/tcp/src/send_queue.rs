//! Byte path, step S2: what the application handed over, until the peer has acknowledged it.
//!
//! ```text
//!   start            acked so far                 sent so far             end
//!   |---- frag 0 ----|------ frag 1 ------|-- frag 2 --|------ frag 3 ----|
//!                        ^ una                  ^ cursor: where the last slice ended
//! ```
//!
//! The queue knows fragments by the sequence number of their first byte; which bytes have been
//! sent is not its business (see `flight.rs`). A fragment is released when its last byte is
//! acknowledged; slices of it that a device still holds keep the memory by themselves.

use std::collections::VecDeque;

use pagewire_mem::{Frag, FragVec, MAX_FRAGS};

use crate::limits::{MAX_MERGED_FRAG, MAX_SEND_FRAGS};
use crate::seq::Seq;

/// Fragments by sequence range.
#[derive(Debug)]
pub(crate) struct SendQueue {
    entries: VecDeque<Entry>,
    /// First byte not acknowledged.
    una: Seq,
    /// One past the last byte.
    end: Seq,
    /// Index of the entry where the last slice ended: where the next one most likely begins.
    cursor: u32,
}

#[derive(Debug)]
struct Entry {
    start: Seq,
    frag: Frag,
}

impl Entry {
    fn end(&self) -> Seq {
        self.start + self.frag.len() as u32
    }
}

impl SendQueue {
    /// An empty queue whose first byte will be `start`.
    pub(crate) const fn new(start: Seq) -> Self {
        Self { entries: VecDeque::new(), una: start, end: start, cursor: 0 }
    }

    /// Bytes queued and not acknowledged.
    pub(crate) fn len(&self) -> u32 {
        self.end.since(self.una)
    }

    /// One past the last byte; a FIN has this number.
    pub(crate) fn end(&self) -> Seq {
        self.end
    }

    /// Whether one more fragment may be queued.
    pub(crate) fn has_entry_room(&self) -> bool {
        self.entries.len() < MAX_SEND_FRAGS
    }

    /// Appends bytes. Small pieces that lie one behind the other in memory become one fragment.
    pub(crate) fn push(&mut self, frag: Frag) {
        if frag.is_empty() {
            return;
        }
        let len = frag.len() as u32;
        let frag = match self.entries.back_mut() {
            // A fragment that grew for ever would never be released.
            Some(last) if last.frag.len() + frag.len() <= MAX_MERGED_FRAG => {
                match last.frag.try_append(frag) {
                    Ok(()) => {
                        self.end += len;
                        return;
                    }
                    Err(frag) => frag,
                }
            }
            _ => frag,
        };
        self.entries.push_back(Entry { start: self.end, frag });
        self.end += len;
    }

    /// Everything before `seq` is acknowledged. Returns how many bytes that are.
    pub(crate) fn ack_to(&mut self, seq: Seq) -> u32 {
        let seq = seq.min(self.end);
        let acked = seq.saturating_since(self.una);
        self.una += acked;
        while self.entries.front().is_some_and(|e| e.end().le(seq)) {
            self.entries.pop_front();
            self.cursor = self.cursor.saturating_sub(1);
        }
        acked
    }

    /// Slices of the bytes from `start` on, up to `len` of them and up to [`MAX_FRAGS`] fragments.
    /// Returns the slices and how many bytes they are.
    pub(crate) fn slice(&mut self, start: Seq, len: u32) -> (FragVec, u32) {
        let mut out = FragVec::new();
        let mut taken = 0;
        let mut index = self.find(start);
        while taken < len && out.len() < MAX_FRAGS {
            let Some(entry) = self.entries.get(index) else { break };
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

    /// The index of the entry that holds byte `seq`: where the last slice ended or right behind,
    /// or else by bisection.
    fn find(&self, seq: Seq) -> usize {
        let hint = self.cursor as usize;
        if self.entries.get(hint).is_some_and(|e| e.start.le(seq) && seq.lt(e.end())) {
            return hint;
        }
        self.entries.partition_point(|e| e.end().le(seq))
    }

    /// Drops everything: the connection is over.
    pub(crate) fn clear(&mut self) {
        self.entries = VecDeque::new();
        self.una = self.end;
        self.cursor = 0;
    }

    /// Gives back the memory of the list if it is empty.
    pub(crate) fn shrink(&mut self) {
        if self.entries.is_empty() && self.entries.capacity() > 0 {
            self.entries = VecDeque::new();
            self.cursor = 0;
        }
    }

    /// Whether it owns memory of its own.
    pub(crate) fn has_heap(&self) -> bool {
        self.entries.capacity() > 0
    }
}

#[cfg(test)]
#[path = "tests/send_queue.rs"]
mod tests;
