//! Async forms, with feature `tokio`.
//!
//! The traits are tokio's, the waking is our own: the driver thread calls the task's waker, so
//! these work on any executor.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use pagewire_mem::Instant;
use pagewire_stack::{Error, Stack, ZeroCopyCall};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::buf::{Chunks, SendBuf};
use crate::host::Host;
use crate::mapping::{Mapping, readable, try_map};
use crate::shared::Interest;
use crate::tcp::{Socket, TcpListener, TcpStream, take_chunks};
use crate::udp::UdpSocket;
use crate::wait::Patience;
use crate::zerocopy::{self, Completion, Sent};

fn poll_op<T>(
    socket: &Socket,
    interest: Interest,
    cx: &Context<'_>,
    mut op: impl FnMut(&mut Stack, Instant) -> Result<T, Error>,
) -> Poll<io::Result<T>> {
    match socket.host.shared.try_or_register(socket.id, interest, cx.waker(), &mut op) {
        Err(Error::WouldBlock) => Poll::Pending,
        done => Poll::Ready(done.map_err(|e| socket.host.shared.error(e))),
    }
}

impl Host {
    /// Opens a connection; see [`connect`](Self::connect).
    pub async fn connect_async(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.start_connect(to)?;
        poll_fn(|cx| match stream.wait_connected(Patience::None) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let id = stream.0.id;
                poll_op(&stream.0, Interest::Write, cx, |stack, _| {
                    let ready = stack.readiness(id)?;
                    let waits = !ready.intersects(pagewire_stack::Readiness::FOR_WRITE);
                    if waits { Err(Error::WouldBlock) } else { Ok(()) }
                })
                .map(|_| stream.wait_connected(Patience::None))
            }
            done => Poll::Ready(done),
        })
        .await?;
        Ok(stream)
    }
}

impl TcpStream {
    /// Queues memory by reference until all of it is queued; see [`send`](Self::send).
    pub async fn send_async(&self, buf: impl Into<SendBuf>) -> io::Result<usize> {
        let (id, mut buf) = (self.0.id, buf.into());
        let all = buf.len();
        while !buf.is_empty() {
            let frags = &mut buf.frags;
            poll_fn(|cx| {
                poll_op(&self.0, Interest::Write, cx, |stack, now| stack.tcp_send(now, id, frags))
            })
            .await?;
        }
        Ok(all)
    }

    /// Takes received bytes by reference; see [`recv_chunks`](Self::recv_chunks).
    pub async fn recv_chunks_async(&self, max: usize) -> io::Result<Chunks> {
        let id = self.0.id;
        poll_fn(|cx| {
            poll_op(&self.0, Interest::Read, cx, |stack, now| take_chunks(stack, now, id, max))
        })
        .await
    }
}

/// Awaiting received pages.
impl TcpStream {
    /// The next `len` bytes as contiguous memory; see [`map_wait`](Self::map_wait).
    pub async fn map_async(&self, len: usize) -> io::Result<Mapping> {
        let id = self.0.id;
        poll_fn(|cx| {
            poll_op(&self.0, Interest::Read, cx, |stack, now| try_map(stack, now, id, len))
        })
        .await?
    }

    /// Waits until something can be read or mapped; see [`wait_readable`](Self::wait_readable).
    pub async fn readable_async(&self) -> io::Result<usize> {
        let id = self.0.id;
        poll_fn(|cx| poll_op(&self.0, Interest::Read, cx, |stack, _| readable(stack, id))).await
    }
}

/// Awaiting completions of zero-copy sends.
impl TcpStream {
    /// Queues memory by reference until all of it is queued; see [`send_zc`](Self::send_zc).
    /// Dropped before it is ready, it has queued a part, or nothing.
    pub async fn send_zc_async(&self, buf: impl Into<SendBuf>) -> io::Result<Sent> {
        let (id, mut buf) = (self.0.id, buf.into());
        let (mut call, mut bytes) = (ZeroCopyCall::new(), 0);
        while !buf.is_empty() {
            let (frags, call) = (&mut buf.frags, &mut call);
            let sent = poll_fn(|cx| {
                poll_op(&self.0, Interest::Write, cx, |stack, now| {
                    stack.tcp_send_zc(now, id, frags, call)
                })
            });
            match sent.await {
                Ok(n) => bytes += n,
                Err(error) if bytes == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(Sent { bytes, id: call.id() })
    }

    /// The next completion, as a stream gives it; `None`: no send is outstanding. See
    /// [`wait_completion`](Self::wait_completion).
    pub async fn next_completion(&self) -> io::Result<Option<Completion>> {
        poll_fn(|cx| self.poll_completion(cx)).await
    }

    /// [`next_completion`](Self::next_completion) for those who poll.
    pub fn poll_completion(&self, cx: &Context<'_>) -> Poll<io::Result<Option<Completion>>> {
        poll_completion(&self.0, cx)
    }

    /// The completions as a stream, which ends when no send is outstanding. After more sends it
    /// goes on.
    pub fn completion_stream(&self) -> CompletionStream<'_> {
        CompletionStream(&self.0)
    }
}

/// The completions of a socket as they come; see [`TcpStream::completion_stream`].
pub struct CompletionStream<'a>(&'a Socket);

impl Stream for CompletionStream<'_> {
    type Item = io::Result<Completion>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        poll_completion(self.0, cx).map(Result::transpose)
    }
}

impl std::fmt::Debug for CompletionStream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CompletionStream").field(&self.0.id).finish()
    }
}

fn poll_completion(socket: &Socket, cx: &Context<'_>) -> Poll<io::Result<Option<Completion>>> {
    let id = socket.id;
    let done = poll_op(socket, Interest::Completion, cx, |stack, _| zerocopy::next(stack, id));
    done.map_ok(|done| done.map(Completion::from))
}

/// Awaiting completions of zero-copy datagrams.
impl UdpSocket {
    /// Sends a datagram by reference; see [`send_zc_to`](Self::send_zc_to).
    pub async fn send_zc_to_async(
        &self,
        data: impl Into<SendBuf>,
        to: SocketAddr,
    ) -> io::Result<Sent> {
        let (id, data) = (self.0.id, data.into());
        let sent = poll_fn(|cx| {
            poll_op(&self.0, Interest::Write, cx, |stack, now| {
                stack.udp_send_zc(now, id, data.frags.clone(), Some(to))
            })
        });
        let (bytes, id) = sent.await?;
        Ok(Sent { bytes, id })
    }

    /// The next completion; see [`TcpStream::next_completion`].
    pub async fn next_completion(&self) -> io::Result<Option<Completion>> {
        poll_fn(|cx| self.poll_completion(cx)).await
    }

    /// [`next_completion`](Self::next_completion) for those who poll.
    pub fn poll_completion(&self, cx: &Context<'_>) -> Poll<io::Result<Option<Completion>>> {
        poll_completion(&self.0, cx)
    }

    /// The completions as a stream; see [`TcpStream::completion_stream`].
    pub fn completion_stream(&self) -> CompletionStream<'_> {
        CompletionStream(&self.0)
    }
}

impl TcpListener {
    /// Takes the next connection; see [`accept`](Self::accept).
    pub async fn accept_async(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let id = self.0.id;
        let (conn, remote) = poll_fn(|cx| {
            poll_op(&self.0, Interest::Read, cx, |stack, now| stack.tcp_accept(now, id))
        })
        .await?;
        Ok((TcpStream::new(Arc::clone(&self.0.host), conn), remote))
    }
}

impl UdpSocket {
    /// Sends a datagram by copy; see [`send_to`](Self::send_to).
    pub async fn send_to_async(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        let id = self.0.id;
        poll_fn(|cx| {
            poll_op(&self.0, Interest::Write, cx, |stack, now| {
                stack.udp_write_to(now, id, data, Some(to))
            })
        })
        .await
    }

    /// Receives a datagram by copy; see [`recv_from`](Self::recv_from).
    pub async fn recv_from_async(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let id = self.0.id;
        poll_fn(|cx| {
            poll_op(&self.0, Interest::Read, cx, |stack, now| stack.udp_read_from(now, id, buf))
        })
        .await
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let id = self.0.id;
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let n = poll_op(&self.0, Interest::Read, cx, |stack, now| {
            stack.tcp_read(now, id, buf.initialize_unfilled())
        });
        n.map_ok(|n| buf.advance(n))
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let id = self.0.id;
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        poll_op(&self.0, Interest::Write, cx, |stack, now| stack.tcp_write(now, id, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown(std::net::Shutdown::Write))
    }
}
