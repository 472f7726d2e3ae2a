//! The world that a script runs in: one stack, one wire, one clock, and the threads that wait.
//!
//! ```text
//!   packetdrill's main thread                      its thread for blocking calls
//!   netdev_send, usleep, netdev_receive, …         read, write, accept, connect, poll, …
//!        |  moves the clock, runs timers                |  block_on(): polls its signal, and reports
//!        v  and hands packets over                      v  that it has polled
//!      +---------------------------- Inner (one lock) ----------------------------+
//!      |  now   stack   wire   epoch   who waits for what   calls under way        |
//!      +---------------------------------------------------------------------------+
//! ```
//!
//! Only [`World::sleep`], [`World::receive`] and, by a microsecond, [`World::read_clock`] move time. The
//! thread that moves it, or hands in a packet, settles before and afterwards (`World::settle`):
//! every waiting thread checks whether it is done, and if so finishes its call before time goes on.
//! A blocked call therefore ends at exactly its time, and two runs of a script are equal.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::ThreadId;
use std::time::Duration;

use pagewire_mem::{Instant, PacketBuf};
use pagewire_posix::{Backend, Errno, Fd, Numbering};
use pagewire_sockets::{Blocking, Clock, Runtime, Signal, Waiters};
use pagewire_stack::{LinkId, Stack};

use crate::limits::{CREEP, EPOCH, HAND_OVER, RECEIVE_PATIENCE};
use crate::stacks::Stacks;
use crate::wire::{Sniffed, Wire};

/// A stack in virtual time; see the module's page.
#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Mutex<Inner>,
    /// Wakes threads that wait, to check.
    poll: Condvar,
    /// A thread has checked, or is done.
    polled: Condvar,
    /// The thread that drives time while it waits itself; others wait for it.
    driver: ThreadId,
}

struct Inner {
    now: Instant,
    stacks: Stacks,
    wire: Wire,
    /// The kernel's descriptors that reserve the numbers of ours.
    numbers: HashMap<Fd, OwnedFd>,
    blank: File,
    /// Who waits for the stack's sockets, and for the clock.
    waiters: Waiters,
    /// To be called without the lock.
    wakes: Vec<Waker>,
    /// Counts the rounds of checks.
    epoch: u64,
    /// Threads that wait, and the last epoch in which each checked.
    threads: HashMap<ThreadId, u64>,
    /// Calls of other threads that run and do not wait.
    running: usize,
    /// How often a waiting thread has gone on.
    moves: u64,
    /// When each other thread's last call ended, until it asks for the time.
    ended: HashMap<ThreadId, Instant>,
    /// Nothing happened since the clock was read.
    clock_read: bool,
    /// A call of another thread has ended since the last sleep.
    handed_over: bool,
    scratch: VecDeque<PacketBuf>,
}

impl World {
    /// A world around the stacks of one host, at the moment `now`. The calling thread is the driver.
    ///
    /// # Errors
    /// `/dev/null`, of which descriptors are made, cannot be opened.
    pub fn new(now: Instant, stacks: Stacks, wire: Wire) -> io::Result<Self> {
        let inner = Inner {
            now,
            stacks,
            wire,
            numbers: HashMap::new(),
            blank: File::open("/dev/null")?,
            waiters: Waiters::default(),
            wakes: Vec::new(),
            epoch: 0,
            threads: HashMap::new(),
            running: 0,
            moves: 0,
            ended: HashMap::new(),
            clock_read: false,
            handed_over: false,
            scratch: VecDeque::new(),
        };
        let shared = Shared {
            inner: Mutex::new(inner),
            poll: Condvar::new(),
            polled: Condvar::new(),
            driver: std::thread::current().id(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The time of day at `at`: the clock's zero is an arbitrary date.
    pub fn time_of_day(at: Instant) -> Duration {
        EPOCH + at.saturating_since(Instant::ZERO)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.shared.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_driver(&self) -> bool {
        std::thread::current().id() == self.shared.driver
    }

    /// Runs a system call of the calling thread: the driver waits until it ends or waits.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        if self.is_driver() {
            let result = call();
            self.settle(self.lock()).clock_read = false;
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
        self.shared.poll.notify_all();
        self.shared.polled.notify_all();
        result
    }

    /// Reads the clock. The first call after another event does not move the time, every further call
    /// does, so that a loop until some time ends. A thread whose call has just ended reads the time of
    /// that end.
    pub fn read_clock(&self) -> Instant {
        let mut inner = self.lock();
        if let Some(at) = inner.ended.remove(&std::thread::current().id()) {
            return at;
        }
        if !core::mem::replace(&mut inner.clock_read, true) {
            return inner.now;
        }
        let until = inner.now + CREEP;
        let mut inner = self.advance(inner, until, false);
        inner.clock_read = true;
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
        inner.clock_read = false;
        let Some(frame) = inner.wire.inbound(packet) else { return false };
        let now = inner.now;
        inner.stacks.handle_frame(now, frame);
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
        let Inner { stacks, wire, .. } = &mut *inner;
        let result = verb(&mut stacks.main, wire);
        self.pump(&mut inner);
        unlock(inner);
        result
    }

    /// Runs `verb` on each stack of the host, and what follows from it.
    pub fn change_all(&self, verb: impl FnMut(&mut Stack)) {
        let mut inner = self.lock();
        inner.stacks.all().for_each(verb);
        self.pump(&mut inner);
        unlock(inner);
    }

    /// Replaces the stacks, which have no sockets yet.
    pub fn replace(&self, stacks: Stacks) {
        self.lock().stacks = stacks;
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
        inner.clock_read = false;
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
        if inner.stacks.poll_timeout().is_some_and(|due| due <= now) {
            inner.stacks.handle_timeout(now);
        }
        let Inner { waiters, wakes, .. } = inner;
        waiters.take_timers(now, wakes);
        self.pump(inner);
    }

    /// Sends what the stack has to send, and takes the wakers of those that waited for it.
    fn pump(&self, inner: &mut Inner) {
        let now = inner.now;
        loop {
            let Inner { stacks, wire, scratch, waiters, wakes, .. } = &mut *inner;
            let mut more = stacks.poll_transmit(now, scratch);
            let stack = &mut stacks.main;
            scratch.retain(|frame| !wire.outbound(now, frame));
            if !scratch.is_empty() {
                stack.handle_refused_on(now, LinkId::FIRST, scratch);
                more = true;
            }
            while let Some(event) = stack.poll_event() {
                waiters.take(event.socket, event.gained, wakes);
                more = true;
            }
            if !more {
                break;
            }
        }
        inner.stacks.end_turn();
    }

    /// Waits until no other thread has anything left to do at this moment.
    fn settle<'a>(&'a self, mut inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        loop {
            if !inner.wakes.is_empty() {
                unlock(inner);
                inner = self.lock();
            }
            let moves = inner.moves;
            inner.epoch += 1;
            let epoch = inner.epoch;
            if !inner.threads.is_empty() {
                self.shared.poll.notify_all();
            }
            while inner.running > 0 || inner.threads.values().any(|polled| *polled < epoch) {
                inner = self.shared.polled.wait(inner).unwrap_or_else(PoisonError::into_inner);
            }
            if inner.moves == moves {
                return inner;
            }
        }
    }

    /// Waits as the driver: time goes on here.
    fn wait_driving(&self, signal: &Signal) {
        let mut inner = self.settle(self.lock());
        while !signal.is_set() {
            let Some(next) = inner.next() else {
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
    fn wait_driven(&self, signal: &Signal) {
        let thread = std::thread::current().id();
        let mut inner = self.lock();
        inner.running -= 1;
        while !signal.is_set() {
            let epoch = inner.epoch;
            inner.threads.insert(thread, epoch);
            self.shared.polled.notify_all();
            inner = self.shared.poll.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.threads.remove(&thread);
        inner.running += 1;
        inner.moves += 1;
    }
}

/// Releases the lock, then calls the wakers of what happened under it.
fn unlock(mut inner: MutexGuard<'_, Inner>) {
    let wakes = std::mem::take(&mut inner.wakes);
    drop(inner);
    wakes.into_iter().for_each(Waker::wake);
}

impl Inner {
    /// The time of the next timer.
    fn next(&self) -> Option<Instant> {
        self.stacks.poll_timeout().into_iter().chain(self.waiters.next_timer()).min()
    }
}

impl Runtime for World {
    fn enter<T>(
        &self,
        op: impl FnOnce(&mut Stack, &Clock<'_>, &mut Waiters) -> T,
    ) -> io::Result<T> {
        let mut inner = self.lock();
        let Inner { now, stacks, waiters, .. } = &mut *inner;
        let result = op(&mut stacks.main, &Clock::at(*now), waiters);
        self.pump(&mut inner);
        unlock(inner);
        Ok(result)
    }
}

impl Blocking for World {
    fn block_on<F: Future>(&self, future: F) -> io::Result<F::Output> {
        Ok(pagewire_sockets::block_on(future, |signal| match self.is_driver() {
            true => self.wait_driving(signal),
            false => self.wait_driven(signal),
        }))
    }
}

impl Backend for World {
    fn time_of_day(&self, at: Instant, _: Instant) -> Duration {
        Self::time_of_day(at)
    }
}

impl Numbering for World {
    fn open(&self, _: Fd) -> Result<Option<Fd>, Errno> {
        let mut inner = self.lock();
        // packetdrill closes the rest with the C library, and ends if that fails.
        let twin: OwnedFd = inner.blank.try_clone().map_err(|_| Errno::MFILE)?.into();
        let fd = twin.as_raw_fd();
        inner.numbers.insert(fd, twin);
        Ok(Some(fd))
    }

    fn claim(&self, _: Fd) -> Result<(), Errno> {
        Err(Errno::INVAL)
    }

    fn close(&self, fd: Fd) {
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
