//! Open files: what descriptors, and calls in progress, hold together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::backend::Backend;
use crate::descriptors::Descriptors;
use crate::epoll::Epoll;
use crate::notice::Watch;
use crate::pipe::PipeEnd;
use crate::socket::Socket;

/// An open file description: `dup` shares it.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) object: Object,
    /// `O_NONBLOCK`.
    pub(crate) nonblocking: AtomicBool,
    /// Descriptors, and calls in progress; the last one closes.
    refs: AtomicUsize,
    pub(crate) watch: Arc<Watch>,
}

#[derive(Debug)]
pub(crate) enum Object {
    Socket(Box<Socket>),
    Epoll(Epoll),
    Pipe(PipeEnd),
}

impl File {
    /// A file with one reference, its first descriptor's.
    pub(crate) fn new(object: Object, nonblocking: bool) -> Arc<Self> {
        Self::with_watch(object, nonblocking, Arc::default())
    }

    /// The same, with a watch that others know already.
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

    /// One more descriptor or call. Only while there is one already.
    pub(crate) fn hold(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }

    /// One less; whether that was the last.
    pub(crate) fn let_go(&self) -> bool {
        self.refs.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// A file in use by a call.
pub(crate) struct Held<'d, B: Backend> {
    owner: &'d Descriptors<B>,
    file: Arc<File>,
}

impl<'d, B: Backend> Held<'d, B> {
    /// Takes over a reference that was counted already.
    pub(crate) fn new(owner: &'d Descriptors<B>, file: Arc<File>) -> Self {
        Self { owner, file }
    }

    pub(crate) fn shared(&self) -> &Arc<File> {
        &self.file
    }
}

impl<B: Backend> core::ops::Deref for Held<'_, B> {
    type Target = File;
    fn deref(&self) -> &File {
        &self.file
    }
}

impl<B: Backend> Drop for Held<'_, B> {
    fn drop(&mut self) {
        if self.file.let_go() {
            self.owner.release(&self.file);
        }
    }
}
