//! The calls of an application's threads: an operation under the lock, the output that leaves, and the wait.
//!
//! [`Shared::with_stack`], [`Shared::modify`] and [`Shared::with_inner`] run one operation and differ in what
//! they send after it. [`Shared::wait_after_try`] waits: it polls the device for a while, then sleeps.
//! [`StallWatch`] keeps sleeping threads alive on a host whose driver is a task of a runtime.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_sockets::{Call, Clock, Patience, Waiter, WaiterId, io_error};
use pagewire_stack::{Error, Readiness, SocketId, Stack};

use crate::driver::{self, SIBLING_POLL};
use crate::reentrancy;
use crate::shared::locked::Locked;
use crate::shared::{Inner, Poller, Shared};

/// The first sleep of a thread that waits for a host which a runtime's task drives, before it checks whether
/// that task still runs. Each further sleep is twice as long.
const FIRST_STALL_CHECK: Duration = Duration::from_millis(1);

/// The longest of these sleeps: how long a frame waits at most if all of the runtime's threads wait.
const LONGEST_STALL_CHECK: Duration = Duration::from_millis(50);

/// The sleeps of the other threads, of which one takes over when the thread that checked has its answer.
const STANDBY_SLEEP: Duration = Duration::from_millis(250);

/// A waker that unparks this thread.
pub(crate) fn thread_waker() -> Waker {
    Waker::from(Unpark::new())
}

/// A waker that unparks a thread, and remembers that it did.
pub(crate) struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Unpark {
    /// A waker of this thread.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { thread: std::thread::current(), woken: AtomicBool::new(false) })
    }

    /// Whether the thread was woken since the last call.
    pub(crate) fn take(&self) -> bool {
        self.woken.swap(false, Ordering::Acquire)
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Shared {
    /// Runs one operation under the lock and sends its output.
    pub(crate) fn with_stack<T>(&self, op: impl FnOnce(&mut Stack, Instant) -> T) -> T {
        let (mut inner, now) = self.lock_now();
        let result = op(&mut inner.stack, now);
        self.finish(&mut inner, now);
        result
    }

    /// Runs an operation on the stack and its surroundings under the lock, and flushes in any case.
    pub(crate) fn modify<T>(&self, op: impl FnOnce(&mut Inner, Instant) -> T) -> T {
        let (mut inner, now) = self.lock_now();
        let result = op(&mut inner, now);
        inner.flush(now);
        self.unlock_and_wake(inner);
        result
    }

    /// Runs one operation under the lock. If the operation never reads the time, it has queued nothing to
    /// send, and nothing is flushed.
    #[inline]
    pub(crate) fn with_inner<T>(&self, op: impl FnOnce(&mut Inner, &Clock<'_>) -> T) -> T {
        let mut inner = self.lock();
        let read = || self.now();
        let clock = Clock::lazy(&read);
        let result = op(&mut inner, &clock);
        self.end(inner, clock.was_read());
        result
    }

    /// Sends the output of an operation that read the time, and releases the lock.
    // Not `#[inline]`, as [`lock`](Self::lock).
    fn end(&self, mut inner: Locked<'_>, read: Option<Instant>) {
        if let Some(now) = read {
            self.finish(&mut inner, now);
        }
    }

    /// Sends the output of an operation. An operation without output may have set a timer all the same.
    fn finish(&self, inner: &mut Inner, now: Instant) {
        if inner.has_output() {
            inner.flush(now);
        }
        self.rearm_timer(inner);
    }

    /// Waits after a first try that found no answer.
    pub(crate) fn wait_after_try<T>(
        &self,
        socket: SocketId,
        interest: Readiness,
        patience: Patience,
        mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<T> {
        let deadline = match patience {
            Patience::None => return Err(io_error(Error::WouldBlock)),
            Patience::For(limit) => limit.map(|limit| self.now() + limit),
        };
        if !self.manual && reentrancy::is_any_driver() {
            return Err(reentrancy::would_deadlock());
        }
        if self.is_driven_by_waits() {
            let done = self.wait_driving(deadline, op);
            self.hand_back();
            return done;
        }
        let began = self.now();
        let done = match self.poll_device(socket, began, &mut op) {
            Some(done) => done.map_err(|e| self.error(e)),
            None => self.park(socket, interest, deadline, op),
        };
        self.spin.ended(self.now().saturating_since(began));
        done
    }

    /// Polls the device for a while, unless another thread does.
    fn poll_device<T>(
        &self,
        socket: SocketId,
        began: Instant,
        op: &mut impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> Option<Result<T, Error>> {
        let limit = self.spin.limit(began);
        if limit.is_zero() {
            return None;
        }
        let polls = Role::take(&self.spins)?;
        let until = began + limit;
        let (mut first, mut polled_at) = (true, None);
        let done = loop {
            let (mut inner, now) = self.lock_now();
            let lost = polled_at.is_some_and(|at| self.spin.lost_core(at, now));
            if std::mem::take(&mut first) {
                inner.devices.disarm();
                if inner.poller == Poller::Armed {
                    inner.poller = Poller::Deferred;
                    self.wake_driver();
                }
            }
            inner.turn(now);
            inner.last_inline = Some(now);
            let result = op(&mut inner.stack, &Clock::at(now));
            inner.flush(now);
            if !matches!(result, Err(Error::WouldBlock))
                && inner.waiters.is_other_asleep(socket, now)
            {
                // Nobody polls for that thread until the grace is over.
                self.end_inline(&mut inner);
            }
            self.unlock_and_wake(inner);
            match result {
                Err(Error::WouldBlock) => {}
                done => break Some(done),
            }
            if lost || now >= until {
                break None;
            }
            polled_at = Some(self.now());
            driver::pause();
        };
        drop(polls);
        if done.is_none() {
            self.end_inline(&mut self.lock());
        }
        done
    }

    /// Lets the driver take the device back now, not after its grace.
    fn end_inline(&self, inner: &mut Inner) {
        inner.last_inline = None;
        if inner.poller == Poller::Deferred {
            self.wake_driver();
        }
    }

    /// Sleeps until the socket's waker is called, again and again.
    fn park<T>(
        &self,
        socket: SocketId,
        interest: Readiness,
        deadline: Option<Instant>,
        mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<T> {
        let (id, waker, call) =
            (WaiterId::new(), thread_waker(), Call::new("in a call that blocks"));
        let mut stall_watch = StallWatch::new(self);
        loop {
            let tried = self.with_inner(|inner, clock| {
                let result = op(&mut inner.stack, clock);
                if let Err(Error::WouldBlock) = result {
                    let now = self.now();
                    let waiter = Waiter { id, call, since: Some(now), waker: waker.clone() };
                    inner.waiters.sockets.add(socket, interest, waiter);
                    inner.waiters.note_sleep(socket, now);
                }
                result
            });
            match tried {
                Err(Error::WouldBlock) => {}
                done => {
                    self.lock().unregister(socket, id);
                    return done.map_err(|e| self.error(e));
                }
            }
            let left = deadline.map(|at| at.saturating_since(self.now()));
            if left.is_some_and(|left| left.is_zero()) {
                self.lock().unregister(socket, id);
                return Err(io::ErrorKind::TimedOut.into());
            }
            match stall_watch.sleep(left) {
                SleepEnd::Woken => {}
                SleepEnd::DriverStalled => {
                    let driven = self.drive_until(deadline, &mut op, Some(&stall_watch));
                    self.hand_back();
                    if let Some(done) = driven {
                        self.lock().unregister(socket, id);
                        return done;
                    }
                }
            }
        }
    }

    /// Waits for an event that is no socket's, until the thread is woken. Where nothing else drives the
    /// stack, the thread does so meanwhile, for `limit` at most.
    pub(crate) fn wait_for_host(
        &self,
        stall_watch: &mut StallWatch<'_>,
        woken: &Unpark,
        limit: Duration,
    ) -> io::Result<()> {
        if !self.manual && reentrancy::is_any_driver() {
            return Err(reentrancy::would_deadlock());
        }
        let driven = self.is_driven_by_waits();
        if driven || matches!(stall_watch.sleep(None), SleepEnd::DriverStalled) {
            let deadline = Some(self.now() + limit);
            let mut op = |_: &mut Stack, _: &Clock<'_>| match woken.take() {
                true => Ok(()),
                false => Err(Error::WouldBlock),
            };
            self.drive_until(deadline, &mut op, (!driven).then_some(&*stall_watch));
            self.hand_back();
        }
        Ok(())
    }

    /// Without a driver thread: drives the stack until there is an answer.
    fn wait_driving<T>(
        &self,
        deadline: Option<Instant>,
        mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<T> {
        let driven = self.drive_until(deadline, &mut op, None);
        driven.unwrap_or_else(|| Err(io_error(Error::WouldBlock)))
    }

    /// Drives the stack until there is an answer, or in the place of a task until that is back: `None` then.
    fn drive_until<T>(
        &self,
        deadline: Option<Instant>,
        op: &mut impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
        stall_watch: Option<&StallWatch<'_>>,
    ) -> Option<io::Result<T>> {
        loop {
            let (mut inner, now) = self.lock_now();
            let mut worked = inner.turn(now);
            let result = op(&mut inner.stack, &Clock::at(now));
            inner.flush(now);
            // Among the waiters that are woken now may be this thread's future.
            worked |= !inner.waiters.ready.is_empty();
            self.unlock_and_wake(inner);
            worked |= self.turn_others();
            match result {
                Err(Error::WouldBlock) if deadline.is_some_and(|at| now >= at) => {
                    return Some(Err(io::ErrorKind::TimedOut.into()));
                }
                Err(Error::WouldBlock) if stall_watch.is_some_and(StallWatch::is_over) => {
                    return None;
                }
                Err(Error::WouldBlock) if worked => {}
                Err(Error::WouldBlock) => {
                    // A task that is back has taken what this thread waits for.
                    let check = stall_watch.map(|_| now + LONGEST_STALL_CHECK);
                    let until = deadline.into_iter().chain(check).min();
                    driver::wait_for_device(self, until);
                }
                done => return Some(done.map_err(|e| self.error(e))),
            }
        }
    }
}

/// A role that at most one thread has; its drop gives it up.
pub(crate) struct Role<'a>(&'a AtomicBool);

impl<'a> Role<'a> {
    pub(crate) fn take(taken: &'a AtomicBool) -> Option<Self> {
        // `then`, not `then_some`: a value that was made in vain would give up another thread's role.
        (!taken.swap(true, Ordering::AcqRel)).then(|| Self(taken))
    }
}

impl Drop for Role<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The end of a sleep of [`StallWatch`].
enum SleepEnd {
    /// The waker was called, or time is up: try again.
    Woken,
    /// The driving task does not run.
    DriverStalled,
}

/// The watch of a sleeping thread over the task that drives the host. All of the runtime's threads may sleep
/// like this: then the task cannot run, and one of them takes its place.
///
/// ```text
///   sleep 1 ms, 2 ms, … 50 ms --> frames came, and the task took no step --> drive until it does
/// ```
pub(crate) struct StallWatch<'a> {
    shared: &'a Shared,
    /// This thread is the one that checks.
    checks: Option<Role<'a>>,
    next: Duration,
    /// The driver's steps before the last sleep.
    steps: u64,
}

impl<'a> StallWatch<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        Self { shared, checks: None, next: FIRST_STALL_CHECK, steps: 0 }
    }

    /// Sleeps until the thread is woken, at most for `left`.
    fn sleep(&mut self, left: Option<Duration>) -> SleepEnd {
        let shared = self.shared;
        if shared.drives_others() {
            // Of these, what this thread waits for may come in.
            if !shared.turn_others() {
                std::thread::park_timeout(left.map_or(SIBLING_POLL, |left| left.min(SIBLING_POLL)));
            }
            return SleepEnd::Woken;
        }
        if !shared.is_driven_by_task() {
            match left {
                None => std::thread::park(),
                Some(left) => std::thread::park_timeout(left),
            }
            return SleepEnd::Woken;
        }
        self.steps = shared.steps();
        self.checks = self.checks.take().or_else(|| Role::take(&shared.stall_check_taken));
        if self.checks.is_some() && shared.is_stalled_at(self.steps) {
            return SleepEnd::DriverStalled;
        }
        let limit = if self.checks.is_some() { self.next } else { STANDBY_SLEEP };
        std::thread::park_timeout(left.map_or(limit, |left| left.min(limit)));
        if self.checks.is_none() || self.is_over() {
            return SleepEnd::Woken;
        }
        self.next = (self.next * 2).min(LONGEST_STALL_CHECK);
        if shared.take_turn_if_stalled(self.steps) {
            SleepEnd::DriverStalled
        } else {
            SleepEnd::Woken
        }
    }

    /// Whether the task has taken a step since the last sleep began.
    fn is_over(&self) -> bool {
        self.shared.steps() != self.steps
    }
}
