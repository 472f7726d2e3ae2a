//! What the application's threads and the driver share: one stack, its devices, one lock.
//!
//! Who polls the device is one of three, decided under the lock ([`Poller`]):
//!
//! ```text
//!               device idle for `spin`                a thread begins to wait
//!   Running --------------------------> Armed ----------------------------------> Deferred
//!      ^  <-- device or eventfd wakes --/   (the driver sleeps on device + eventfd)   |
//!      \------- the waiting thread gave up, or nobody polled for `INLINE_GRACE` ------/
//! ```
//!
//! In `Deferred` an application thread that waits polls the device inline, which is what makes a
//! round trip cost microseconds; the driver only looks now and then whether it still does.

pub(crate) mod leave;
mod locked;

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant as WallClock};

use pagewire_mem::{CompletionQueue, Instant};
use pagewire_stack::{Error, Event, Readiness, SocketId, Stack};

use crate::contain::{Panics, contain};
use crate::devices::{Devices, RECEIVE_BURST};
use crate::inside::Call;
use crate::rings::serve::{Attachments, STUCK_RETRY};
use crate::service::Attached;

use leave::{Departure, Leaving, SHUTDOWN_LIMIT};
use locked::Locked;

/// Rounds of receive and transmit in one turn, so that a flood cannot hold the lock for ever.
const ROUNDS_PER_TURN: usize = 4;

/// Rounds of output in one flush: with 64 frames a round, more than any window holds. What is left
/// then is due at once, after others had the lock.
const ROUNDS_PER_FLUSH: usize = 256;

/// Turns that services and rings get in one flush before others have the lock: each answers what the
/// output of the last has changed.
const SERVICE_TURNS: usize = 16;

/// How long frames wait at most for a device that had no room and does not say when it has.
const BLOCKED_RETRY: Duration = Duration::from_millis(1);

/// How often a device without a descriptor is polled while all threads sleep.
const POLLED_DEVICE: Duration = Duration::from_millis(1);

/// How long after the last inline poll the driver takes the device back. Bounds the time that a
/// frame can wait while an application thread computes.
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

/// The newest host's number.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// One host.
pub(crate) struct Shared {
    pub(crate) inner: Mutex<Inner>,
    zero: WallClock,
    /// Wakes the driver out of its sleep.
    pub(crate) wake: Arc<OwnedFd>,
    /// Asked for, under way or over: the end.
    pub(crate) departure: Departure,
    /// What applications' code did in here.
    pub(crate) panics: Panics,
    /// Nobody looks after the stack until something wakes the driver.
    asleep: Arc<AtomicBool>,
    /// Application threads that poll the device inline; at most one.
    pub(crate) spinners: AtomicU32,
    /// How long a wait spins before it sleeps: the setting and its adaptive value, nanoseconds.
    pub(crate) spin_max: Duration,
    pub(crate) spin_now: AtomicU64,
    /// Without a driver thread, waits drive the stack themselves.
    pub(crate) manual: bool,
    /// Of all hosts that this process has had, which this is; not 0.
    pub(crate) id: u64,
    /// The process that made it.
    pub(crate) process: u32,
    /// What is granted for delivery at the end if nobody says otherwise.
    pub(crate) shutdown_limit: Duration,
}

/// What the lock guards.
pub(crate) struct Inner {
    pub(crate) stack: Stack,
    pub(crate) devices: Devices,
    waits: HashMap<SocketId, Waits>,
    /// Wakers to be called once the lock is let go: one wake per waiter and batch.
    pub(crate) ready: Vec<Waker>,
    /// What others made, to be dropped once the lock is let go.
    pub(crate) discarded: Vec<Box<dyn std::any::Any + Send>>,
    /// Present from the first step of the host's end on.
    pub(crate) leaving: Option<Leaving>,
    /// Why the network is down, where that is not a device's doing.
    pub(crate) cause: Option<String>,
    /// A thread of ours panicked in here: nothing is done any more but to tell of it, or, if that
    /// panicked too, nothing.
    pub(crate) failed: bool,
    pub(crate) silent: bool,
    pub(crate) poller: Poller,
    /// The same as the host's.
    id: u64,
    panics: Panics,
    /// The last flush stopped before the output was through.
    unfinished: bool,
    /// When an armed driver wakes by itself.
    pub(crate) armed_until: Instant,
    /// When an application thread last polled the device.
    pub(crate) last_inline: Option<Instant>,
    pub(crate) wakeups: u64,
    pub(crate) observer: Option<Observer>,
    /// Rings that applications receive through.
    pub(crate) rings: Attachments,
    /// Something was done for them since the last turn.
    rings_worked: bool,
    pub(crate) services: Vec<Attached>,
    /// What the services are still to be told.
    events: Vec<Event>,
}

/// Who is told of every event.
pub(crate) type Observer = Box<dyn FnMut(Event) + Send>;

/// Who waits for a socket.
#[derive(Default)]
struct Waits {
    read: Vec<Waker>,
    write: Vec<Waker>,
    completion: Vec<Waker>,
}

impl Waits {
    fn list(&mut self, interest: Interest) -> &mut Vec<Waker> {
        match interest {
            Interest::Read => &mut self.read,
            Interest::Write => &mut self.write,
            Interest::Completion => &mut self.completion,
        }
    }

    fn lists(&mut self) -> [&mut Vec<Waker>; 3] {
        [&mut self.read, &mut self.write, &mut self.completion]
    }
}

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Data, a connection to accept, the end of the stream, an error.
    Read,
    /// Room to send, the end of the handshake, an error.
    Write,
    /// Memory sent by reference that is let go.
    Completion,
}

/// The time for one operation, read when it is asked for.
pub(crate) struct Clock<'a> {
    shared: &'a Shared,
    now: Cell<Option<Instant>>,
}

impl<'a> Clock<'a> {
    /// One that was read before.
    pub(crate) fn at(shared: &'a Shared, now: Instant) -> Self {
        Self { shared, now: Cell::new(Some(now)) }
    }

    /// The time, always the same.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        let now = self.now.get().unwrap_or_else(|| self.shared.now());
        self.now.set(Some(now));
        now
    }
}

impl Shared {
    pub(crate) fn new(
        stack: Stack,
        devices: Devices,
        zero: WallClock,
        spin: Duration,
        manual: bool,
    ) -> std::io::Result<Self> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags)?);
        let asleep = Arc::new(AtomicBool::new(false));
        let panics = Panics::default();
        let id = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
        wake_on_completion(stack.completions(), &wake, &asleep);
        wake_on_return(&stack, &wake, &asleep);
        let inner = Inner {
            stack,
            devices,
            waits: HashMap::new(),
            ready: Vec::new(),
            discarded: Vec::new(),
            leaving: None,
            cause: None,
            failed: false,
            silent: false,
            poller: Poller::Running,
            id,
            panics: panics.clone(),
            unfinished: false,
            armed_until: Instant::FAR,
            last_inline: None,
            wakeups: 0,
            observer: None,
            rings: Attachments::default(),
            rings_worked: false,
            services: Vec::new(),
            events: Vec::new(),
        };
        Ok(Self {
            inner: Mutex::new(inner),
            zero,
            wake,
            asleep,
            departure: Departure::default(),
            panics,
            spinners: AtomicU32::new(0),
            spin_max: spin,
            spin_now: AtomicU64::new(spin.as_nanos() as u64),
            manual,
            id,
            process: std::process::id(),
            shutdown_limit: SHUTDOWN_LIMIT,
        })
    }

    /// The one clock of the host.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.zero.elapsed().as_nanos() as u64)
    }

    /// The lock, and what time it is then. Whoever tells the stack a time reads it so: a thread that
    /// read the clock first and then had to wait for the lock would tell it of a time before its last
    /// one, and a segment with so old a timestamp is dropped by its receiver (RFC 7323, PAWS).
    #[inline]
    pub(crate) fn lock_now(&self) -> (Locked<'_>, Instant) {
        let inner = self.lock();
        (inner, self.now())
    }

    /// Lets go of the lock after a turn, a flush or a change of who polls: the one place where the
    /// driver's timer follows what was done, so that nobody can forget it. Then wakes whoever has to
    /// be woken.
    pub(crate) fn unlock_and_wake(&self, mut inner: Locked<'_>) {
        self.rearm_timer(&mut inner);
        drop(inner);
    }

    /// One operation of the application under the lock, its output sent at once.
    pub(crate) fn with<T>(&self, op: impl FnOnce(&mut Stack, Instant) -> T) -> T {
        let (mut inner, now) = self.lock_now();
        let result = op(&mut inner.stack, now);
        self.finish(&mut inner, now);
        result
    }

    /// The same of an operation that may need no clock, because nothing is to be sent after it. What
    /// had to be sent before it is for whoever left it, or the next.
    #[inline]
    pub(crate) fn with_quick<T>(&self, op: &mut impl FnMut(&mut Stack, &Clock<'_>) -> T) -> T {
        let mut inner = self.lock();
        let clock = Clock { shared: self, now: Cell::new(None) };
        let result = op(&mut inner.stack, &clock);
        if let Some(now) = clock.now.get() {
            self.finish(&mut inner, now);
        }
        result
    }

    /// After an operation.
    fn finish(&self, inner: &mut Inner, now: Instant) {
        // A send may only have added to a segment that waits to be full.
        if inner.has_output() {
            inner.flush(now);
            self.rearm_timer(inner);
        }
        // Else what was done moved no timer.
    }

    /// The stack's errors in the words of `std::io`; that the network is down, with the cause.
    pub(crate) fn error(&self, error: Error) -> std::io::Error {
        match error {
            Error::NetworkDown | Error::NoSuchSocket | Error::BrokenPipe => {
                self.lock().error(error)
            }
            other => io_error(other),
        }
    }

    /// Wakes the driver if it sleeps beyond the moment when somebody has to look: a deadline that was
    /// just set, or the next try of what found no room. One that has planned for that sleeps on.
    fn rearm_timer(&self, inner: &mut Inner) {
        if inner.poller != Poller::Armed {
            return;
        }
        let is_late = inner.deadline().is_some_and(|at| at < inner.armed_until)
            || inner.retry().is_some_and(|retry| self.now() + retry < inner.armed_until);
        if is_late {
            inner.armed_until = Instant::ZERO;
            self.kick();
        }
    }

    /// Wakes the driver.
    pub(crate) fn kick(&self) {
        ring(&self.wake);
    }

    /// Nobody will look after the stack. `false`: memory that another thread has let go waits to be
    /// reported, look first.
    pub(crate) fn fall_asleep(&self, inner: &mut Inner) -> bool {
        // Whoever lets go from here on wakes us; what was let go before, we see. (Both are SeqCst,
        // here and in `CompletionQueue`.)
        self.asleep.store(true, Ordering::SeqCst);
        let stack = &inner.stack;
        let pending =
            stack.completions().is_pending() || stack.returns().is_pending() || !inner.rings.arm();
        if pending {
            self.wake_up();
        }
        !pending
    }

    /// Has whoever lets go of memory that is reported in `queue` wake the driver, if that sleeps.
    pub(crate) fn wake_when_let_go(&self, queue: &CompletionQueue) {
        wake_on_completion(queue, &self.wake, &self.asleep);
    }

    /// Somebody looks after the stack again.
    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }
}

impl Inner {
    /// Receives, lets the stack work, sends. Returns whether anything came in.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        if self.failed {
            self.flush(now);
            return false;
        }
        let mut worked = false;
        for _ in 0..ROUNDS_PER_TURN {
            let received = self.devices.receive(now, &mut self.stack);
            worked |= received > 0;
            self.flush(now);
            if received < RECEIVE_BURST {
                break;
            }
        }
        self.stack.end_turn();
        worked | std::mem::take(&mut self.rings_worked)
    }

    /// Whether a flush would move anything, timers that are due left out.
    fn has_output(&self) -> bool {
        !self.failed && (self.unfinished || self.devices.is_blocked() || !self.stack.is_at_rest())
    }

    /// Timers, output, events, and what services make of these.
    pub(crate) fn flush(&mut self, now: Instant) {
        if self.failed {
            if !self.silent {
                self.report(now);
                self.serve_rings(now);
            }
            return;
        }
        if self.stack.poll_timeout().is_some_and(|at| at <= now) {
            self.stack.handle_timeout(now);
        }
        self.send(now);
        for _ in 0..SERVICE_TURNS {
            let served = self.report(now);
            if !self.serve_rings(now) && !served {
                return;
            }
            self.send(now);
        }
        // The rest is due at once.
        self.unfinished = true;
    }

    /// What applications do on their rings. Whether they did anything.
    #[inline]
    fn serve_rings(&mut self, now: Instant) -> bool {
        let Self { stack, rings, ready, .. } = self;
        let worked = !rings.is_empty() && rings.serve(now, stack, ready);
        self.rings_worked |= worked;
        worked
    }

    /// Output, as far as the devices take it.
    fn send(&mut self, now: Instant) {
        for _ in 0..ROUNDS_PER_FLUSH {
            self.unfinished = self.devices.transmit(now, &mut self.stack);
            if !self.unfinished || self.devices.are_all_blocked() {
                break;
            }
        }
    }

    /// Tells of events whoever waits for them. Whether a service had a turn.
    fn report(&mut self, now: Instant) -> bool {
        while let Some(event) = self.stack.poll_event() {
            if let Some(observer) = &mut self.observer {
                let _call = Call::of(self.id);
                contain(&self.panics.observers, "an observer", || observer(event));
            }
            self.rings.handle_event(event);
            self.note_ready(event.socket, event.gained);
            if !self.services.is_empty() {
                self.events.push(event);
            }
        }
        let _call = (!self.services.is_empty()).then(|| Call::of(self.id));
        let is_due = |s: &Attached| s.poll_timeout(&self.panics).is_some_and(|at| at <= now);
        if self.events.is_empty() && !self.services.iter().any(is_due) {
            return false;
        }
        let (stack, events, panics) = (&mut self.stack, &self.events, &self.panics);
        // One that panicked is not called again: nobody knows how it stands.
        let over = self.services.extract_if(.., |s| !s.turn(now, stack, events, panics));
        self.discarded.extend(over.map(|s| Box::new(s.service) as _));
        self.events.clear();
        true
    }

    fn note_ready(&mut self, socket: SocketId, gained: Readiness) {
        let Some(waits) = self.waits.get_mut(&socket) else { return };
        let before = self.ready.len();
        if gained.contains(Readiness::ERROR_QUEUE) {
            self.ready.append(&mut waits.completion);
        }
        if gained.intersects(Readiness::READ_CLOSED | Readiness::WRITE_CLOSED) {
            // Maybe none is to come any more.
            self.ready.append(&mut waits.completion);
        }
        if gained.intersects(Readiness::FOR_READ) {
            self.ready.append(&mut waits.read);
        }
        if gained.intersects(Readiness::FOR_WRITE) {
            self.ready.append(&mut waits.write);
        }
        self.wakeups += (self.ready.len() - before) as u64;
    }

    /// Has `waker` called when `socket` becomes ready; once.
    pub(crate) fn register(&mut self, socket: SocketId, interest: Interest, waker: &Waker) {
        let waits = self.waits.entry(socket).or_default();
        let list = waits.list(interest);
        if !list.iter().any(|w| w.will_wake(waker)) {
            list.push(waker.clone());
        }
    }

    /// A wait ended without a call of its waker.
    pub(crate) fn unregister(&mut self, socket: SocketId, waker: &Waker) {
        let Some(waits) = self.waits.get_mut(&socket) else { return };
        let mut empty = true;
        for list in waits.lists() {
            // A waker's drop may be a task's, and that one's sockets'.
            let gone = list.extract_if(.., |w| w.will_wake(waker));
            self.discarded.extend(gone.map(|w| Box::new(w) as _));
            empty &= list.is_empty();
        }
        if empty {
            self.waits.remove(&socket);
        }
    }

    /// The socket's owner is gone: nobody waits any more.
    pub(crate) fn forget(&mut self, socket: SocketId) {
        if let Some(mut waits) = self.waits.remove(&socket) {
            for list in waits.lists() {
                self.ready.append(list);
            }
        }
    }

    /// Nobody waits for any socket any more.
    pub(crate) fn forget_all(&mut self) {
        for mut waits in std::mem::take(&mut self.waits).into_values() {
            for list in waits.lists() {
                self.ready.append(list);
            }
        }
    }

    /// When a turn is due although nothing comes in.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.failed {
            return None;
        }
        let due = self.unfinished && !self.devices.are_all_blocked();
        let unfinished = due.then_some(Instant::ZERO);
        let moments = [unfinished, self.stack.poll_timeout(), self.devices.poll_timeout()];
        let _call = (!self.services.is_empty()).then(|| Call::of(self.id));
        let services = self.services.iter().map(|service| service.poll_timeout(&self.panics));
        moments.into_iter().chain(services).flatten().min()
    }

    /// How long nobody need look at the device or the stack, if the device says nothing.
    pub(crate) fn longest_sleep(&self, now: Instant, limit: Duration) -> Duration {
        let mut sleep = limit;
        if let Some(at) = self.deadline() {
            sleep = sleep.min(at.saturating_since(now));
        }
        if self.devices.are_polled() {
            sleep = sleep.min(POLLED_DEVICE);
        }
        sleep.min(self.retry().unwrap_or(limit))
    }

    /// When to look again at what found no room, and is not told when there is some.
    fn retry(&self) -> Option<Duration> {
        let blocked = self.devices.is_blocked().then_some(BLOCKED_RETRY);
        let stuck = self.rings.is_stuck().then_some(STUCK_RETRY);
        blocked.into_iter().chain(stuck).min()
    }

    /// See [`Shared::error`].
    pub(crate) fn error(&self, error: Error) -> std::io::Error {
        let cause = self.cause.as_deref();
        let cause = match error {
            Error::NetworkDown => cause.or_else(|| self.devices.cause()),
            // The socket went with the host.
            Error::NoSuchSocket => cause,
            // What failed it was told to an earlier call, or was no answer to one that had sent a part.
            Error::BrokenPipe if self.stack.is_down() => cause.or_else(|| self.devices.cause()),
            _ => None,
        };
        let Some(cause) = cause.map(str::to_owned) else { return io_error(error) };
        std::io::Error::new(std::io::ErrorKind::NetworkDown, NetworkDown { cause })
    }

    /// Whether somebody is to be woken after this turn.
    pub(crate) fn has_wakers(&self) -> bool {
        !self.ready.is_empty()
    }
}

/// Has whoever lets go of memory on another thread wake the driver, if that sleeps.
fn wake_on_completion(
    completions: &CompletionQueue,
    wake: &Arc<OwnedFd>,
    asleep: &Arc<AtomicBool>,
) {
    let (wake, asleep) = (Arc::clone(wake), Arc::clone(asleep));
    completions.set_waker(move || {
        if asleep.swap(false, Ordering::SeqCst) {
            ring(&wake);
        }
    });
}

/// The same for what applications kept of what they received.
fn wake_on_return(stack: &Stack, wake: &Arc<OwnedFd>, asleep: &Arc<AtomicBool>) {
    let (wake, asleep) = (Arc::clone(wake), Arc::clone(asleep));
    stack.returns().set_waker(move || {
        if asleep.swap(false, Ordering::SeqCst) {
            ring(&wake);
        }
    });
}

fn ring(event: &OwnedFd) {
    // A full counter means that a wake-up is pending already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Nothing can be sent or received any more, and why: what errors of kind
/// [`NetworkDown`](std::io::ErrorKind::NetworkDown) carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("network is down: {cause}")]
pub struct NetworkDown {
    /// What happened: what the device said, or that the host was shut down.
    pub cause: String,
}

/// The stack's errors in the words of `std::io`, errno included. Where the network may be down,
/// [`Shared::error`] says why.
pub(crate) fn io_error(error: Error) -> std::io::Error {
    std::io::Error::from_raw_os_error(error.errno())
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
