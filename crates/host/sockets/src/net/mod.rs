//! Sockets of tasks: `tokio::net` on any stack. The types, methods, traits and errors are those of tokio.
//!
//! `connect` and `bind` use the stack of the code that runs ([`Runtime::current`]),
//! so that a program switches by one `use`; `connect_on` and `bind_on` name it. Code that is generic over
//! `AsyncRead + AsyncWrite` needs no switch. Beyond tokio's, the sockets send and receive by reference
//! (`send`, `recv_chunks`, `map`) and report when memory may be used again (`send_zc`,
//! `completion_stream`).
//!
//! Any executor will do. Without the feature `tokio`, the traits are those of futures-io ([`Compat`]).
//!
//! Differences from tokio's types, because there is no kernel below:
//!
//! - Names are those of the runtime's resolver; see [`ToSocketAddrs`].
//! - There are no descriptors: no `AsFd`, no `AsRawFd`, and `from_std` and `into_std` fail with
//!   [`Unsupported`](std::io::ErrorKind::Unsupported). There are no Unix sockets.
//! - `ready` and its like report what is true now. tokio's may say more.
//! - A `linger` of more than zero does not block the thread that drops the socket.
//!
//! # Cancel safety
//! A future that is dropped before it is ready has taken nothing from the socket and leaves no waker
//! behind. `send` and `send_zc` may have queued a part by then.

mod compat;
mod listener;
mod ready;
mod socket;
mod split;
pub mod tcp;
mod udp;

pub use crate::addr::ToSocketAddrs;
pub use compat::Compat;
pub use listener::TcpListener;
pub use pagewire_stack::UdpTarget;
pub use socket::TcpSocket;
pub use tcp::TcpStream;
pub use udp::{Received, UdpSocket};

use std::io;
use std::net::SocketAddr;

use crate::addr::target;
use crate::runtime::Runtime;

/// The addresses of a name or of a text, as the resolver of the running code's stack finds them.
///
/// # Errors
/// The resolver's; `InvalidInput` for text that is no address.
pub fn lookup_host<R: Runtime>(
    host: impl ToSocketAddrs,
) -> impl Future<Output = io::Result<std::vec::IntoIter<SocketAddr>>> {
    let target = target(&host);
    async move { Ok(target?.resolve(&R::current()?).await?.into_iter()) }
}

/// Implements tokio's `AsyncRead` and `AsyncWrite` for a tuple of one [`TcpStream`]: adapters need types of their
/// own for the traits of a framework. For crates that depend on `tokio`.
#[cfg(feature = "tokio")]
#[doc(hidden)]
#[macro_export]
macro_rules! forward_io {
    ($stream:ident) => {
        impl<R: $crate::Runtime> ::tokio::io::AsyncRead for $stream<R> {
            fn poll_read(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                buf: &mut ::tokio::io::ReadBuf<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.0).poll_read(cx, buf)
            }
        }

        impl<R: $crate::Runtime> ::tokio::io::AsyncWrite for $stream<R> {
            fn poll_write(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                buf: &[u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.0).poll_write(cx, buf)
            }

            fn poll_write_vectored(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                bufs: &[::std::io::IoSlice<'_>],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                self.0.is_write_vectored()
            }

            fn poll_flush(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.0).poll_flush(cx)
            }

            fn poll_shutdown(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.0).poll_shutdown(cx)
            }
        }
    };
}
