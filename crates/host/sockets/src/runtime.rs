//! [`Runtime`]: the place where a socket's stack lives, such as a host, a simulation or a script's virtual time.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pagewire_mem::{Frag, Instant};
use pagewire_stack::{Error, Readiness, SocketId, Stack};

use crate::waiters::{Call, Waiter, WaiterId, Waiters};

/// Where a socket's stack lives: behind a host's lock, in a simulated world, beside a script.
///
/// Every operation of a socket is a closure over the [`Stack`]. The runtime runs the closure under its
/// lock, sends the output that the closure leaves, and wakes the [`Waiters`] of sockets that become ready:
/// outside of its lock, because a waker may call the runtime again. All but [`enter`](Self::enter) has a plain
/// form, which does for a stack beside a clock of its own.
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
    fn current() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Runs `op` under the lock, and sends the output that it leaves. If `op` reads no time, it has
    /// queued nothing to send.
    ///
    /// # Errors
    /// The runtime's own, if the stack is gone.
    fn enter<T>(&self, op: impl FnOnce(&mut Stack, &Clock<'_>, &mut Waiters) -> T)
    -> io::Result<T>;

    /// Runs `op` as [`enter`](Self::enter) does, or later, if this thread holds the lock: for drops, which
    /// happen anywhere.
    fn later(&self, op: impl FnOnce(&mut Stack, Instant) + Send + Sync + 'static) {
        // An error: the stack is gone, and so is the socket.
        let _ = self.enter(|stack, clock, _| op(stack, clock.now()));
    }

    /// Closes a socket whose owner was dropped, and wakes those that wait for it.
    fn close(&self, socket: SocketId) {
        let mut waited = Vec::new();
        let _ = self.enter(|stack, clock, waiters| {
            stack.close(clock.now(), socket);
            waiters.forget(socket, &mut waited);
        });
        waited.into_iter().for_each(Waker::wake);
    }

    /// Takes a waiter out, such as that of a future that was dropped: as [`later`](Self::later) does. The waker
    /// is dropped without the lock.
    fn unregister(&self, take: impl FnOnce(&mut Waiters) -> Option<Waker> + Send + Sync + 'static) {
        drop(self.enter(|_, _, waiters| take(waiters)));
    }

    /// Drops received memory that was copied. Its owner may be a type of the program, whose drop may panic.
    fn drop_received(&self, frags: Vec<Frag>) {
        drop(frags);
    }

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
    fn resolve(&self, name: &str) -> impl Future<Output = io::Result<Vec<IpAddr>>> + Send {
        let _ = name;
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Waits for some time of the stack's clock, by a timer of the [`Waiters`], or until the stack is down: for
    /// a runtime that serves these timers.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send {
        let until = self.enter(|_, clock, _| clock.now() + time);
        Sleep::new(self.clone(), until.unwrap_or(Instant::ZERO))
    }
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
        mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<T> {
        let Patience::For(limit) = patience else { return Err(io::ErrorKind::WouldBlock.into()) };
        let (id, call) = (WaiterId::new(), Call::new("in a call that blocks"));
        let work = poll_fn(|cx| register(self, socket, (id, interest), call, cx.waker(), &mut op));
        let done = self.block_on(timeout(self, limit, work));
        self.unregister(move |waiters| waiters.remove(socket, id));
        done?.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Waits for a future of this runtime.
    ///
    /// # Errors
    /// `Deadlock` on a thread that must not wait.
    fn block_on<F: Future>(&self, future: F) -> io::Result<F::Output>;
}

/// Tries `op`, and registers the waker if there is no answer yet, both under one lock.
#[inline]
pub(crate) fn register<R: Runtime, T>(
    runtime: &R,
    socket: SocketId,
    (id, interest): (WaiterId, Readiness),
    call: Call,
    waker: &Waker,
    mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
) -> Poll<io::Result<T>> {
    // Cloned, and a replaced one dropped, without the runtime's lock.
    let mut waker = Some(waker.clone());
    let mut replaced = None;
    let mut attempt = || {
        runtime.enter(|stack, clock, waiters| {
            let done = op(stack, clock);
            if let Err(Error::WouldBlock) = &done
                && let Some(waker) = waker.take()
            {
                let waiter = Waiter { id, call, since: clock.was_read(), waker };
                replaced = waiters.add(socket, interest, waiter);
            }
            done
        })
    };
    let mut done = attempt()?;
    if matches!(done, Err(Error::NoBuffers)) && runtime.make_room() {
        done = attempt()?;
    }
    drop(replaced);
    match done {
        Err(Error::WouldBlock) => Poll::Pending,
        done => Poll::Ready(done.map_err(|error| runtime.error(error))),
    }
}

/// A wait for a time of the clock, by a timer of the runtime's [`Waiters`].
struct Sleep<R: Runtime> {
    runtime: R,
    until: Instant,
    timer: WaiterId,
}

impl<R: Runtime> Sleep<R> {
    /// Waits until the clock has reached `until`.
    fn new(runtime: R, until: Instant) -> Self {
        Self { runtime, until, timer: WaiterId::new() }
    }
}

impl<R: Runtime> Future for Sleep<R> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (waker, until, timer) = (cx.waker().clone(), self.until, self.timer);
        let mut waker = Some(waker);
        let replaced = self.runtime.enter(|stack, clock, waiters| {
            let due = clock.now() >= until || stack.is_down();
            let waker = waker.take().filter(|_| !due);
            (due, waker.and_then(|waker| waiters.add_timer(until, timer, waker)))
        });
        // A runtime that is gone has no time to wait for.
        if replaced.map_or(true, |(due, _)| due) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<R: Runtime> Drop for Sleep<R> {
    fn drop(&mut self) {
        let (until, timer) = (self.until, self.timer);
        self.runtime.unregister(move |waiters| waiters.remove_timer(until, timer));
    }
}

/// The answer of a future; `None`: `limit` of the stack's clock was over before.
pub async fn timeout<R: Runtime, T>(
    runtime: &R,
    limit: Option<Duration>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let (mut work, mut limit) = (pin!(work), pin!(limit.map(|limit| runtime.sleep(limit))));
    poll_fn(|cx| match (work.as_mut().poll(cx), limit.as_mut().as_pin_mut()) {
        (Poll::Ready(done), _) => Poll::Ready(Some(done)),
        (Poll::Pending, Some(limit)) => limit.poll(cx).map(|()| None),
        (Poll::Pending, None) => Poll::Pending,
    })
    .await
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
