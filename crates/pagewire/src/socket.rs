//! A socket of the stack as streams, listeners and datagram sockets own it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_stack::{Error, Listener, ListenerId, SocketId, Stack, Tcp, TcpId, Udp, UdpId};

use crate::error::io_error;
use crate::handle::Handle;
use crate::wait::{Clock, Patience};
use crate::waiters::Interest;

/// A socket of the stack, closed on drop, and how long its calls wait.
pub(crate) struct Socket<Id: Copy + Into<SocketId>> {
    pub(crate) host: Arc<Handle>,
    pub(crate) id: Id,
    nonblocking: AtomicBool,
    /// The id has another owner.
    released: AtomicBool,
    /// In nanoseconds; 0: none.
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
}

/// Ids of sockets, and the handles that the stack gives for them.
pub(crate) trait Verbs: Copy + Into<SocketId> {
    /// The socket, and what its verbs work with.
    type Of<'a>;

    fn of(self, stack: &mut Stack) -> Result<Self::Of<'_>, Error>;
}

impl Verbs for TcpId {
    type Of<'a> = Tcp<'a>;

    #[inline]
    fn of(self, stack: &mut Stack) -> Result<Tcp<'_>, Error> {
        stack.tcp(self)
    }
}

impl Verbs for UdpId {
    type Of<'a> = Udp<'a>;

    #[inline]
    fn of(self, stack: &mut Stack) -> Result<Udp<'_>, Error> {
        stack.udp(self)
    }
}

impl Verbs for ListenerId {
    type Of<'a> = Listener<'a>;

    fn of(self, stack: &mut Stack) -> Result<Listener<'_>, Error> {
        stack.listener(self)
    }
}

impl<Id: Verbs> Socket<Id> {
    /// Repeats `verb` until it has an answer, waiting for `interest` in between.
    #[inline]
    pub(crate) fn wait<T>(
        &self,
        interest: Interest,
        mut verb: impl FnMut(Id::Of<'_>, Instant) -> Result<T, Error>,
    ) -> io::Result<T> {
        self.wait_on(interest, |stack, now| verb(self.id.of(stack)?, now))
    }

    /// Runs one verb that may leave output to send.
    pub(crate) fn act<T>(
        &self,
        verb: impl FnOnce(Id::Of<'_>, Instant) -> Result<T, Error>,
    ) -> io::Result<T> {
        let shared = &self.host.shared;
        let done = shared.with(|stack, now| verb(self.id.of(stack)?, now));
        done.map_err(|e| shared.error(e))
    }

    /// Runs one verb that leaves no output.
    pub(crate) fn ask<T>(&self, verb: impl FnOnce(Id::Of<'_>) -> T) -> io::Result<T> {
        let shared = &self.host.shared;
        let done = self.id.of(&mut shared.lock().stack).map(verb);
        done.map_err(|e| shared.error(e))
    }
}

impl<Id: Copy + Into<SocketId>> Socket<Id> {
    pub(crate) fn new(host: Arc<Handle>, id: Id) -> Arc<Self> {
        let (read_timeout, write_timeout) = Default::default();
        let (nonblocking, released) = Default::default();
        Arc::new(Self { host, id, nonblocking, released, read_timeout, write_timeout })
    }

    /// Repeats an operation on the stack until it has an answer, waiting for `interest` in between.
    #[inline]
    pub(crate) fn wait_on<T>(
        &self,
        interest: Interest,
        mut op: impl FnMut(&mut Stack, Instant) -> Result<T, Error>,
    ) -> io::Result<T> {
        self.wait_clock(interest, |stack, clock| op(stack, clock.now()))
    }

    /// As [`wait_on`](Self::wait_on), for an operation that seldom needs the time; see
    /// [`Shared::wait`](crate::shared::Shared::wait).
    #[inline]
    pub(crate) fn wait_clock<T>(
        &self,
        interest: Interest,
        op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<T> {
        self.host.shared.wait(self.id, interest, self.patience(interest), op)
    }

    fn patience(&self, interest: Interest) -> Patience {
        if self.nonblocking.load(Ordering::Relaxed) {
            return Patience::None;
        }
        let nanos = self.timeout(interest).load(Ordering::Relaxed);
        Patience::For((nanos > 0).then(|| Duration::from_nanos(nanos)))
    }

    fn timeout(&self, interest: Interest) -> &AtomicU64 {
        match interest {
            Interest::Read | Interest::Completion => &self.read_timeout,
            Interest::Write => &self.write_timeout,
        }
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn set_timeout(
        &self,
        interest: Interest,
        limit: Option<Duration>,
    ) -> io::Result<()> {
        if limit.is_some_and(|limit| limit.is_zero()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a timeout cannot be zero"));
        }
        // 584 years at most.
        let nanos = limit.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        self.timeout(interest).store(nanos, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.host.shared.lock().stack.local_addr(self.id).map_err(io_error)
    }

    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        let mut inner = self.host.shared.lock();
        let error = inner.stack.take_error(self.id);
        Ok(error.map(|e| inner.error(e)))
    }

    /// Gives the id to another owner, who closes the socket.
    pub(crate) fn release(&self) -> Id {
        self.released.store(true, Ordering::Relaxed);
        self.id
    }
}

impl<Id: Copy + Into<SocketId>> Drop for Socket<Id> {
    fn drop(&mut self) {
        if !*self.released.get_mut() {
            self.host.close(self.id.into());
        }
    }
}
