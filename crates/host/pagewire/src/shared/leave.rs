//! The end of a host: what a kernel does with the sockets that a process leaves.
//!
//! ```text
//!   asked --> every socket is closed --> what is queued is delivered --> what is left is reset --> over
//!              (unread data: reset)        until `limit`                   until `RESET_TIME`
//! ```
//!
//! A connection whose peer has acknowledged everything is not reset: the peer may not have read it
//! yet. The end is over when the devices are dropped; only then is the report given.
//!
//! The thread that drives the host takes the steps ([`Inner::leave`]): its driver, or the caller of
//! [`Host::shutdown`](crate::Host::shutdown) of a host without one. A request only sets flags and waits,
//! because a thread at the end of the process (`exit.rs`) may hold any lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant as WallClock};

use pagewire_mem::Instant;
use pagewire_stack::{Counters, Leftovers};
use pagewire_tcp::DropReason;

use super::{Inner, Shared};
use crate::driver::{self, LEAVE_LOOK};
use crate::inside;

/// Default time to deliver queued data at the end of a host: some losses at a round trip of 100 ms.
pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// How long after that resets may wait for a device without room, or for a neighbour's answer.
pub(crate) const RESET_TIME: Duration = Duration::from_millis(100);

/// How long connections wait for their peers to close, too, once all data was delivered.
const HALF_CLOSED_TIME: Duration = Duration::from_millis(100);

/// How long a wait for the end exceeds the limits, for a driver thread that is late.
const LATE: Duration = Duration::from_millis(200);

/// The result of a shutdown; see [`Host::shutdown`](crate::Host::shutdown).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// All connections, including dropped ones that still had data to deliver.
    pub connections: usize,
    /// Connections that were reset: received data was unread, more arrived, or time was up.
    pub reset: usize,
    /// Connections that the peer reset meanwhile.
    pub broken: usize,
    /// Connections that ended early, because the peer did not answer or the device was lost.
    pub lost: usize,
    /// Whether the last packet was sent: `false` if the device had no room, or a neighbour did not answer.
    pub sent: bool,
}

impl ShutdownReport {
    /// Connections whose peer has acknowledged everything, including the end of the stream.
    pub fn delivered(&self) -> usize {
        self.connections.saturating_sub(self.reset + self.broken + self.lost)
    }

    /// Whether every connection was delivered and the last packet has left.
    pub fn is_clean(&self) -> bool {
        self.reset + self.broken + self.lost == 0 && self.sent
    }
}

/// The part of a host's end that needs no lock.
#[derive(Default)]
pub(crate) struct Departure {
    asked: AtomicBool,
    /// The time limit for delivery, in nanoseconds.
    limit: AtomicU64,
    /// The driver goes on after the end: another host of this process may still need this one's turns.
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

    pub(crate) fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit.load(Ordering::Acquire))
    }

    pub(crate) fn report(&self) -> Option<ShutdownReport> {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the waits for the end. The first report counts.
    pub(crate) fn set_report(&self, report: ShutdownReport) {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(report);
        self.over.notify_all();
    }

    /// Waits for the end; `None`: it did not come in time.
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

/// The progress of the end.
pub(crate) struct Leaving {
    began: Instant,
    /// Since when nothing is left to deliver.
    delivered_at: Option<Instant>,
    /// When the remaining connections were reset.
    reset_at: Option<Instant>,
    report: ShutdownReport,
    /// Counts of ended connections at the beginning.
    before: Ends,
    over: bool,
}

/// Ended connections, by cause.
#[derive(Clone, Copy)]
struct Ends {
    /// By a reset of the peer.
    broken: u64,
    lost: u64,
    /// By data that arrived after a close, which is answered by a reset.
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
    /// Requests the host's end within `limit`, without a lock. `stays`: the driver goes on.
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

    /// When an end that is requested now with `limit` is over at the latest.
    pub(crate) fn latest_end(limit: Duration) -> WallClock {
        // A bound, so that the sum does not overflow.
        const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
        WallClock::now() + limit.min(YEAR) + RESET_TIME + LATE
    }

    /// Ends a host that has no driver: sends what the device takes, and resets all. Never waits.
    pub(crate) fn reset_all(&self) {
        self.ask_to_leave(Duration::ZERO, false);
        let Some(mut inner) = self.try_lock() else { return };
        let now = self.now();
        let report = self.leave(&mut inner, now);
        drop(inner);
        report.into_iter().for_each(|report| self.departure.set_report(report));
    }

    /// Takes the next step; returns the report when the end is over. The caller sets the report after it
    /// has released the lock: the release drops the devices, so that others may open them.
    pub(crate) fn leave(&self, inner: &mut Inner, now: Instant) -> Option<ShutdownReport> {
        let report = inner.leave(now, self.departure.limit())?;
        if !self.departure.stays() {
            // The peer of a pair link sees its other end dropped.
            let devices = inner.devices.close();
            inner.discarded.extend(devices.into_iter().map(|device| Box::new(device) as _));
        }
        Some(report)
    }

    /// Takes all steps on this thread; `None`: the lock is not available, or `until` has passed.
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
                self.hand_back();
                return Some(report);
            }
            if WallClock::now() >= until {
                self.hand_back();
                return None;
            }
            driver::wait_for_device(self, Some(self.now() + LEAVE_LOOK));
        }
    }

    /// Waits for the requested end; `None`: it did not come in time, or this thread must not wait.
    pub(crate) fn wait_until_left(&self, until: WallClock) -> Option<ShutdownReport> {
        if self.is_driven_by_waits() || self.is_driven_by_task() || inside::drives(self.id) {
            return self.leave_here(until);
        }
        if inside::is_called_by(self.id) || inside::drives_any() {
            // The driver waits for the lock that this thread holds, or for its output.
            return self.departure.report();
        }
        self.departure.wait(until)
    }
}

impl Inner {
    /// Takes the next step; returns the report when the end is over.
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
            // Sends the resets.
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
        // Services are dropped before their sockets are closed.
        let services = std::mem::take(&mut self.services);
        self.note_services();
        self.discarded.extend(services.into_iter().map(|s| Box::new(s.service) as _));
        let before = Ends::of(self.stack.counters());
        let (connections, reset) = self.stack.close_all(now);
        self.waiters.forget_all();
        self.note_down();
        self.rings.look_at_all();
        self.flush(now);
        let report = ShutdownReport { connections, reset, ..ShutdownReport::default() };
        let (delivered_at, reset_at, over) = (None, None, false);
        Leaving { began: now, delivered_at, reset_at, report, before, over }
    }
}

impl Leaving {
    /// Whether the remaining connections are to be reset now.
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
