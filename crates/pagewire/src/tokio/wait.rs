//! Waits of tasks: one try for a caller that polls, a future, and readiness.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use ::tokio::io::{Interest, Ready};
use ::tokio::task::coop;
use pagewire_mem::Instant;
use pagewire_stack::{Error, Readiness, SocketId, Stack};

use crate::handle::Handle;
use crate::socket::{Socket, Verbs};
use crate::wait::{Clock, Patience};
use crate::waiters::Interest as Until;

fn try_or_register<T>(
    (host, id): (&Handle, SocketId),
    until: Until,
    waker: &Waker,
    mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
) -> Poll<io::Result<T>> {
    match host.shared.try_or_register(id, until, waker, &mut op) {
        Err(Error::WouldBlock) => Poll::Pending,
        done => Poll::Ready(done.map_err(|e| host.shared.error(e))),
    }
}

impl<Id: Verbs> Socket<Id> {
    /// [`wait`](Self::wait) for a task that polls, and has that seat.
    pub(super) fn poll<T>(
        &self,
        seat: &Seat,
        until: Until,
        cx: &mut Context<'_>,
        mut verb: impl FnMut(Id::Of<'_>, Instant) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        seat.poll_on((&self.host, self.id.into()), until, cx, |stack, clock| {
            verb(self.id.of(stack)?, clock.now())
        })
    }

    /// [`wait`](Self::wait) as a future.
    pub(super) fn later<T>(
        &self,
        until: Until,
        mut verb: impl FnMut(Id::Of<'_>, Instant) -> Result<T, Error>,
    ) -> impl Future<Output = io::Result<T>> {
        self.later_on(until, move |stack, now| verb(self.id.of(stack)?, now))
    }

    /// One try of a verb: `WouldBlock` if it would have to wait.
    pub(crate) fn try_now<T>(
        &self,
        until: Until,
        mut verb: impl FnMut(Id::Of<'_>, Instant) -> Result<T, Error>,
    ) -> io::Result<T> {
        let op = |stack: &mut Stack, clock: &Clock<'_>| verb(self.id.of(stack)?, clock.now());
        self.host.shared.wait(self.id, until, Patience::None, op)
    }
}

impl<Id: Copy + Into<SocketId>> Socket<Id> {
    /// [`wait_on`](Self::wait_on) as a future.
    pub(super) fn later_on<T, F>(&self, until: Until, op: F) -> WaitOp<'_, F>
    where
        F: FnMut(&mut Stack, Instant) -> Result<T, Error>,
    {
        WaitOp { host: &self.host, id: self.id.into(), until, op, waits: None }
    }

    /// What the socket is ready for of `interest`, once that is something.
    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let (id, mask) = (self.id.into(), mask_of(interest));
        self.later_on(until_of(interest), move |stack, _| level(stack, id, mask)).await
    }

    /// [`ready`](Self::ready) for a task that polls, and has that seat.
    pub(crate) fn poll_ready(
        &self,
        seat: &Seat,
        interest: Interest,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let (id, mask) = (self.id.into(), mask_of(interest));
        let look = |stack: &mut Stack, _: &Clock<'_>| level(stack, id, mask).map(drop);
        seat.poll_on((&self.host, id), until_of(interest), cx, look)
    }

    /// Runs `f` if the socket is ready for it.
    pub(super) fn try_io<R>(
        &self,
        interest: Interest,
        f: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        let (id, mask) = (self.id.into(), mask_of(interest));
        let look = |stack: &mut Stack, _: &Clock<'_>| level(stack, id, mask).map(drop);
        self.host.shared.wait(id, until_of(interest), Patience::None, look)?;
        f()
    }
}

/// The list to wait in.
fn until_of(interest: Interest) -> Until {
    let reads = interest.is_readable() || interest.is_priority() || interest.is_error();
    match (reads, interest.is_writable()) {
        (true, true) => Until::Either,
        (false, true) => Until::Write,
        _ => Until::Read,
    }
}

/// What ends a wait for `interest`.
fn mask_of(interest: Interest) -> Readiness {
    let mut mask = Readiness::NONE;
    for (asked, bits) in [
        (interest.is_readable(), Readiness::FOR_READ),
        (interest.is_writable(), Readiness::FOR_WRITE.difference(Readiness::CONNECTED)),
        (interest.is_error(), Readiness::ERROR),
        (interest.is_priority(), Readiness::URGENT),
    ] {
        if asked {
            mask |= bits;
        }
    }
    mask
}

/// What the socket is ready for now, of `mask`.
fn level(stack: &mut Stack, id: SocketId, mask: Readiness) -> Result<Ready, Error> {
    let readiness = stack.readiness(id)? & mask;
    let mut ready = Ready::EMPTY;
    // As with the kernel's poll, a call that would report an end or an error does not block.
    for (ours, theirs) in [
        (Readiness::READABLE, Ready::READABLE),
        (Readiness::WRITABLE, Ready::WRITABLE),
        (Readiness::READ_CLOSED, Ready::READABLE | Ready::READ_CLOSED),
        (Readiness::WRITE_CLOSED, Ready::WRITABLE | Ready::WRITE_CLOSED),
        (Readiness::ERROR, Ready::ERROR),
        (Readiness::URGENT, Ready::PRIORITY),
    ] {
        if readiness.contains(ours) {
            ready |= theirs;
        }
    }
    if ready.is_empty() { Err(Error::WouldBlock) } else { Ok(ready) }
}

/// The place of the one task that polls a direction of a socket, as in tokio: one that polls later takes
/// it over. Without it, the wakers of tasks that gave up would stay until something happens.
#[derive(Default)]
pub(crate) struct Seat(Mutex<Option<Arc<Own>>>);

impl Seat {
    /// One try for whoever polls last: registers the task if there is no answer yet.
    pub(crate) fn poll_on<T>(
        &self,
        (host, id): (&Arc<Handle>, SocketId),
        until: Until,
        cx: &mut Context<'_>,
        op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        // A task that always finds something to do lets others run, as with tokio's sockets.
        let budget = ready!(coop::poll_proceed(cx));
        let done = self.wait_on((host, id), until, cx.waker(), op);
        if done.is_ready() {
            budget.made_progress();
        }
        done
    }

    /// As [`poll_on`](Self::poll_on), for what mostly need not wait.
    pub(super) fn poll_ready_on<T>(
        &self,
        (host, id): (&Arc<Handle>, SocketId),
        until: Until,
        cx: &mut Context<'_>,
        mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        let budget = ready!(coop::poll_proceed(cx));
        let done = match host.shared.try_once(&mut op) {
            Err(Error::WouldBlock) => self.wait_on((host, id), until, cx.waker(), op),
            done => Poll::Ready(done.map_err(|e| host.shared.error(e))),
        };
        if done.is_ready() {
            budget.made_progress();
        }
        done
    }

    fn wait_on<T>(
        &self,
        (host, id): (&Arc<Handle>, SocketId),
        until: Until,
        task: &Waker,
        op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        // Not held while wakers of others are called.
        let (own, left) = self.take(task);
        if let Some(left) = left {
            host.outside(move |host| host.shared.lock().unregister(id, &left));
        }
        try_or_register((host, id), until, &own, op)
    }

    /// The task that has it waits no longer.
    #[cfg(feature = "quinn")]
    pub(crate) fn leave(&self, host: &Arc<Handle>, id: SocketId) {
        let own = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(own) = own.map(Waker::from) {
            host.outside(move |host| host.shared.lock().unregister(id, &own));
        }
    }

    /// The waker for this task, and that of the one before it.
    fn take(&self, task: &Waker) -> (Waker, Option<Waker>) {
        let mut seat = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = seat.as_ref().filter(|own| own.0.will_wake(task)) {
            return (Arc::clone(own).into(), None);
        }
        let own = Arc::new(Own(task.clone()));
        let before = seat.replace(Arc::clone(&own));
        drop(seat);
        (own.into(), before.map(Waker::from))
    }
}

/// A wait; its drop unregisters its waker.
pub(super) struct WaitOp<'a, F> {
    host: &'a Arc<Handle>,
    id: SocketId,
    until: Until,
    op: F,
    waits: Option<Registered>,
}

/// The task's waker, and the wait's own, which is unregistered alone.
struct Registered {
    task: Waker,
    own: Waker,
}

/// A task's waker in an allocation of its own, by which it is told from others of the same task.
struct Own(Waker);

impl Wake for Own {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
    }
}

impl<T, F> Future for WaitOp<'_, F>
where
    F: FnMut(&mut Stack, Instant) -> Result<T, Error>,
{
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        let shared = &self.host.shared;
        if self.waits.is_none() {
            match shared.with(&mut self.op) {
                Err(Error::WouldBlock) => {}
                done => {
                    budget.made_progress();
                    return Poll::Ready(done.map_err(|e| shared.error(e)));
                }
            }
        }
        if self.waits.as_ref().is_none_or(|waits| !waits.task.will_wake(cx.waker())) {
            self.forget();
            let task = cx.waker().clone();
            let own = Waker::from(Arc::new(Own(task.clone())));
            self.waits = Some(Registered { task, own });
        }
        let Self { host, id, until, op, waits } = &mut *self;
        let own = waits.as_ref().map_or(Waker::noop(), |waits| &waits.own);
        let done = try_or_register((host, *id), *until, own, |stack, clock| op(stack, clock.now()));
        if done.is_ready() {
            budget.made_progress();
        }
        done
    }
}

/// No field is pinned.
impl<F> Unpin for WaitOp<'_, F> {}

impl<F> WaitOp<'_, F> {
    fn forget(&mut self) {
        if let Some(waits) = self.waits.take() {
            let (id, own) = (self.id, waits.own);
            self.host.outside(move |host| host.shared.lock().unregister(id, &own));
        }
    }
}

impl<F> Drop for WaitOp<'_, F> {
    fn drop(&mut self) {
        self.forget();
    }
}
