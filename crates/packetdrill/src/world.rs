//! The world that a script runs in: one stack, one wire, one clock, and the threads that wait.
//!
//! ```text
//!   packetdrill's main thread                      its thread for blocking calls
//!   netdev_send, usleep, netdev_receive, …         read, write, accept, connect, poll, …
//!        |  moves the clock, runs timers                |  wait(): looks at its signal, and says
//!        v  and hands packets over                      v  that it has looked
//!      +---------------------------- Inner (one lock) ----------------------------+
//!      |  now   stack   wire   epoch   who waits until when   calls under way      |
//!      +---------------------------------------------------------------------------+
//! ```
//!
//! Only [`World::sleep`], [`World::receive`] and, by a microsecond, [`World::look`] move time. The
//! thread that moves it, or hands in a packet, settles before and afterwards (`World::settle`):
//! every waiting thread checks whether it is done, and if so finishes its call before time goes on.
//! So a blocked call ends at exactly its time, and two runs of a script are equal.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use pagewire_mem::{Instant, PacketBuf};
use pagewire_posix::{Backend, Errno, Fd, Notices, Signal};
use pagewire_stack::{LinkId, Stack};

use crate::limits::{CREEP, EPOCH, HAND_OVER, RECEIVE_PATIENCE};
use crate::wire::{Sniffed, Wire};

/// A stack in virtual time; see the module's page.
pub struct World {
    inner: Mutex<Inner>,
    notices: OnceLock<Arc<Notices>>,
    /// Wakes threads that wait, to check.
    look: Condvar,
    /// A thread has checked, or is done.
    looked: Condvar,
    /// The thread that drives time while it waits itself; others wait for it.
    driver: ThreadId,
}

struct Inner {
    now: Instant,
    stack: Stack,
    wire: Wire,
    /// The kernel's descriptors that reserve the numbers of ours.
    numbers: HashMap<Fd, OwnedFd>,
    blank: File,
    /// Counts the rounds of checks.
    epoch: u64,
    waiters: Vec<Waiter>,
    /// Calls of other threads that run and do not wait.
    running: usize,
    /// How often a waiting thread has gone on.
    moves: u64,
    /// When each other thread's last call ended, until it asks for the time.
    ended: HashMap<ThreadId, Instant>,
    /// Nothing happened since the clock was read.
    looked: bool,
    /// A call of another thread has ended since the last sleep.
    handed_over: bool,
    scratch: VecDeque<PacketBuf>,
}

struct Waiter {
    thread: ThreadId,
    deadline: Option<Instant>,
    /// The last epoch in which it checked.
    looked: u64,
}

impl World {
    /// A world around `stack`, at the moment `now`. The calling thread is the driver.
    ///
    /// # Errors
    /// `/dev/null`, of which descriptors are made, cannot be opened.
    pub fn new(now: Instant, stack: Stack, wire: Wire) -> io::Result<Self> {
        let inner = Inner {
            now,
            stack,
            wire,
            numbers: HashMap::new(),
            blank: File::open("/dev/null")?,
            epoch: 0,
            waiters: Vec::new(),
            running: 0,
            moves: 0,
            ended: HashMap::new(),
            looked: false,
            handed_over: false,
            scratch: VecDeque::new(),
        };
        Ok(Self {
            inner: Mutex::new(inner),
            notices: OnceLock::new(),
            look: Condvar::new(),
            looked: Condvar::new(),
            driver: std::thread::current().id(),
        })
    }

    /// The time of day at `at`: the clock's zero is an arbitrary date.
    pub fn time_of_day(at: Instant) -> Duration {
        EPOCH + at.saturating_since(Instant::ZERO)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_driver(&self) -> bool {
        std::thread::current().id() == self.driver
    }

    /// Runs a system call of the calling thread: the driver waits until it ends or waits.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        if self.is_driver() {
            let result = call();
            self.settle(self.lock()).looked = false;
            return result;
        }
        self.lock().running += 1;
        let result = call();
        let mut inner = self.lock();
        inner.running -= 1;
        inner.moves += 1;
        let now = inner.now;
        inner.ended.insert(std::thread::current().id(), now);
        inner.handed_over = true;
        // Another thread may wait for what this call did.
        inner.epoch += 1;
        self.look.notify_all();
        self.looked.notify_all();
        result
    }

    /// The time: the first call after another event does not move it, every further one does, so
    /// that a loop until some time ends. A thread whose call has just ended gets the time of that.
    pub fn look(&self) -> Instant {
        let mut inner = self.lock();
        if let Some(at) = inner.ended.remove(&std::thread::current().id()) {
            return at;
        }
        if !core::mem::replace(&mut inner.looked, true) {
            return inner.now;
        }
        let until = inner.now + CREEP;
        let mut inner = self.advance(inner, until, false);
        inner.looked = true;
        inner.now
    }

    /// Moves time by `duration`.
    pub fn sleep(&self, duration: Duration) {
        let mut inner = self.lock();
        if core::mem::take(&mut inner.handed_over) {
            // The other thread's call has ended, but its caller still has to report it, for which it
            // needs a lock of packetdrill's that is free now. This costs real time only.
            drop(inner);
            std::thread::sleep(HAND_OVER);
            inner = self.lock();
        }
        let until = inner.now + duration;
        drop(self.advance(inner, until, false));
    }

    /// A packet for the stack; `false` if there is no memory for it.
    pub fn send(&self, packet: &[u8]) -> bool {
        let mut inner = self.settle(self.lock());
        inner.looked = false;
        let Some(frame) = inner.wire.inbound(packet) else { return false };
        let now = inner.now;
        inner.stack.handle_frame(now, frame);
        self.pump(&mut inner);
        drop(self.settle(inner));
        true
    }

    /// The next packet of the stack's, waiting for it in virtual time; `None` if none came.
    pub fn receive(&self) -> Option<Sniffed> {
        let inner = self.lock();
        let until = inner.now + RECEIVE_PATIENCE;
        self.advance(inner, until, true).wire.sniff()
    }

    /// Copies a packet to packetdrill's memory, as far as that has room; returns how many bytes.
    pub fn hand_out(&self, packet: &[u8], into: &mut [u8]) -> usize {
        self.lock().wire.hand_out(packet, into)
    }

    /// The time.
    pub fn present(&self) -> Instant {
        self.lock().now
    }

    /// Runs `verb` on the stack and the wire, and what follows from it.
    pub fn change<T>(&self, verb: impl FnOnce(&mut Stack, &mut Wire) -> T) -> T {
        let mut inner = self.lock();
        let Inner { stack, wire, .. } = &mut *inner;
        let result = verb(stack, wire);
        self.pump(&mut inner);
        result
    }

    /// Whether the descriptor is one of ours.
    pub fn owns(&self, fd: Fd) -> bool {
        self.lock().numbers.contains_key(&fd)
    }

    /// Forgets the kernel's descriptors that are still open: packetdrill closes them itself.
    pub fn leave_descriptors(&self) {
        for (_, descriptor) in self.lock().numbers.drain() {
            let _ = descriptor.into_raw_fd();
        }
    }

    /// Moves the clock to `until`, through every timer and deadline before it; with `packet`, ends as
    /// soon as there is a packet to receive, or nothing more can happen.
    fn advance<'a>(
        &'a self,
        inner: MutexGuard<'a, Inner>,
        until: Instant,
        packet: bool,
    ) -> MutexGuard<'a, Inner> {
        let mut inner = self.settle(inner);
        inner.looked = false;
        loop {
            if packet && inner.wire.has_sniffed() {
                return inner;
            }
            let next = inner.next();
            if packet && next.is_none() {
                return inner;
            }
            match next {
                Some(next) if next <= until => {
                    // A deadline in the past takes a little time, so that time goes on.
                    let at = next.max(inner.now + CREEP);
                    self.step(&mut inner, at);
                    inner = self.settle(inner);
                }
                _ => {
                    inner.now = inner.now.max(until);
                    return inner;
                }
            }
        }
    }

    /// Moves the clock to `at`, where a timer or a deadline is due.
    fn step(&self, inner: &mut Inner, at: Instant) {
        inner.now = inner.now.max(at);
        let now = inner.now;
        if inner.stack.poll_timeout().is_some_and(|due| due <= now) {
            inner.stack.handle_timeout(now);
        }
        self.pump(inner);
    }

    /// Sends what the stack has to send, and delivers events.
    fn pump(&self, inner: &mut Inner) {
        let now = inner.now;
        loop {
            let Inner { stack, wire, scratch, .. } = &mut *inner;
            let mut more = stack.poll_transmit(now, scratch);
            scratch.retain(|frame| !wire.outbound(now, frame));
            if !scratch.is_empty() {
                stack.handle_refused_on(now, LinkId::FIRST, scratch);
                more = true;
            }
            let mut events = false;
            while let Some(event) = inner.stack.poll_event() {
                events = true;
                if let Some(notices) = self.notices.get() {
                    notices.notify(event);
                }
            }
            if !more && !events {
                break;
            }
        }
        inner.stack.end_turn();
    }

    /// Waits until no other thread has anything left to do at this moment.
    fn settle<'a>(&'a self, mut inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        loop {
            let moves = inner.moves;
            inner.epoch += 1;
            let epoch = inner.epoch;
            if !inner.waiters.is_empty() {
                self.look.notify_all();
            }
            while inner.running > 0 || inner.waiters.iter().any(|w| w.looked < epoch) {
                inner = self.looked.wait(inner).unwrap_or_else(PoisonError::into_inner);
            }
            if inner.moves == moves {
                return inner;
            }
        }
    }

    /// Waits as the driver: time goes on here.
    fn wait_driving(&self, signal: &Signal, deadline: Option<Instant>) {
        let mut inner = self.settle(self.lock());
        loop {
            let due = deadline.is_some_and(|at| at <= inner.now);
            if signal.is_set() || due {
                return;
            }
            let Some(next) = [inner.next(), deadline].into_iter().flatten().min() else {
                eprintln!(
                    "pagewire: a system call waits for something that cannot happen; declare it \
                     as blocking in the script (`+0...0.1 call`)"
                );
                std::process::exit(1);
            };
            let at = next.max(inner.now + CREEP);
            self.step(&mut inner, at);
            inner = self.settle(inner);
        }
    }

    /// Waits as a thread that is not the driver.
    fn wait_driven(&self, signal: &Signal, deadline: Option<Instant>) {
        let thread = std::thread::current().id();
        let mut inner = self.lock();
        inner.running -= 1;
        inner.waiters.push(Waiter { thread, deadline, looked: 0 });
        loop {
            let epoch = inner.epoch;
            let due = deadline.is_some_and(|at| at <= inner.now);
            let Some(at) = inner.waiters.iter().position(|w| w.thread == thread) else { return };
            if signal.is_set() || due {
                inner.waiters.swap_remove(at);
                inner.running += 1;
                inner.moves += 1;
                return;
            }
            if let Some(waiter) = inner.waiters.get_mut(at) {
                waiter.looked = epoch;
            }
            self.looked.notify_all();
            inner = self.look.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Inner {
    /// The time of the next timer or deadline.
    fn next(&self) -> Option<Instant> {
        let deadlines = self.waiters.iter().filter_map(|w| w.deadline);
        self.stack.poll_timeout().into_iter().chain(deadlines).min()
    }
}

impl Backend for World {
    fn attach(&self, notices: Arc<Notices>) {
        // Called once, says the trait.
        let _ = self.notices.set(notices);
    }

    fn now(&self) -> Instant {
        self.lock().now
    }

    fn with<T>(&self, verb: impl FnOnce(&mut Stack, Instant) -> T) -> T {
        let mut inner = self.lock();
        let now = inner.now;
        let result = verb(&mut inner.stack, now);
        self.pump(&mut inner);
        result
    }

    fn wait(&self, signal: &Signal, deadline: Option<Instant>) {
        if self.is_driver() {
            self.wait_driving(signal, deadline);
        } else {
            self.wait_driven(signal, deadline);
        }
    }

    fn time_of_day(&self, at: Instant) -> Duration {
        Self::time_of_day(at)
    }

    fn open_number(&self) -> Result<Option<Fd>, Errno> {
        let mut inner = self.lock();
        // packetdrill closes the rest with the C library, and ends if that fails.
        let twin: OwnedFd = inner.blank.try_clone().map_err(|_| Errno::MFILE)?.into();
        let fd = twin.as_raw_fd();
        inner.numbers.insert(fd, twin);
        Ok(Some(fd))
    }

    fn close_number(&self, fd: Fd) {
        self.lock().numbers.remove(&fd);
    }
}

impl core::fmt::Debug for World {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let inner = self.lock();
        f.debug_struct("World")
            .field("now", &inner.now)
            .field("wire", &inner.wire)
            .finish_non_exhaustive()
    }
}
