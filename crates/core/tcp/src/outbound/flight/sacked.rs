//! Selective acknowledgements (RFC 2018, 2883): marks records, and walks over each mark once.
//!
//! A peer repeats its blocks, of any width. So that a block costs what is new in it, every sacked
//! record remembers how far the sacked records after it reach (`SentRange::run_end`). A walk jumps from
//! one such end to the next, and then stores its result in each record that it touched: a
//! union-find with path compression. Its steps grow with the logarithm of the records, whatever
//! blocks arrive.
//!
//! ```text
//!   record     | 1 S | 2 S | 3 S | 4 S | 5   | 6 S |
//!   run_end       \-----------------> 5         \-> 7
//! ```

use crate::limits::MAX_SACKED_RECORDS;
use crate::outbound::flight::{Delivered, Flight, Mark};
use crate::seq::Seq;

impl Flight {
    /// The peer has `left..right`. Only whole wire segments count, and the end of a record.
    pub(crate) fn sack(&mut self, left: Seq, right: Seq, delivered: &mut Delivered) {
        let mut index = self.records.partition_point(|r| r.end.le(left));
        while let Some(&record) = self.records.get(index) {
            if record.start.ge(right) {
                break;
            }
            if record.mark.contains(Mark::SACKED) {
                index = self.behind_run(index);
                continue;
            }
            super::note_step();
            // Round the covered part inwards to units of the MSS, counted from the start.
            let mss = u32::from(record.mss.max(1));
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
            self.sack_record(index, delivered);
            index += 1;
        }
    }

    /// The index of the first record after the sacked one at `index` that is not sacked.
    pub(super) fn behind_run(&mut self, index: usize) -> usize {
        let mut end = None;
        let mut behind = index;
        while let Some(record) = self.records.get(behind).filter(|r| r.mark.contains(Mark::SACKED))
        {
            let reaches = record.run_end;
            end = Some(reaches);
            behind = self.first_beyond(behind, reaches);
            super::note_step();
        }
        // The second walk stores the end.
        let mut at = index;
        while at < behind
            && let Some(record) = self.records.get_mut(at)
        {
            let reached = core::mem::replace(&mut record.run_end, end.unwrap_or(record.end));
            at = self.first_beyond(at, reached);
        }
        behind
    }

    /// The index of the record that begins at `end`, searched from `index` on.
    fn first_beyond(&self, index: usize, end: Seq) -> usize {
        match self.records.get(index) {
            Some(record) if record.end == end => index + 1,
            _ => self.records.partition_point(|r| r.end.le(end)),
        }
    }

    fn sack_record(&mut self, index: usize, delivered: &mut Delivered) {
        let high = self.high_sacked();
        let Some(part) = self.records.get_mut(index) else { return };
        let record = *part;
        let packets = record.packets();
        if !record.mark.contains(Mark::AMBIGUOUS) {
            // Reordering: it was sent once, and a higher number arrived before it.
            if high.is_some_and(|high| record.start.lt(high)) {
                delivered.note_late(record.start);
            }
            delivered.original |= record.end.le(delivered.high);
            super::widen(&mut delivered.sacked_at, record.at);
        }
        delivered.sacked = true;
        delivered.packets += packets;
        delivered.bytes += record.len();
        delivered.advance_rack(&record);
        part.mark.remove(Mark::LOST | Mark::RETRANSMITTED);
        part.mark.insert(Mark::SACKED);
        part.run_end = record.end;
        self.count(record.mark, |n| *n -= packets);
        self.high_sacked = high.map_or(record.end, |high| high.max(record.end));
        self.sacked += packets;
    }

    /// The peer received `left..right` twice: how many retransmissions in it end after `marker`.
    ///
    /// The acknowledgement or another block must cover the range too, or the report is a lie.
    pub(crate) fn dsack(&self, left: Seq, right: Seq, marker: Seq) -> u32 {
        const MAX_RECORDS: usize = 64;
        let first = self.records.partition_point(|r| r.end.le(left));
        let mut excused = 0;
        for record in self.records.range(first..).take(MAX_RECORDS) {
            if record.start.lt(left) || record.end.gt(right) {
                break;
            }
            if record.mark.contains(Mark::AMBIGUOUS) && record.end.gt(marker) {
                excused += record.packets();
            }
        }
        excused
    }
}
