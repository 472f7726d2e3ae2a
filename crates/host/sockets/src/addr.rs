//! [`ToSocketAddrs`]: addresses as programs write them, as numbers, as text and as names.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::runtime::Runtime;

/// The addresses for `bind`, `connect` and `send_to`: socket addresses, pairs of a host and a
/// port, slices of addresses, or text such as `"10.0.0.1:80"` and `"name:80"`.
///
/// The trait of `std` with this name asks the kernel's resolver, which uses the kernel's network. This one
/// asks the resolver of the socket's own [`Runtime`], and only for text that is no address.
///
/// A library that is generic over tokio's trait stays generic over `impl ToSocketAddrs` when its `use`
/// changes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no address",
    note = "to say on which host, use `connect_on(&host, ..)` or `bind_on(&host, ..)`"
)]
pub trait ToSocketAddrs: sealed::Sealed {}

impl<T: sealed::Sealed + ?Sized> ToSocketAddrs for T {}

/// The content of an argument.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub enum Target {
    Addresses(Vec<SocketAddr>),
    Name(String, u16),
}

mod sealed {
    use super::Target;

    pub trait Sealed {
        #[doc(hidden)]
        fn target(&self) -> std::io::Result<Target>;
    }
}

use sealed::Sealed;

/// The addresses or the name in an argument, before any name is resolved.
///
/// # Errors
/// `InvalidInput` for text without a port.
pub(crate) fn target(of: &(impl ToSocketAddrs + ?Sized)) -> io::Result<Target> {
    of.target()
}

/// The addresses of a name or of a text. At least one.
///
/// # Errors
/// The resolver's; `InvalidInput` for text without a port.
pub fn resolve<R: Runtime>(
    runtime: &R,
    of: impl ToSocketAddrs,
) -> impl Future<Output = io::Result<Vec<SocketAddr>>> {
    let target = target(&of);
    async move { target?.resolve(runtime).await }
}

impl Target {
    /// The addresses, in the order in which they are tried; at least one.
    ///
    /// # Errors
    /// The resolver's; `InvalidInput` if there is no address.
    pub(crate) async fn resolve<R: Runtime>(self, runtime: &R) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = match self {
            Self::Addresses(found) => found,
            Self::Name(name, port) => {
                let found = runtime.resolve(&name).await?;
                found.into_iter().map(|address| SocketAddr::new(address, port)).collect()
            }
        };
        if found.is_empty() { Err(no_address()) } else { Ok(found) }
    }

    /// The addresses, if no name has to be resolved.
    pub(crate) fn literal(self) -> Result<io::Result<Vec<SocketAddr>>, Self> {
        match self {
            Self::Addresses(found) if found.is_empty() => Ok(Err(no_address())),
            Self::Addresses(found) => Ok(Ok(found)),
            name @ Self::Name(..) => Err(name),
        }
    }
}

/// No address was found, or given.
fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "could not resolve to any address")
}

macro_rules! numbers {
    ($($given:ty),*) => {$(
        impl Sealed for $given {
            fn target(&self) -> io::Result<Target> {
                Ok(Target::Addresses(vec![SocketAddr::from(*self)]))
            }
        }
    )*};
}

numbers!(SocketAddr, SocketAddrV4, SocketAddrV6);
numbers!((IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

impl<T: Sealed + ?Sized> Sealed for &T {
    fn target(&self) -> io::Result<Target> {
        (**self).target()
    }
}

impl Sealed for [SocketAddr] {
    fn target(&self) -> io::Result<Target> {
        Ok(Target::Addresses(self.to_vec()))
    }
}

impl Sealed for str {
    fn target(&self) -> io::Result<Target> {
        if let Ok(address) = self.parse() {
            return Ok(Target::Addresses(vec![address]));
        }
        // As std: the last colon ends the name.
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let (host, port) = self.rsplit_once(':').ok_or(invalid("invalid socket address"))?;
        let port: u16 = port.parse().map_err(|_| invalid("invalid port value"))?;
        (host, port).target()
    }
}

impl Sealed for (&str, u16) {
    fn target(&self) -> io::Result<Target> {
        let (host, port) = *self;
        Ok(match host.parse::<IpAddr>() {
            Ok(address) => Target::Addresses(vec![SocketAddr::new(address, port)]),
            Err(_) => Target::Name(host.to_owned(), port),
        })
    }
}

impl Sealed for (String, u16) {
    fn target(&self) -> io::Result<Target> {
        (self.0.as_str(), self.1).target()
    }
}

impl Sealed for String {
    fn target(&self) -> io::Result<Target> {
        self.as_str().target()
    }
}

/// As a socket of IPv6 shows an address: it maps those of IPv4 (RFC 4291 section 2.5.5.2).
#[inline]
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
#[inline]
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
