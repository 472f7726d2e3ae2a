//! A socket of a stack, as streams, listeners and datagram sockets own it: operations, waits, the end.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_stack::{
    Error, Listener, ListenerId, PortReservation, Readiness, SocketId, SocketOption, Stack, Tcp,
    TcpId, Udp, UdpId,
};

use crate::addr::shown;
use crate::coop;
use crate::runtime::{Blocking, Clock, Patience, Runtime, register};
use crate::waiters::{Call, Waiter, WaiterId};

/// Ends a wait to read or accept.
pub(crate) const READ: Readiness = Readiness::FOR_READ.union(Readiness::URGENT);
/// Ends a wait to send or connect.
pub(crate) const WRITE: Readiness = Readiness::FOR_WRITE;
/// Ends a wait for a completion. After a close, no completion may follow.
pub(crate) const COMPLETION: Readiness =
    Readiness::ERROR_QUEUE.union(Readiness::READ_CLOSED).union(Readiness::WRITE_CLOSED);

/// Ids of sockets, and the views that the stack gives for them.
pub(crate) trait Kind: Copy + Into<SocketId> + Send + Sync + Unpin + 'static {
    /// The socket, and what its operations work with.
    type View<'a>;

    /// The view of the socket.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    fn of(self, stack: &mut Stack) -> Result<Self::View<'_>, Error>;

    /// This side's address.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    fn local_addr(self, stack: &mut Stack) -> Result<SocketAddr, Error> {
        stack.local_addr(self)
    }

    /// Changes an option.
    ///
    /// # Errors
    /// `InvalidInput` or `NotSupported` for one that this kind of socket lacks.
    fn set_option(self, stack: &mut Stack, _: Instant, option: SocketOption) -> Result<(), Error> {
        stack.set_option(self, option)
    }
}

impl Kind for TcpId {
    type View<'a> = Tcp<'a>;

    #[inline]
    fn of(self, stack: &mut Stack) -> Result<Tcp<'_>, Error> {
        stack.tcp(self)
    }

    fn set_option(
        self,
        stack: &mut Stack,
        now: Instant,
        option: SocketOption,
    ) -> Result<(), Error> {
        stack.tcp(self)?.set_option(now, option)
    }
}

impl Kind for UdpId {
    type View<'a> = Udp<'a>;

    #[inline]
    fn of(self, stack: &mut Stack) -> Result<Udp<'_>, Error> {
        stack.udp(self)
    }

    /// The address that datagrams to the peer leave from, once there is a peer.
    fn local_addr(self, stack: &mut Stack) -> Result<SocketAddr, Error> {
        let mut local = stack.local_addr(self)?;
        if local.ip().is_unspecified()
            && let Ok(source) = stack.udp(self)?.source()
        {
            local.set_ip(source);
        }
        Ok(local)
    }
}

impl Kind for ListenerId {
    type View<'a> = Listener<'a>;

    fn of(self, stack: &mut Stack) -> Result<Listener<'_>, Error> {
        stack.listener(self)
    }
}

/// A socket of a stack. Its drop closes it, as the drop of a descriptor does.
pub(crate) struct Socket<R: Runtime, Id: Kind> {
    runtime: R,
    id: Id,
    /// A socket of IPv6 shows peers of IPv4 as mapped addresses.
    v6: bool,
    /// The id has another owner.
    released: AtomicBool,
    nonblocking: AtomicBool,
    /// Few sockets need any of it, and every connection pays for its room.
    rare: OnceLock<Box<Rare<R>>>,
}

/// State that few sockets need.
struct Rare<R: Runtime> {
    /// The address that the socket was bound to before it listened or connected.
    _reservation: Option<Reserved<R>>,
    /// Longest wait of a blocking call, in nanoseconds; 0: for ever.
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
}

impl<R: Runtime> Rare<R> {
    fn new(reservation: Option<Reserved<R>>) -> Box<Self> {
        let (read_timeout, write_timeout) = Default::default();
        Box::new(Self { _reservation: reservation, read_timeout, write_timeout })
    }

    fn timeout(&self, interest: Readiness) -> &AtomicU64 {
        if interest == WRITE { &self.write_timeout } else { &self.read_timeout }
    }
}

/// A reserved address. Its drop gives the address back.
pub(crate) struct Reserved<R: Runtime> {
    pub(crate) runtime: R,
    pub(crate) id: PortReservation,
}

impl<R: Runtime> Drop for Reserved<R> {
    fn drop(&mut self) {
        let id = self.id;
        self.runtime.later(move |stack, _| stack.reservations().release(id));
    }
}

impl<R: Runtime, Id: Kind> Drop for Socket<R, Id> {
    fn drop(&mut self) {
        if !*self.released.get_mut() {
            self.runtime.close(self.id.into());
        }
    }
}

impl<R: Runtime, Id: Kind> Socket<R, Id> {
    /// Owns a socket of the runtime's stack; `v6`: the program opened it for IPv6.
    pub(crate) fn new(runtime: R, id: Id, v6: bool) -> Arc<Self> {
        Self::with_reservation(runtime, id, v6, None)
    }

    pub(crate) fn with_reservation(
        runtime: R,
        id: Id,
        v6: bool,
        reservation: Option<Reserved<R>>,
    ) -> Arc<Self> {
        let (released, nonblocking) = Default::default();
        let rare = match reservation {
            Some(reservation) => OnceLock::from(Rare::new(Some(reservation))),
            None => OnceLock::new(),
        };
        Arc::new(Self { runtime, id, v6, released, nonblocking, rare })
    }

    /// The runtime of the socket's stack.
    #[inline]
    pub(crate) fn runtime(&self) -> &R {
        &self.runtime
    }

    #[inline]
    pub(crate) fn id(&self) -> Id {
        self.id
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.v6
    }

    /// An address as a program sees it.
    #[inline]
    pub(crate) fn shown(&self, address: SocketAddr) -> SocketAddr {
        shown(address, self.v6)
    }

    /// As [`shown`](Self::shown), an address without a port.
    pub(crate) fn shown_ip(&self, address: IpAddr) -> IpAddr {
        self.shown(SocketAddr::new(address, 0)).ip()
    }

    /// Gives the id to another owner, who closes the socket.
    pub(crate) fn release(&self) -> Id {
        self.released.store(true, Ordering::Relaxed);
        self.id
    }

    /// Runs `op` on the stack, once.
    #[inline]
    pub(crate) fn enter<T>(
        &self,
        mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<T> {
        let done = self.try_enter(&mut op)?;
        done.map_err(|error| self.runtime.error(error))
    }

    #[inline]
    fn try_enter<T>(
        &self,
        op: &mut impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<Result<T, Error>> {
        match self.runtime.enter(|stack, clock, _| op(stack, clock))? {
            Err(Error::NoBuffers) if self.runtime.make_room() => {
                self.runtime.enter(|stack, clock, _| op(stack, clock))
            }
            done => Ok(done),
        }
    }

    /// Runs `op` on the socket, once.
    #[inline]
    pub(crate) fn with<T>(
        &self,
        mut op: impl FnMut(Id::View<'_>, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<T> {
        self.enter(|stack, clock| op(self.id.of(stack)?, clock))
    }

    /// Runs `op` for a caller that polls. On `WouldBlock` the caller's waker is kept as that of `waiter`.
    #[inline]
    pub(crate) fn poll<T>(
        &self,
        wait: (WaiterId, Readiness),
        call: Call,
        cx: &mut Context<'_>,
        op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        poll_on(&self.runtime, self.id.into(), wait, call, cx, op)
    }

    /// As [`poll`](Self::poll), for an operation that mostly need not wait: the waker is cloned only if it
    /// has to.
    #[inline]
    pub(crate) fn poll_mostly_ready<T>(
        &self,
        wait: (WaiterId, Readiness),
        call: Call,
        cx: &mut Context<'_>,
        mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        // A task that always finds something to do lets others run, as with tokio's sockets.
        let budget = ready!(coop::poll_proceed(cx));
        let done = match self.try_enter(&mut op)? {
            Err(Error::WouldBlock) => {
                register(&self.runtime, self.id.into(), wait, call, cx.waker(), op)
            }
            done => Poll::Ready(done.map_err(|error| self.runtime.error(error))),
        };
        if done.is_ready() {
            budget.made_progress();
        }
        done
    }

    /// [`poll`](Self::poll) as a future. It does nothing before it is polled, and leaves nothing behind
    /// when it is dropped.
    pub(crate) fn wait<T, F>(&self, interest: Readiness, call: Call, op: F) -> Wait<'_, R, Id, F>
    where
        F: FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    {
        Wait { socket: self, interest, call, op, waiter: None }
    }

    /// A waiter that is woken when the socket becomes ready for one of `interest`, whatever it is ready for
    /// now. It is forgotten when it is dropped.
    pub(crate) fn registered(&self, interest: Readiness, call: Call) -> Registered<'_, R, Id> {
        Registered { socket: self, id: WaiterId::new(), interest, call }
    }

    /// This side's address.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shown(self.enter(|stack, _| self.id.local_addr(stack))?))
    }

    /// The peer's address.
    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shown(self.enter(|stack, _| stack.remote_addr(self.id))?))
    }

    /// Takes the socket's error (`SO_ERROR`).
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        let error = self.enter(|stack, _| Ok(stack.take_error(self.id)))?;
        Ok(error.map(|error| self.runtime.error(error)))
    }
}

impl<R: Blocking, Id: Kind> Socket<R, Id> {
    /// Repeats `op` until it has an answer. The thread waits for `interest` in between.
    #[inline]
    pub(crate) fn block<T>(
        &self,
        interest: Readiness,
        mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<T> {
        match self.try_enter(&mut op)? {
            Err(Error::WouldBlock) => {
                self.runtime.wait(self.id.into(), interest, self.patience(interest), op)
            }
            done => done.map_err(|error| self.runtime.error(error)),
        }
    }

    /// Whether calls wait.
    pub(crate) fn waits(&self) -> bool {
        !self.nonblocking.load(Ordering::Relaxed)
    }

    fn patience(&self, interest: Readiness) -> Patience {
        if self.nonblocking.load(Ordering::Relaxed) {
            return Patience::None;
        }
        Patience::For(self.timeout(interest))
    }
}

/// The mode of blocking calls.
impl<R: Runtime, Id: Kind> Socket<R, Id> {
    pub(crate) fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn set_timeout(
        &self,
        interest: Readiness,
        limit: Option<Duration>,
    ) -> io::Result<()> {
        if limit.is_some_and(|limit| limit.is_zero()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a timeout cannot be zero"));
        }
        // 584 years at most.
        let nanos = limit.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        let rare = self.rare.get_or_init(|| Rare::new(None));
        rare.timeout(interest).store(nanos, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn timeout(&self, interest: Readiness) -> Option<Duration> {
        let nanos = self.rare.get()?.timeout(interest).load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }
}

impl<R: Runtime, Id: Kind> std::fmt::Debug for Socket<R, Id> {
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

/// Runs `op` for a caller that polls a socket. On `WouldBlock` the caller's waker is kept.
#[inline]
pub(crate) fn poll_on<R: Runtime, T>(
    runtime: &R,
    socket: SocketId,
    wait: (WaiterId, Readiness),
    call: Call,
    cx: &mut Context<'_>,
    op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
) -> Poll<io::Result<T>> {
    let budget = ready!(coop::poll_proceed(cx));
    let done = register(runtime, socket, wait, call, cx.waker(), op);
    if done.is_ready() {
        budget.made_progress();
    }
    done
}

/// A wait for one socket. Its drop unregisters its waker.
pub(crate) struct Wait<'a, R: Runtime, Id: Kind, F> {
    socket: &'a Socket<R, Id>,
    interest: Readiness,
    call: Call,
    op: F,
    /// The name of its waker, once that was registered.
    waiter: Option<WaiterId>,
}

/// No field is pinned.
impl<R: Runtime, Id: Kind, F> Unpin for Wait<'_, R, Id, F> {}

impl<T, R: Runtime, Id: Kind, F> Future for Wait<'_, R, Id, F>
where
    F: FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
{
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { socket, interest, call, op, waiter } = self.get_mut();
        match waiter {
            Some(id) => socket.poll((*id, *interest), *call, cx, op),
            None => {
                let id = *waiter.insert(WaiterId::new());
                let done = socket.poll_mostly_ready((id, *interest), *call, cx, op);
                if done.is_ready() {
                    // Nothing was registered.
                    *waiter = None;
                }
                done
            }
        }
    }
}

/// See [`Socket::registered`].
pub(crate) struct Registered<'a, R: Runtime, Id: Kind> {
    socket: &'a Socket<R, Id>,
    id: WaiterId,
    interest: Readiness,
    call: Call,
}

impl<R: Runtime, Id: Kind> Registered<'_, R, Id> {
    /// Has `waker` called at the next event, and not the one before it.
    pub(crate) fn register(&self, waker: &Waker) -> io::Result<()> {
        // Cloned, and the replaced one dropped, without the runtime's lock.
        let mut waker = Some(waker.clone());
        let socket = self.socket.id.into();
        drop(self.socket.runtime.enter(|_, clock, waiters| {
            let waker = waker.take()?;
            let (id, call, since) = (self.id, self.call, clock.was_read());
            waiters.add(socket, self.interest, Waiter { id, call, since, waker })
        })?);
        Ok(())
    }
}

impl<R: Runtime, Id: Kind> Drop for Registered<'_, R, Id> {
    fn drop(&mut self) {
        let (socket, id) = (self.socket.id.into(), self.id);
        self.socket.runtime.unregister(move |waiters| waiters.remove(socket, id));
    }
}

impl<R: Runtime, Id: Kind, F> Drop for Wait<'_, R, Id, F> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            let id = self.socket.id.into();
            self.socket.runtime.unregister(move |waiters| waiters.remove(id, waiter));
        }
    }
}
