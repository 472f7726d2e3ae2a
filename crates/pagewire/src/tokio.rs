//! Async forms, with feature `tokio`, whose traits they have; they work on any executor.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_core::Stream;
use pagewire_mem::Instant;
use pagewire_stack::limits::UDP_MAX_PAYLOAD_V4;
use pagewire_stack::{
    Error, Listener, Readiness, RecvFlags, SendFlags, SocketId, Stack, Tcp, Udp, ZeroCopyCall,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::buf::{Chunks, SendBuf};
use crate::datagrams::Datagram;
use crate::handle::Handle;
use crate::host::Host;
use crate::mapping::{Mapping, readable, try_map};
use crate::socket::{Socket, Verbs};
use crate::tcp::{TcpListener, TcpStream, take_chunks};
use crate::udp::UdpSocket;
use crate::wait::{Clock, Patience};
use crate::waiters::Interest;
use crate::zerocopy::{self, Completion, Sent, send_datagram};

/// One try for a caller that polls: registers the task if there is no answer yet.
fn poll_on<T>(
    (host, id): (&Handle, SocketId),
    interest: Interest,
    cx: &Context<'_>,
    mut op: impl FnMut(&mut Stack, Instant) -> Result<T, Error>,
) -> Poll<io::Result<T>> {
    let mut op = |stack: &mut Stack, clock: &Clock<'_>| op(stack, clock.now());
    match host.shared.try_or_register(id, interest, cx.waker(), &mut op) {
        Err(Error::WouldBlock) => Poll::Pending,
        done => Poll::Ready(done.map_err(|e| host.shared.error(e))),
    }
}

impl<Id: Verbs> Socket<Id> {
    /// [`wait`](Self::wait) for a task that polls.
    fn poll<T>(
        &self,
        interest: Interest,
        cx: &Context<'_>,
        mut verb: impl FnMut(Id::Of<'_>, Instant) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        poll_on((&self.host, self.id.into()), interest, cx, |stack, now| {
            verb(self.id.of(stack)?, now)
        })
    }

    /// [`wait`](Self::wait) as a future.
    fn later<T>(
        &self,
        interest: Interest,
        mut verb: impl FnMut(Id::Of<'_>, Instant) -> Result<T, Error>,
    ) -> impl Future<Output = io::Result<T>> {
        self.later_on(interest, move |stack, now| verb(self.id.of(stack)?, now))
    }

    /// [`wait_on`](Self::wait_on) as a future.
    fn later_on<T, F>(&self, interest: Interest, op: F) -> WaitOp<'_, F>
    where
        F: FnMut(&mut Stack, Instant) -> Result<T, Error>,
    {
        WaitOp { host: &self.host, id: self.id.into(), interest, op, waits: None }
    }
}

/// A wait; its drop unregisters its waker.
struct WaitOp<'a, F> {
    host: &'a Arc<Handle>,
    id: SocketId,
    interest: Interest,
    op: F,
    waits: Option<Registered>,
}

/// The task's waker, and the wait's own, which is unregistered alone.
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
    F: FnMut(&mut Stack, Instant) -> Result<T, Error>,
{
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = &self.host.shared;
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
        let Self { host, id, interest, op, waits } = &mut *self;
        let own = waits.as_ref().map_or(Waker::noop(), |waits| &waits.own);
        poll_on((host, *id), *interest, &Context::from_waker(own), op)
    }
}

/// No field is pinned.
impl<F> Unpin for WaitOp<'_, F> {}

impl<F> WaitOp<'_, F> {
    fn forget(&mut self) {
        if let Some(waits) = self.waits.take() {
            let (id, own) = (self.id, waits.own);
            self.host.outside(move |host| host.shared.lock().unregister(id, &own));
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
            // The next `wait_connected` reports a failure.
            let ready = |stack: &mut Stack, _| {
                let waits = !stack.readiness(id)?.intersects(Readiness::FOR_WRITE);
                if waits { Err(Error::WouldBlock) } else { Ok(()) }
            };
            let _ = stream.0.later_on(Interest::Write, ready).await;
        }
        Ok(stream)
    }
}

impl TcpStream {
    /// Queues memory by reference until all of it is queued; see [`send`](Self::send).
    pub async fn send_async(&self, buf: impl Into<SendBuf>) -> io::Result<usize> {
        let mut buf = buf.into();
        let all = buf.len();
        while !buf.is_empty() {
            let frags = &mut buf.frags;
            let send = |mut tcp: Tcp<'_>, now| tcp.send(now, &mut *frags, SendFlags::empty());
            self.0.later(Interest::Write, send).await?;
        }
        Ok(all)
    }

    /// Receives bytes by reference; see [`recv_chunks`](Self::recv_chunks).
    pub async fn recv_chunks_async(&self, max: usize) -> io::Result<Chunks> {
        self.0.later(Interest::Read, |tcp, now| take_chunks(tcp, now, max)).await
    }
}

/// Awaiting received pages.
impl TcpStream {
    /// The next `len` bytes as contiguous memory; see [`map_wait`](Self::map_wait).
    pub async fn map_async(&self, len: usize) -> io::Result<Mapping> {
        let id = self.0.id;
        self.0.later_on(Interest::Read, |stack, now| try_map(stack, now, id, len)).await?
    }

    /// Waits until something can be read or mapped; see [`wait_readable`](Self::wait_readable).
    pub async fn readable_async(&self) -> io::Result<usize> {
        let id = self.0.id;
        self.0.later_on(Interest::Read, |stack, _| readable(stack, id)).await
    }
}

/// Awaiting completions of zero-copy sends.
impl TcpStream {
    /// Queues memory by reference until all of it is queued; see [`send_zc`](Self::send_zc).
    /// If the future is dropped before it is ready, a part may be queued.
    pub async fn send_zc_async(&self, buf: impl Into<SendBuf>) -> io::Result<Sent> {
        let mut buf = buf.into();
        let (mut call, mut bytes) = (ZeroCopyCall::new(), 0);
        while !buf.is_empty() {
            let (frags, call) = (&mut buf.frags, &mut call);
            let send = |mut tcp: Tcp<'_>, now| {
                tcp.send(now, (&mut *frags, &mut *call), SendFlags::empty())
            };
            match self.0.later(Interest::Write, send).await {
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

    /// [`next_completion`](Self::next_completion) for tasks that poll.
    pub fn poll_completion(&self, cx: &Context<'_>) -> Poll<io::Result<Option<Completion>>> {
        poll_completion(&self.0.host, self.0.id.into(), cx)
    }

    /// The completions as a stream, which ends when no send is outstanding, until there is one.
    pub fn completion_stream(&self) -> CompletionStream<'_> {
        CompletionStream { host: &self.0.host, id: self.0.id.into() }
    }
}

/// The completions of a socket as they come; see [`TcpStream::completion_stream`].
pub struct CompletionStream<'a> {
    host: &'a Arc<Handle>,
    id: SocketId,
}

impl Stream for CompletionStream<'_> {
    type Item = io::Result<Completion>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        poll_completion(self.host, self.id, cx).map(Result::transpose)
    }
}

impl std::fmt::Debug for CompletionStream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CompletionStream").field(&self.id).finish()
    }
}

async fn next_completion<Id: Verbs>(socket: &Socket<Id>) -> io::Result<Option<Completion>> {
    let id = socket.id;
    socket.later_on(Interest::Completion, |stack, _| zerocopy::next(stack, id)).await
}

fn poll_completion(
    host: &Handle,
    id: SocketId,
    cx: &Context<'_>,
) -> Poll<io::Result<Option<Completion>>> {
    poll_on((host, id), Interest::Completion, cx, |stack, _| zerocopy::next(stack, id))
}

/// Awaiting completions of zero-copy datagrams.
impl UdpSocket {
    /// Sends a datagram by reference; see [`send_zc_to`](Self::send_zc_to).
    pub async fn send_zc_to_async(
        &self,
        data: impl Into<SendBuf>,
        to: SocketAddr,
    ) -> io::Result<Sent> {
        let data = data.into();
        let send = |udp: Udp<'_>, now| send_datagram(udp, now, &data.frags, Some(to));
        self.0.later(Interest::Write, send).await
    }

    /// The next completion; see [`TcpStream::next_completion`].
    pub async fn next_completion(&self) -> io::Result<Option<Completion>> {
        next_completion(&self.0).await
    }

    /// [`next_completion`](Self::next_completion) for tasks that poll.
    pub fn poll_completion(&self, cx: &Context<'_>) -> Poll<io::Result<Option<Completion>>> {
        poll_completion(&self.0.host, self.0.id.into(), cx)
    }

    /// The completions as a stream; see [`TcpStream::completion_stream`].
    pub fn completion_stream(&self) -> CompletionStream<'_> {
        CompletionStream { host: &self.0.host, id: self.0.id.into() }
    }
}

impl TcpListener {
    /// Accepts the next connection; see [`accept`](Self::accept).
    pub async fn accept_async(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accept = |mut listener: Listener<'_>, _| listener.accept();
        let (conn, remote) = self.0.later(Interest::Read, accept).await?;
        Ok((TcpStream::new(Arc::clone(&self.0.host), conn), remote))
    }
}

impl UdpSocket {
    /// Sends a datagram by copy; see [`send_to`](Self::send_to).
    pub async fn send_to_async(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.0.later(Interest::Write, |mut udp, now| udp.send(now, data, Some(to))).await
    }

    /// Receives a datagram by copy; see [`recv_from`](Self::recv_from).
    pub async fn recv_from_async(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let receive = |mut udp: Udp<'_>, _| udp.recv(&mut *buf, RecvFlags::empty());
        self.0.later(Interest::Read, receive).await
    }

    /// Receives a datagram by reference; see [`recv_message`](Self::recv_message).
    pub async fn recv_message_async(&self) -> io::Result<Datagram> {
        let taker = pagewire_stack::Message(UDP_MAX_PAYLOAD_V4);
        let receive = |mut udp: Udp<'_>, _| udp.recv(taker, RecvFlags::empty());
        self.0.later(Interest::Read, receive).await.map(Datagram::from)
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let n = self.0.poll(Interest::Read, cx, |mut tcp, now| {
            tcp.recv(now, buf.initialize_unfilled(), RecvFlags::empty())
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
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.0.poll(Interest::Write, cx, |mut tcp, now| tcp.send(now, buf, SendFlags::empty()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown(std::net::Shutdown::Write))
    }
}
