//! The flight: what was sent and is not acknowledged, one record for each transmission.
//!
//! ```text
//!   una                                                        nxt
//!   |-- acked away --|- lost, sent again -|- lost -|-- sacked --|-- under way --|
//! ```
//!
//! The records have no gaps. A record is as long as the segment that was sent, super-frame or not.
//! Records are cut where an acknowledgement or a retransmission needs it, in units of the MSS, so that
//! there are never more records than wire segments. A SYN or FIN counts as one byte.
//!
//! Counts are in wire segments, as in Linux (RFC 6675 section 4, "pipe"): `in flight = all - sacked -
//! lost + retransmitted`. [`age`] finds the records that are too old; `recovery` reacts.

mod age;
mod sacked;

use core::time::Duration;

use std::collections::VecDeque;

use pagewire_mem::Instant;

pub(crate) use age::{LossScan, Resent};

use crate::seq::Seq;

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Mark: u8 {
        /// Acknowledged selectively.
        const SACKED = 1;
        /// Considered lost.
        const LOST = 2;
        /// Retransmitted after it was lost, and not considered lost again.
        const RETRANSMITTED = 4;
        /// Sent more than once: no measure of the round-trip time (Karn's algorithm).
        const AMBIGUOUS = 8;
        /// The last byte is a FIN, which has no room in a wire segment.
        const FIN = 16;
    }
}

/// A transmission: the last of a range of sequence numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRange {
    pub(crate) start: Seq,
    pub(crate) end: Seq,
    /// Time of the last transmission.
    pub(crate) at: Instant,
    pub(crate) mark: Mark,
    /// Payload bytes of a full wire segment when it was sent.
    mss: u16,
    /// If it is `SACKED`: everything up to this number is, too ([`sacked`]).
    run_end: Seq,
}

impl SentRange {
    pub(crate) fn len(&self) -> u32 {
        self.end.since(self.start)
    }

    /// Bytes in it: its length, less a FIN.
    pub(crate) fn payload(&self) -> u32 {
        self.len() - u32::from(self.mark.contains(Mark::FIN))
    }

    /// Wire segments.
    pub(crate) fn packets(&self) -> u32 {
        self.payload().div_ceil(u32::from(self.mss.max(1))).max(1)
    }

    /// Where its last wire segment begins.
    pub(crate) fn last_segment(&self) -> Seq {
        self.start + (self.packets() - 1) * u32::from(self.mss)
    }

    /// Whether it was sent after the other (RFC 8985 section 6.2, RACK_sent_after).
    pub(crate) fn sent_after(&self, at: Instant, end: Seq) -> bool {
        self.at > at || (self.at == at && self.end.gt(end))
    }
}

/// The transmissions that are not acknowledged, in stream order without gaps.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    records: VecDeque<SentRange>,
    /// Wire segments in all records.
    pub(crate) packets: u32,
    /// Wire segments marked `SACKED`.
    pub(crate) sacked: u32,
    /// Wire segments marked `LOST`.
    pub(crate) lost: u32,
    /// Wire segments marked `RETRANSMITTED`.
    pub(crate) retransmitted: u32,
    /// The end of the highest record marked `SACKED`, while there is one.
    high_sacked: Seq,
    /// End of the last segment sent that was not full (Minshall's variant of Nagle).
    pub(crate) small_end: Seq,
}

/// Segments that an acknowledgement delivered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    pub(crate) now: Instant,
    /// The least round trip of the path.
    pub(crate) min_rtt: Duration,
    /// The echoed timestamp, in milliseconds of our clock.
    pub(crate) echo_ms: Option<u32>,
    /// `snd.nxt` when the current state of loss recovery began.
    pub(crate) high: Seq,

    /// Wire segments acknowledged cumulatively.
    pub(crate) acked: u32,
    /// Wire segments acknowledged for the first time, cumulatively or selectively.
    pub(crate) packets: u32,
    /// Bytes acknowledged for the first time, cumulatively or selectively.
    pub(crate) bytes: u32,
    /// When the first and the last record newly acknowledged cumulatively was sent, if sent once.
    pub(crate) acked_at: Option<(Instant, Instant)>,
    /// When the first and the last of those were sent that are newly acknowledged selectively.
    pub(crate) sacked_at: Option<(Instant, Instant)>,
    /// A cumulatively acknowledged record was sent more than once.
    pub(crate) ambiguous: bool,
    /// A record before `high` arrived that was sent once.
    pub(crate) original: bool,
    /// Something was acknowledged selectively.
    pub(crate) sacked: bool,
    /// The lowest number that was sent once and arrived after a higher number.
    pub(crate) late: Option<Seq>,
    /// RFC 8985: when the most recently sent delivered record was sent, and its end.
    pub(crate) newest: Option<(Instant, Seq)>,
    /// RFC 8985: its round trip.
    pub(crate) rack_rtt: Option<Duration>,
    /// Cuts left out for [`MAX_SACKED_RECORDS`](crate::limits::MAX_SACKED_RECORDS).
    pub(crate) ignored: u32,
}

impl Delivered {
    pub(crate) fn new(now: Instant, min_rtt: Duration, high: Seq) -> Self {
        Self { now, min_rtt, high, ..Self::default() }
    }

    fn note_late(&mut self, start: Seq) {
        self.late = Some(self.late.map_or(start, |late| late.min(start)));
    }

    /// > RFC 8985 section 6.2, step 2: If the segment has been retransmitted: (a) if the Timestamp
    /// > option [...] TSecr is less than the transmit time of the last retransmission of the segment,
    /// > it was not spuriously retransmitted [...] (b) RTT of the segment < RACK.min_RTT [...] is
    /// > likely an ACK of an earlier transmission
    fn advance_rack(&mut self, record: &SentRange) {
        let rtt = self.now.saturating_since(record.at);
        if record.mark.contains(Mark::AMBIGUOUS) {
            let older = |echo: u32| (echo.wrapping_sub(record.at.as_millis() as u32) as i32) < 0;
            if rtt < self.min_rtt || self.echo_ms.is_some_and(older) {
                return;
            }
        }
        self.rack_rtt = Some(rtt);
        if self.newest.is_none_or(|(at, end)| record.sent_after(at, end)) {
            self.newest = Some((record.at, record.end));
        }
    }
}

fn widen(span: &mut Option<(Instant, Instant)>, at: Instant) {
    *span = Some(span.map_or((at, at), |(first, last)| (first.min(at), last.max(at))));
}

impl Flight {
    /// Nothing is sent; the SYN will have the number `iss`.
    pub(crate) fn new(iss: Seq) -> Self {
        Self { small_end: iss, ..Self::default() }
    }

    /// Bytes in records with this mark. Walks over all records.
    pub(crate) fn bytes(&self, mark: Mark) -> u32 {
        self.records.iter().filter(|r| r.mark.contains(mark)).map(SentRange::len).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether a lost record waits for its retransmission.
    pub(crate) const fn has_lost(&self) -> bool {
        self.lost > self.retransmitted
    }

    pub(crate) fn first(&self) -> Option<&SentRange> {
        self.records.front()
    }

    pub(crate) fn last(&self) -> Option<&SentRange> {
        self.records.back()
    }

    /// Notes a first transmission in wire segments of `mss` payload bytes.
    pub(crate) fn push(&mut self, start: Seq, end: Seq, at: Instant, mss: u32, fin: bool) {
        let mark = if fin { Mark::FIN } else { Mark::empty() };
        let mss = u16::try_from(mss).unwrap_or(u16::MAX);
        let record = SentRange { start, end, at, mark, mss, run_end: start };
        self.packets += record.packets();
        self.records.push_back(record);
    }

    /// Everything before `una` is acknowledged.
    pub(crate) fn ack_to(&mut self, una: Seq, delivered: &mut Delivered) {
        while let Some(front) = self.records.front_mut() {
            if front.start.ge(una) {
                break;
            }
            let record = *front;
            let whole = record.end.le(una);
            front.start = if whole { record.end } else { una };
            let left = if whole { 0 } else { front.packets() };
            let (packets, bytes) = (record.packets() - left, front.start.since(record.start));
            if whole {
                self.records.pop_front();
            }
            // A part of a wire segment does not count.
            if packets > 0 {
                delivered.acked += packets;
                let sacked = record.mark.contains(Mark::SACKED);
                if record.mark.contains(Mark::AMBIGUOUS) {
                    delivered.ambiguous = true;
                } else if !sacked {
                    widen(&mut delivered.acked_at, record.at);
                    delivered.note_late(record.start);
                    delivered.original |= record.end.le(delivered.high);
                }
                if !sacked {
                    delivered.packets += packets;
                    delivered.advance_rack(&record);
                }
            }
            if !record.mark.contains(Mark::SACKED) {
                delivered.bytes += bytes;
            }
            self.packets -= packets;
            self.count(record.mark, |n| *n -= packets);
        }
    }

    /// Marks the first wire segment as lost, unless it has a mark. Returns how many are newly lost.
    pub(crate) fn mark_head_lost(&mut self) -> u32 {
        let Some(&head) = self.records.front() else { return 0 };
        let mss = u32::from(head.mss.max(1));
        if head.mark.intersects(Mark::SACKED | Mark::LOST) {
            return 0;
        }
        if head.packets() > 1 && head.len() > mss {
            self.split(0, mss);
        }
        self.lose(0)
    }

    /// Marks as lost, and not retransmitted, every unsacked record with segments longer than `mss`.
    pub(crate) fn mark_long_lost(&mut self, mss: u32) {
        for index in 0..self.records.len() {
            if self.records.get(index).is_some_and(|r| r.len().min(u32::from(r.mss)) > mss) {
                self.lose(index);
            }
        }
    }

    /// Marks as lost, and not retransmitted, the first record: a SYN.
    pub(crate) fn mark_first_lost(&mut self) {
        self.lose(0);
    }

    /// Marks as lost, and not retransmitted, everything that is not sacked.
    pub(crate) fn mark_all_lost(&mut self) {
        for index in 0..self.records.len() {
            self.lose(index);
        }
    }

    /// Marks the record as lost, not retransmitted, unless sacked; returns the newly lost segments.
    fn lose(&mut self, index: usize) -> u32 {
        let Some(record) = self.records.get_mut(index) else { return 0 };
        let packets = record.packets();
        if record.mark.contains(Mark::SACKED) {
            return 0;
        }
        let again = record.mark.contains(Mark::RETRANSMITTED);
        if again {
            record.mark.remove(Mark::RETRANSMITTED);
            self.retransmitted -= packets;
        }
        let first = !record.mark.contains(Mark::LOST);
        if first {
            record.mark.insert(Mark::LOST);
            self.lost += packets;
        }
        if first || again { packets } else { 0 }
    }

    /// Removes all marks of loss.
    pub(crate) fn forgive(&mut self) {
        let mut left = core::mem::take(&mut self.lost);
        for record in &mut self.records {
            if left == 0 {
                break;
            }
            if record.mark.contains(Mark::LOST) {
                record.mark.remove(Mark::LOST);
                left = left.saturating_sub(record.packets());
            }
        }
    }

    /// Removes all SACK marks: the peer has reneged (RFC 2018 section 8).
    pub(crate) fn forget_sacks(&mut self) {
        self.sacked = 0;
        for record in &mut self.records {
            record.mark -= Mark::SACKED;
        }
    }

    pub(crate) fn high_sacked(&self) -> Option<Seq> {
        (self.sacked > 0).then_some(self.high_sacked)
    }

    /// The first record at or after `from` that is lost and not retransmitted.
    pub(crate) fn next_lost(&mut self, from: Seq) -> Option<SentRange> {
        if !self.has_lost() {
            return None;
        }
        let mut index = self.records.partition_point(|r| r.end.le(from));
        loop {
            let record = *self.records.get(index)?;
            if record.mark & (Mark::LOST | Mark::RETRANSMITTED) == Mark::LOST {
                return Some(record);
            }
            note_step();
            let sacked = record.mark.contains(Mark::SACKED);
            index = if sacked { self.behind_run(index) } else { index + 1 };
        }
    }

    /// The lost record at `start` was retransmitted up to `end`. Returns how many wire segments.
    pub(crate) fn on_retransmit(&mut self, start: Seq, end: Seq, at: Instant, mss: u32) -> u32 {
        let Some(index) = self.cut_out(start, end) else { return 0 };
        let Some(record) = self.records.get_mut(index) else { return 0 };
        let (old, before) = (record.mark, record.packets());
        record.at = at;
        record.mark |= Mark::LOST | Mark::RETRANSMITTED | Mark::AMBIGUOUS;
        record.mss = record.mss.min(u16::try_from(mss).unwrap_or(u16::MAX));
        let packets = record.packets();
        self.count(old, |n| *n -= before);
        self.packets = self.packets - before + packets;
        self.lost += packets;
        self.retransmitted += packets;
        packets
    }

    /// Removes the unsent end of the last record from `start` on. `false` if it was sent before.
    pub(crate) fn unsend(&mut self, start: Seq) -> bool {
        let marked = |r: &SentRange| !(r.mark - Mark::FIN).is_empty();
        let Some(last) = self.records.back_mut().filter(|r| r.start.le(start) && !marked(r)) else {
            return false;
        };
        self.packets -= last.packets();
        last.end = start;
        last.mark = Mark::empty();
        match last.start == start {
            true => drop(self.records.pop_back()),
            false => self.packets += last.packets(),
        }
        true
    }

    /// The device refused a retransmission, which is lost as before; returns its wire segments.
    pub(crate) fn on_refused(&mut self, start: Seq, end: Seq) -> Option<u32> {
        let index = self.cut_out(start, end)?;
        let record = self.records.get_mut(index)?;
        if record.start != start || !record.mark.contains(Mark::RETRANSMITTED) {
            return None;
        }
        record.mark.remove(Mark::RETRANSMITTED);
        let packets = record.packets();
        self.retransmitted -= packets;
        Some(packets)
    }

    /// `start..end` was retransmitted as a probe (RFC 8985 section 7): nothing is considered lost.
    pub(crate) fn on_probe(&mut self, start: Seq, end: Seq, at: Instant) {
        if let Some(index) = self.cut_out(start, end)
            && let Some(record) = self.records.get_mut(index)
        {
            record.at = at;
            record.mark |= Mark::AMBIGUOUS;
        }
    }

    /// The index of a record that begins at `start` and ends at most at `end`; cuts one if needed.
    fn cut_out(&mut self, start: Seq, end: Seq) -> Option<usize> {
        let mut index = self.records.partition_point(|r| r.end.le(start));
        let record = *self.records.get(index)?;
        if record.start.lt(start) {
            self.split(index, start.since(record.start));
            index += 1;
        }
        let record = *self.records.get(index)?;
        if end.lt(record.end) {
            self.split(index, end.since(record.start));
        }
        Some(index)
    }

    /// Cuts the record at `index` after `bytes` bytes, which may make one more wire segment.
    fn split(&mut self, index: usize, bytes: u32) {
        let Some(front) = self.records.get_mut(index) else { return };
        let (mut back, whole) = (*front, front.packets());
        front.end = front.start + bytes;
        front.mark.remove(Mark::FIN);
        back.start = front.end;
        let more = (front.packets() + back.packets()).saturating_sub(whole);
        let mark = front.mark;
        self.records.insert(index + 1, back);
        if more > 0 {
            self.packets += more;
            self.count(mark, |n| *n += more);
        }
    }

    /// Applies `change` to the counters of the marks in `mark`.
    fn count(&mut self, mark: Mark, change: impl Fn(&mut u32)) {
        for (bit, count) in [
            (Mark::SACKED, &mut self.sacked),
            (Mark::LOST, &mut self.lost),
            (Mark::RETRANSMITTED, &mut self.retransmitted),
        ] {
            if mark.contains(bit) {
                change(count);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.small_end);
    }

    pub(crate) fn shrink(&mut self) {
        if self.records.is_empty() {
            self.records = VecDeque::new();
        }
    }

    pub(crate) fn has_heap(&self) -> bool {
        self.records.capacity() > 0
    }

    /// Checks that the counts agree with the records, and these fill `una..nxt`.
    #[cfg(test)]
    pub(crate) fn check(&self, una: Seq, nxt: Seq) {
        let sum = |mark| -> u32 {
            self.records.iter().filter(|r| r.mark.contains(mark)).map(SentRange::packets).sum()
        };
        assert_eq!(self.packets, sum(Mark::empty()));
        assert_eq!(self.sacked, sum(Mark::SACKED));
        assert_eq!(self.lost, sum(Mark::LOST));
        assert_eq!(self.retransmitted, sum(Mark::RETRANSMITTED));
        let mut at = una;
        for record in &self.records {
            assert_eq!(record.start, at, "records lie side by side");
            assert!(record.start.lt(record.end), "no empty records");
            let run = |r: &&SentRange| r.start.ge(record.start) && r.start.lt(record.run_end);
            let known = record.mark.contains(Mark::SACKED);
            assert!(
                !known || self.records.iter().filter(run).all(|r| r.mark.contains(Mark::SACKED))
            );
            at = record.end;
        }
        assert_eq!(at, nxt, "records reach to snd_nxt");
    }
}

/// Counts the records that walks visit, for tests.
#[inline]
fn note_step() {
    #[cfg(test)]
    tests::STEPS.set(tests::STEPS.get() + 1);
}

#[cfg(test)]
#[path = "../tests/flight.rs"]
mod tests;
