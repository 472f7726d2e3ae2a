//! Addresses as arguments: literal ones, because a host has no resolver.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// One address or several: socket addresses, pairs of an IP address and a port, slices of addresses, or
/// text such as `"10.0.0.1:80"`.
///
/// Text is an address, never a name. The trait of `std` with this name asks the kernel's resolver, which
/// uses the kernel's network, and waits for it. Resolve names first.
pub trait ToSocketAddrs: sealed::Sealed {}

mod sealed {
    use std::io;
    use std::net::SocketAddr;

    pub trait Sealed {
        fn addresses(&self) -> io::Result<Vec<SocketAddr>>;
    }
}

/// The addresses that an argument names.
pub(crate) fn addresses(of: &impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    of.addresses()
}

/// The first of them, to send to.
pub(crate) fn first(of: &impl ToSocketAddrs) -> io::Result<SocketAddr> {
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "no address to send to");
    of.addresses()?.first().copied().ok_or_else(none)
}

fn no_address(text: &str) -> io::Error {
    let why = format!(
        "`{text}` is no IP address with a port, such as 10.0.0.1:80 or [fd00::1]:80; \
         resolve names before this call"
    );
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

macro_rules! into_address {
    ($($kind:ty),*) => {$(
        impl ToSocketAddrs for $kind {}

        impl sealed::Sealed for $kind {
            fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
                Ok(vec![SocketAddr::from(*self)])
            }
        }
    )*};
}

into_address!(SocketAddr, SocketAddrV4, SocketAddrV6);
into_address!((IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

impl ToSocketAddrs for [SocketAddr] {}

impl sealed::Sealed for [SocketAddr] {
    fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        Ok(self.into())
    }
}

impl ToSocketAddrs for str {}

impl sealed::Sealed for str {
    fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.parse().map(|address| vec![address]).map_err(|_| no_address(self))
    }
}

impl ToSocketAddrs for String {}

impl sealed::Sealed for String {
    fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.as_str().addresses()
    }
}

impl ToSocketAddrs for (&str, u16) {}

impl sealed::Sealed for (&str, u16) {
    fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let (host, port) = *self;
        let ip: IpAddr = host.parse().map_err(|_| no_address(&format!("{host}:{port}")))?;
        Ok(vec![SocketAddr::new(ip, port)])
    }
}

impl ToSocketAddrs for (String, u16) {}

impl sealed::Sealed for (String, u16) {
    fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        (self.0.as_str(), self.1).addresses()
    }
}

impl<T: ToSocketAddrs + ?Sized> ToSocketAddrs for &T {}

impl<T: ToSocketAddrs + ?Sized> sealed::Sealed for &T {
    fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        (**self).addresses()
    }
}
