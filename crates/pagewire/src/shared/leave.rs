//! The end of a host: what a kernel does with the sockets that a process leaves behind.
//!
//! ```text
//!   asked --> every socket is closed --> what is queued is delivered --> what is left is reset --> over
//!              (unread data: reset)        until `limit`                   until `RESET_TIME`
//! ```
//!
//! Whose peer has acknowledged everything is not reset: it may not have read it yet. Over is a host when
//! its devices are dropped, so that another one can open them; only then is the report given.
//!
//! Whoever drives the host takes the steps ([`Inner::leave`]): its driver thread, or who calls
//! [`Host::shutdown`](crate::Host::shutdown) of a host without one. Who asks only sets a word and
//! waits: also a thread at the very end of the process (`exit.rs`), where nobody knows what is locked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant as WallClock};

use pagewire_mem::Instant;
use pagewire_stack::{Counters, Leftovers};
use pagewire_tcp::DropReason;

use super::{Inner, Shared};
use crate::driver::{self, LEAVE_LOOK};
use crate::inside;

/// How long the last handle's drop, and the end of the process, let a host deliver what is queued,
/// unless [`Builder::shutdown_limit`](crate::Builder::shutdown_limit) says otherwise. Enough for
/// some losses at a round trip of 100 ms; as much as a person waits without asking.
pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// How long resets may wait for a device that takes nothing, or for a neighbour's answer, beyond
/// that.
pub(crate) const RESET_TIME: Duration = Duration::from_millis(100);

/// How long connections wait for their peers to close too, once all data was delivered. A peer that
/// goes on sending is told by a reset that nobody is there; one that only closes later finds nobody.
const HALF_CLOSED_TIME: Duration = Duration::from_millis(100);

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
    /// Connections whose peer was sent a reset: received data was unread, more of it came, or time was
    /// up.
    pub reset: usize,
    /// Connections that the other side reset meanwhile.
    pub broken: usize,
    /// Connections that ended before all was delivered because the other side did not answer, or the
    /// device was gone.
    pub lost: usize,
    /// Whether the last packet has left: `false` if the device took nothing, or a neighbour did not
    /// answer.
    pub sent: bool,
}

impl ShutdownReport {
    /// Connections whose other side has acknowledged all that it was sent, the end included.
    pub fn delivered(&self) -> usize {
        self.connections.saturating_sub(self.reset + self.broken + self.lost)
    }

    /// Whether every connection was delivered and the last packet has left.
    pub fn is_clean(&self) -> bool {
        self.reset + self.broken + self.lost == 0 && self.sent
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

    /// Tells whoever waits that it is over. The first report counts.
    pub(crate) fn set_report(&self, report: ShutdownReport) {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(report);
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
    /// What had ended before.
    before: Ends,
    over: bool,
}

/// Connections that have ended, by how.
#[derive(Clone, Copy)]
struct Ends {
    /// By a reset of the other side's.
    broken: u64,
    lost: u64,
    /// By data that came after we had closed, which is answered by a reset.
    answered: u64,
}

impl Ends {
    fn of(counters: &Counters) -> Self {
        Self {
            broken: counters.tcp_established_resets,
            lost: counters.tcp_established_lost,
            answered: counters.tcp_drops(DropReason::ReceiveClosed),
        }
    }
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
        let report = self.leave(&mut inner, now);
        drop(inner);
        report.into_iter().for_each(|report| self.departure.set_report(report));
    }

    /// The next step; what became of it when it is over. Whoever takes the last one sets the report once
    /// the lock is let go of: with that go the devices, and others may open them.
    pub(crate) fn leave(&self, inner: &mut Inner, now: Instant) -> Option<ShutdownReport> {
        let report = inner.leave(now, self.departure.limit())?;
        if !self.departure.stays() {
            // Whoever is at the other side sees that nobody is here any more.
            let devices = inner.devices.close();
            inner.discarded.extend(devices.into_iter().map(|device| Box::new(device) as _));
        }
        Some(report)
    }

    /// Takes all steps on this thread, where no other one does: that of a host without a driver, or the
    /// driver's own. `None`: the lock is not to be had, or it takes longer than until then.
    pub(crate) fn leave_here(&self, until: WallClock) -> Option<ShutdownReport> {
        loop {
            if inside::is_called_by(self.id) {
                return None;
            }
            let (mut inner, now) = self.lock_now();
            let over = self.leave(&mut inner, now);
            inner.turn(now);
            self.unlock_and_wake(inner);
            if let Some(report) = over {
                self.departure.set_report(report);
                return Some(report);
            }
            if WallClock::now() >= until {
                return None;
            }
            driver::wait_for_device(self, Some(self.now() + LEAVE_LOOK));
        }
    }

    /// Waits until it has left that was asked to; `None`: it did not in time, or cannot while this thread
    /// waits.
    pub(crate) fn wait_until_left(&self, until: WallClock) -> Option<ShutdownReport> {
        if self.manual || inside::drives(self.id) {
            return self.leave_here(until);
        }
        if inside::is_called_by(self.id) || inside::drives_any() {
            // The driver waits for the lock that this thread has, or for what it is to send.
            return self.departure.report();
        }
        self.departure.wait(until)
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
        let lost = self.devices.are_all_lost();
        let leaving = self.leaving.as_mut()?;
        if leaving.reset_at.is_none() && leaving.is_time(now, limit, left, waits) {
            leaving.reset_at = Some(now);
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
        let (before, ends) = (leaving.before, Ends::of(self.stack.counters()));
        leaving.report.broken = (ends.broken - before.broken) as usize;
        leaving.report.lost = (ends.lost - before.lost) as usize;
        leaving.report.reset += (ends.answered - before.answered) as usize;
        leaving.report.sent = !waits;
        Some(leaving.report)
    }

    fn begin_to_leave(&mut self, now: Instant) -> Leaving {
        self.cause.get_or_insert_with(|| "the host was shut down".to_owned());
        // Before their sockets are: they find none any more.
        let services = std::mem::take(&mut self.services);
        self.discarded.extend(services.into_iter().map(|s| Box::new(s.service) as _));
        let before = Ends::of(self.stack.counters());
        let (connections, reset) = self.stack.close_all(now);
        self.waiters.forget_all();
        self.rings.look_at_all();
        self.flush(now);
        let report = ShutdownReport { connections, reset, ..ShutdownReport::default() };
        let (delivered_at, reset_at, over) = (None, None, false);
        Leaving { began: now, delivered_at, reset_at, report, before, over }
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
