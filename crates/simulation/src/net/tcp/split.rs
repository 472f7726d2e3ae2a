//! Halves of a stream that borrow it.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

use super::stream::TcpStream;

/// `tokio::net::tcp::ReadHalf`, simulated.
#[derive(Debug)]
pub struct ReadHalf<'a>(pub(super) &'a TcpStream);

/// `tokio::net::tcp::WriteHalf`, simulated.
#[derive(Debug)]
pub struct WriteHalf<'a>(pub(super) &'a TcpStream);

impl TcpStream {
    /// Splits it into halves that borrow it.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf(self), WriteHalf(self))
    }
}

/// The calls of the halves that only pass on, for both kinds.
macro_rules! halves {
    ($read:ty, $write:ty) => {
        impl $read {
            /// As [`TcpStream::poll_peek`].
            pub fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<usize>> {
                self.0.poll_peek(cx, buf)
            }

            /// As [`TcpStream::peek`].
            #[track_caller]
            pub fn peek(
                &mut self,
                buf: &mut [u8],
            ) -> impl Future<Output = io::Result<usize>> + Send + Sync {
                self.0.peek(buf)
            }

            /// As [`TcpStream::ready`].
            #[track_caller]
            pub fn ready(
                &self,
                interest: Interest,
            ) -> impl Future<Output = io::Result<Ready>> + Send + Sync {
                self.0.ready(interest)
            }

            /// As [`TcpStream::readable`].
            #[track_caller]
            pub fn readable(&self) -> impl Future<Output = io::Result<()>> + Send + Sync {
                self.0.readable()
            }

            /// As [`TcpStream::try_read`].
            pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.0.try_read(buf)
            }

            /// As [`TcpStream::try_read_vectored`].
            pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.0.try_read_vectored(bufs)
            }

            /// As [`TcpStream::try_read_buf`].
            pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
                self.0.try_read_buf(buf)
            }

            /// The other side's address and port.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.0.peer_addr()
            }

            /// This side's address and port.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.0.local_addr()
            }
        }

        impl $write {
            /// As [`TcpStream::ready`].
            #[track_caller]
            pub fn ready(
                &self,
                interest: Interest,
            ) -> impl Future<Output = io::Result<Ready>> + Send + Sync {
                self.0.ready(interest)
            }

            /// As [`TcpStream::writable`].
            #[track_caller]
            pub fn writable(&self) -> impl Future<Output = io::Result<()>> + Send + Sync {
                self.0.writable()
            }

            /// As [`TcpStream::try_write`].
            pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
                self.0.try_write(buf)
            }

            /// As [`TcpStream::try_write_vectored`].
            pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.0.try_write_vectored(bufs)
            }

            /// The other side's address and port.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.0.peer_addr()
            }

            /// This side's address and port.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.0.local_addr()
            }
        }

        impl AsyncRead for $read {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.0.poll_read_by_ref(cx, buf)
            }
        }

        impl AsyncWrite for $write {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.0.poll_write_by_ref(cx, &[IoSlice::new(buf)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.0.poll_write_by_ref(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(self.end())
            }
        }

        impl AsRef<TcpStream> for $read {
            fn as_ref(&self) -> &TcpStream {
                &self.0
            }
        }

        impl AsRef<TcpStream> for $write {
            fn as_ref(&self) -> &TcpStream {
                &self.0
            }
        }
    };
}

pub(super) use halves;

halves!(ReadHalf<'_>, WriteHalf<'_>);

impl WriteHalf<'_> {
    fn end(&self) -> io::Result<()> {
        self.0.shutdown_write()
    }
}
