//! Waits of threads on a runtime that turns its own clock: a simulation of two stacks, a script.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use pagewire_mem::Instant;
use pagewire_stack::{Error, Readiness, SocketId, Stack};

use crate::runtime::{Blocking, Clock, Patience, Runtime};
use crate::socket::register;
use crate::waiters::{Call, WaiterId};

/// [`Blocking::wait`] for a runtime that has only [`Blocking::block_on`].
pub(crate) fn wait<R: Blocking, T>(
    runtime: &R,
    socket: SocketId,
    interest: Readiness,
    patience: Patience,
    mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
) -> io::Result<T> {
    let Patience::For(limit) = patience else {
        let done = runtime.enter(|stack, clock, _| op(stack, clock))?;
        return done.map_err(|error| runtime.error(error));
    };
    let (id, call) = (WaiterId::new(), Call::new("in a call that blocks"));
    let mut limit = limit.map(|limit| Box::pin(runtime.sleep(limit)));
    let done = runtime.block_on(poll_fn(|cx| {
        if let done @ Poll::Ready(_) =
            register(runtime, socket, (id, interest), call, cx.waker(), &mut op)
        {
            return done;
        }
        match &mut limit {
            Some(limit) => limit.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
            None => Poll::Pending,
        }
    }));
    runtime.unregister(socket, id);
    done?
}

/// The flag of a thread that waits: set by its waker.
#[derive(Debug, Default)]
pub struct Signal(AtomicBool);

impl Signal {
    /// Whether the waker was called.
    pub fn is_set(&self) -> bool {
        // Pairs with `wake`: a thread that sees the flag sees what happened before it was set.
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Polls a future until it is ready. In between, `wait` goes on with the world until the signal is set.
pub fn block_on<F: Future>(future: F, mut wait: impl FnMut(&Signal)) -> F::Output {
    let (signal, mut future) = (Arc::<Signal>::default(), pin!(future));
    let waker = Waker::from(Arc::clone(&signal));
    loop {
        signal.0.store(false, Ordering::Release);
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => wait(&signal),
        }
    }
}

/// A wait for a time of the clock, by a timer of the runtime's [`Waiters`](crate::Waiters). It is dropped
/// without the runtime's lock.
#[derive(Debug)]
pub struct Sleep<R: Runtime> {
    runtime: R,
    until: Instant,
    timer: WaiterId,
}

impl<R: Runtime> Sleep<R> {
    /// Waits until the clock has reached `until`.
    pub fn new(runtime: R, until: Instant) -> Self {
        Self { runtime, until, timer: WaiterId::new() }
    }
}

impl<R: Runtime> Future for Sleep<R> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (waker, until, timer) = (cx.waker().clone(), self.until, self.timer);
        let mut waker = Some(waker);
        let replaced = self.runtime.enter(|_, clock, waiters| {
            let due = clock.now() >= until;
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
        drop(self.runtime.enter(|_, _, waiters| waiters.remove_timer(until, timer)));
    }
}
