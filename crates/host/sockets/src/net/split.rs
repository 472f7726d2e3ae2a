//! Halves of a stream, as tokio's: one reads, one writes.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;

use bytes::BufMut;
use pagewire_stack::MapError;

use super::TcpStream;
use crate::buf::{Chunks, SendBuf};
use crate::mapping::Mapping;
use crate::runtime::Runtime;
use crate::zerocopy::{Completion, CompletionStream, Completions, Sent};

/// The half that reads, of [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a, R: Runtime>(&'a TcpStream<R>);

/// The half that writes, of [`TcpStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a, R: Runtime>(&'a TcpStream<R>);

/// The half that reads, of [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf<R: Runtime>(TcpStream<R>);

/// The half that writes, of [`TcpStream::into_split`]. Its drop ends the direction: the peer reads the
/// stream's end behind the data.
#[derive(Debug)]
pub struct OwnedWriteHalf<R: Runtime> {
    stream: TcpStream<R>,
    /// The drop ends the direction.
    ends: bool,
}

/// Two halves are not of one stream: here they are again.
#[derive(Debug)]
pub struct ReuniteError<R: Runtime>(pub OwnedReadHalf<R>, pub OwnedWriteHalf<R>);

impl<R: Runtime> std::fmt::Display for ReuniteError<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("tried to reunite halves that are not from the same socket")
    }
}

impl<R: Runtime> std::error::Error for ReuniteError<R> {}

impl<R: Runtime> TcpStream<R> {
    /// Splits it into halves that borrow it.
    pub fn split(&mut self) -> (ReadHalf<'_, R>, WriteHalf<'_, R>) {
        (ReadHalf(self), WriteHalf(self))
    }

    /// Splits it into halves that two tasks can have. The drop of the write half ends its direction.
    pub fn into_split(self) -> (OwnedReadHalf<R>, OwnedWriteHalf<R>) {
        (OwnedReadHalf(self.again()), OwnedWriteHalf { stream: self, ends: true })
    }
}

fn reunite<R: Runtime>(
    read: OwnedReadHalf<R>,
    mut write: OwnedWriteHalf<R>,
) -> Result<TcpStream<R>, ReuniteError<R>> {
    if !std::ptr::eq(read.0.socket(), write.stream.socket()) {
        return Err(ReuniteError(read, write));
    }
    write.ends = false;
    Ok(read.0)
}

impl<R: Runtime> OwnedReadHalf<R> {
    /// Puts the halves of a stream together again.
    ///
    /// # Errors
    /// Both halves, if they are of two streams.
    pub fn reunite(self, other: OwnedWriteHalf<R>) -> Result<TcpStream<R>, ReuniteError<R>> {
        reunite(self, other)
    }

    fn stream(&self) -> &TcpStream<R> {
        &self.0
    }
}

impl<R: Runtime> OwnedWriteHalf<R> {
    /// Puts the halves of a stream together again.
    ///
    /// # Errors
    /// Both halves, if they are of two streams.
    pub fn reunite(self, other: OwnedReadHalf<R>) -> Result<TcpStream<R>, ReuniteError<R>> {
        reunite(other, self)
    }

    /// Drops the half without an end of its direction, which then ends with the read half.
    pub fn forget(mut self) {
        self.ends = false;
    }

    fn stream(&self) -> &TcpStream<R> {
        &self.stream
    }

    #[cfg(feature = "tokio")]
    fn end(&mut self) -> io::Result<()> {
        self.stream.end().inspect(|()| self.ends = false)
    }
}

impl<R: Runtime> Drop for OwnedWriteHalf<R> {
    fn drop(&mut self) {
        if self.ends {
            self.stream.end_at_drop();
        }
    }
}

impl<R: Runtime> ReadHalf<'_, R> {
    fn stream(&self) -> &TcpStream<R> {
        self.0
    }
}

impl<R: Runtime> WriteHalf<'_, R> {
    fn stream(&self) -> &TcpStream<R> {
        self.0
    }

    #[cfg(feature = "tokio")]
    fn end(&mut self) -> io::Result<()> {
        self.0.end()
    }
}

/// Methods of [`TcpStream`] that the halves pass on, for both kinds.
macro_rules! halves {
    ($read:ty, $write:ty) => {
        /// The methods of [`TcpStream`] with these names.
        impl<R: Runtime> $read {
            /// See [`TcpStream::recv_chunks`].
            #[track_caller]
            pub fn recv_chunks(
                &self,
                max: usize,
            ) -> impl Future<Output = io::Result<Chunks>> + Send + Sync {
                self.stream().recv_chunks(max)
            }

            /// See [`TcpStream::map`].
            pub fn map(&self, len: usize) -> Result<Mapping, MapError> {
                self.stream().map(len)
            }

            /// See [`TcpStream::map_wait`].
            pub async fn map_wait(&self, len: usize) -> io::Result<Mapping> {
                self.stream().map_wait(len).await
            }

            /// See [`TcpStream::peek`].
            #[track_caller]
            pub fn peek(
                &mut self,
                buf: &mut [u8],
            ) -> impl Future<Output = io::Result<usize>> + Send + Sync {
                self.stream().peek(buf)
            }

            /// See [`TcpStream::readable`].
            #[track_caller]
            pub fn readable(&self) -> impl Future<Output = io::Result<()>> + Send + Sync {
                self.stream().readable()
            }

            /// See [`TcpStream::try_read`].
            pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.stream().try_read(buf)
            }

            /// See [`TcpStream::try_read_vectored`].
            pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.stream().try_read_vectored(bufs)
            }

            /// See [`TcpStream::try_read_buf`].
            pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
                self.stream().try_read_buf(buf)
            }
        }

        /// The methods of [`TcpStream`] with these names.
        impl<R: Runtime> $write {
            /// See [`TcpStream::send`].
            pub async fn send(&self, buf: impl Into<SendBuf>) -> io::Result<usize> {
                self.stream().send(buf).await
            }

            /// See [`TcpStream::send_zc`].
            pub async fn send_zc(&self, buf: impl Into<SendBuf>) -> io::Result<Sent> {
                self.stream().send_zc(buf).await
            }

            /// See [`TcpStream::completions`].
            pub fn completions(&self) -> Completions<'_, R> {
                self.stream().completions()
            }

            /// See [`TcpStream::next_completion`].
            pub async fn next_completion(&self) -> io::Result<Option<Completion>> {
                self.stream().next_completion().await
            }

            /// See [`TcpStream::completion_stream`].
            pub fn completion_stream(&self) -> CompletionStream<'_, R> {
                self.stream().completion_stream()
            }

            /// See [`TcpStream::writable`].
            #[track_caller]
            pub fn writable(&self) -> impl Future<Output = io::Result<()>> + Send + Sync {
                self.stream().writable()
            }

            /// See [`TcpStream::try_write`].
            pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
                self.stream().try_write(buf)
            }

            /// See [`TcpStream::try_write_vectored`].
            pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.stream().try_write_vectored(bufs)
            }
        }

        #[cfg(feature = "tokio")]
        tokio_traits!($read, $write);
        of_both!($read, $write);
    };
}

/// tokio's traits and words.
#[cfg(feature = "tokio")]
macro_rules! tokio_traits {
    ($read:ty, $write:ty) => {
        const _: () = {
            use std::pin::Pin;
            use std::task::{Context, Poll};

            use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

            impl<R: Runtime> $read {
                /// See [`TcpStream::poll_peek`].
                pub fn poll_peek(
                    &mut self,
                    cx: &mut Context<'_>,
                    buf: &mut ReadBuf<'_>,
                ) -> Poll<io::Result<usize>> {
                    self.stream().poll_peek(cx, buf)
                }
            }

            impl<R: Runtime> AsyncRead for $read {
                fn poll_read(
                    self: Pin<&mut Self>,
                    cx: &mut Context<'_>,
                    buf: &mut ReadBuf<'_>,
                ) -> Poll<io::Result<()>> {
                    self.stream()
                        .poll_take(cx, buf, pagewire_stack::RecvFlags::empty())
                        .map_ok(drop)
                }
            }

            impl<R: Runtime> AsyncWrite for $write {
                fn poll_write(
                    self: Pin<&mut Self>,
                    cx: &mut Context<'_>,
                    buf: &[u8],
                ) -> Poll<io::Result<usize>> {
                    self.stream().poll_write_slices(cx, &[IoSlice::new(buf)])
                }

                fn poll_write_vectored(
                    self: Pin<&mut Self>,
                    cx: &mut Context<'_>,
                    bufs: &[IoSlice<'_>],
                ) -> Poll<io::Result<usize>> {
                    self.stream().poll_write_slices(cx, bufs)
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
        };
    };
}

/// Methods that each of the halves has.
macro_rules! of_both {
    ($($half:ty),*) => {$(
        impl<R: Runtime> $half {
            /// See [`TcpStream::ready`].
            #[cfg(feature = "tokio")]
            #[track_caller]
            pub fn ready(
                &self,
                interest: tokio::io::Interest,
            ) -> impl Future<Output = io::Result<tokio::io::Ready>> + Send + Sync {
                self.stream().ready(interest)
            }

            /// See [`TcpStream::peer_addr`].
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.stream().peer_addr()
            }

            /// See [`TcpStream::local_addr`].
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.stream().local_addr()
            }
        }

        impl<R: Runtime> AsRef<TcpStream<R>> for $half {
            fn as_ref(&self) -> &TcpStream<R> {
                self.stream()
            }
        }
    )*};
}

halves!(ReadHalf<'_, R>, WriteHalf<'_, R>);
halves!(OwnedReadHalf<R>, OwnedWriteHalf<R>);
