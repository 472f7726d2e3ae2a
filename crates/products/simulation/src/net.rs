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
//! The types are those of `pagewire::net` on another runtime: what a program does here, it does on a host.
//! [`pagewire_sockets::net`] says what differs from tokio's types, because there is no kernel below.
//! Names are those of the simulation's hosts, and `localhost`; see [`lookup_host`]. A host has one device,
//! `eth0`, besides its loopback addresses.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pagewire_sockets::{Clock, Runtime, Waiters};
use pagewire_stack::Stack;

use crate::host::world::HostHandle;

pub use pagewire_sockets::ToSocketAddrs;

/// `tokio::net::TcpStream`, simulated.
pub type TcpStream = pagewire_sockets::net::TcpStream<HostHandle>;
/// `tokio::net::TcpListener`, simulated.
pub type TcpListener = pagewire_sockets::net::TcpListener<HostHandle>;
/// `tokio::net::TcpSocket`, simulated.
pub type TcpSocket = pagewire_sockets::net::TcpSocket<HostHandle>;
/// `tokio::net::UdpSocket`, simulated.
pub type UdpSocket = pagewire_sockets::net::UdpSocket<HostHandle>;

/// TCP: `tokio::net::tcp`.
pub mod tcp {
    use crate::host::world::HostHandle;

    /// `tokio::net::tcp::ReadHalf`, simulated.
    pub type ReadHalf<'a> = pagewire_sockets::net::tcp::ReadHalf<'a, HostHandle>;
    /// `tokio::net::tcp::WriteHalf`, simulated.
    pub type WriteHalf<'a> = pagewire_sockets::net::tcp::WriteHalf<'a, HostHandle>;
    /// `tokio::net::tcp::OwnedReadHalf`, simulated.
    pub type OwnedReadHalf = pagewire_sockets::net::tcp::OwnedReadHalf<HostHandle>;
    /// `tokio::net::tcp::OwnedWriteHalf`, simulated.
    pub type OwnedWriteHalf = pagewire_sockets::net::tcp::OwnedWriteHalf<HostHandle>;
    /// `tokio::net::tcp::ReuniteError`, simulated.
    pub type ReuniteError = pagewire_sockets::net::tcp::ReuniteError<HostHandle>;
}

/// The addresses of a name: of a host of the simulation, `localhost`, or an address as text. Takes
/// no simulated time.
///
/// # Errors
/// `NotFound` for an unknown name, with the C library's text: "failed to lookup address information: Name or
/// service not known". `InvalidInput` for text that is no address.
pub async fn lookup_host<T>(host: T) -> io::Result<impl Iterator<Item = SocketAddr>>
where
    T: ToSocketAddrs,
{
    pagewire_sockets::net::lookup_host::<HostHandle>(host).await
}

impl Runtime for HostHandle {
    fn current() -> io::Result<Self> {
        Self::get()
    }

    fn enter<T>(
        &self,
        op: impl FnOnce(&mut Stack, &Clock<'_>, &mut Waiters) -> T,
    ) -> io::Result<T> {
        let mut world = self.lock();
        Ok(world
            .with_waiters(self.host, |stack, now, waiters| op(stack, &Clock::at(now), waiters))?)
    }

    /// Sends what waits. A kernel does so beside the program; a simulated host only when it is called.
    fn make_room(&self) -> bool {
        self.lock().transmit(self.host.id);
        true
    }

    fn resolve(&self, name: &str) -> impl Future<Output = io::Result<Vec<IpAddr>>> + Send {
        let world = self.lock();
        let own = world.hosts.get(self.host.id.index());
        let own = own.map_or(&[][..], |host| host.addresses.as_slice());
        let found = world.names.resolve_on(name, own).filter(|found| !found.is_empty());
        let found = found.ok_or_else(|| {
            // The text of the C library, as std passes it on.
            let text = format!(
                "failed to lookup address information: Name or service not known: there is no host \
                 `{name}` in the simulation"
            );
            io::Error::new(io::ErrorKind::NotFound, text)
        });
        drop(world);
        std::future::ready(found)
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }
}
