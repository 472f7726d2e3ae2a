//! Readiness of the sockets of tasks: `ready`, `readable`, `try_io`, `async_io`, and completions.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use pagewire_stack::{Error, Readiness, Stack};
#[cfg(feature = "tokio")]
use tokio::io::{Interest, Ready};

use crate::runtime::Runtime;
use crate::socket::{Kind, Socket};
use crate::waiters::Call;

impl<R: Runtime, Id: Kind> Socket<R, Id> {
    /// The events of `mask` that the socket is ready for.
    pub(crate) fn level(&self, stack: &Stack, mask: Readiness) -> Result<Readiness, Error> {
        let ready = (stack.readiness(self.id())? & mask).difference(Readiness::CONNECTED);
        if ready.is_empty() { Err(Error::WouldBlock) } else { Ok(ready) }
    }

    /// Waits until the socket is ready for some of `mask`.
    pub(crate) async fn until_ready(&self, mask: Readiness, call: Call) -> io::Result<Readiness> {
        self.wait(mask, call, |stack, _| self.level(stack, mask)).await
    }

    /// Runs `f` when the socket is ready, until `f` does anything but block.
    pub(crate) async fn retry<T>(
        &self,
        mask: Readiness,
        call: Call,
        mut f: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        self.until_ready(mask, call).await?;
        let waits = self.registered(mask, call);
        poll_fn(|cx| {
            // Registered before `f`, which runs without the lock: an event meanwhile is an event for the next
            // try. `f` would block whatever the level is.
            waits.register(cx.waker())?;
            match f() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                done => Poll::Ready(done),
            }
        })
        .await
    }
}

#[cfg(feature = "tokio")]
impl<R: Runtime, Id: Kind> Socket<R, Id> {
    pub(crate) async fn ready(&self, interest: Interest, call: Call) -> io::Result<Ready> {
        self.until_ready(mask_of(interest), call).await.map(ready_of)
    }

    /// Runs `f` if the socket is ready for it.
    pub(crate) fn try_io<T>(
        &self,
        interest: Interest,
        f: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.enter(|stack, _| self.level(stack, mask_of(interest)))?;
        f()
    }
}

/// The events that end a wait for `interest`.
#[cfg(feature = "tokio")]
pub(crate) fn mask_of(interest: Interest) -> Readiness {
    let mut mask = Readiness::NONE;
    for (asked, bits) in [
        (interest.is_readable(), Readiness::FOR_READ),
        (interest.is_writable(), Readiness::FOR_WRITE),
        (interest.is_error(), Readiness::ERROR),
        (interest.is_priority(), Readiness::URGENT),
    ] {
        if asked {
            mask |= bits;
        }
    }
    mask
}

/// As with the kernel's poll, a call that would report an end or an error does not block.
#[cfg(feature = "tokio")]
fn ready_of(readiness: Readiness) -> Ready {
    let mut ready = Ready::EMPTY;
    for (ours, theirs) in [
        (Readiness::READABLE, Ready::READABLE),
        (Readiness::WRITABLE, Ready::WRITABLE),
        (Readiness::READ_CLOSED, Ready::READABLE | Ready::READ_CLOSED),
        (Readiness::WRITE_CLOSED, Ready::WRITABLE | Ready::WRITE_CLOSED),
        (Readiness::ERROR, Ready::ERROR),
        (Readiness::URGENT, Ready::PRIORITY),
    ] {
        if readiness.contains(ours) {
            ready |= theirs;
        }
    }
    ready
}

/// The methods about readiness that streams and datagram sockets have.
macro_rules! readiness {
    ($Form:ident, $read:ident, $write:ident) => {
        /// Readiness.
        impl<R: $crate::runtime::Runtime> $Form<R> {
            /// Waits until a receive does not block.
            #[track_caller]
            pub fn readable(&self) -> impl Future<Output = std::io::Result<()>> + Send + Sync {
                let call = $crate::waiters::Call::here("to read");
                async move {
                    let mask = pagewire_stack::Readiness::FOR_READ;
                    self.socket().until_ready(mask, call).await.map(drop)
                }
            }

            /// Waits until a send does not block.
            #[track_caller]
            pub fn writable(&self) -> impl Future<Output = std::io::Result<()>> + Send + Sync {
                let call = $crate::waiters::Call::here("to write");
                async move {
                    let mask = pagewire_stack::Readiness::FOR_WRITE;
                    self.socket().until_ready(mask, call).await.map(drop)
                }
            }

            /// [`readable`](Self::readable) for tasks that poll. Only the one that polled a receive last is
            /// woken.
            pub fn $read(
                &self,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let mask = pagewire_stack::Readiness::FOR_READ;
                let level = |stack: &mut pagewire_stack::Stack, _: &$crate::runtime::Clock<'_>| {
                    self.socket().level(stack, mask).map(drop)
                };
                self.socket().poll((self.polls.reads, mask), READING, cx, level)
            }

            /// [`writable`](Self::writable) for tasks that poll. Only the one that polled a send last is
            /// woken.
            pub fn $write(
                &self,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let mask = pagewire_stack::Readiness::FOR_WRITE;
                let level = |stack: &mut pagewire_stack::Stack, _: &$crate::runtime::Clock<'_>| {
                    self.socket().level(stack, mask).map(drop)
                };
                self.socket().poll((self.polls.writes, mask), WRITING, cx, level)
            }

            /// The next completion of a zero-copy send; `None`: no send is outstanding.
            pub async fn next_completion(&self) -> std::io::Result<Option<crate::Completion>> {
                let (id, mask) = (self.socket().id(), $crate::socket::COMPLETION);
                let next = |stack: &mut pagewire_stack::Stack, _: &$crate::runtime::Clock<'_>| {
                    $crate::zerocopy::next_completion(stack, id)
                };
                self.socket().wait(mask, $crate::zerocopy::COMPLETE, next).await
            }

            /// [`next_completion`](Self::next_completion) for tasks that poll.
            pub fn poll_completion(
                &self,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<Option<crate::Completion>>> {
                use futures_core::Stream;
                let next = std::pin::Pin::new(&mut self.completion_stream()).poll_next(cx);
                next.map(Option::transpose)
            }

            /// The completions as a stream, which ends when no send is outstanding, until there is one.
            pub fn completion_stream(&self) -> crate::CompletionStream<'_, R> {
                let (runtime, id) = (self.socket().runtime(), self.socket().id().into());
                crate::CompletionStream::new(runtime, id, self.polls.completes)
            }
        }

        /// Readiness in tokio's words.
        #[cfg(feature = "tokio")]
        impl<R: $crate::runtime::Runtime> $Form<R> {
            /// Waits until the socket is ready for something of `interest`, and says for what.
            #[track_caller]
            pub fn ready(
                &self,
                interest: tokio::io::Interest,
            ) -> impl Future<Output = std::io::Result<tokio::io::Ready>> + Send + Sync {
                self.socket().ready(interest, $crate::waiters::Call::here("to be ready"))
            }

            /// Runs `f` if the socket is ready for `interest`.
            ///
            /// # Errors
            /// `WouldBlock` if it is not, and those of `f`.
            pub fn try_io<T>(
                &self,
                interest: tokio::io::Interest,
                f: impl FnOnce() -> std::io::Result<T>,
            ) -> std::io::Result<T> {
                self.socket().try_io(interest, f)
            }

            /// Runs `f` when the socket is ready for `interest`, until it returns anything but
            /// `WouldBlock`.
            ///
            /// # Errors
            /// The errors of `f`.
            #[track_caller]
            pub fn async_io<T>(
                &self,
                interest: tokio::io::Interest,
                f: impl FnMut() -> std::io::Result<T>,
            ) -> impl Future<Output = std::io::Result<T>> {
                let call = $crate::waiters::Call::here("to be ready");
                self.socket().retry($crate::net::ready::mask_of(interest), call, f)
            }
        }
    };
}

pub(crate) use readiness;
