//! One thing of each shard ([`OfEach`]): the hosts, their listeners, their sockets.

use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

/// One of each shard, in the order of the shards. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct OfEach<T> {
    all: Arc<[T]>,
    /// The shard that is first next.
    next: Arc<AtomicUsize>,
}

impl<T> OfEach<T> {
    pub(super) fn new(all: Vec<T>) -> Self {
        Self { all: all.into(), next: Arc::default() }
    }

    pub(super) fn all(&self) -> &[T] {
        &self.all
    }

    /// That of the first shard.
    pub(super) fn first(&self) -> io::Result<&T> {
        self.all.first().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// All, beginning with another shard each time.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = &T> {
        self.beginning_at(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// All, beginning with the shard of this number, or of its remainder.
    pub(super) fn beginning_at(&self, number: usize) -> impl Iterator<Item = &T> {
        let (before, from) = self.all.split_at(number % self.all.len().max(1));
        from.iter().chain(before)
    }
}

/// Waits for the first of several futures.
pub(super) async fn first_of<F: Future>(futures: impl Iterator<Item = F>) -> F::Output {
    let mut all: Vec<_> = futures.map(Box::pin).collect();
    poll_fn(|cx| {
        let mut polled = all.iter_mut().map(|future| future.as_mut().poll(cx));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}
