//! Completions of zero-copy sends, awaited.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use pagewire_stack::SocketId;

use super::wait::Seat;
use crate::handle::Handle;
use crate::socket::{Socket, Verbs};
use crate::waiters::Interest as Until;
use crate::zerocopy::{self, Completion};

/// The completions of a socket as they come; see [`TcpStream::completion_stream`](super::TcpStream::completion_stream).
pub struct CompletionStream<'a> {
    host: &'a Arc<Handle>,
    id: SocketId,
    seat: &'a Seat,
}

impl Stream for CompletionStream<'_> {
    type Item = io::Result<Completion>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        poll_completion(self.seat, (self.host, self.id), cx).map(Result::transpose)
    }
}

impl std::fmt::Debug for CompletionStream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CompletionStream").field(&self.id).finish()
    }
}

impl<Id: Verbs> Socket<Id> {
    pub(super) async fn next_completion(&self) -> io::Result<Option<Completion>> {
        let id = self.id;
        self.later_on(Until::Completion, |stack, _| zerocopy::next(stack, id)).await
    }

    pub(super) fn poll_completion(
        &self,
        seat: &Seat,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Completion>>> {
        poll_completion(seat, (&self.host, self.id.into()), cx)
    }

    pub(super) fn completion_stream<'a>(&'a self, seat: &'a Seat) -> CompletionStream<'a> {
        CompletionStream { host: &self.host, id: self.id.into(), seat }
    }
}

fn poll_completion(
    seat: &Seat,
    (host, id): (&Arc<Handle>, SocketId),
    cx: &mut Context<'_>,
) -> Poll<io::Result<Option<Completion>>> {
    seat.poll_on((host, id), Until::Completion, cx, |stack, _| zerocopy::next(stack, id))
}
