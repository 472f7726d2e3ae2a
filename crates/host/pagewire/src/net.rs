//! Sockets for tasks, shaped as tokio's, on a [`Host`]: the types of [`pagewire_sockets::net`].
//!
//! The sockets have tokio's names, and with the feature `tokio` tokio's traits; any executor will do,
//! because the host's own thread wakes tasks. A socket is made on a host (`connect_on`, `bind_on`), on the
//! host of the code that runs ([`Host::enter`], [`Host::make_default`]; `connect`, `bind`), or from its
//! form in the crate's root (`From`). Beyond tokio's, the sockets send and receive by reference
//! ([`TcpStream::send`], [`TcpStream::recv_chunks`], [`TcpStream::map`]) and report when memory may be used
//! again ([`TcpStream::send_zc`], [`TcpStream::completion_stream`]).
//!
//! ```
//! use pagewire::net::{TcpListener, TcpStream};
//! use pagewire::{Host, Pair};
//! # #[cfg(feature = "tokio")]
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[cfg(feature = "tokio")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (left, right) = Pair::new()?;
//! let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
//! let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
//!
//! let listener = TcpListener::bind_on(&server, "10.0.0.1:9000").await?;
//! let echo = tokio::spawn(async move {
//!     let (stream, _) = listener.accept().await?;
//!     loop {
//!         let chunks = stream.recv_chunks(1 << 20).await?; // by reference
//!         if chunks.is_empty() {
//!             return std::io::Result::Ok(());
//!         }
//!         stream.send(chunks).await?; // the same memory
//!     }
//! });
//!
//! let mut stream = TcpStream::connect_on(&client, "10.0.0.1:9000").await?;
//! stream.write_all(b"hello").await?;
//! stream.shutdown().await?;
//! let mut answer = Vec::new();
//! stream.read_to_end(&mut answer).await?;
//! assert_eq!(answer, b"hello");
//! echo.await??;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "tokio"))]
//! # fn main() {}
//! ```
//!
//! # Cancel safety
//! A future that is dropped before it is ready has taken nothing from the socket and leaves no waker
//! behind. [`TcpStream::send`] and [`TcpStream::send_zc`] may have queued a part by then.

use std::io;
use std::net::SocketAddr;

use crate::Host;

pub use pagewire_sockets::ToSocketAddrs;
pub use pagewire_sockets::net::Received;

/// A TCP connection.
pub type TcpStream = pagewire_sockets::net::TcpStream<Host>;
/// A socket that listens for connections.
pub type TcpListener = pagewire_sockets::net::TcpListener<Host>;
/// A TCP socket before it listens or connects.
pub type TcpSocket = pagewire_sockets::net::TcpSocket<Host>;
/// A UDP socket.
pub type UdpSocket = pagewire_sockets::net::UdpSocket<Host>;
/// A stream with the traits of futures-io.
pub type Compat = pagewire_sockets::net::Compat<Host>;

/// Halves of a stream: `tokio::net::tcp`.
pub mod tcp {
    use crate::Host;

    /// The half that reads, of `TcpStream::split`.
    pub type ReadHalf<'a> = pagewire_sockets::net::tcp::ReadHalf<'a, Host>;
    /// The half that writes, of `TcpStream::split`.
    pub type WriteHalf<'a> = pagewire_sockets::net::tcp::WriteHalf<'a, Host>;
    /// The half that reads, of `TcpStream::into_split`.
    pub type OwnedReadHalf = pagewire_sockets::net::tcp::OwnedReadHalf<Host>;
    /// The half that writes, of `TcpStream::into_split`.
    pub type OwnedWriteHalf = pagewire_sockets::net::tcp::OwnedWriteHalf<Host>;
    /// Two halves are not of one stream.
    pub type ReuniteError = pagewire_sockets::net::tcp::ReuniteError<Host>;
}

/// The addresses of a name or of a text, by the resolver of the host of the code that runs.
///
/// # Errors
/// The resolver's, or that there is none; `InvalidInput` for text that is no address.
pub async fn lookup_host<T>(host: T) -> io::Result<impl Iterator<Item = SocketAddr>>
where
    T: ToSocketAddrs,
{
    pagewire_sockets::net::lookup_host::<Host>(host).await
}
