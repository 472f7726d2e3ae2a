//! Socket addresses as C programs write them: `sockaddr_in` and `sockaddr_in6`.
//!
//! ```text
//!   sockaddr_in    family:2 port:2 address:4 zero:8                        16 bytes
//!   sockaddr_in6   family:2 port:2 flowinfo:4 address:16 scope:4           28 bytes
//! ```
//!
//! The family is in the machine's byte order, port and address in the network's.

use std::net::{IpAddr, SocketAddr};

use crate::{Errno, field};

/// Bytes of a `sockaddr_in`.
const LEN_V4: usize = 16;
/// Bytes of a `sockaddr_in6`.
const LEN_V6: usize = 28;
/// Bytes of a `sockaddr_in6` without its scope (RFC 2133), which Linux still takes.
const LEN_V6_RFC2133: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    Inet,
    Inet6,
}

/// An address as `accept`, `recvfrom`, `getsockname` and `getpeername` give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SockAddr {
    bytes: [u8; LEN_V6],
    len: usize,
}

impl SockAddr {
    /// As a socket of `domain` shows it: an IPv6 socket maps IPv4 peers (RFC 4291 section 2.5.5.2).
    pub(crate) fn new(addr: SocketAddr, domain: Domain) -> Self {
        let mut bytes = [0; LEN_V6];
        bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
        let family = match (domain, addr.ip()) {
            (Domain::Inet, IpAddr::V4(ip)) => {
                bytes[4..8].copy_from_slice(&ip.octets());
                libc::AF_INET
            }
            (Domain::Inet6, IpAddr::V4(ip)) if ip.is_unspecified() => libc::AF_INET6,
            (_, ip) => {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                bytes[8..24].copy_from_slice(&ip.octets());
                libc::AF_INET6
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Self { bytes, len: if family == libc::AF_INET { LEN_V4 } else { LEN_V6 } }
    }

    /// The bytes of the C structure.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Reads the address of a C structure, of either family.
    ///
    /// # Errors
    /// `EINVAL` if it is too short, `EAFNOSUPPORT` if it is of another family.
    pub fn parse(bytes: &[u8]) -> Result<SocketAddr, Errno> {
        let domain = if family(bytes)? == libc::AF_INET6 { Domain::Inet6 } else { Domain::Inet };
        match parse(domain, bytes)? {
            Given::Address(addr) => Ok(addr),
            Given::Unspecified => Err(Errno::AFNOSUPPORT),
        }
    }

    /// In `std`'s form, which [`From`] takes.
    pub fn to_std(&self) -> Option<SocketAddr> {
        let domain = if self.len == LEN_V4 { Domain::Inet } else { Domain::Inet6 };
        match parse(domain, self.as_bytes()) {
            Ok(Given::Address(addr)) => Some(addr),
            _ => None,
        }
    }
}

impl From<SocketAddr> for SockAddr {
    fn from(addr: SocketAddr) -> Self {
        Self::new(addr, if addr.is_ipv4() { Domain::Inet } else { Domain::Inet6 })
    }
}

/// An address argument of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// `AF_UNSPEC`: dissolves an association.
    Unspecified,
    Address(SocketAddr),
}

/// The family of an address; `EINVAL` if it is too short for that.
pub(crate) fn family(bytes: &[u8]) -> Result<i32, Errno> {
    Ok(u16::from_ne_bytes(field(bytes, 0)?).into())
}

/// Reads the address of a peer for a socket of `domain`. As in Linux, an IPv6 socket takes AF_INET.
///
/// # Errors
/// `EINVAL` if it is too short, `EAFNOSUPPORT` if it is of another family.
pub(crate) fn parse(domain: Domain, bytes: &[u8]) -> Result<Given, Errno> {
    let family = family(bytes)?;
    if family == libc::AF_UNSPEC {
        return Ok(Given::Unspecified);
    }
    if bytes.len() < if domain == Domain::Inet { LEN_V4 } else { LEN_V6_RFC2133 } {
        return Err(Errno::INVAL);
    }
    let ip: IpAddr = match (domain, family) {
        (Domain::Inet, libc::AF_INET) => field::<4>(bytes, 4)?.into(),
        (Domain::Inet6, libc::AF_INET6) => field::<16>(bytes, 8)?.into(),
        _ => return Err(Errno::AFNOSUPPORT),
    };
    Ok(Given::Address(SocketAddr::new(ip, u16::from_be_bytes(field(bytes, 2)?))))
}

/// Whether an IPv6 address stands for one of IPv4 (RFC 4291 section 2.5.5.2).
pub(crate) fn is_mapped(addr: SocketAddr) -> bool {
    matches!(addr.ip(), IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some())
}
