//! The shutdown of a host: it ends its sockets as a kernel ends those of a process that exits.
//!
//! ```text
//!   requested --> every socket is closed --> queued data is delivered --> the others are reset --> over
//!                  (unread data: reset)        until `limit`                until `RESET_TIME`
//! ```
//!
//! A connection whose peer has acknowledged everything is not reset: the peer may not have read all of it
//! yet. The shutdown is over when the devices are dropped; only then is the report given.
//!
//! The thread that drives the host takes the steps ([`Inner::step_shutdown`]): its driver, or the caller of
//! [`Host::shutdown`](crate::Host::shutdown) of a host without one. A request only sets flags and waits,
//! because a thread at the end of the process (`exit.rs`) may hold any lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant as WallClock};

use pagewire_mem::Instant;
use pagewire_stack::{Counters, Leftovers};
use pagewire_tcp::DropReason;

use super::{Inner, Shared};
use crate::driver::{self, SHUTDOWN_POLL};
use crate::reentrancy;

/// Default time to deliver queued data in a shutdown: some losses at a round trip of 100 ms.
pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// How long after the delivery resets may wait for a device without room, or for a neighbour's answer.
pub(crate) const RESET_TIME: Duration = Duration::from_millis(100);

/// How long connections wait for their peers to close, too, once all data was delivered.
const HALF_CLOSED_TIME: Duration = Duration::from_millis(100);

/// How long a wait for the shutdown exceeds the limits, for a driver thread that is late.
const LATE: Duration = Duration::from_millis(200);

/// The result of a shutdown; see [`Host::shutdown`](crate::Host::shutdown).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Connections, including dropped ones that still had data to deliver.
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

    /// Adds the report of another shard of the host.
    fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.reset += other.reset;
        self.broken += other.broken;
        self.lost += other.lost;
        self.sent &= other.sent;
    }

    /// Whether every connection was delivered and the last packet has left.
    pub fn is_clean(&self) -> bool {
        self.reset + self.broken + self.lost == 0 && self.sent
    }
}

/// The part of a shutdown that needs no lock: the request, and the report for those who wait.
#[derive(Default)]
pub(crate) struct ShutdownRequest {
    requested: AtomicBool,
    /// The time limit for delivery, in nanoseconds.
    limit: AtomicU64,
    /// The driver goes on after the shutdown: another host of this process may still need its turns.
    keeps_driver: AtomicBool,
    report: Mutex<Option<ShutdownReport>>,
    over: Condvar,
}

impl ShutdownRequest {
    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    pub(crate) fn keeps_driver(&self) -> bool {
        self.keeps_driver.load(Ordering::Acquire)
    }

    /// Lets the driver go on after the shutdown.
    pub(crate) fn keep_driver(&self) {
        self.keeps_driver.store(true, Ordering::Release);
    }

    pub(crate) fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit.load(Ordering::Acquire))
    }

    pub(crate) fn report(&self) -> Option<ShutdownReport> {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the report to those who wait for it. The first report counts.
    pub(crate) fn set_report(&self, report: ShutdownReport) {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(report);
        self.over.notify_all();
    }

    /// Waits for the report; `None`: it did not come in time.
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

/// The progress of a shutdown.
pub(crate) struct ShutdownProgress {
    began: Instant,
    /// When the last queued data was delivered.
    delivered_at: Option<Instant>,
    /// When the remaining connections were reset.
    reset_at: Option<Instant>,
    report: ShutdownReport,
    /// The counts of ended connections when the shutdown began.
    before: EndedConnections,
    over: bool,
}

/// Counts of connections that ended, by cause.
#[derive(Clone, Copy)]
struct EndedConnections {
    /// The peer reset the connection.
    broken: u64,
    /// The peer did not answer, or the device was lost.
    lost: u64,
    /// Data that arrived after the close was answered by a reset.
    answered: u64,
}

impl EndedConnections {
    fn of(counters: &Counters) -> Self {
        Self {
            broken: counters.tcp_established_resets,
            lost: counters.tcp_established_lost,
            answered: counters.tcp_drops(DropReason::ReceiveClosed),
        }
    }
}

impl Shared {
    /// Requests the shutdown of the host, of all its shards, within `limit`, without a lock.
    pub(crate) fn request_shutdown(&self, limit: Duration) {
        self.request_own_shutdown(limit);
        self.others().for_each(|shard| shard.request_own_shutdown(limit));
    }

    fn request_own_shutdown(&self, limit: Duration) {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        match self.shutdown.is_requested() {
            false => self.shutdown.limit.store(nanos, Ordering::Release),
            true => drop(self.shutdown.limit.fetch_min(nanos, Ordering::AcqRel)),
        }
        self.shutdown.requested.store(true, Ordering::Release);
        self.wake_driver();
    }

    /// When a shutdown that is requested now with `limit` is over at the latest.
    pub(crate) fn latest_shutdown_end(limit: Duration) -> WallClock {
        // A bound, so that the sum does not overflow.
        const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
        WallClock::now() + limit.min(YEAR) + RESET_TIME + LATE
    }

    /// Shuts down a host that has no driver: resets all connections, as far as the device has room. Never
    /// waits.
    pub(crate) fn reset_all(&self) {
        self.request_shutdown(Duration::ZERO);
        let Some(mut inner) = self.try_lock() else { return };
        let now = self.now();
        let report = self.step_shutdown(&mut inner, now);
        drop(inner);
        report.into_iter().for_each(|report| self.shutdown.set_report(report));
    }

    /// Takes the next step; returns the report when the shutdown is over. The caller sets the report after
    /// it has released the lock: the release drops the devices, so that others may open them.
    pub(crate) fn step_shutdown(&self, inner: &mut Inner, now: Instant) -> Option<ShutdownReport> {
        let report = inner.step_shutdown(now, self.shutdown.limit())?;
        // A packet for another shard may come in at a device of this one until all are over.
        if self.member.as_ref().is_some_and(|member| !member.end()) {
            return None;
        }
        if !self.shutdown.keeps_driver() {
            // The peer of a pair link sees its other end dropped.
            let devices = inner.devices.close();
            inner.discarded.extend(devices.into_iter().map(|device| Box::new(device) as _));
        }
        Some(report)
    }

    /// Whether this thread takes the steps.
    pub(crate) fn is_stepped_here(&self) -> bool {
        self.is_driven_by_waits() || reentrancy::is_driver_of(self.id)
    }

    /// Whether this thread has to take the steps: it alone does, or a task does that may wait for this thread.
    fn has_to_step_here(&self) -> bool {
        self.is_stepped_here() || self.is_driven_by_task()
    }

    /// Takes one step on this thread, and a turn; returns the report when the shutdown is over.
    fn step_here(&self) -> Option<ShutdownReport> {
        let (mut inner, now) = self.lock_now();
        let over = self.step_shutdown(&mut inner, now);
        inner.turn(now);
        self.unlock_and_wake(inner);
        over.inspect(|report| self.shutdown.set_report(*report))
    }

    /// Takes all steps on this thread, also those of other shards that this thread has to take, until `until` has passed;
    /// none under the lock.
    pub(crate) fn shut_down_here(&self, until: WallClock) {
        while !reentrancy::is_called_under_lock_of(self.host_id) {
            let over = self.step_here();
            for shard in self.others().filter(|shard| shard.has_to_step_here()) {
                shard.step_here();
            }
            if over.is_some() || WallClock::now() >= until {
                return self.hand_back();
            }
            driver::wait_for_device(self, Some(self.now() + SHUTDOWN_POLL));
        }
    }

    /// Waits for the requested shutdown of the host, of all its shards; returns the report, which is empty if that was
    /// not over in time, or if this thread must not wait.
    pub(crate) fn wait_for_shutdown(&self, until: WallClock) -> ShutdownReport {
        let all: Vec<_> = self.others().collect();
        let all = || std::iter::once(self).chain(all.iter().map(|shard| &**shard));
        let here = all().find(|shard| shard.has_to_step_here());
        here.inspect(|shard| shard.shut_down_here(until));
        // Drivers wait for the lock that this thread holds; or the thread is the driver of another host, which may be
        // what the shutdown waits for.
        let under_lock = reentrancy::is_called_under_lock_of(self.host_id);
        if under_lock || (here.is_none() && reentrancy::is_any_driver()) {
            return all().filter_map(|shard| shard.shutdown.report()).sum();
        }
        // A shard that other threads step is over when the last step of this thread is taken, or `until` has passed.
        let wait = |shard: &Self| shard.shutdown.wait(until).unwrap_or_default();
        all().map(wait).sum()
    }
}

impl std::iter::Sum for ShutdownReport {
    /// The report of several shards of one host. The report of none is empty.
    fn sum<I: Iterator<Item = Self>>(reports: I) -> Self {
        let add = |mut sum: Self, report: Self| {
            sum.add(report);
            sum
        };
        reports.reduce(add).unwrap_or_default()
    }
}

impl Inner {
    /// Takes the next step; returns the report when the shutdown is over.
    fn step_shutdown(&mut self, now: Instant, limit: Duration) -> Option<ShutdownReport> {
        if self.failed {
            return Some(ShutdownReport::default());
        }
        if self.shutdown.is_none() {
            self.shutdown = Some(self.begin_shutdown(now));
        }
        if let Some(progress) = self.shutdown.as_ref().filter(|progress| progress.over) {
            return Some(progress.report);
        }
        let left = self.stack.leftovers();
        let waits = left.packets || self.devices.is_blocked() || self.devices.delays_frames();
        let lost = self.devices.are_all_lost();
        let progress = self.shutdown.as_mut()?;
        if progress.reset_at.is_none() && progress.is_reset_due(now, limit, left, waits) {
            progress.reset_at = Some(now);
            progress.report.reset += self.stack.abort_all(now);
            // Sends the resets.
            self.flush(now);
            return self.step_shutdown(now, limit);
        }
        let progress = self.shutdown.as_mut()?;
        let since = progress.reset_at?;
        if waits && now < since + RESET_TIME && !lost {
            return None;
        }
        progress.over = true;
        let (before, ends) = (progress.before, EndedConnections::of(self.stack.counters()));
        progress.report.broken = (ends.broken - before.broken) as usize;
        progress.report.lost = (ends.lost - before.lost) as usize;
        progress.report.reset += (ends.answered - before.answered) as usize;
        progress.report.sent = !waits;
        Some(progress.report)
    }

    fn begin_shutdown(&mut self, now: Instant) -> ShutdownProgress {
        self.cause.get_or_insert_with(|| "the host was shut down".to_owned());
        // Services are dropped before their sockets are closed.
        let services = std::mem::take(&mut self.services);
        self.note_services();
        self.discarded.extend(services.into_iter().map(|s| Box::new(s.service) as _));
        let before = EndedConnections::of(self.stack.counters());
        let (connections, reset) = self.stack.close_all(now);
        self.waiters.forget_all();
        self.note_down();
        #[cfg(feature = "rings")]
        self.rings.answer_all();
        self.flush(now);
        let report = ShutdownReport { connections, reset, ..ShutdownReport::default() };
        let (delivered_at, reset_at, over) = (None, None, false);
        ShutdownProgress { began: now, delivered_at, reset_at, report, before, over }
    }
}

impl ShutdownProgress {
    /// Whether the remaining connections are to be reset now.
    fn is_reset_due(
        &mut self,
        now: Instant,
        limit: Duration,
        left: Leftovers,
        waits: bool,
    ) -> bool {
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
