//! Where a socket's stack lives.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_stack::{Error, Readiness, SocketId, Stack};

use crate::waiters::{WaiterId, Waiters};

/// Where a socket's stack lives: behind a host's lock, in a simulated world, beside a script.
///
/// Every operation of a socket is a closure over the [`Stack`]. The runtime runs the closure under its
/// lock, sends the output that the closure leaves, and wakes the [`Waiters`] of sockets that become ready:
/// outside of its lock, because a waker may call the runtime again.
///
/// ```text
///   socket --enter(op)--> lock -> op(stack, clock, waiters) -> send output -> unlock -> wake
///                                    | WouldBlock
///                                    +--> Waiters::add ... Stack::poll_event -> Waiters::take -> wake
/// ```
pub trait Runtime: Clone + std::fmt::Debug + Send + Sync + Unpin + 'static {
    /// The runtime whose code runs on this thread.
    ///
    /// # Errors
    /// The runtime's own, if there is none.
    fn current() -> io::Result<Self>;

    /// Runs `op` under the lock, and sends the output that it leaves. If `op` reads no time, it has
    /// queued nothing to send.
    ///
    /// # Errors
    /// The runtime's own, if the stack is gone.
    fn enter<T>(&self, op: impl FnOnce(&mut Stack, &Clock<'_>, &mut Waiters) -> T)
    -> io::Result<T>;

    /// Runs `op` as [`enter`](Self::enter) does, or later, if this thread holds the lock: for drops, which
    /// happen anywhere.
    fn later(&self, op: impl FnOnce(&mut Stack, Instant) + Send + Sync + 'static);

    /// Closes a socket whose owner was dropped, and wakes those that wait for it.
    fn close(&self, socket: SocketId);

    /// Forgets a waiter of a future that was dropped.
    fn unregister(&self, socket: SocketId, waiter: WaiterId);

    /// Sends packets that fill the queue to the device. Returns whether that may have made room, so that
    /// an operation that found none is tried again.
    fn make_room(&self) -> bool {
        false
    }

    /// An error of the stack as one of `std::io`.
    fn error(&self, error: Error) -> io::Error {
        io_error(error)
    }

    /// The addresses of a name.
    ///
    /// # Errors
    /// The resolver's, or that there is none.
    fn resolve(&self, name: &str) -> impl Future<Output = io::Result<Vec<IpAddr>>> + Send;

    /// Waits for some time of the stack's clock.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

/// A runtime whose threads can wait.
pub trait Blocking: Runtime {
    /// Repeats `op`, whose first try returned `WouldBlock`, until it returns anything else, and waits for
    /// `interest` in between.
    ///
    /// # Errors
    /// The error of `op`; `WouldBlock` and `TimedOut` as `patience` says.
    fn wait<T>(
        &self,
        socket: SocketId,
        interest: Readiness,
        patience: Patience,
        op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<T> {
        crate::threads::wait(self, socket, interest, patience, op)
    }

    /// Waits for a future of this runtime.
    ///
    /// # Errors
    /// `Deadlock` on a thread that must not wait.
    fn block_on<F: Future>(&self, future: F) -> io::Result<F::Output>;
}

/// Whether a thread waits, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all: the error is `WouldBlock`.
    None,
    /// For ever, or for a time: the error is `TimedOut`.
    For(Option<Duration>),
}

/// The time of one operation, read when it is first asked for.
pub struct Clock<'a> {
    read: Option<&'a dyn Fn() -> Instant>,
    now: Cell<Option<Instant>>,
}

impl<'a> Clock<'a> {
    /// A clock that reads the time with `read`, once.
    #[inline]
    pub fn lazy(read: &'a dyn Fn() -> Instant) -> Self {
        Self { read: Some(read), now: Cell::new(None) }
    }

    /// A clock that was read before.
    #[inline]
    pub fn at(now: Instant) -> Self {
        Self { read: None, now: Cell::new(Some(now)) }
    }

    /// The time: the same for the whole operation.
    #[inline]
    pub fn now(&self) -> Instant {
        if let Some(now) = self.now.get() {
            return now;
        }
        let now = self.read.map_or(Instant::ZERO, |read| read());
        self.now.set(Some(now));
        now
    }

    /// The time, if the operation asked for it.
    #[inline]
    pub fn was_read(&self) -> Option<Instant> {
        self.now.get()
    }
}

impl std::fmt::Debug for Clock<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Clock").field(&self.now.get()).finish()
    }
}

/// An error of the stack as one of `std::io`, with Linux's number.
///
/// Two limits of zero-copy sends have one number on Linux, `ENOBUFS`, and need different cures: they are
/// the stack's [`Error`] inside an error of that number's kind.
pub fn io_error(error: Error) -> io::Error {
    let plain = io::Error::from_raw_os_error(error.errno());
    match error {
        Error::TooManyNotifications | Error::TooManyPagesHeld => {
            io::Error::new(plain.kind(), error)
        }
        _ => plain,
    }
}
