//! [`Compat`]: a stream with the traits of futures-io.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};
use pagewire_stack::RecvFlags;

use super::TcpStream;
use crate::runtime::Runtime;

/// A stream with the traits of futures-io. It is a type of its own: one that had tokio's traits, too,
/// would make each call ambiguous.
///
/// ```no_run
/// use futures_util::{AsyncReadExt, AsyncWriteExt};
/// use pagewire::Host;
/// use pagewire::net::{Compat, TcpStream};
///
/// # async fn client(host: &Host) -> std::io::Result<()> {
/// let mut stream = Compat::new(TcpStream::connect_on(host, "10.0.0.1:80").await?);
/// stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
/// stream.read_to_end(&mut Vec::new()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Compat<R: Runtime>(TcpStream<R>);

impl<R: Runtime> Compat<R> {
    /// The stream with the other traits.
    pub fn new(stream: TcpStream<R>) -> Self {
        Self(stream)
    }

    /// The stream inside.
    pub fn get_ref(&self) -> &TcpStream<R> {
        &self.0
    }

    /// The stream inside.
    pub fn into_inner(self) -> TcpStream<R> {
        self.0
    }
}

impl<R: Runtime> AsyncRead for Compat<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_read_slice(cx, buf, RecvFlags::empty())
    }
}

impl<R: Runtime> AsyncWrite for Compat<R> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write_slices(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write_slices(cx, bufs)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.end())
    }
}
