//! What sockets of all kinds have in common: they try, wait and close.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use pagewire_mem::Instant;
use pagewire_stack::limits::DEFAULT_HOP_LIMIT;
use pagewire_stack::{Error, PacketMarks, Readiness, SocketId, SocketOption, Stack};
use tokio::io::{Interest, Ready};
use tokio::task::coop;

use super::addr::shown;
use super::error::{errno, io_error};
use crate::waiters::{Waiter, WaiterId};
use crate::world::{Gone, Here, HostRef, World};

/// An open socket of a host. Its drop closes it, as the drop of a descriptor does.
pub(crate) struct Socket {
    pub(crate) here: Here,
    pub(crate) id: SocketId,
    /// A socket of IPv6, which shows peers of IPv4 as mapped addresses.
    pub(crate) v6: bool,
    /// What was set: the stack has no getter.
    marks: Mutex<PacketMarks>,
    reader: WaiterId,
    writer: WaiterId,
}

/// For reports: what a task does, after "waits", and the line that called, if it is known.
pub(crate) type Call = (&'static str, Option<&'static Location<'static>>);

/// A direction of the calls that poll. Each has one waker, that of the last call, as in tokio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Receives or accepts.
    Read,
    /// Sends.
    Write,
}

impl Direction {
    fn mask(self) -> Readiness {
        match self {
            Self::Read => Readiness::FOR_READ,
            Self::Write => Readiness::FOR_WRITE,
        }
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("Socket");
        if let Ok(local) = self.local_addr() {
            f.field("addr", &local);
        }
        if let Ok(peer) = self.peer_addr() {
            f.field("peer", &peer);
        }
        f.finish()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Futures borrow the socket: only the calls that poll can have left wakers.
        let left = {
            let mut world = self.here.lock();
            // Gone: so is the socket.
            let _ = world.with_host(self.here.host, |stack, now| stack.close(now, self.id));
            [self.reader, self.writer].map(|id| world.unregister(self.here.host, self.id, id))
        };
        drop(left);
    }
}

impl Socket {
    pub(crate) fn new(here: Here, id: impl Into<SocketId>, v6: bool) -> Self {
        let (reader, writer) = {
            let mut world = here.lock();
            (world.new_waiter(), world.new_waiter())
        };
        Self { here, id: id.into(), v6, marks: Mutex::default(), reader, writer }
    }

    /// One try.
    pub(crate) fn with<T>(
        &self,
        verb: impl FnMut(&mut Stack, Instant) -> Result<T, Error>,
    ) -> io::Result<T> {
        try_in(&mut self.here.lock(), self.here.host, verb)?.map_err(io_error)
    }

    /// One try for a caller that polls: its waker is kept if there is no answer yet.
    pub(crate) fn poll<T>(
        &self,
        direction: Direction,
        call: Call,
        cx: &mut Context<'_>,
        verb: impl FnMut(&mut Stack, Instant) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        let place = match direction {
            Direction::Read => self.reader,
            Direction::Write => self.writer,
        };
        self.poll_at((place, direction.mask()), call, cx, verb)
    }

    fn poll_at<T>(
        &self,
        (place, mask): (WaiterId, Readiness),
        (what, location): Call,
        cx: &mut Context<'_>,
        verb: impl FnMut(&mut Stack, Instant) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        // A task that always finds something to do has to let others run, as with tokio's sockets.
        let budget = ready!(coop::poll_proceed(cx));
        let replaced = {
            let mut world = self.here.lock();
            match try_in(&mut world, self.here.host, verb) {
                Ok(Err(Error::WouldBlock)) => {}
                done => {
                    budget.made_progress();
                    return Poll::Ready(done?.map_err(io_error));
                }
            }
            let waker = cx.waker().clone();
            let waiter = Waiter { id: place, what, since: world.now, location, waker };
            world.register(self.here.host, self.id, mask, waiter)?
        };
        drop(replaced);
        Poll::Pending
    }

    /// [`poll`](Self::poll) as a future. It does nothing before it is polled, and leaves nothing
    /// behind when it is dropped.
    pub(crate) fn wait<T, F>(&self, direction: Direction, call: Call, verb: F) -> Wait<'_, F>
    where
        F: FnMut(&mut Stack, Instant) -> Result<T, Error>,
    {
        self.wait_for(direction.mask(), call, verb)
    }

    fn wait_for<T, F>(&self, mask: Readiness, call: Call, verb: F) -> Wait<'_, F>
    where
        F: FnMut(&mut Stack, Instant) -> Result<T, Error>,
    {
        Wait { socket: self, mask, call, verb, place: None }
    }

    /// What the socket is ready for, of what is asked; waits until there is some of it.
    pub(crate) fn ready(
        &self,
        interest: Interest,
        call: Call,
    ) -> impl Future<Output = io::Result<Ready>> + Send + Sync {
        let (id, mask) = (self.id, mask_of(interest));
        self.wait_for(mask, call, move |stack, _| level(stack, id, mask))
    }

    /// [`ready`](Self::ready) for a caller that polls.
    pub(crate) fn poll_ready(
        &self,
        direction: Direction,
        call: Call,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let look = |stack: &mut Stack, _| level(stack, self.id, direction.mask());
        self.poll(direction, call, cx, look).map_ok(drop)
    }

    /// Runs `f` if the socket is ready for it.
    pub(crate) fn try_io<R>(
        &self,
        interest: Interest,
        f: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        self.with(|stack, _| level(stack, self.id, mask_of(interest)))?;
        f()
    }

    /// Runs `f` until it does anything but block.
    pub(crate) async fn async_io<R>(
        &self,
        interest: Interest,
        call: Call,
        mut f: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        self.ready(interest, call).await?;
        loop {
            match f() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            // `f` would block, whatever the level is: the next try is after the next event.
            let mut looked = false;
            let next = |_: &mut Stack, _| {
                if std::mem::replace(&mut looked, true) { Ok(()) } else { Err(Error::WouldBlock) }
            };
            self.wait_for(mask_of(interest), call, next).await?;
        }
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.with(|stack, _| stack.local_addr(self.id))?;
        Ok(shown(local, self.v6))
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = self.with(|stack, _| stack.remote_addr(self.id))?;
        Ok(shown(peer, self.v6))
    }

    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        let error = self.with(|stack, _| Ok(stack.take_error(self.id)))?;
        Ok(error.map(io_error))
    }
}

/// One try. Where the queue to the device is full, what is in it leaves first: a kernel's driver
/// works beside the program, here nobody does.
fn try_in<T>(
    world: &mut World,
    host: HostRef,
    mut verb: impl FnMut(&mut Stack, Instant) -> Result<T, Error>,
) -> Result<Result<T, Error>, Gone> {
    match world.with_host(host, &mut verb)? {
        Err(Error::NoBuffers) => {
            world.transmit(host.id);
            world.with_host(host, verb)
        }
        done => Ok(done),
    }
}

/// A wait for one socket.
pub(crate) struct Wait<'a, F> {
    socket: &'a Socket,
    mask: Readiness,
    call: Call,
    verb: F,
    /// Where its waker is kept, once it has been polled.
    place: Option<WaiterId>,
}

/// No field is pinned.
impl<F> Unpin for Wait<'_, F> {}

impl<T, F> Future for Wait<'_, F>
where
    F: FnMut(&mut Stack, Instant) -> Result<T, Error>,
{
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { socket, mask, call, verb, place } = self.get_mut();
        let place = *place.get_or_insert_with(|| socket.here.lock().new_waiter());
        socket.poll_at((place, *mask), *call, cx, verb)
    }
}

impl<F> Drop for Wait<'_, F> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let Socket { here, id, .. } = self.socket;
        let left = here.lock().unregister(here.host, *id, place);
        drop(left);
    }
}

/// What ends a wait for `interest`.
fn mask_of(interest: Interest) -> Readiness {
    let mut mask = Readiness::NONE;
    if interest.is_readable() {
        mask |= Readiness::FOR_READ;
    }
    if interest.is_writable() {
        mask |= Readiness::FOR_WRITE;
    }
    if interest.is_error() {
        mask |= Readiness::ERROR;
    }
    if interest.is_priority() {
        mask |= Readiness::URGENT;
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

/// Settings of IP headers, which sockets of all kinds have.
impl Socket {
    fn lock_marks(&self) -> MutexGuard<'_, PacketMarks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn marks(&self) -> PacketMarks {
        *self.lock_marks()
    }

    /// What the stack's socket has already.
    pub(crate) fn remember_marks(&self, marks: PacketMarks) {
        *self.lock_marks() = marks;
    }

    pub(crate) fn set_marks(&self, marks: PacketMarks) -> io::Result<()> {
        self.remember_marks(marks);
        let set = |stack: &mut Stack, _| stack.set_option(self.id, SocketOption::Marks(marks));
        match self.here.with_stack(set)? {
            // A listener only remembers them: its connections get them when they are accepted.
            Err(Error::NotSupported) => Ok(()),
            done => done.map_err(io_error),
        }
    }

    pub(crate) fn ttl(&self) -> io::Result<u32> {
        Ok(u32::from(self.marks().hop_limit.unwrap_or(DEFAULT_HOP_LIMIT)))
    }

    pub(crate) fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = u8::try_from(ttl).ok().filter(|&ttl| ttl > 0);
        let ttl = ttl.ok_or_else(|| io::Error::from_raw_os_error(errno::INVAL))?;
        self.set_marks(PacketMarks { hop_limit: Some(ttl), ..self.marks() })
    }
}
