//! [`Source`]: the address, or the interface, from which flows leave this machine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::bind;

use crate::sys;

/// Where flows leave this machine. By default the kernel chooses, by its routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Source {
    /// The source address of IPv4 flows.
    pub v4: Option<Ipv4Addr>,
    /// The source address of IPv6 flows.
    pub v6: Option<Ipv6Addr>,
    /// The interface of IPv4 flows, by name (`SO_BINDTODEVICE`).
    pub interface_v4: Option<String>,
    /// The interface of IPv6 flows.
    pub interface_v6: Option<String>,
}

impl Source {
    /// Binds a stream socket that is going to connect to `to`.
    pub(crate) fn bind_stream(&self, socket: BorrowedFd<'_>, to: SocketAddr) -> io::Result<()> {
        // Loopback is on no other interface, and knows no other machine's addresses.
        if self.address(to.is_ipv4()).is_some() {
            // The port is chosen by destination, so that there are as many as without an address.
            sys::bind_without_port(socket)?;
        }
        self.bind(socket, to.is_ipv4(), to.ip().is_loopback())
    }

    /// Binds a datagram socket of this version of IP.
    pub(crate) fn bind_datagrams(&self, socket: impl AsFd, v4: bool) -> io::Result<()> {
        self.bind(socket.as_fd(), v4, false)
    }

    fn bind(&self, socket: BorrowedFd<'_>, v4: bool, to_loopback: bool) -> io::Result<()> {
        let interface = if v4 { &self.interface_v4 } else { &self.interface_v6 };
        if let Some(interface) = interface.as_ref().filter(|_| !to_loopback) {
            sys::bind_to_interface(socket, interface)?;
        }
        if let Some(address) = self.address(v4) {
            bind(socket, &SocketAddr::new(address, 0))?;
        }
        Ok(())
    }

    fn address(&self, v4: bool) -> Option<IpAddr> {
        if v4 { self.v4.map(IpAddr::V4) } else { self.v6.map(IpAddr::V6) }
    }
}
