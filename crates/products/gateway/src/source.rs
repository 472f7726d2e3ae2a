//! [`Source`]: the address, or the interface, from which flows leave this machine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

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
    /// Checks that this machine has the addresses and the interfaces now.
    ///
    /// # Errors
    /// `AddrNotAvailable` without the address, `ENODEV` without the interface, `PermissionDenied`.
    pub fn check(&self) -> io::Result<()> {
        for v4 in [true, false] {
            let has_interface = if v4 { &self.interface_v4 } else { &self.interface_v6 };
            if has_interface.is_none() && self.address(v4).is_none() {
                continue;
            }
            let family = if v4 { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            self.bind_datagrams(&socket, v4)?;
        }
        Ok(())
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_an_address_and_an_interface_of_this_machine() {
        let source = |v4: &str, interface: Option<&str>| Source {
            v4: v4.parse().ok(),
            interface_v4: interface.map(str::to_owned),
            ..Source::default()
        };
        source("127.0.0.1", None).check().expect("every machine has it");
        source("", Some("lo")).check().expect("every machine has it");
        let error = source("203.0.113.1", None).check().expect_err("documentation's").kind();
        assert_eq!(error, io::ErrorKind::AddrNotAvailable);
        assert!(source("", Some("nowhere0")).check().is_err());
    }
}
