//! The calls of an application's threads: an operation under the lock, the output that leaves, and the wait.
//!
//! [`Shared::with_stack`], [`Shared::modify`] and [`Shared::with_inner`] run one operation and differ in what
//! they send after it. [`Shared::wait_after_try`] waits: the thread polls the devices for a while, then sleeps on
//! them ([`Wait::lead`]), unless another thread does ([`Wait::follow`]).
//! [`StallWatch`] keeps sleeping threads alive on a host whose driver is a task of a runtime.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use pagewire_mem::{Deferral, Instant};
use pagewire_sockets::{Call, Clock, Patience, Waiter, WaiterId, io_error};
use pagewire_stack::{Error, Readiness, SocketId, Stack};

use crate::driver::{self, LONGEST_SLEEP};
use crate::reentrancy::{self, DriverGuard};
use crate::shared::locked::Locked;
use crate::shared::{Inner, Shared, notify};

/// How long after the last turn a call takes one on its way: more than a thread needs to wake up.
const OVERDUE: Duration = Duration::from_micros(50);

/// The first sleep of a thread that waits for a host which a runtime's task drives, before it checks whether
/// that task still runs. Each further sleep is twice as long.
const FIRST_STALL_CHECK: Duration = Duration::from_millis(1);

/// The longest of these sleeps: how long a frame waits at most if all of the runtime's threads wait.
const LONGEST_STALL_CHECK: Duration = Duration::from_millis(50);

/// The sleeps of the other threads, of which one takes over when the thread that checked has its answer.
const STANDBY_SLEEP: Duration = Duration::from_millis(250);

/// A waker that unparks this thread.
pub(crate) fn thread_waker() -> Waker {
    Waker::from(Unpark::new(None))
}

/// A waker of a thread that waits, which remembers its calls.
#[derive(Debug)]
pub(crate) struct Unpark {
    thread: Thread,
    woken: AtomicBool,
    /// The eventfd that the thread sleeps on while it leads.
    wake: Option<Arc<OwnedFd>>,
    leads: AtomicBool,
}

impl Unpark {
    /// A waker of this thread, which may sleep on an eventfd, too.
    pub(crate) fn new(wake: Option<Arc<OwnedFd>>) -> Arc<Self> {
        let (woken, leads) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { thread: std::thread::current(), woken, wake, leads })
    }

    /// Whether the thread was woken since the last call.
    pub(crate) fn take(&self) -> bool {
        self.woken.swap(false, Ordering::SeqCst)
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        match &self.wake {
            Some(wake) if self.leads.load(Ordering::SeqCst) => notify(wake),
            _ => self.thread.unpark(),
        }
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
            if inner.batch.defers(now) {
                inner.unfinished = true;
                return;
            }
            inner.flush(now);
        }
        if now >= inner.last_turn + OVERDUE && self.has_driver_thread() {
            // The poller has not had a core since: this thread has one.
            inner.turn(now);
        }
        self.rearm_timer(inner);
    }

    /// Waits after a first try that found no answer.
    pub(crate) fn wait_after_try<T>(
        &self,
        socket: SocketId,
        interest: Readiness,
        patience: Patience,
        op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
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
        let mut wait = Wait::new(self, socket, interest, deadline);
        let done = wait.run(began, op);
        let now = self.now();
        self.spin.ended(now, now.saturating_since(began), wait.polled);
        done
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
        if driven || matches!(stall_watch.sleep(woken, None), SleepEnd::DriverStalled) {
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

/// A wait of a thread for a socket of a host that has a driver. The thread leads, or follows a leader (`poller.rs`).
struct Wait<'a> {
    shared: &'a Shared,
    socket: SocketId,
    interest: Readiness,
    deadline: Option<Instant>,
    id: WaiterId,
    call: Call,
    /// How long the thread polled before it slept.
    polled: Duration,
    /// Made at the first sleep.
    thread: Option<Arc<Unpark>>,
    stall_watch: StallWatch<'a>,
}

/// The end of an attempt to lead.
enum Led<T> {
    Done(Result<T, Error>),
    TimedOut,
    /// Another thread leads, or the driver is to poll.
    Follow,
}

impl<'a> Wait<'a> {
    fn new(
        shared: &'a Shared,
        socket: SocketId,
        interest: Readiness,
        deadline: Option<Instant>,
    ) -> Self {
        let (id, call) = (WaiterId::new(), Call::new("in a call that blocks"));
        let stall_watch = StallWatch::new(shared);
        let polled = Duration::ZERO;
        Self { shared, socket, interest, deadline, id, call, polled, thread: None, stall_watch }
    }

    fn run<T>(
        &mut self,
        began: Instant,
        mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<T> {
        let mut until = began + self.shared.spin.limit(began);
        let mut leads = self.shared.has_driver_thread() || until > began;
        loop {
            if leads {
                match self.lead(began, until, &mut op) {
                    Led::Done(done) => return done.map_err(|e| self.shared.error(e)),
                    Led::TimedOut => return Err(io::ErrorKind::TimedOut.into()),
                    Led::Follow => {}
                }
            }
            // A thread that follows has waited for long enough: it polls no more.
            until = began;
            leads = self.shared.has_driver_thread();
            if let Some(done) = self.follow(&mut op) {
                return done;
            }
        }
    }

    /// Polls the devices until `until`, then sleeps on them, until there is an answer.
    fn lead<T>(
        &mut self,
        began: Instant,
        until: Instant,
        op: &mut impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> Led<T> {
        let shared = self.shared;
        // What is called here on this thread's account may not wait for this thread.
        let _guard = DriverGuard::of(shared.id);
        let mut term = Term { shared, over: true };
        let (mut last_poll, mut registered, mut polls) = (None, false, until > began);
        loop {
            let (mut inner, now) = shared.lock_now();
            let first = std::mem::take(&mut term.over);
            if first {
                if inner.failed
                    || shared.shutdown.is_requested()
                    || !inner.polling.lead(self.id, now)
                {
                    term.over = true;
                    return Led::Follow;
                }
                inner.polling.forget(self.id);
            }
            let slept = std::mem::take(&mut registered);
            if slept {
                inner.unregister(self.socket, self.id);
            }
            if first || slept {
                shared.end_sleep();
                inner.armed_until = Instant::ZERO;
                inner.devices.disarm();
            }
            inner.turn(now);
            let result = op(&mut inner.stack, &Clock::at(now));
            inner.flush(now);
            if polls {
                self.polled = now.saturating_since(began);
            }
            let result = match result {
                Err(Error::WouldBlock) if self.deadline.is_some_and(|at| now >= at) => {
                    Some(Led::TimedOut)
                }
                Err(Error::WouldBlock) if shared.shutdown.is_requested() => Some(Led::Follow),
                Err(Error::WouldBlock) => None,
                done => Some(Led::Done(done)),
            };
            if let Some(result) = result {
                term.end(inner, now);
                return result;
            }
            let lost =
                last_poll.replace(now).is_some_and(|before| shared.spin.lost_core(before, now));
            if !lost && now < until {
                shared.unlock_and_wake(inner);
                driver::pause();
                shared.yield_lock();
                continue;
            }
            if !shared.has_driver_thread() {
                term.over = true;
                inner.polling.drive();
                shared.unlock_and_wake(inner);
                shared.wake_driver();
                return Led::Follow;
            }
            (last_poll, polls) = (None, false);
            let left = self.deadline.map_or(LONGEST_SLEEP, |at| at.saturating_since(now));
            let wait = inner.longest_sleep(now, left.min(LONGEST_SLEEP));
            if wait.is_zero()
                || Deferral::is_pending()
                || inner.devices.arm()
                || !shared.prepare_sleep(&mut inner)
            {
                inner.devices.disarm();
                shared.unlock_and_wake(inner);
                continue;
            }
            let thread = self.thread(shared);
            registered = true;
            self.register(&mut inner, &thread, now);
            thread.leads.store(true, Ordering::SeqCst);
            inner.armed_until = now + wait;
            let devices = inner.devices.fds();
            shared.unlock_and_wake(inner);
            if !thread.take() {
                driver::sleep(shared, &devices, wait);
            }
            thread.leads.store(false, Ordering::SeqCst);
        }
    }

    /// Sleeps until the leader's turn wakes this thread; `None`: there is no answer yet, and perhaps no leader.
    fn follow<T>(
        &mut self,
        op: &mut impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> Option<io::Result<T>> {
        let shared = self.shared;
        let thread = self.thread(shared);
        let tried = shared.with_inner(|inner, clock| {
            let result = op(&mut inner.stack, clock);
            if let Err(Error::WouldBlock) = result {
                let may_lead = shared.has_driver_thread() && !inner.failed;
                if may_lead && !inner.polling.is_led() && !shared.shutdown.is_requested() {
                    // The last leader has just left.
                    return Err(None);
                }
                let now = shared.now();
                self.register(inner, &thread, now);
                inner.polling.follow(self.id, Arc::clone(&thread), now);
            }
            result.map_err(Some)
        });
        let left = self.deadline.map(|at| at.saturating_since(shared.now()));
        let done = match tried {
            Err(None) => return None,
            Err(Some(Error::WouldBlock)) if left.is_some_and(|left| left.is_zero()) => {
                Err(io::ErrorKind::TimedOut.into())
            }
            Err(Some(Error::WouldBlock)) => match self.stall_watch.sleep(&thread, left) {
                SleepEnd::Woken => return None,
                SleepEnd::DriverStalled => {
                    let driven = shared.drive_until(self.deadline, op, Some(&self.stall_watch));
                    shared.hand_back();
                    driven?
                }
            },
            Err(Some(error)) => Err(shared.error(error)),
            Ok(done) => Ok(done),
        };
        let (mut inner, now) = shared.lock_now();
        inner.unregister(self.socket, self.id);
        inner.polling.forget(self.id);
        let successor = inner.polling.successor(now);
        drop(inner);
        shared.call(successor);
        Some(done)
    }

    fn thread(&mut self, shared: &Shared) -> Arc<Unpark> {
        let wake = || Some(Arc::clone(&shared.wake));
        Arc::clone(self.thread.get_or_insert_with(|| Unpark::new(wake())))
    }

    fn register(&self, inner: &mut Inner, thread: &Arc<Unpark>, now: Instant) {
        let waker = Waker::from(Arc::clone(thread));
        let waiter = Waiter { id: self.id, call: self.call, since: Some(now), waker };
        let before = inner.waiters.sockets.add(self.socket, self.interest, waiter);
        inner.discarded.extend(before.map(|waker| Box::new(waker) as _));
    }
}

/// A thread's time as leader. If the thread panics, the drop lets others lead.
struct Term<'a> {
    shared: &'a Shared,
    over: bool,
}

impl Term<'_> {
    fn end(&mut self, mut inner: Locked<'_>, now: Instant) {
        self.over = true;
        let successor = inner.polling.leave(now);
        self.shared.unlock_and_wake(inner);
        self.shared.call(successor);
    }
}

impl Drop for Term<'_> {
    fn drop(&mut self) {
        if !self.over {
            let (inner, now) = self.shared.lock_now();
            self.end(inner, now);
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
    fn sleep(&mut self, thread: &Unpark, left: Option<Duration>) -> SleepEnd {
        let shared = self.shared;
        if thread.take() {
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
