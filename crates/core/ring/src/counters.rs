//! Counts of an engine, which a driver shows: bytes by reference and by copy, waits, refusals.
//!
//! [`Counters::work`] tells the engine whether a turn made progress: a new kind of work must increase it, and
//! a new kind of wait must not.

use pagewire_mem::Refused;

/// Counts of an engine since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes delivered in place.
    pub zc_bytes: u64,
    /// Bytes copied into the copy group.
    pub copy_bytes: u64,
    /// Datagrams delivered, including empty and truncated ones.
    pub datagrams: u64,
    /// Datagrams that were truncated.
    pub datagrams_truncated: u64,
    /// Datagrams that their socket's queue had no room for.
    pub datagrams_dropped: u64,
    /// Entries written.
    pub entries: u64,
    /// Completions posted.
    pub completions: u64,
    /// Submissions taken.
    pub submissions: u64,
    /// Invalid submissions: an unknown operation, flag, handle or group, or a range outside its memory.
    pub submissions_refused: u64,
    /// Fill entries taken.
    pub fills: u64,
    /// Fill entries of a buffer that the group does not have.
    pub fills_out_of_range: u64,
    /// Fill entries whose id was returned before.
    pub fills_stale: u64,
    /// Fill entries of a buffer that the application does not hold: returned twice, or never delivered.
    pub fills_not_held: u64,
    /// Fill entries that name another group than the ring's.
    pub fills_foreign: u64,
    /// Times that an index in a ring's memory had an impossible value.
    pub jumps: u64,
    /// Times that a fill ring fell below its threshold.
    pub low: u64,
    /// Times that a group had no buffer left.
    pub empty: u64,
    /// Times that a receive waited for room in the ring of entries or of completions.
    pub ring_waits: u64,
    /// Times that a receive waited for a buffer of the copy group.
    pub copy_waits: u64,
    /// Times that the windows of a queue's flows were closed for lack of buffers.
    pub squeezes: u64,
}

impl Counters {
    /// Grows with all work except waiting.
    pub(crate) fn work(&self) -> u64 {
        self.entries + self.completions + self.submissions + self.fills
    }

    pub(crate) fn refuse(&mut self, why: Refused) {
        match why {
            Refused::OutOfRange => self.fills_out_of_range += 1,
            Refused::Stale => self.fills_stale += 1,
            Refused::NotHeld => self.fills_not_held += 1,
        }
    }

    /// Fill entries that were refused, for any reason.
    pub fn fills_refused(&self) -> u64 {
        self.fills_out_of_range + self.fills_stale + self.fills_not_held + self.fills_foreign
    }
}
