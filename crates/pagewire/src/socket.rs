//! A socket of the stack as streams, listeners and datagram sockets own it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_stack::{Error, Listener, ListenerId, SocketId, Stack, Tcp, TcpId, Udp, UdpId};

use crate::handle::Handle;
use crate::waiters::Interest;

/// A socket of the stack, closed on drop, and how long its calls wait.
pub(crate) struct Socket<Id: Copy + Into<SocketId>> {
    pub(crate) host: Arc<Handle>,
    pub(crate) id: Id,
    pub(crate) nonblocking: AtomicBool,
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

    pub(crate) fn timeout(&self, interest: Interest) -> &AtomicU64 {
        match interest {
            Interest::Read | Interest::Completion => &self.read_timeout,
            Interest::Write => &self.write_timeout,
            // Only tasks wait for both, and none of them for a time.
            #[cfg(feature = "tokio")]
            Interest::Either => &self.read_timeout,
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

    pub(crate) fn timeout_of(&self, interest: Interest) -> Option<Duration> {
        let nanos = self.timeout(interest).load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        let inner = self.host.shared.lock();
        inner.stack.local_addr(self.id).map_err(|e| inner.error(e))
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        let inner = self.host.shared.lock();
        inner.stack.remote_addr(self.id).map_err(|e| inner.error(e))
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
