//! Async forms, with feature `tokio`.
//!
//! The traits are tokio's, the waking is our own: the driver thread calls the task's waker, so
//! these work on any executor.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_core::Stream;
use pagewire_mem::Instant;
use pagewire_stack::limits::UDP_MAX_PAYLOAD_V4;
use pagewire_stack::{Error, Readiness, Stack, ZeroCopyCall};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::buf::{Chunks, SendBuf};
use crate::datagrams::Datagram;
use crate::host::Host;
use crate::mapping::{Mapping, readable, try_map};
use crate::shared::Interest;
use crate::tcp::{Socket, TcpListener, TcpStream, take_chunks};
use crate::udp::UdpSocket;
use crate::wait::Patience;
use crate::zerocopy::{self, Completion, Sent};

/// One try for a caller who polls: who gave up polling is forgotten when something happens, or with
/// the socket. Each task is remembered once.
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

/// Repeats `op` until it has an answer.
fn wait_op<T, F>(socket: &Socket, interest: Interest, op: F) -> WaitOp<'_, F>
where
    F: FnMut(&mut Stack, Instant) -> Result<T, Error> + Unpin,
{
    WaitOp { socket, interest, op, waits: None }
}

/// A wait that is forgotten when it is dropped.
struct WaitOp<'a, F> {
    socket: &'a Socket,
    interest: Interest,
    op: F,
    waits: Option<Registered>,
}

/// Who is to be woken, and the waker that the socket has for that: of this wait alone, so that it can
/// be taken back while other waits of the same task go on.
struct Registered {
    task: Waker,
    own: Waker,
}

struct Own(Waker);

impl Wake for Own {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
    }
}

impl<T, F> Future for WaitOp<'_, F>
where
    F: FnMut(&mut Stack, Instant) -> Result<T, Error> + Unpin,
{
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = &self.socket.host.shared;
        if self.waits.is_none() {
            match shared.with(&mut self.op) {
                Err(Error::WouldBlock) => {}
                done => return Poll::Ready(done.map_err(|e| shared.error(e))),
            }
        }
        if self.waits.as_ref().is_none_or(|waits| !waits.task.will_wake(cx.waker())) {
            self.forget();
            let task = cx.waker().clone();
            let own = Waker::from(Arc::new(Own(task.clone())));
            self.waits = Some(Registered { task, own });
        }
        let Self { socket, interest, op, waits } = &mut *self;
        let own = waits.as_ref().map_or(Waker::noop(), |waits| &waits.own);
        poll_op(socket, *interest, &Context::from_waker(own), op)
    }
}

impl<F> WaitOp<'_, F> {
    fn forget(&mut self) {
        if let Some(waits) = self.waits.take() {
            let (id, own) = (self.socket.id, waits.own);
            self.socket.host.outside(move |host| host.shared.lock().unregister(id, &own));
        }
    }
}

impl<F> Drop for WaitOp<'_, F> {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Host {
    /// Opens a connection; see [`connect`](Self::connect).
    pub async fn connect_async(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.start_connect(to)?;
        let id = stream.0.id;
        loop {
            match stream.wait_connected(Patience::None) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => break done?,
            }
            // What became of it is looked at above.
            let _ = wait_op(&stream.0, Interest::Write, |stack, _| {
                let waits = !stack.readiness(id)?.intersects(Readiness::FOR_WRITE);
                if waits { Err(Error::WouldBlock) } else { Ok(()) }
            })
            .await;
        }
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
            wait_op(&self.0, Interest::Write, |stack, now| stack.tcp_send(now, id, frags)).await?;
        }
        Ok(all)
    }

    /// Takes received bytes by reference; see [`recv_chunks`](Self::recv_chunks).
    pub async fn recv_chunks_async(&self, max: usize) -> io::Result<Chunks> {
        let id = self.0.id;
        wait_op(&self.0, Interest::Read, |stack, now| take_chunks(stack, now, id, max)).await
    }
}

/// Awaiting received pages.
impl TcpStream {
    /// The next `len` bytes as contiguous memory; see [`map_wait`](Self::map_wait).
    pub async fn map_async(&self, len: usize) -> io::Result<Mapping> {
        let id = self.0.id;
        wait_op(&self.0, Interest::Read, |stack, now| try_map(stack, now, id, len)).await?
    }

    /// Waits until something can be read or mapped; see [`wait_readable`](Self::wait_readable).
    pub async fn readable_async(&self) -> io::Result<usize> {
        let id = self.0.id;
        wait_op(&self.0, Interest::Read, |stack, _| readable(stack, id)).await
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
            let sent = wait_op(&self.0, Interest::Write, |stack, now| {
                stack.tcp_send_zc(now, id, frags, call)
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
        next_completion(&self.0).await
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

async fn next_completion(socket: &Socket) -> io::Result<Option<Completion>> {
    let id = socket.id;
    let done = wait_op(socket, Interest::Completion, |stack, _| zerocopy::next(stack, id)).await?;
    Ok(done.map(Completion::from))
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
        let sent = wait_op(&self.0, Interest::Write, |stack, now| {
            stack.udp_send_zc(now, id, data.frags.clone(), Some(to))
        });
        let (bytes, id) = sent.await?;
        Ok(Sent { bytes, id })
    }

    /// The next completion; see [`TcpStream::next_completion`].
    pub async fn next_completion(&self) -> io::Result<Option<Completion>> {
        next_completion(&self.0).await
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
        let (conn, remote) =
            wait_op(&self.0, Interest::Read, |stack, now| stack.tcp_accept(now, id)).await?;
        Ok((TcpStream::new(Arc::clone(&self.0.host), conn), remote))
    }
}

impl UdpSocket {
    /// Sends a datagram by copy; see [`send_to`](Self::send_to).
    pub async fn send_to_async(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        let id = self.0.id;
        wait_op(&self.0, Interest::Write, |stack, now| stack.udp_write_to(now, id, data, Some(to)))
            .await
    }

    /// Receives a datagram by copy; see [`recv_from`](Self::recv_from).
    pub async fn recv_from_async(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let id = self.0.id;
        wait_op(&self.0, Interest::Read, |stack, now| stack.udp_read_from(now, id, buf)).await
    }

    /// Receives a datagram by reference, with what its packet said; see
    /// [`recv_message`](Self::recv_message).
    pub async fn recv_message_async(&self) -> io::Result<Datagram> {
        let id = self.0.id;
        let message = wait_op(&self.0, Interest::Read, |stack, now| {
            stack.udp_recv_message(now, id, UDP_MAX_PAYLOAD_V4)
        });
        Ok(message.await?.into())
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
