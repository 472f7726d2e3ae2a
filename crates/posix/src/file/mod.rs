//! Open files; `socket.rs`, `epoll.rs` and `pipe.rs` are their kinds.

pub(crate) mod epoll;
pub(crate) mod pipe;
pub(crate) mod socket;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::backend::Backend;
use crate::events::Events;
use crate::notice::Watch;
use crate::runtime::Runtime;

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

    /// All that the file is ready for.
    pub(crate) fn events<B: Backend>(&self, runtime: &Runtime<B>) -> Events {
        match &self.object {
            Object::Socket(socket) => socket.events(runtime),
            Object::Epoll(epoll) => epoll.events(runtime),
            Object::Pipe(end) => end.events(),
        }
    }
}
