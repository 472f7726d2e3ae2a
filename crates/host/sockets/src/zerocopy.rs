//! Zero-copy sends: sends by reference that report when their memory has no reference left and may
//! be used again (Linux's MSG_ZEROCOPY).

use std::ops::RangeInclusive;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use pagewire_stack::{Error, Notification, SocketId, Stack};

use crate::runtime::{Clock, Runtime};
use crate::socket::{COMPLETION, poll_on};
use crate::waiters::{Call, WaiterId};

/// The result of a zero-copy send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes queued.
    pub bytes: usize,
    /// The number of the send, reported by its completion. `None`: no completion follows, because the
    /// socket has not opted in (the data was copied) or there was nothing to send.
    pub id: Option<u32>,
}

/// Sends whose memory has no reference left: it may be used again. For TCP that follows the
/// acknowledgement of the last byte. Completions usually come in order, but need not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The ids of the sends: one for each call, counted from 0 on each socket; 0 follows 4,294,967,295.
    pub ids: RangeInclusive<u32>,
    /// Whether data was copied on the way after all: the device could not gather, the packet was for
    /// this host itself, or a receiver on the pair link did not read it in time.
    pub copied: bool,
}

impl From<Notification> for Completion {
    fn from(done: Notification) -> Self {
        // Only Linux's coalescing merges notifications where the numbers wrap.
        Self { ids: done.lo..=done.hi, copied: done.copied }
    }
}

/// The completions of a socket that are there now: `completions` of each kind of socket.
pub struct Completions<'a, R: Runtime> {
    runtime: &'a R,
    id: SocketId,
}

impl<'a, R: Runtime> Completions<'a, R> {
    pub(crate) fn new(runtime: &'a R, id: SocketId) -> Self {
        Self { runtime, id }
    }
}

impl<R: Runtime> Iterator for Completions<'_, R> {
    type Item = Completion;

    fn next(&mut self) -> Option<Completion> {
        let taken = self.runtime.enter(|stack, _, _| stack.poll_notification(self.id));
        taken.ok().flatten().map(Completion::from)
    }
}

impl<R: Runtime> std::fmt::Debug for Completions<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Completions").field(&self.id).finish()
    }
}

/// The completions of a socket as they come. The stream ends when no send is outstanding, until there is
/// one.
pub struct CompletionStream<'a, R: Runtime> {
    runtime: &'a R,
    id: SocketId,
    waiter: WaiterId,
}

/// The call of waits for completions.
pub(crate) const COMPLETE: Call = Call::new("for a completion");

impl<'a, R: Runtime> CompletionStream<'a, R> {
    pub(crate) fn new(runtime: &'a R, id: SocketId, waiter: WaiterId) -> Self {
        Self { runtime, id, waiter }
    }
}

impl<R: Runtime> Stream for CompletionStream<'_, R> {
    type Item = std::io::Result<Completion>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (id, wait) = (self.id, (self.waiter, COMPLETION));
        let next = |stack: &mut Stack, _: &Clock<'_>| next_completion(stack, id);
        poll_on(self.runtime, id, wait, COMPLETE, cx, next).map(Result::transpose)
    }
}

impl<R: Runtime> std::fmt::Debug for CompletionStream<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CompletionStream").field(&self.id).finish()
    }
}

/// The next completion; `None` if no send is outstanding, `WouldBlock` if one is.
pub(crate) fn next_completion(
    stack: &mut Stack,
    id: impl Copy + Into<SocketId>,
) -> Result<Option<Completion>, Error> {
    match stack.poll_notification(id) {
        Some(done) => Ok(Some(done.into())),
        None if stack.sends_outstanding(id)? == 0 => Ok(None),
        None => Err(Error::WouldBlock),
    }
}
