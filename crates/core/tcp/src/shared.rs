//! Limits that the connections of a host share, and [`Env`], by which a connection borrows them and the
//! host's memory during a call.

use core::hash::Hasher;
use std::sync::Arc;

use pagewire_mem::{CopyLedger, Instant, PagePool, PageWriter, Returns};
use siphasher::sip::SipHasher13;

use crate::limits::{DATAGRAM_PART, DATAGRAM_RESERVE, RECEIVE_RESERVE, RECEIVE_SHARE};

/// Limits that all connections of a host share.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Memory for received data.
    pub receive: ReceiveBudget,
    /// The rate of challenge ACKs.
    pub challenges: ChallengeLimit,
}

/// The host's things that a connection borrows during a call.
#[allow(missing_debug_implementations, reason = "borrows of the host's own things")]
pub struct Env<'a> {
    /// The time of this turn.
    pub now: Instant,
    /// Where copies are counted.
    pub ledger: &'a mut CopyLedger,
    /// Where pages come from.
    pub pool: &'a mut PagePool,
    /// Where bytes are written into pages.
    pub writer: &'a mut PageWriter,
    /// Limits shared with the host's other connections.
    pub shared: &'a mut Shared,
}

/// The memory that all connections together may pin for received data that is unread.
///
/// A connection may pin a quarter of the free memory ([`RECEIVE_SHARE`]). So a few connections
/// are not limited, each of many gets less, and some is always left for the next. Windows open only
/// that far. In the last eighth of the budget ([`RECEIVE_RESERVE`]) even data within the window is
/// refused, if the connection holds more than its share or, but for two segments, the data lies beyond
/// a gap. Half of that
/// eighth is for connections that hold nothing, and half of that for those whose application has
/// read before. There a super-frame counts up to the length of one on a wire
/// ([`RESERVE_SEGMENT`](crate::limits::RESERVE_SEGMENT)). The budget is never exceeded.
///
/// Datagrams in sockets count too, up to half of the budget
/// ([`DATAGRAM_PART`](crate::limits::DATAGRAM_PART)): a socket may pin a quarter of what is free of
/// it. A socket without a datagram gets one if a connection that holds nothing would get room, or, of
/// a small part of the budget ([`DATAGRAM_RESERVE`](crate::limits::DATAGRAM_RESERVE)), if there is any.
///
/// Where received data lies in a device's memory, the budget is at most what the device has left
/// ([`set_room`](Self::set_room)): pages are pinned whole, so they may be more than what is charged.
#[derive(Clone, Debug)]
pub struct ReceiveBudget {
    /// At most `most`, and at most what is used and what the device has left.
    limit: usize,
    most: usize,
    /// Bytes that wait in queues.
    queued: usize,
    /// The part of `queued` that datagrams pin.
    datagrams: usize,
    /// Memory that applications took by reference and keep.
    kept: Option<Arc<Returns>>,
}

impl Default for ReceiveBudget {
    /// No limit.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl ReceiveBudget {
    /// A budget of `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { limit, most: limit, queued: 0, datagrams: 0, kept: None }
    }

    /// Counts what applications keep, too.
    #[must_use]
    pub fn with_kept(self, kept: &Arc<Returns>) -> Self {
        Self { kept: Some(Arc::clone(kept)), ..self }
    }

    /// Sets the limit to the use plus `room`, the bytes that the receiving device has left for unread data.
    pub fn set_room(&mut self, room: usize) {
        let there = self.used().saturating_add(room);
        self.limit = if there < self.most { there } else { self.most };
    }

    /// Bytes in the budget.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes of it that are pinned.
    #[inline]
    pub fn used(&self) -> usize {
        self.queued.saturating_add(self.kept.as_ref().map_or(0, |kept| kept.kept()))
    }

    /// A connection whose queues pinned `before` bytes pins `after` now.
    pub const fn charge(&mut self, before: usize, after: usize) {
        self.queued = self.queued.saturating_sub(before).saturating_add(after);
    }

    /// Bytes of it that datagrams pin.
    pub const fn datagrams(&self) -> usize {
        self.datagrams
    }

    /// Datagrams pinned `before` bytes and pin `after` now.
    pub const fn charge_datagrams(&mut self, before: usize, after: usize) {
        self.charge(before, after);
        self.datagrams = self.datagrams.saturating_sub(before).saturating_add(after);
    }

    /// Whether a socket whose datagrams pin `held` bytes may take one that pins `len` more.
    pub fn takes_datagram(&self, held: usize, len: usize) -> bool {
        let part = (self.limit / DATAGRAM_PART).saturating_sub(self.datagrams);
        if held == 0 {
            // A query, while connections are not read: also if the device has little left.
            let own = self.datagrams.saturating_add(len) <= self.most / DATAGRAM_RESERVE
                && self.used().saturating_add(len) <= self.most;
            return own || (len <= part && self.has_room(len, false, false));
        }
        let (ample, len) = (self.ample(), held.saturating_add(len));
        len <= part / RECEIVE_SHARE && len <= ample / RECEIVE_SHARE
    }

    /// Bytes that one connection may pin now, what it pins already included.
    pub fn allowance(&self) -> usize {
        self.limit.saturating_sub(self.used()) / RECEIVE_SHARE
    }

    /// Whether `len` bytes more leave the last eighth untouched.
    pub(crate) fn is_ample(&self, len: usize) -> bool {
        len <= self.ample()
    }

    /// Bytes that may be pinned before the last eighth is begun.
    pub(crate) fn ample(&self) -> usize {
        (self.limit - self.limit / RECEIVE_RESERVE).saturating_sub(self.used())
    }

    /// Whether there is room for `len` bytes; `reads`: has read before, `holds`: has unread data.
    pub(crate) fn has_room(&self, len: usize, reads: bool, holds: bool) -> bool {
        let kept = match (reads, holds) {
            (true, _) => 0,
            (false, false) => self.limit / (4 * RECEIVE_RESERVE),
            (false, true) => self.limit / (2 * RECEIVE_RESERVE),
        };
        self.used().saturating_add(len) <= self.limit - kept
    }
}

/// How many challenge ACKs per second all connections together may send.
///
/// > RFC 5961 section 7: An implementation SHOULD include an ACK throttling mechanism to be
/// > conservative.
///
/// Each connection has a limit of its own ([`Config::challenge_interval`]). This one is for all,
/// and off by default, as in Linux: an attacker that exhausts it suppresses the answers to others.
/// Within a second it allows a random number between half and one and a half times the rate,
/// because a limit that an attacker can count is a side channel (CVE-2016-5696).
///
/// [`Config::challenge_interval`]: crate::Config::challenge_interval
#[derive(Clone, Default)]
pub struct ChallengeLimit {
    key: [u8; 16],
    per_second: Option<u32>,
    second: u64,
    left: u32,
    refused: u64,
}

impl ChallengeLimit {
    /// A limit per second on average, or none; `key` is secret.
    pub const fn new(key: [u8; 16], per_second: Option<u32>) -> Self {
        Self { key, per_second, second: u64::MAX, left: 0, refused: 0 }
    }

    /// Answers not given.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether an answer may be given now; if so, it counts.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let Some(rate) = self.per_second else { return true };
        let second = now.as_millis() / 1000;
        if second != self.second {
            let mut hasher = SipHasher13::new_with_key(&self.key);
            hasher.write_u64(second);
            let random = (hasher.finish() % u64::from(rate.max(1))) as u32;
            (self.second, self.left) = (second, rate.div_ceil(2).saturating_add(random));
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => {
                self.refused += 1;
                false
            }
        }
    }
}

impl core::fmt::Debug for ChallengeLimit {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The key is a secret.
        f.debug_struct("ChallengeLimit")
            .field("per_second", &self.per_second)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "tests/shared.rs"]
mod tests;
