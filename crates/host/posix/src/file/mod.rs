//! Open files; `socket.rs`, `epoll.rs` and `pipe.rs` are their kinds.

pub(crate) mod epoll;
pub(crate) mod pipe;
pub(crate) mod socket;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use pagewire_sockets::{Call, Waiter, WaiterId};
use pagewire_stack::SocketId;

use crate::Errno;
use crate::backend::Backend;
use crate::events::Events;
use crate::runtime::Runtime;
use crate::watch::{Watch, gains};

/// An open file description: `dup` shares it.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) object: Object,
    /// `O_NONBLOCK`.
    pub(crate) nonblocking: AtomicBool,
    /// Descriptors and calls in progress; the last one closes the file.
    refs: AtomicUsize,
    pub(crate) watch: Arc<Watch>,
}

#[derive(Debug)]
pub(crate) enum Object {
    Socket(Box<socket::Socket>),
    Epoll(epoll::Epoll),
    Pipe(pipe::PipeEnd),
}

impl File {
    /// A file with one reference, its first descriptor's.
    pub(crate) fn new(object: Object, nonblocking: bool) -> Arc<Self> {
        Self::with_watch(object, nonblocking, Arc::default())
    }

    /// [`new`](Self::new) with a watch that others know already.
    pub(crate) fn with_watch(object: Object, nonblocking: bool, watch: Arc<Watch>) -> Arc<Self> {
        Arc::new(Self {
            object,
            nonblocking: AtomicBool::new(nonblocking),
            refs: AtomicUsize::new(1),
            watch,
        })
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Counts one more descriptor or call. Only while there is one already.
    pub(crate) fn retain(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one less; whether that was the last.
    pub(crate) fn release(&self) -> bool {
        self.refs.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Closes the file: the last reference is gone.
    pub(crate) fn close<B: Backend>(&self, runtime: &Runtime<B>) {
        match &self.object {
            Object::Socket(socket) => socket.close(runtime),
            Object::Epoll(epoll) => epoll.close(),
            Object::Pipe(end) => end.close(),
        }
        self.watch.wake(Events::empty());
        self.watch.forget_epolls();
    }

    /// A wait of the calling thread for one of `interest`, which begins when a waker is registered.
    pub(crate) fn wait<'a, B: Backend>(
        &'a self,
        runtime: &'a Runtime<B>,
        interest: Events,
    ) -> Wait<'a, B> {
        Wait { runtime, file: self, interest, id: WaiterId::new(), socket: Cell::new(None) }
    }

    /// The events that the file is ready for.
    pub(crate) fn events<B: Backend>(&self, runtime: &Runtime<B>) -> Events {
        match &self.object {
            Object::Socket(socket) => socket.events(runtime),
            Object::Epoll(epoll) => epoll.events(runtime),
            Object::Pipe(end) => end.events(),
        }
    }
}

/// Repeats `attempt` while it returns `EAGAIN`, whenever one of `files` may be ready for `interest`, until
/// `limit` is over (`None`: for ever). Without `blocking`, tries once.
pub(crate) fn block_on<B: Backend, T>(
    runtime: &Runtime<B>,
    files: &[&File],
    interest: Events,
    blocking: bool,
    limit: Option<Duration>,
    mut attempt: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match attempt() {
        Err(Errno::AGAIN) if blocking => {}
        done => return done,
    }
    let waits: Vec<_> = files.iter().map(|file| file.wait(runtime, interest)).collect();
    let done = runtime.poll_until(limit, |cx| {
        waits.iter().for_each(|wait| wait.register(cx.waker()));
        match attempt() {
            Err(Errno::AGAIN) => Poll::Pending,
            done => Poll::Ready(done),
        }
    })?;
    done.unwrap_or(Err(Errno::AGAIN))
}

/// A thread's wait for a file; its drop ends it.
pub(crate) struct Wait<'a, B: Backend> {
    runtime: &'a Runtime<B>,
    file: &'a File,
    interest: Events,
    id: WaiterId,
    /// The socket that the thread waits for.
    socket: Cell<Option<SocketId>>,
}

impl<B: Backend> Wait<'_, B> {
    /// Has `waker` called when the file may be ready: once, if it is a socket.
    pub(crate) fn register(&self, waker: &Waker) {
        let Self { runtime, file, interest, id, .. } = *self;
        file.watch.add(interest, id, waker);
        let Object::Socket(socket) = &file.object else { return };
        let now = socket.stage().id();
        let before = self.socket.replace(now);
        if before != now {
            self.unregister(before);
        }
        if let Some(socket) = now {
            let (waker, interest) = (waker.clone(), gains(interest | Events::ALWAYS));
            let call = Call::new("in a call that blocks");
            let replaced = runtime.with_waiters(|_, now, waiters| {
                waiters.add(socket, interest, Waiter { id, call, since: Some(now), waker })
            });
            drop(replaced);
        }
    }

    fn unregister(&self, socket: Option<SocketId>) {
        if let Some(socket) = socket {
            let id = self.id;
            self.runtime.backend.unregister(move |waiters| waiters.remove(socket, id));
        }
    }
}

impl<B: Backend> Drop for Wait<'_, B> {
    fn drop(&mut self) {
        self.file.watch.remove(self.id);
        self.unregister(self.socket.get());
    }
}
