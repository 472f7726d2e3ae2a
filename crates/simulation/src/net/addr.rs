//! Addresses of programs: as names, as text and as numbers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::world::Here;

/// What `bind`, `connect`, `send_to` and [`lookup_host`](super::lookup_host) take for an address:
/// the types of tokio's trait of this name. Names are those of the simulation's hosts.
///
/// A library that is generic over tokio's trait stays generic over `impl ToSocketAddrs` when its
/// `use` changes.
pub trait ToSocketAddrs: sealed::Sealed {}

impl<T: sealed::Sealed + ?Sized> ToSocketAddrs for T {}

pub(crate) mod sealed {
    use std::io;
    use std::net::SocketAddr;

    use super::Here;

    #[doc(hidden)]
    pub trait Sealed {
        /// The addresses, in the order in which they are tried.
        #[doc(hidden)]
        fn resolve(&self, from: &From<'_>) -> io::Result<Vec<SocketAddr>>;
    }

    /// The host that asks.
    #[derive(Debug)]
    #[doc(hidden)]
    pub struct From<'a>(pub(super) &'a Here);
}

use sealed::{From, Sealed};

/// The addresses of `target`, as the program on this host finds them.
pub(crate) fn resolve(here: &Here, target: impl Sealed) -> io::Result<Vec<SocketAddr>> {
    target.resolve(&From(here))
}

impl<T: Sealed + ?Sized> Sealed for &T {
    fn resolve(&self, from: &From<'_>) -> io::Result<Vec<SocketAddr>> {
        (**self).resolve(from)
    }
}

macro_rules! numbers {
    ($($given:ty,)*) => {$(
        impl Sealed for $given {
            fn resolve(&self, _: &From<'_>) -> io::Result<Vec<SocketAddr>> {
                Ok(vec![SocketAddr::from(*self)])
            }
        }
    )*};
}

numbers! {
    SocketAddr, SocketAddrV4, SocketAddrV6, (IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16),
}

impl Sealed for &[SocketAddr] {
    fn resolve(&self, _: &From<'_>) -> io::Result<Vec<SocketAddr>> {
        Ok(self.to_vec())
    }
}

impl Sealed for str {
    fn resolve(&self, from: &From<'_>) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = self.parse() {
            return Ok(vec![address]);
        }
        // As std: the last colon ends the name.
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let (host, port) = self.rsplit_once(':').ok_or(invalid("invalid socket address"))?;
        let port: u16 = port.parse().map_err(|_| invalid("invalid port value"))?;
        (host, port).resolve(from)
    }
}

impl Sealed for (&str, u16) {
    fn resolve(&self, from: &From<'_>) -> io::Result<Vec<SocketAddr>> {
        let (host, port) = *self;
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let found = resolve_name(from.0, host)?;
        Ok(found.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }
}

impl Sealed for (String, u16) {
    fn resolve(&self, from: &From<'_>) -> io::Result<Vec<SocketAddr>> {
        (self.0.as_str(), self.1).resolve(from)
    }
}

impl Sealed for String {
    fn resolve(&self, from: &From<'_>) -> io::Result<Vec<SocketAddr>> {
        self.as_str().resolve(from)
    }
}

/// What the resolver of this host finds for a name.
fn resolve_name(here: &Here, name: &str) -> io::Result<Vec<IpAddr>> {
    let world = here.lock();
    let own = world.hosts.get(here.host.id.index());
    let own = own.map_or(&[][..], |host| host.addresses.as_slice());
    let found = world.names.resolve_on(name, own);
    found.filter(|found| !found.is_empty()).ok_or_else(|| {
        // As the C library says it, by std.
        io::Error::other(format!(
            "failed to lookup address information: Name or service not known: there is no host \
             `{name}` in the simulation"
        ))
    })
}

/// As a socket of IPv6 shows an address: it maps those of IPv4 (RFC 4291 section 2.5.5.2).
pub(crate) fn shown(address: SocketAddr, v6: bool) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v6 && v4.ip().is_unspecified() => {
            SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), v4.port())
        }
        SocketAddr::V4(v4) if v6 => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        address => address,
    }
}

/// The destination that Linux puts in place of an unspecified one: this host.
pub(crate) fn destination(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => {
            SocketAddr::new(Ipv4Addr::LOCALHOST.into(), v4.port())
        }
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            SocketAddr::new(Ipv6Addr::LOCALHOST.into(), v6.port())
        }
        address => address,
    }
}
