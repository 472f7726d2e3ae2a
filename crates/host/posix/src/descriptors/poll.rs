//! The calls `poll`, `epoll_create`, `epoll_ctl` and `epoll_wait`.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use pagewire_sockets::WaiterId;

use super::Descriptors;
use crate::backend::Backend;
use crate::events::Events;
use crate::file::epoll::{Epoll, EpollEvent, EpollOp};
use crate::file::{self, Object};
use crate::{Errno, Fd};

/// An entry of [`Descriptors::poll`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollFd {
    /// The descriptor; a negative one is skipped.
    pub fd: Fd,
    /// The events to wait for.
    pub events: Events,
    /// Set by the call: the events that the file is ready for.
    pub revents: Events,
}

impl<B: Backend> Descriptors<B> {
    /// Waits until a file is ready, or `timeout` is over (`None`: for ever). Returns how many are.
    pub fn poll(&self, fds: &mut [PollFd], timeout: Option<Duration>) -> Result<usize, Errno> {
        let files: Vec<_> = fds.iter().map(|entry| self.file(entry.fd).ok()).collect();
        let waited: Vec<_> = files.iter().flatten().map(|file| &**file.shared()).collect();
        let look = || {
            let mut ready = 0;
            for (entry, file) in fds.iter_mut().zip(&files) {
                entry.revents = match file {
                    Some(file) => file.events(&self.runtime) & (entry.events | Events::ALWAYS),
                    None if entry.fd < 0 => Events::empty(),
                    None => Events::NVAL,
                };
                ready += usize::from(!entry.revents.is_empty());
            }
            if ready == 0 { Err(Errno::AGAIN) } else { Ok(ready) }
        };
        let blocking = timeout != Some(Duration::ZERO);
        match file::block_on(&self.runtime, &waited, Events::all(), blocking, timeout, look) {
            Err(Errno::AGAIN) => Ok(0),
            done => done,
        }
    }

    /// Runs `body`, and has `waker` called while that lasts whenever one of `fds` may be ready. `body` gets a
    /// function that it calls before it looks at the files, each time: a socket calls the waker once.
    /// Numbers that name no file are skipped.
    ///
    /// This is how a thread that waits for other things, too, waits for files: the waker ends its wait.
    pub fn watched<T>(&self, fds: &[Fd], waker: &Waker, body: impl FnOnce(&dyn Fn()) -> T) -> T {
        let files: Vec<_> = fds.iter().filter_map(|&fd| self.file(fd).ok()).collect();
        let waits: Vec<_> =
            files.iter().map(|file| file.wait(&self.runtime, Events::all())).collect();
        body(&|| waits.iter().for_each(|wait| wait.register(waker)))
    }

    /// Has `waker` called whenever the epoll instance may have something to report, as long as it is open.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` if `epoll` is no instance.
    pub fn epoll_waker(&self, epoll: Fd, waker: &Waker) -> Result<(), Errno> {
        let file = self.file(epoll)?;
        match &file.object {
            Object::Epoll(_) => file.watch.add(Events::IN, WaiterId::new(), waker),
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    /// A new epoll instance; `flags` is 0 or `EPOLL_CLOEXEC`.
    pub fn epoll_create1(&self, flags: i32) -> Result<Fd, Errno> {
        if flags & !libc::EPOLL_CLOEXEC != 0 {
            return Err(Errno::INVAL);
        }
        self.install(Epoll::file(), flags != 0)
    }

    /// [`epoll_create1`](Self::epoll_create1) in its old form: `size` is positive, and means nothing.
    pub fn epoll_create(&self, size: i32) -> Result<Fd, Errno> {
        if size <= 0 { Err(Errno::INVAL) } else { self.epoll_create1(0) }
    }

    /// Changes what an instance watches.
    ///
    /// # Errors
    /// `EBADF`, `EEXIST`, `ENOENT`, `EINVAL` (no epoll instance, itself, `EPOLLEXCLUSIVE` where it
    /// cannot be, too dense a mesh), `ELOOP` (instances that watch each other).
    pub fn epoll_ctl(&self, epoll: Fd, op: EpollOp, fd: Fd) -> Result<(), Errno> {
        let (instance, target) = (self.file(epoll)?, self.file(fd)?);
        match &instance.object {
            Object::Epoll(epoll) if !Arc::ptr_eq(instance.shared(), target.shared()) => {
                epoll.control(&self.runtime, op, fd, target.shared())
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Waits until something is ready, or `timeout` is over (`None`: for ever); how many there are.
    ///
    /// # Errors
    /// `EINVAL` without room for an event, or if `epoll` is no instance.
    pub fn epoll_wait(
        &self,
        epoll: Fd,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        match &self.file(epoll)?.object {
            Object::Epoll(epoll) => epoll.wait(&self.runtime, events, timeout),
            _ => Err(Errno::INVAL),
        }
    }
}
