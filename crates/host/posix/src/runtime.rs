//! [`Runtime`]: the state that all calls of one descriptor table share.

use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_sockets::{Waiters, timeout};
use pagewire_stack::{Error, Stack, Tcp, TcpId, Udp, UdpId};

use crate::backend::Backend;
use crate::{Errno, errno};

/// A backend, and the lock of its epoll instances.
pub(crate) struct Runtime<B> {
    pub(crate) backend: B,
    /// Locked while one epoll instance is added to another.
    pub(crate) nesting: Mutex<()>,
}

impl<B: Backend> Runtime<B> {
    pub(crate) fn new(backend: B) -> Self {
        Self { backend, nesting: Mutex::default() }
    }

    pub(crate) fn with<T>(&self, verb: impl FnOnce(&mut Stack, Instant) -> T) -> T {
        self.with_waiters(|stack, now, _| verb(stack, now))
    }

    /// Runs `verb` on the stack and those that wait for its sockets.
    pub(crate) fn with_waiters<T>(
        &self,
        verb: impl FnOnce(&mut Stack, Instant, &mut Waiters) -> T,
    ) -> T {
        let entered = self.backend.enter(|stack, clock, all| verb(stack, clock.now(), all));
        entered.expect("a backend holds its stack as long as it lives")
    }

    pub(crate) fn with_tcp<T>(
        &self,
        id: TcpId,
        verb: impl FnOnce(Tcp<'_>, Instant) -> Result<T, Error>,
    ) -> Result<T, Errno> {
        self.with(|stack, now| verb(stack.tcp(id)?, now)).map_err(errno)
    }

    pub(crate) fn with_udp<T>(
        &self,
        id: UdpId,
        verb: impl FnOnce(Udp<'_>, Instant) -> Result<T, Error>,
    ) -> Result<T, Errno> {
        self.with(|stack, now| verb(stack.udp(id)?, now)).map_err(errno)
    }

    /// Repeats `poll` whenever its waker was called; `None` when `limit` is over.
    ///
    /// # Errors
    /// `EDEADLK` on a thread that must not wait.
    pub(crate) fn poll_until<T>(
        &self,
        limit: Option<Duration>,
        poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<Option<T>, Errno> {
        let done = self.backend.wait_for(timeout(&self.backend, limit, poll_fn(poll)));
        done.map_err(|_| Errno::DEADLK)
    }

    /// Waits for `time` of the stack's clock.
    ///
    /// # Errors
    /// `EDEADLK` on a thread that must not wait.
    pub(crate) fn pause(&self, time: Duration) -> Result<(), Errno> {
        self.poll_until(Some(time), |_| Poll::<()>::Pending).map(drop)
    }

    pub(crate) fn now(&self) -> Instant {
        self.with(|_, now| now)
    }
}
