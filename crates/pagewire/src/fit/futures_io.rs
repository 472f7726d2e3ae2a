//! The traits of futures-io, for programs on other executors.
//!
//! ```no_run
//! use futures_util::{AsyncReadExt, AsyncWriteExt};
//! use pagewire::fit::futures_io::Compat;
//! use pagewire::{Host, tokio::TcpStream};
//!
//! # async fn client(host: &Host) -> std::io::Result<()> {
//! let mut stream = Compat::new(TcpStream::connect(host, "10.0.0.1:80").await?);
//! stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
//! stream.read_to_end(&mut Vec::new()).await?;
//! # Ok(())
//! # }
//! ```

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use futures_io::{AsyncRead, AsyncWrite};

use crate::tokio::TcpStream;

/// A stream with the traits of futures-io. It is a type of its own: one that had both sets of traits
/// would make each call ambiguous.
#[derive(Debug)]
pub struct Compat(TcpStream);

impl Compat {
    /// The stream with the other traits.
    pub fn new(stream: TcpStream) -> Self {
        Self(stream)
    }

    /// The stream inside.
    pub fn get_ref(&self) -> &TcpStream {
        &self.0
    }

    /// The stream inside.
    pub fn into_inner(self) -> TcpStream {
        self.0
    }
}

impl AsyncRead for Compat {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buf = ReadBuf::new(buf);
        Pin::new(&mut self.0).poll_read(cx, &mut buf).map_ok(|()| buf.filled().len())
    }
}

impl AsyncWrite for Compat {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
