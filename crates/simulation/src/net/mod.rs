//! `tokio::net` on the simulated network: the same types, methods, traits and errors.
//!
//! A program switches by one `use`:
//!
//! ```
//! #[cfg(test)]
//! use pagewire_simulation::net;
//! #[cfg(not(test))]
//! use tokio::net;
//! # fn main() { let _ = net::TcpSocket::new_v4; }
//! ```
//!
//! or by a feature of its own, with the same two lines in one of its modules. Code that is generic
//! over `AsyncRead + AsyncWrite` needs no switch.
//!
//! What differs from tokio's types, because there is no kernel below:
//!
//! - Names are those of the simulation's hosts, and `localhost`; see [`lookup_host`].
//! - There are no descriptors: no `AsFd`, no `AsRawFd`, and `from_std` and `into_std` fail with
//!   [`Unsupported`](std::io::ErrorKind::Unsupported). There are no Unix sockets.
//! - [`TcpStream::ready`] and its like report what is true now. tokio's may say more.
//! - A host has one device, `eth0`, besides its loopback addresses.
//! - A `linger` of more than zero does not block the thread that drops the socket.
//!
//! [`TcpStreamExt`] has what a simulated connection can tell besides.

mod addr;
mod buf;
mod device;
mod error;
mod extra;
mod lookup;
mod reserved;
mod socket;
pub mod tcp;
mod udp;

pub use addr::ToSocketAddrs;
#[cfg(feature = "quinn")]
pub(crate) use error::no_descriptor;
pub use extra::TcpStreamExt;
pub use lookup::lookup_host;
pub use tcp::{TcpListener, TcpSocket, TcpStream};
pub use udp::UdpSocket;
