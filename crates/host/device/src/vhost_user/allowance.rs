//! The resources that all front ends of one port may use together. A new session does not reset the
//! counts, because memory behind a fragment outlives the session that shared it.
//!
//! A [`Share`] is the part of one window of guest memory, released when the memory is unmapped,
//! with the drop of its last fragment.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::limits;

/// The resources that the front ends of a port may use, across sessions: memory still held counts
/// after a reconnect, too. Memory beyond is refused, which ends the session
/// ([`VhostCounters::bad_memory`](super::VhostCounters)); more frequent connections have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontEndLimits {
    /// Bytes of guest memory mapped at one time; [`limits::MAPPED_BYTES`] by default.
    pub mapped_bytes: usize,
    /// Mappings of guest memory at one time; [`limits::MAPPINGS`] by default.
    pub mappings: usize,
    /// Front ends that may connect without a pause; [`limits::SESSIONS`] by default, at least 1.
    pub sessions: u32,
    /// How soon each further one may; [`limits::SESSION_EVERY`] by default.
    pub session_every: Duration,
}

impl Default for FrontEndLimits {
    fn default() -> Self {
        Self {
            mapped_bytes: limits::MAPPED_BYTES,
            mappings: limits::MAPPINGS,
            sessions: limits::SESSIONS,
            session_every: limits::SESSION_EVERY,
        }
    }
}

/// The counts of one port.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    limits: FrontEndLimits,
    /// Whether front ends may share memory that they can take away.
    trusted: bool,
    bytes: AtomicUsize,
    mappings: AtomicUsize,
    rings: AtomicUsize,
}

/// Why memory may not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Excess {
    #[error("{more} bytes more than the {used} mapped or still held would be more than {most}")]
    Bytes { more: usize, used: usize, most: usize },
    #[error("{0} mappings are in use or still held, and no more may be")]
    Mappings(usize),
}

/// The part of one window of guest memory.
#[derive(Debug)]
pub(super) struct Share {
    of: Arc<Allowance>,
    bytes: usize,
}

/// A ring whose descriptors may be held by fragments; counted while one is.
#[derive(Debug)]
pub(super) struct RingShare(Arc<Allowance>);

impl Allowance {
    pub(super) fn new(limits: FrontEndLimits, trusted: bool) -> Arc<Self> {
        Arc::new(Self { limits, trusted, ..Self::default() })
    }

    pub(super) fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// The part of a window of `bytes`, if that much is left.
    pub(super) fn map(self: &Arc<Self>, bytes: usize) -> Result<Share, Excess> {
        let FrontEndLimits { mapped_bytes, mappings, .. } = self.limits;
        if !take(&self.mappings, 1, mappings) {
            return Err(Excess::Mappings(mappings));
        }
        if !take(&self.bytes, bytes, mapped_bytes) {
            self.mappings.fetch_sub(1, Ordering::Relaxed);
            let used = self.bytes.load(Ordering::Relaxed);
            return Err(Excess::Bytes { more: bytes, used, most: mapped_bytes });
        }
        Ok(Share { of: Arc::clone(self), bytes })
    }

    /// The part of a ring of `pairs` pairs, if not too many earlier ones are still held.
    pub(super) fn ring(self: &Arc<Self>, pairs: usize) -> Option<RingShare> {
        let most = pairs.saturating_mul(limits::HELD_RINGS);
        take(&self.rings, 1, most).then(|| RingShare(Arc::clone(self)))
    }

    /// Bytes and mappings in use.
    pub(super) fn used(&self) -> (usize, usize) {
        (self.bytes.load(Ordering::Relaxed), self.mappings.load(Ordering::Relaxed))
    }

    /// When front ends may connect.
    pub(super) fn pace(&self) -> Pace {
        let slack = self.limits.session_every.saturating_mul(self.limits.sessions.max(1) - 1);
        Pace { every: self.limits.session_every, slack, due: None }
    }
}

/// Adds `more` to a count, as far as it stays within `most`.
fn take(count: &AtomicUsize, more: usize, most: usize) -> bool {
    // Relaxed: the counts guard nothing else.
    let add = |used: usize| used.checked_add(more).filter(|&sum| sum <= most);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.of.mappings.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for RingShare {
    fn drop(&mut self) {
        self.0.rings.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How often front ends may connect: the generic cell rate algorithm, whose state is one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    every: Duration,
    slack: Duration,
    /// When the next one would come if all kept the interval.
    due: Option<Instant>,
}

impl Pace {
    /// How long the next one has to wait.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        let ahead = self.due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
        ahead.saturating_sub(self.slack)
    }

    pub(super) fn note(&mut self, now: Instant) {
        self.due = self.due.map_or(now, |due| due.max(now)).checked_add(self.every);
    }
}
