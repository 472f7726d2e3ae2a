//! What has been sent and is not acknowledged: one record for each transmission.
//!
//! ```text
//!   una                                                        nxt
//!   |-- acked away --|- lost, sent again -|- lost -|-- sacked --|-- under way --|
//! ```
//!
//! The records lie side by side without gaps. A record is as long as the segment that was sent,
//! super-frame or not; it is cut where an acknowledgement or a retransmission needs it, in units
//! of the MSS, so that a peer cannot make us keep more records than we sent wire segments. A SYN
//! or FIN counts as one byte.
//!
//! Bytes are counted by what is thought to have become of them (RFC 6675 section 4, "pipe"):
//! `pipe = all - sacked - lost + retransmitted`.

use std::collections::VecDeque;

use pagewire_mem::Instant;

use crate::limits::MAX_SACKED_RECORDS;
use crate::seq::Seq;

bitflags::bitflags! {
    /// What is known of a record.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Mark: u8 {
        /// Acknowledged selectively.
        const SACKED = 1;
        /// Held for lost.
        const LOST = 2;
        /// Sent again after it was lost, and not held for lost a second time.
        const RETRANSMITTED = 4;
        /// Sent more than once: no measure of the round-trip time (Karn's algorithm).
        const AMBIGUOUS = 8;
    }
}

/// One transmission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) start: Seq,
    pub(crate) end: Seq,
    /// When it was sent last.
    pub(crate) at: Instant,
    pub(crate) mark: Mark,
}

impl Sent {
    pub(crate) fn len(&self) -> u32 {
        self.end.since(self.start)
    }
}

/// All transmissions that are not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    records: VecDeque<Sent>,
    /// Bytes marked `SACKED`.
    sacked: u32,
    /// Bytes marked `LOST`.
    lost: u32,
    /// Bytes marked `RETRANSMITTED`.
    retransmitted: u32,
    /// One past the highest byte marked `SACKED`, while there is one.
    high_sacked: Seq,
}

/// What an acknowledgement took out of the flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    /// When the oldest transmission was sent that is acknowledged for the first time and was only
    /// sent once.
    pub(crate) sent_at: Option<Instant>,
    /// Bytes that are acknowledged for the first time.
    pub(crate) bytes: u32,
    /// Whether something among it had been sent more than once.
    pub(crate) ambiguous: bool,
    /// Records that a block would have cut, but for [`MAX_SACKED_RECORDS`].
    pub(crate) ignored: u32,
}

impl Delivered {
    fn add(&mut self, record: &Sent, bytes: u32) {
        self.bytes += bytes;
        if record.mark.contains(Mark::AMBIGUOUS) {
            self.ambiguous = true;
        } else if self.sent_at.is_none_or(|at| record.at < at) {
            self.sent_at = Some(record.at);
        }
    }
}

impl Flight {
    /// Bytes marked as selectively acknowledged.
    pub(crate) const fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Bytes marked as lost.
    pub(crate) const fn lost(&self) -> u32 {
        self.lost
    }

    /// Bytes sent again and under way.
    pub(crate) const fn retransmitted(&self) -> u32 {
        self.retransmitted
    }

    /// Whether everything is acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether some of it waits to be sent again.
    pub(crate) const fn has_lost(&self) -> bool {
        self.lost > self.retransmitted
    }

    /// The oldest record.
    pub(crate) fn first(&self) -> Option<&Sent> {
        self.records.front()
    }

    /// Notes a first transmission.
    pub(crate) fn push(&mut self, start: Seq, end: Seq, at: Instant) {
        self.records.push_back(Sent { start, end, at, mark: Mark::empty() });
    }

    /// Everything before `una` is acknowledged.
    pub(crate) fn ack_to(&mut self, una: Seq) -> Delivered {
        let mut delivered = Delivered::default();
        while let Some(front) = self.records.front_mut() {
            if front.start.ge(una) {
                break;
            }
            let whole = front.end.le(una);
            let bytes = if whole { front.len() } else { una.since(front.start) };
            let record = *front;
            front.start += bytes;
            if !record.mark.contains(Mark::SACKED) {
                delivered.add(&record, bytes);
            }
            self.uncount(record.mark, bytes);
            if whole {
                self.records.pop_front();
            }
        }
        delivered
    }

    /// The peer has `left..right`. Only whole units of `mss` count, but for the end of a record.
    pub(crate) fn sack(&mut self, left: Seq, right: Seq, mss: u32, delivered: &mut Delivered) {
        let mut index = self.records.partition_point(|r| r.end.le(left));
        while let Some(&record) = self.records.get(index) {
            if record.start.ge(right) {
                break;
            }
            if record.mark.contains(Mark::SACKED) {
                index += 1;
                continue;
            }
            // Round the covered part inwards to units of the MSS, counted from the start.
            let from = left.saturating_since(record.start).next_multiple_of(mss).min(record.len());
            let to = if right.ge(record.end) {
                record.len()
            } else {
                let to = right.since(record.start);
                to - to % mss
            };
            if from >= to {
                index += 1;
                continue;
            }
            if to - from < record.len() && self.records.len() >= MAX_SACKED_RECORDS {
                delivered.ignored += 1;
                index += 1;
                continue;
            }
            if from > 0 {
                self.split(index, from);
                index += 1;
            }
            if to < record.len() {
                self.split(index, to - from);
            }
            let Some(part) = self.records.get_mut(index) else { break };
            let (mark, bytes, end) = (part.mark, part.len(), part.end);
            delivered.add(part, bytes);
            part.mark.remove(Mark::LOST | Mark::RETRANSMITTED);
            part.mark.insert(Mark::SACKED);
            self.uncount(mark, bytes);
            self.high_sacked = if self.sacked == 0 { end } else { self.high_sacked.max(end) };
            self.sacked += bytes;
            index += 1;
        }
    }

    /// Marks as lost every record that starts in `from..to` and is neither sacked nor lost.
    pub(crate) fn mark_lost(&mut self, from: Seq, to: Seq) {
        let first = self.records.partition_point(|r| r.end.le(from));
        for record in self.records.range_mut(first..).take_while(|r| r.start.lt(to)) {
            if !record.mark.intersects(Mark::SACKED | Mark::LOST) {
                record.mark |= Mark::LOST;
                self.lost += record.len();
            }
        }
    }

    /// Marks the first segment as lost: up to `mss` bytes, unless something is known of it.
    pub(crate) fn mark_head_lost(&mut self, mss: u32) {
        let Some(&head) = self.records.front() else { return };
        if head.mark.intersects(Mark::SACKED | Mark::LOST) {
            return;
        }
        if head.len() > mss {
            self.split(0, mss);
        }
        if let Some(head) = self.records.front_mut() {
            head.mark |= Mark::LOST;
            self.lost += head.len();
        }
    }

    /// Marks as lost, and not sent again, every record longer than `mss` that is not sacked.
    pub(crate) fn mark_long_lost(&mut self, mss: u32) {
        for record in &mut self.records {
            if record.len() <= mss || record.mark.contains(Mark::SACKED) {
                continue;
            }
            if !record.mark.contains(Mark::LOST) {
                self.lost += record.len();
            }
            if record.mark.contains(Mark::RETRANSMITTED) {
                self.retransmitted -= record.len();
            }
            record.mark.remove(Mark::RETRANSMITTED);
            record.mark.insert(Mark::LOST);
        }
    }

    /// Marks as lost, and not sent again, everything that is not sacked: after a timeout.
    pub(crate) fn mark_all_lost(&mut self) {
        self.lost = 0;
        self.retransmitted = 0;
        for record in &mut self.records {
            if !record.mark.contains(Mark::SACKED) {
                record.mark.remove(Mark::RETRANSMITTED);
                record.mark.insert(Mark::LOST);
                self.lost += record.len();
            }
        }
    }

    /// Forgets what was sacked: the peer has thrown it away after all (RFC 2018 section 8).
    pub(crate) fn forget_sacks(&mut self) {
        self.sacked = 0;
        for record in &mut self.records {
            record.mark -= Mark::SACKED;
        }
    }

    /// The sequence number below which every record that is not sacked counts as lost, because
    /// more than `threshold` bytes above it are sacked:
    ///
    /// > RFC 6675 section 4, IsLost (SeqNum): The routine returns true when either DupThresh
    /// > discontiguous SACKed sequences have arrived above 'SeqNum' or more than (DupThresh - 1) *
    /// > SMSS bytes with sequence numbers greater than 'SeqNum' have been SACKed.
    pub(crate) fn lost_below(&self, threshold: u32, runs: u32) -> Option<Seq> {
        let high = self.high_sacked()?;
        let above = self.records.partition_point(|r| r.start.lt(high));
        let (mut bytes, mut seen, mut in_run) = (0, 0, false);
        for record in self.records.range(..above).rev() {
            let sacked = record.mark.contains(Mark::SACKED);
            if sacked {
                bytes += record.len();
                seen += u32::from(!in_run);
                if bytes > threshold || seen >= runs {
                    return Some(record.start);
                }
            }
            in_run = sacked;
        }
        None
    }

    /// One past the highest sacked byte.
    pub(crate) fn high_sacked(&self) -> Option<Seq> {
        (self.sacked > 0).then_some(self.high_sacked)
    }

    /// The first record at or behind `from` that is lost and not sent again.
    pub(crate) fn next_lost(&self, from: Seq) -> Option<Sent> {
        if !self.has_lost() {
            return None;
        }
        self.next_where(from, |m| m.contains(Mark::LOST) && !m.contains(Mark::RETRANSMITTED))
    }

    /// The first record at or behind `from` about which nothing is known.
    pub(crate) fn next_unknown(&self, from: Seq) -> Option<Sent> {
        let known = Mark::SACKED | Mark::LOST | Mark::RETRANSMITTED;
        self.next_where(from, |m| !m.intersects(known))
    }

    /// The last record that is neither sacked nor sent again.
    pub(crate) fn last_unknown(&self) -> Option<Sent> {
        let known = Mark::SACKED | Mark::RETRANSMITTED;
        self.records.iter().rev().find(|r| !r.mark.intersects(known)).copied()
    }

    fn next_where(&self, from: Seq, wanted: impl Fn(Mark) -> bool) -> Option<Sent> {
        let first = self.records.partition_point(|r| r.end.le(from));
        self.records.range(first..).find(|r| wanted(r.mark)).copied()
    }

    /// The record that starts at `start` has been sent again up to `end`.
    pub(crate) fn on_retransmit(&mut self, start: Seq, end: Seq, at: Instant) {
        let index = self.records.partition_point(|r| r.end.le(start));
        let Some(&record) = self.records.get(index) else { return };
        if end.lt(record.end) {
            self.split(index, end.since(record.start));
        }
        let Some(record) = self.records.get_mut(index) else { return };
        let bytes = record.len();
        if !record.mark.contains(Mark::LOST) {
            self.lost += bytes;
        }
        if !record.mark.contains(Mark::RETRANSMITTED) {
            self.retransmitted += bytes;
        }
        record.mark |= Mark::LOST | Mark::RETRANSMITTED | Mark::AMBIGUOUS;
        record.at = at;
    }

    /// Cuts the record at `index` behind its first `bytes` bytes.
    fn split(&mut self, index: usize, bytes: u32) {
        let Some(front) = self.records.get_mut(index) else { return };
        let mut back = *front;
        front.end = front.start + bytes;
        back.start = front.end;
        self.records.insert(index + 1, back);
    }

    fn uncount(&mut self, mark: Mark, bytes: u32) {
        for (bit, count) in [
            (Mark::SACKED, &mut self.sacked),
            (Mark::LOST, &mut self.lost),
            (Mark::RETRANSMITTED, &mut self.retransmitted),
        ] {
            if mark.contains(bit) {
                *count -= bytes;
            }
        }
    }

    /// Drops everything: the connection is over.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives back the memory of the list if it is empty.
    pub(crate) fn shrink(&mut self) {
        if self.records.is_empty() {
            self.records = VecDeque::new();
        }
    }

    /// Whether it owns memory of its own.
    pub(crate) fn has_heap(&self) -> bool {
        self.records.capacity() > 0
    }

    /// Whether the counts agree with the records, and these lie side by side in `una..nxt`.
    #[cfg(test)]
    pub(crate) fn check(&self, una: Seq, nxt: Seq) {
        let sum = |mark| -> u32 {
            self.records.iter().filter(|r| r.mark.contains(mark)).map(Sent::len).sum()
        };
        assert_eq!(self.sacked, sum(Mark::SACKED));
        assert_eq!(self.lost, sum(Mark::LOST));
        assert_eq!(self.retransmitted, sum(Mark::RETRANSMITTED));
        let mut at = una;
        for record in &self.records {
            assert_eq!(record.start, at, "records lie side by side");
            assert!(record.start.lt(record.end), "no empty records");
            at = record.end;
        }
        assert_eq!(at, nxt, "records reach to snd_nxt");
    }
}

#[cfg(test)]
#[path = "tests/flight.rs"]
mod tests;
