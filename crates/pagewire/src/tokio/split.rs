//! Halves of a stream, as tokio's: one reads, one writes.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use bytes::BufMut;
use pagewire_stack::{MapError, RecvFlags};

use super::completions::CompletionStream;
use super::stream::TcpStream;
use crate::buf::{Chunks, SendBuf};
use crate::mapping::Mapping;
use crate::zerocopy::{Completion, Completions, Sent};

/// The half that reads, of [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a TcpStream);

/// The half that writes, of [`TcpStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a TcpStream);

/// The half that reads, of [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf(TcpStream);

/// The half that writes, of [`TcpStream::into_split`]. Its drop ends the direction: the peer reads the
/// stream's end behind the data.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: TcpStream,
    /// The drop ends the direction.
    ends: bool,
}

/// Two halves are not of one stream: here they are again.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl std::fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the halves are not of one stream")
    }
}

impl std::error::Error for ReuniteError {}

impl TcpStream {
    /// Splits it into halves that borrow it.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf(self), WriteHalf(self))
    }

    /// Splits it into halves that two tasks can have. The drop of the write half ends its direction.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (OwnedReadHalf(self.again()), OwnedWriteHalf { stream: self, ends: true })
    }
}

fn reunite(read: OwnedReadHalf, mut write: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
    if !std::ptr::eq(read.0.socket(), write.stream.socket()) {
        return Err(ReuniteError(read, write));
    }
    write.ends = false;
    Ok(read.0)
}

impl OwnedReadHalf {
    /// Puts the halves of a stream together again.
    ///
    /// # Errors
    /// Both halves, if they are of two streams.
    pub fn reunite(self, other: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        reunite(self, other)
    }

    fn stream(&self) -> &TcpStream {
        &self.0
    }
}

impl OwnedWriteHalf {
    /// Puts the halves of a stream together again.
    ///
    /// # Errors
    /// Both halves, if they are of two streams.
    pub fn reunite(self, other: OwnedReadHalf) -> Result<TcpStream, ReuniteError> {
        reunite(other, self)
    }

    /// Drops the half without an end of its direction, which then ends with the read half.
    pub fn forget(mut self) {
        self.ends = false;
    }

    fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn end(&mut self) -> io::Result<()> {
        self.stream.end().inspect(|()| self.ends = false)
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.ends {
            self.stream.end_at_drop();
        }
    }
}

impl ReadHalf<'_> {
    fn stream(&self) -> &TcpStream {
        self.0
    }
}

impl WriteHalf<'_> {
    fn stream(&self) -> &TcpStream {
        self.0
    }

    fn end(&mut self) -> io::Result<()> {
        self.0.end()
    }
}

/// What the halves pass on, for both kinds.
macro_rules! halves {
    ($read:ty, $write:ty) => {
        /// As the calls of [`TcpStream`] with these names.
        impl $read {
            /// See [`TcpStream::recv_chunks`].
            ///
            /// # Errors
            /// As there.
            pub async fn recv_chunks(&self, max: usize) -> io::Result<Chunks> {
                self.stream().recv_chunks(max).await
            }

            /// See [`TcpStream::map`].
            ///
            /// # Errors
            /// As there.
            pub fn map(&self, len: usize) -> Result<Mapping, MapError> {
                self.stream().map(len)
            }

            /// See [`TcpStream::map_wait`].
            ///
            /// # Errors
            /// As there.
            pub async fn map_wait(&self, len: usize) -> io::Result<Mapping> {
                self.stream().map_wait(len).await
            }

            /// See [`TcpStream::peek`].
            ///
            /// # Errors
            /// As there.
            pub async fn peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.stream().peek(buf).await
            }

            /// See [`TcpStream::poll_peek`].
            pub fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<usize>> {
                self.stream().poll_peek(cx, buf)
            }

            /// See [`TcpStream::readable`].
            ///
            /// # Errors
            /// As there.
            pub async fn readable(&self) -> io::Result<()> {
                self.stream().readable().await
            }

            /// See [`TcpStream::try_read`].
            ///
            /// # Errors
            /// As there.
            pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.stream().try_read(buf)
            }

            /// See [`TcpStream::try_read_vectored`].
            ///
            /// # Errors
            /// As there.
            pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.stream().try_read_vectored(bufs)
            }

            /// See [`TcpStream::try_read_buf`].
            ///
            /// # Errors
            /// As there.
            pub fn try_read_buf(&self, buf: &mut impl BufMut) -> io::Result<usize> {
                self.stream().try_read_buf(buf)
            }
        }

        /// As the calls of [`TcpStream`] with these names.
        impl $write {
            /// See [`TcpStream::send`].
            ///
            /// # Errors
            /// As there.
            pub async fn send(&self, buf: impl Into<SendBuf>) -> io::Result<usize> {
                self.stream().send(buf).await
            }

            /// See [`TcpStream::send_zc`].
            ///
            /// # Errors
            /// As there.
            pub async fn send_zc(&self, buf: impl Into<SendBuf>) -> io::Result<Sent> {
                self.stream().send_zc(buf).await
            }

            /// See [`TcpStream::completions`].
            pub fn completions(&self) -> Completions<'_> {
                self.stream().completions()
            }

            /// See [`TcpStream::next_completion`].
            ///
            /// # Errors
            /// As there.
            pub async fn next_completion(&self) -> io::Result<Option<Completion>> {
                self.stream().next_completion().await
            }

            /// See [`TcpStream::completion_stream`].
            pub fn completion_stream(&self) -> CompletionStream<'_> {
                self.stream().completion_stream()
            }

            /// See [`TcpStream::writable`].
            ///
            /// # Errors
            /// As there.
            pub async fn writable(&self) -> io::Result<()> {
                self.stream().writable().await
            }

            /// See [`TcpStream::try_write`].
            ///
            /// # Errors
            /// As there.
            pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
                self.stream().try_write(buf)
            }

            /// See [`TcpStream::try_write_vectored`].
            ///
            /// # Errors
            /// As there.
            pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.stream().try_write_vectored(bufs)
            }
        }

        impl AsyncRead for $read {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.stream().poll_take(cx, buf, RecvFlags::empty()).map_ok(drop)
            }
        }

        impl AsyncWrite for $write {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.stream().poll_put(cx, &[IoSlice::new(buf)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.stream().poll_put(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Poll::Ready(self.end())
            }
        }

        of_both!($read, $write);
    };
}

/// What each of the halves has.
macro_rules! of_both {
    ($($half:ty),*) => {$(
        impl $half {
            /// See [`TcpStream::ready`].
            ///
            /// # Errors
            /// As there.
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                self.stream().ready(interest).await
            }

            /// See [`TcpStream::peer_addr`].
            ///
            /// # Errors
            /// As there.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.stream().peer_addr()
            }

            /// See [`TcpStream::local_addr`].
            ///
            /// # Errors
            /// As there.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.stream().local_addr()
            }

            /// See [`TcpStream::as_sync`].
            pub fn as_sync(&self) -> &crate::TcpStream {
                self.stream().as_sync()
            }
        }

        impl AsRef<TcpStream> for $half {
            fn as_ref(&self) -> &TcpStream {
                self.stream()
            }
        }
    )*};
}

halves!(ReadHalf<'_>, WriteHalf<'_>);
halves!(OwnedReadHalf, OwnedWriteHalf);
