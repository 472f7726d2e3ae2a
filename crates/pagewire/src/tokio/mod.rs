//! Sockets for tasks, shaped as tokio's: [`TcpStream`], [`TcpListener`] and [`UdpSocket`].
//!
//! They have tokio's traits and names, and work on any executor: the host's own thread wakes tasks. A
//! socket is made on a [`Host`](crate::Host), or from its form in the crate's root (`From`), which
//! [`as_sync`](TcpStream::as_sync) shows for options and state. Beyond tokio's, they send and receive by
//! reference ([`TcpStream::send`], [`TcpStream::recv_chunks`], [`TcpStream::map`]) and report when
//! memory may be used again ([`TcpStream::send_zc`], [`TcpStream::completion_stream`]).
//!
//! ```
//! use pagewire::tokio::{TcpListener, TcpStream};
//! use pagewire::{Host, Pair};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (left, right) = Pair::new(Default::default())?;
//! let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
//! let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
//!
//! let listener = TcpListener::bind(&server, "10.0.0.1:9000").await?;
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
//! let mut stream = TcpStream::connect(&client, "10.0.0.1:9000").await?;
//! stream.write_all(b"hello").await?;
//! stream.shutdown().await?;
//! let mut answer = Vec::new();
//! stream.read_to_end(&mut answer).await?;
//! assert_eq!(answer, b"hello");
//! echo.await??;
//! # Ok(())
//! # }
//! ```
//!
//! # Cancellation
//! A future that is dropped before it is ready has taken nothing from the socket and leaves no waker
//! behind. [`TcpStream::send`] and [`TcpStream::send_zc`] may have queued a part by then.

mod completions;
pub(crate) mod drive;
mod listener;
mod reference;
pub mod split;
mod stream;
mod udp;
mod udp_more;
pub(crate) mod wait;

pub use crate::addr::ToSocketAddrs;
pub use completions::CompletionStream;
pub use listener::TcpListener;
pub use reference::by_reference;
pub use stream::TcpStream;
pub use udp::UdpSocket;
