//! What all calls of one table share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_stack::{Error, Stack, Tcp, TcpId, Udp, UdpId};

use crate::backend::Backend;
use crate::events::Events;
use crate::notice::{Notices, Signal, Watch};
use crate::{Errno, errno};

/// A backend, and the notices of its sockets.
pub(crate) struct Runtime<B> {
    pub(crate) backend: B,
    pub(crate) notices: Arc<Notices>,
    /// Locked while one epoll instance is added to another.
    pub(crate) nesting: Mutex<()>,
}

impl<B: Backend> Runtime<B> {
    pub(crate) fn new(backend: B) -> Self {
        let notices = Arc::<Notices>::default();
        backend.attach(Arc::clone(&notices));
        Self { backend, notices, nesting: Mutex::default() }
    }

    pub(crate) fn with<T>(&self, verb: impl FnOnce(&mut Stack, Instant) -> T) -> T {
        self.backend.with(verb)
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

    /// Repeats `attempt` while it returns `EAGAIN`, whenever a watch reports `interest`, until `limit`
    /// is over (`None`: for ever). Without `blocking`, tries once.
    pub(crate) fn block_on<T>(
        &self,
        watches: &[&Watch],
        interest: Events,
        blocking: bool,
        limit: Option<Duration>,
        mut attempt: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match attempt() {
            Err(Errno::AGAIN) if blocking => {}
            done => return done,
        }
        let deadline = self.deadline(limit);
        let signal = Signal::new();
        let _watching: Vec<_> = watches.iter().map(|w| w.watch(interest, &signal)).collect();
        loop {
            signal.clear();
            match attempt() {
                Err(Errno::AGAIN) => {}
                done => return done,
            }
            if self.is_over(deadline) {
                return Err(Errno::AGAIN);
            }
            self.backend.wait(&signal, deadline);
        }
    }

    pub(crate) fn deadline(&self, limit: Option<Duration>) -> Option<Instant> {
        limit.map(|limit| self.backend.now() + limit)
    }

    pub(crate) fn is_over(&self, deadline: Option<Instant>) -> bool {
        deadline.is_some_and(|at| self.backend.now() >= at)
    }
}
