//! Loss by age: finds transmissions that are too old to be still in flight (RFC 8985 section 6.2, step
//! 5). `recovery/rack.rs` decides on the age.
//!
//! RFC 8985 walks over all records in the order of their last transmission. Records sent once lie
//! in that order; [`Resent`] lists retransmissions as they leave. A walk starts where the last one
//! ended, so the cost of an acknowledgement follows from what is new in it.

use core::time::Duration;

use std::collections::VecDeque;

use pagewire_mem::Instant;

use crate::outbound::flight::{Flight, Mark, SentRange};
use crate::seq::Seq;

/// Retransmissions in the order in which they left.
#[derive(Debug, Default)]
pub(crate) struct Resent(VecDeque<(Seq, Seq, Instant)>);

/// Retransmissions beyond twice the records after which the list is cleaned of those that arrived.
pub(super) const RESENT_SLACK: usize = 64;

/// A walk over the flight for losses, and its result.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossScan {
    now: Instant,
    /// When the most recently sent delivered record was sent, and its end.
    newest: (Instant, Seq),
    /// The age from which on a record sent before that is lost.
    age: Duration,
    /// Wire segments newly considered lost.
    pub(crate) lost: u32,
    /// Whether retransmissions are among them.
    pub(crate) again: bool,
    /// The lowest number among them.
    pub(crate) first: Option<Seq>,
    /// How long to wait for the last of those sent before a delivered segment and not old enough.
    pub(crate) wait: Option<Duration>,
}

impl LossScan {
    /// Whether the record was sent before the newest delivered one.
    fn is_before_newest(&self, record: &SentRange) -> bool {
        let (at, end) = self.newest;
        at > record.at || (at == record.at && end.gt(record.end))
    }

    /// How long it takes until what was sent at `at` is old enough.
    fn left(&self, at: Instant) -> Duration {
        self.age.saturating_sub(self.now.saturating_since(at))
    }

    fn note_lost(&mut self, start: Seq, packets: u32) {
        if packets > 0 {
            self.lost += packets;
            self.first = Some(self.first.map_or(start, |first| first.min(start)));
        }
    }

    fn note_wait(&mut self, wait: Duration) {
        self.wait = Some(self.wait.map_or(wait, |w| w.max(wait)));
    }
}

/// Records to check beyond the first that is not old enough, to find how long to wait.
const CHECK_AHEAD: usize = 64;

impl Resent {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Flight {
    /// Lists `start..end`, which was retransmitted at `at`.
    pub(crate) fn list_resent(&self, start: Seq, end: Seq, at: Instant, resent: &mut Resent) {
        resent.0.push_back((start, end, at));
        if resent.0.len() > 2 * self.records.len() + RESENT_SLACK {
            let live = self.records.iter().filter(|r| r.mark.contains(Mark::RETRANSMITTED));
            resent.0 = live.map(|r| (r.start, r.end, r.at)).collect();
            resent.0.make_contiguous().sort_by_key(|&(_, _, at)| at);
        }
    }

    /// Marks as lost what was sent before `newest`, and `age` ago. The last walk ended at `checked`.
    pub(crate) fn mark_aged(
        &mut self,
        now: Instant,
        newest: (Instant, Seq),
        age: Duration,
        checked: &mut Seq,
        resent: &mut Resent,
    ) -> LossScan {
        let mut aged = LossScan { now, newest, age, ..LossScan::default() };
        self.age_first_transmissions(&mut aged, checked);
        self.age_retransmissions(&mut aged, resent);
        aged
    }

    fn age_first_transmissions(&mut self, aged: &mut LossScan, checked: &mut Seq) {
        let settled = Mark::LOST | Mark::RETRANSMITTED;
        let mut index = self.records.partition_point(|r| r.end.le(*checked));
        let (mut moving, mut ahead) = (true, 0);
        while let Some(&record) = self.records.get(index) {
            super::note_step();
            if record.mark.contains(Mark::SACKED) {
                index = self.behind_run(index);
                if moving && let Some(last) = self.records.get(index - 1) {
                    *checked = last.end;
                }
                continue;
            }
            if !record.mark.intersects(settled) {
                let before = aged.is_before_newest(&record);
                let left = aged.left(record.at);
                if before && left.is_zero() {
                    aged.note_lost(record.start, self.lose(index));
                } else {
                    // A probe is out of order; all other records after this one are younger.
                    if !before && !record.mark.contains(Mark::AMBIGUOUS) {
                        break;
                    }
                    moving = false;
                    ahead += 1;
                    if before {
                        aged.note_wait(left);
                    }
                    if ahead >= CHECK_AHEAD {
                        aged.note_wait(aged.left(aged.newest.0));
                        break;
                    }
                }
            }
            if moving {
                *checked = record.end;
            }
            index += 1;
        }
    }

    fn age_retransmissions(&mut self, aged: &mut LossScan, resent: &mut Resent) {
        while let Some(&(start, end, at)) = resent.0.front() {
            let mut waiting = false;
            let mut index = self.records.partition_point(|r| r.end.le(start));
            while let Some(&record) = self.records.get(index) {
                if record.start.ge(end) {
                    break;
                }
                if record.at == at && record.mark.contains(Mark::RETRANSMITTED) {
                    let left = aged.left(at);
                    if !aged.is_before_newest(&record) {
                        waiting = true;
                    } else if left.is_zero() {
                        aged.note_lost(record.start, self.lose(index));
                        aged.again = true;
                    } else {
                        waiting = true;
                        aged.note_wait(left);
                    }
                }
                index += 1;
            }
            if waiting {
                return;
            }
            resent.0.pop_front();
        }
    }

    /// After a timeout: marks as lost the head, and whatever was sent at least `age` ago.
    pub(crate) fn mark_lost_for_timeout(&mut self, now: Instant, age: Duration) {
        for index in 0..self.records.len() {
            let young = |r: &SentRange| now.saturating_since(r.at) < age;
            if index == 0 || !self.records.get(index).is_some_and(young) {
                self.lose(index);
            }
        }
    }
}
