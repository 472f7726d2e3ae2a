//! Limits that the connections of a host share, and [`Env`], by which a connection borrows them and the
//! host's memory during a call.

use core::hash::Hasher;

use pagewire_mem::{CopyLedger, Instant, PagePool, PageWriter};
use siphasher::sip::SipHasher13;

use crate::memory::MemoryAccount;

/// Limits that all connections of a host share.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// The memory that sockets pin, and that peers were promised.
    pub memory: MemoryAccount,
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
