//! Halves of a stream that can be in two tasks.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

use super::split::halves;
use super::stream::TcpStream;

/// `tokio::net::tcp::OwnedReadHalf`, simulated.
#[derive(Debug)]
pub struct OwnedReadHalf(Arc<TcpStream>);

/// `tokio::net::tcp::OwnedWriteHalf`, simulated. Its drop ends the direction.
#[derive(Debug)]
pub struct OwnedWriteHalf(Arc<TcpStream>, Ends);

/// Whether the drop of the write half ends its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    OnDrop,
    No,
}

/// Two halves are not of one stream: here they are again.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl std::fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("tried to reunite halves that are not from the same socket")
    }
}

impl std::error::Error for ReuniteError {}

impl TcpStream {
    /// Splits it into halves that two tasks can have. The drop of the write half ends its direction.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let stream = Arc::new(self);
        (OwnedReadHalf(Arc::clone(&stream)), OwnedWriteHalf(stream, Ends::OnDrop))
    }
}

fn reunite(read: OwnedReadHalf, write: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
    if !Arc::ptr_eq(&read.0, &write.0) {
        return Err(ReuniteError(read, write));
    }
    write.forget();
    // No other half is left.
    Arc::try_unwrap(read.0).map_err(|stream| {
        ReuniteError(OwnedReadHalf(Arc::clone(&stream)), OwnedWriteHalf(stream, Ends::OnDrop))
    })
}

halves!(OwnedReadHalf, OwnedWriteHalf);

impl OwnedReadHalf {
    /// Puts the halves of a stream together again.
    ///
    /// # Errors
    /// Both halves, if they are of two streams.
    pub fn reunite(self, other: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        reunite(self, other)
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

    /// Drops the half, but its direction ends only with the read half.
    pub fn forget(mut self) {
        self.1 = Ends::No;
    }

    fn end(mut self: Pin<&mut Self>) -> io::Result<()> {
        self.0.shutdown_write().inspect(|()| self.1 = Ends::No)
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.1 == Ends::OnDrop {
            // An error: the connection is over.
            let _ = self.0.shutdown_write();
        }
    }
}
