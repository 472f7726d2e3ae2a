//! The end of a host: what a kernel does with the sockets that a process leaves behind.
//!
//! ```text
//!   asked --> every socket is closed --> what is queued is delivered --> what is left is reset --> over
//!              (unread data: reset)        until `limit`                   until `RESET_TIME`
//! ```
//!
//! Whoever drives the host takes the steps ([`Inner::leave`]): its driver thread, or who calls
//! [`Host::shutdown`](crate::Host::shutdown) of a host without one. Who asks only sets a word and
//! waits: also a thread at the very end of the process (`exit.rs`), where nobody knows what is locked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant as WallClock};

use pagewire_mem::Instant;
use pagewire_stack::Leftovers;

use crate::shared::{Inner, Shared};

/// How long the last handle's drop, and the end of the process, let a host deliver what is queued,
/// unless [`Builder::shutdown_limit`](crate::Builder::shutdown_limit) says otherwise. Enough for
/// some losses at a round trip of 100 ms; as much as a person waits without asking.
pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// How long resets may wait for a device that takes nothing, or for a neighbour's answer, beyond
/// that.
pub(crate) const RESET_TIME: Duration = Duration::from_millis(100);

/// How long connections wait for their peers to close too, once all data was delivered. A peer that
/// goes on sending after that is told by a reset that nobody is there.
const HALF_CLOSED_TIME: Duration = Duration::from_millis(100);

/// How often a host that leaves looks how far it is.
pub(crate) const LEAVE_LOOK: Duration = Duration::from_millis(1);

/// How long whoever waits for the end waits beyond its limits: for a driver thread that is late.
const LATE: Duration = Duration::from_millis(200);

/// What became of a host's connections when it was shut down; see
/// [`Host::shutdown`](crate::Host::shutdown).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Connections that there were, those included that were dropped before and still had
    /// something to deliver.
    pub connections: usize,
    /// Connections whose peer was sent a reset: received data was unread, or time was up.
    pub reset: usize,
    /// Connections that the other side reset meanwhile. Those that ended for want of a device or of an
    /// answer are not counted yet.
    pub broken: usize,
    /// Whether the last packet has left: `false` if the device took nothing, or a neighbour did not
    /// answer.
    pub sent: bool,
}

impl ShutdownReport {
    /// Connections that ended without a reset on either side.
    pub fn delivered(&self) -> usize {
        self.connections.saturating_sub(self.reset).saturating_sub(self.broken)
    }

    /// Whether no connection was reset and the last packet has left.
    pub fn is_clean(&self) -> bool {
        self.reset == 0 && self.broken == 0 && self.sent
    }
}

/// The end, as far as those see it who have not the lock.
#[derive(Default)]
pub(crate) struct Departure {
    asked: AtomicBool,
    /// What is granted for delivery, in nanoseconds.
    limit: AtomicU64,
    /// The driver goes on taking turns when it is over: another host of this process may still talk
    /// to this one.
    stays: AtomicBool,
    report: Mutex<Option<ShutdownReport>>,
    over: Condvar,
}

impl Departure {
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    pub(crate) fn stays(&self) -> bool {
        self.stays.load(Ordering::Acquire)
    }

    fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit.load(Ordering::Acquire))
    }

    pub(crate) fn report(&self) -> Option<ShutdownReport> {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_report(&self, report: ShutdownReport) {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        self.over.notify_all();
    }

    /// Waits for the end; `None`: it did not come.
    pub(crate) fn wait(&self, until: WallClock) -> Option<ShutdownReport> {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        while report.is_none() {
            let left = until.saturating_duration_since(WallClock::now());
            if left.is_zero() {
                break;
            }
            let waited = self.over.wait_timeout(report, left);
            report = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *report
    }
}

/// How far it is.
pub(crate) struct Leaving {
    began: Instant,
    /// Nothing has been left to deliver since.
    delivered_at: Option<Instant>,
    /// When what was left was reset.
    reset_at: Option<Instant>,
    report: ShutdownReport,
    /// Connections that peers had reset before.
    resets_before: u64,
    over: bool,
}

impl Shared {
    /// Has the host leave: it may deliver for `limit`, or what is left of an earlier one. `stays`: its
    /// driver goes on. Takes no lock.
    pub(crate) fn ask_to_leave(&self, limit: Duration, stays: bool) {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        match self.departure.is_asked() {
            false => self.departure.limit.store(nanos, Ordering::Release),
            true => drop(self.departure.limit.fetch_min(nanos, Ordering::AcqRel)),
        }
        if stays {
            self.departure.stays.store(true, Ordering::Release);
        }
        self.departure.asked.store(true, Ordering::Release);
        self.kick();
    }

    /// Until when it must have left that was asked to within `limit` just now.
    pub(crate) fn latest_end(limit: Duration) -> WallClock {
        // Longer than a year is as good as for ever.
        const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
        WallClock::now() + limit.min(YEAR) + RESET_TIME + LATE
    }

    /// The end of a host that nobody drives any more: what is queued leaves as far as the device takes
    /// it, and every connection is reset. Waits for nothing, not even for the lock.
    pub(crate) fn reset_all(&self) {
        self.ask_to_leave(Duration::ZERO, false);
        let Some(mut inner) = self.try_lock() else { return };
        let now = self.now();
        self.leave(&mut inner, now);
    }

    /// The next step; `true`: it is over.
    pub(crate) fn leave(&self, inner: &mut Inner, now: Instant) -> bool {
        let Some(report) = inner.leave(now, self.departure.limit()) else { return false };
        if !self.departure.stays() {
            // Whoever is at the other side sees that nobody is here any more.
            let devices = inner.devices.close();
            inner.discarded.extend(devices.into_iter().map(|device| Box::new(device) as _));
        }
        if self.departure.report().is_none() {
            self.departure.set_report(report);
        }
        true
    }
}

impl Inner {
    /// The next step; the report when it is over.
    fn leave(&mut self, now: Instant, limit: Duration) -> Option<ShutdownReport> {
        if self.failed {
            return Some(ShutdownReport::default());
        }
        if self.leaving.is_none() {
            self.leaving = Some(self.begin_to_leave(now));
        }
        if let Some(leaving) = self.leaving.as_ref().filter(|leaving| leaving.over) {
            return Some(leaving.report);
        }
        let left = self.stack.leftovers();
        let waits = left.packets || self.devices.is_blocked() || self.devices.delays_frames();
        let resets = self.stack.counters().tcp_established_resets;
        let lost = self.devices.are_all_lost();
        let leaving = self.leaving.as_mut()?;
        if leaving.reset_at.is_none() && leaving.is_time(now, limit, left, waits) {
            leaving.reset_at = Some(now);
            leaving.report.broken = (resets - leaving.resets_before) as usize;
            leaving.report.reset += self.stack.abort_all(now);
            // What that made has not left yet.
            self.flush(now);
            return self.leave(now, limit);
        }
        let leaving = self.leaving.as_mut()?;
        let since = leaving.reset_at?;
        if waits && now < since + RESET_TIME && !lost {
            return None;
        }
        leaving.over = true;
        leaving.report.sent = !waits;
        Some(leaving.report)
    }

    fn begin_to_leave(&mut self, now: Instant) -> Leaving {
        self.cause.get_or_insert_with(|| "the host was shut down".to_owned());
        // Before their sockets are: they find none any more.
        let services = std::mem::take(&mut self.services);
        self.discarded.extend(services.into_iter().map(|s| Box::new(s.service) as _));
        let resets_before = self.stack.counters().tcp_established_resets;
        let (connections, reset) = self.stack.close_all(now);
        self.forget_all();
        self.rings.look_at_all();
        self.flush(now);
        let report = ShutdownReport { connections, reset, ..ShutdownReport::default() };
        let (delivered_at, reset_at, over) = (None, None, false);
        Leaving { began: now, delivered_at, reset_at, report, resets_before, over }
    }
}

impl Leaving {
    /// Whether what is left is to be reset now.
    fn is_time(&mut self, now: Instant, limit: Duration, left: Leftovers, waits: bool) -> bool {
        if now.saturating_since(self.began) >= limit {
            return true;
        }
        if left.undelivered > 0 || waits {
            return false;
        }
        let since = *self.delivered_at.get_or_insert(now);
        left.half_closed == 0 || now.saturating_since(since) >= HALF_CLOSED_TIME
    }
}
