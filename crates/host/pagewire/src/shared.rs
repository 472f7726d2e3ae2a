//! The state that the application's threads and the driver share: one stack, its devices, one lock.
//!
//! The device has one poller at a time, chosen under the lock ([`Poller`]):
//!
//! ```text
//!               device idle for `spin`                a thread begins to wait
//!   Running --------------------------> Armed ----------------------------------> Deferred
//!      ^  <-- device or eventfd wakes --/   (the driver sleeps on device + eventfd)   |
//!      \------- the waiting thread gave up, or none polled for `INLINE_GRACE` --------/
//! ```
//!
//! In `Deferred` an application thread that waits polls the device inline, so that a round trip costs
//! microseconds; the driver only checks from time to time that the thread still does. A thread that has its
//! answer while another one has just gone to sleep ends `Deferred`, too.

pub(crate) mod group;
pub(crate) mod locked;
pub(crate) mod shutdown;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant as WallClock};

#[cfg(feature = "rings")]
use pagewire_mem::CompletionQueue;
use pagewire_mem::Instant;
use pagewire_sockets::{WaiterId, io_error};
use pagewire_stack::{Error, Event, SocketId, Stack};

use crate::contain::Panics;
use crate::devices::Devices;
use crate::error::NetworkDown;
use crate::reentrancy;
#[cfg(feature = "rings")]
use crate::rings::serve::AttachedEngines;
use crate::service::AttachedService;
use crate::spin::Spin;
use crate::waiters::{EndWatchers, HostWaiters};

use group::{Exchange, Member};
use locked::Locked;
use shutdown::{SHUTDOWN_LIMIT, ShutdownProgress, ShutdownRequest};

/// How long after the last inline poll the driver takes the device back, and a frame can wait.
pub(crate) const INLINE_GRACE: Duration = Duration::from_micros(200);

/// Who polls the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poller {
    /// The driver, busily.
    Running,
    /// The driver, asleep until the device or the eventfd wakes it.
    Armed,
    /// An application thread, inline.
    Deferred,
}

/// The newest number of a shard or a host.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// A number that no shard or host of this process has.
pub(crate) fn next_id() -> u64 {
    LAST_ID.fetch_add(1, Ordering::Relaxed) + 1
}

/// A host's state: the part that the lock guards, and flags that threads read without the lock.
pub(crate) struct Shared {
    pub(crate) inner: Mutex<Inner>,
    /// The zero of the host's clock.
    zero: WallClock,
    /// Nanoseconds that the clock shows instead of the time since `zero`.
    #[cfg(feature = "testing")]
    pub(crate) clock: Option<Arc<AtomicU64>>,
    /// An eventfd that wakes the driver.
    pub(crate) wake: Arc<OwnedFd>,
    /// The shutdown: requested, under way or over.
    pub(crate) shutdown: ShutdownRequest,
    /// Tasks and threads that wait until the host is down, and the number of the newest.
    pub(crate) watchers: EndWatchers,
    last_watcher: AtomicU64,
    pub(crate) panics: Panics,
    /// The driver sleeps, and no other thread takes turns.
    asleep: Arc<AtomicBool>,
    /// An application thread polls the device inline.
    pub(crate) spins: AtomicBool,
    /// A task drives the host on any of its runtime's threads; waits must not keep it from running.
    by_task: AtomicBool,
    /// A foreign event loop waits for the host.
    pub(crate) in_a_loop: AtomicBool,
    /// A thread that waits for such a host checks whether the task runs.
    pub(crate) stall_check_taken: AtomicBool,
    /// Steps that the driver has taken.
    steps: AtomicU64,
    /// The number of steps when a thread last found that the task does not run.
    stalled_at: AtomicU64,
    /// How long an application's wait polls before it sleeps; the driver has its own (`driver.rs`).
    pub(crate) spin: Spin,
    /// How long any wait polls, at most.
    pub(crate) spin_max: Duration,
    /// Without a driver thread, waits drive the stack themselves.
    pub(crate) manual: bool,
    /// The number (`reentrancy.rs`) of a runtime's thread, if that alone can drive the host; otherwise 0.
    runner: AtomicU64,
    /// The shard's number in this process; not 0.
    pub(crate) id: u64,
    /// The host's number in this process, which all its shards have: for guards of calls under a lock.
    pub(crate) host_id: u64,
    /// The process that made the host.
    pub(crate) process: u32,
    /// Default time limit for delivery at the end.
    pub(crate) shutdown_limit: Duration,
    /// The place among the shards of a host that has several.
    pub(crate) member: Option<Member>,
}

/// The part of a host that the lock guards.
pub(crate) struct Inner {
    pub(crate) stack: Stack,
    pub(crate) devices: Devices,
    /// Packets from and to the other shards of the host, if it has several.
    pub(crate) exchange: Option<Exchange>,
    pub(crate) waiters: HostWaiters,
    /// Values of the application, to be dropped when the lock is released.
    pub(crate) discarded: Vec<Box<dyn std::any::Any + Send>>,
    /// Present from the first step of the shutdown on.
    pub(crate) shutdown: Option<ShutdownProgress>,
    /// Why the network is down, where no device caused that.
    pub(crate) cause: Option<String>,
    /// Code of this crate panicked under the lock: the failure is reported, nothing else is done.
    pub(crate) failed: bool,
    /// The report panicked, too: nothing is done.
    pub(crate) silent: bool,
    pub(crate) poller: Poller,
    /// The host's number, as in [`Shared`].
    pub(crate) host_id: u64,
    pub(crate) panics: Panics,
    pub(crate) watchers: EndWatchers,
    /// The last flush stopped before all output was sent.
    pub(crate) unfinished: bool,
    /// When an armed driver wakes by itself.
    pub(crate) armed_until: Instant,
    /// When memory that was not used for a while goes back to the system next.
    pub(crate) trim_at: Instant,
    /// When an application thread last polled the device.
    pub(crate) last_inline: Option<Instant>,
    pub(crate) observer: Option<Observer>,
    /// Rings that applications receive through.
    #[cfg(feature = "rings")]
    pub(crate) rings: AttachedEngines,
    /// The rings had work since the last turn.
    pub(crate) rings_worked: bool,
    pub(crate) services: Vec<AttachedService>,
    /// Events that the services have not seen yet.
    pub(crate) events: Vec<Event>,
    /// The services were not polled in this turn yet.
    pub(crate) services_unpolled: bool,
    /// A service had something to do when the services were last polled.
    pub(crate) services_worked: bool,
}

/// A function of the application that is called for every event.
pub(crate) type Observer = Box<dyn FnMut(Event) + Send>;

impl Shared {
    pub(crate) fn new(
        stack: Stack,
        devices: Devices,
        zero: WallClock,
        spin: Duration,
        manual: bool,
        member: Option<Member>,
    ) -> std::io::Result<Self> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags)?);
        let asleep = Arc::new(AtomicBool::new(false));
        let (panics, watchers) = (Panics::default(), EndWatchers::default());
        let id = next_id();
        let host_id = member.as_ref().map_or(id, Member::host_id);
        let waker = DriverWaker { wake: Arc::clone(&wake), asleep: Arc::clone(&asleep) };
        stack.completions().set_waker(waker.clone().into_fn());
        stack.returns().set_waker(waker.clone().into_fn());
        member.iter().for_each(|member| member.set_waker(waker.clone()));
        let inner = Inner {
            stack,
            devices,
            exchange: member.clone().map(Exchange::new),
            waiters: HostWaiters::default(),
            discarded: Vec::new(),
            shutdown: None,
            cause: None,
            failed: false,
            silent: false,
            poller: Poller::Running,
            host_id,
            panics: panics.clone(),
            watchers: watchers.clone(),
            unfinished: false,
            armed_until: Instant::FAR,
            trim_at: Instant::ZERO,
            last_inline: None,
            observer: None,
            #[cfg(feature = "rings")]
            rings: Default::default(),
            rings_worked: false,
            services: Vec::new(),
            events: Vec::new(),
            services_unpolled: false,
            services_worked: false,
        };
        Ok(Self {
            inner: Mutex::new(inner),
            zero,
            #[cfg(feature = "testing")]
            clock: None,
            wake,
            asleep,
            shutdown: ShutdownRequest::default(),
            watchers,
            last_watcher: AtomicU64::new(0),
            panics,
            spins: AtomicBool::new(false),
            by_task: AtomicBool::new(false),
            in_a_loop: AtomicBool::new(false),
            stall_check_taken: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            stalled_at: AtomicU64::new(u64::MAX),
            spin: Spin::new(spin),
            spin_max: spin,
            manual,
            runner: AtomicU64::new(0),
            id,
            host_id,
            process: std::process::id(),
            shutdown_limit: SHUTDOWN_LIMIT,
            member,
        })
    }

    /// A number for a new waiter for the end of the host.
    pub(crate) fn next_watcher_key(&self) -> u64 {
        self.last_watcher.fetch_add(1, Ordering::Relaxed)
    }

    /// The time of the host's only clock.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        #[cfg(feature = "testing")]
        if let Some(clock) = &self.clock {
            return Instant::from_nanos(clock.load(Ordering::Relaxed));
        }
        Instant::from_nanos(self.zero.elapsed().as_nanos() as u64)
    }

    /// Takes the lock; returns the time at which it was taken, too. A time read before the lock could be
    /// older than the stack's last one, and the receiver drops a segment with so old a timestamp (RFC 7323,
    /// PAWS).
    #[inline]
    pub(crate) fn lock_now(&self) -> (Locked<'_>, Instant) {
        let inner = self.lock();
        (inner, self.now())
    }

    /// Adjusts the driver's timer, and releases the lock, whose drop wakes the waits that are over.
    pub(crate) fn unlock_and_wake(&self, mut inner: Locked<'_>) {
        self.rearm_timer(&mut inner);
        drop(inner);
    }

    /// The stack's error as one of `std::io`; `NetworkDown` has its cause.
    pub(crate) fn error(&self, error: Error) -> std::io::Error {
        match error {
            Error::NetworkDown | Error::NoSuchSocket | Error::BrokenPipe => {
                self.lock().error(error)
            }
            other => io_error(other),
        }
    }

    /// Wakes the driver if it sleeps beyond the next deadline or retry. A thread's sleep has no timer that
    /// could be moved from here; a wake-up comes once in each of its sleeps, at most.
    pub(crate) fn rearm_timer(&self, inner: &mut Inner) {
        if inner.poller != Poller::Armed {
            return;
        }
        let is_late = inner.deadline().is_some_and(|at| at < inner.armed_until)
            || inner.retry().is_some_and(|retry| self.now() + retry < inner.armed_until);
        if is_late {
            inner.armed_until = Instant::ZERO;
            self.wake_driver();
        }
    }

    /// Whether waits of this thread have to drive the stack themselves.
    pub(crate) fn is_driven_by_waits(&self) -> bool {
        let runner = self.runner.load(Ordering::Relaxed);
        self.manual || (runner != 0 && runner == reentrancy::thread_number())
    }

    /// Hands the devices back after a wait of this thread that drove the stack: a driver that sleeps on the
    /// devices has to arm them again. So has an event loop of the program, each time: this wait may have taken
    /// the wake-up that the last one left for the loop.
    pub(crate) fn hand_back(&self) {
        if self.manual {
            if !self.in_a_loop.load(Ordering::Acquire) {
                return;
            }
            self.lock().poller = Poller::Running;
        }
        self.wake_driver();
    }

    /// From now on, the host's driver runs on this thread alone.
    #[cfg(feature = "tokio")]
    pub(crate) fn drive_on_this_thread(&self) {
        self.runner.store(reentrancy::thread_number(), Ordering::Relaxed);
    }

    /// From now on, the host's driver is a task, on any thread of its runtime.
    #[cfg(feature = "tokio")]
    pub(crate) fn drive_by_task(&self) {
        self.by_task.store(true, Ordering::Relaxed);
    }

    /// From now on, the host's driver is a thread of its own, or there is none.
    #[cfg(feature = "tokio")]
    pub(crate) fn drive_by_no_task(&self) {
        self.runner.store(0, Ordering::Relaxed);
        self.by_task.store(false, Ordering::Relaxed);
    }

    /// Whether a task drives the host that cannot run if all of its runtime's threads wait.
    pub(crate) fn is_driven_by_task(&self) -> bool {
        self.by_task.load(Ordering::Relaxed)
    }

    /// Counts a step of the driver.
    pub(crate) fn note_step(&self) {
        // Load and store suffice: there is one driver.
        self.steps.store(self.steps() + 1, Ordering::Relaxed);
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Whether a thread found the task stalled, and the task has taken no step since.
    pub(crate) fn is_stalled_at(&self, steps: u64) -> bool {
        self.stalled_at.load(Ordering::Relaxed) == steps
    }

    /// Takes a turn in the place of a task that may be stalled; returns whether it is, and something came in.
    pub(crate) fn take_turn_if_stalled(&self, steps: u64) -> bool {
        let (mut inner, now) = self.lock_now();
        let worked = inner.turn(now);
        self.unlock_and_wake(inner);
        // Tasks of other shards may be stalled for the same reason.
        let worked = self.turn_others() | worked;
        let stalled = worked && self.steps() == steps;
        if stalled {
            self.stalled_at.store(steps, Ordering::Relaxed);
        }
        stalled
    }

    /// Wakes the driver.
    pub(crate) fn wake_driver(&self) {
        notify(&self.wake);
    }

    /// Prepares for a sleep of the only thread that takes turns; `false`: there is work.
    pub(crate) fn prepare_sleep(&self, inner: &mut Inner) -> bool {
        // A drop from here on wakes the driver; an earlier one is pending below. (Both are SeqCst,
        // here and in `CompletionQueue`.)
        self.asleep.store(true, Ordering::SeqCst);
        let stack = &inner.stack;
        let pending = stack.completions().is_pending() || stack.returns().is_pending();
        let pending = pending || inner.exchange.as_ref().is_some_and(Exchange::is_pending);
        #[cfg(feature = "rings")]
        let pending = pending || !inner.rings.arm();
        if pending {
            self.end_sleep();
        }
        !pending
    }

    /// Wakes the driver when memory that is reported in `queue` is dropped on another thread.
    #[cfg(feature = "rings")]
    pub(crate) fn wake_on_completion(&self, queue: &CompletionQueue) {
        let (wake, asleep) = (Arc::clone(&self.wake), Arc::clone(&self.asleep));
        queue.set_waker(DriverWaker { wake, asleep }.into_fn());
    }

    /// Undoes [`prepare_sleep`](Self::prepare_sleep).
    pub(crate) fn end_sleep(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }
}

impl Inner {
    /// Removes a waiter without a call of its waker.
    pub(crate) fn unregister(&mut self, socket: SocketId, waiter: WaiterId) {
        let gone = self.waiters.sockets.remove(socket, waiter);
        self.discarded.extend(gone.map(|waker| Box::new(waker) as _));
    }

    /// Whether no socket can send or receive.
    pub(crate) fn is_down(&self) -> bool {
        self.failed || self.stack.is_down()
    }

    /// Wakes those who wait for the end of the host, if the host is down.
    pub(crate) fn note_down(&mut self) {
        if self.is_down() {
            self.waiters.ready.extend(self.watchers.take().into_iter().map(|(_, waker)| waker));
        }
    }

    /// See [`Shared::error`].
    pub(crate) fn error(&self, error: Error) -> std::io::Error {
        let cause = self.cause.as_deref();
        let cause = match error {
            Error::NetworkDown => cause.or_else(|| self.devices.cause()),
            // The socket ended with the host.
            Error::NoSuchSocket => cause,
            // An earlier call reported the failure, or had sent a part and returned that.
            Error::BrokenPipe if self.stack.is_down() => cause.or_else(|| self.devices.cause()),
            _ => None,
        };
        let Some(cause) = cause.map(str::to_owned) else { return io_error(error) };
        std::io::Error::new(std::io::ErrorKind::NetworkDown, NetworkDown { cause })
    }
}

/// A waker of the driver, which does nothing unless the driver sleeps.
#[derive(Clone)]
pub(crate) struct DriverWaker {
    wake: Arc<OwnedFd>,
    asleep: Arc<AtomicBool>,
}

impl DriverWaker {
    pub(crate) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            notify(&self.wake);
        }
    }

    fn into_fn(self) -> impl Fn() + Send + Sync + 'static {
        move || self.wake()
    }
}

/// Makes an eventfd readable.
fn notify(event: &OwnedFd) {
    // A full counter means that a wake-up is pending already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
