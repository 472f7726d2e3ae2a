//! Addresses with a prefix length: `10.77.0.2/24`, `fd77::2/64`.

use core::fmt;
use core::str::FromStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address and the length of its network prefix, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    addr: IpAddr,
    prefix: u8,
}

/// Why a text is no [`Cidr`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CidrError {
    /// No slash.
    #[error("'{0}' has no prefix length: write it as in 10.77.0.2/24 or fd77::2/64")]
    NoPrefix(String),
    /// No address before the slash.
    #[error("'{0}' is not an IP address")]
    Address(String),
    /// No number behind the slash.
    #[error("'{0}' is not a prefix length")]
    Prefix(String),
    /// The prefix is longer than the address.
    #[error("prefix length {prefix} is too long: {addr} has {bits} bits")]
    TooLong {
        /// The address.
        addr: IpAddr,
        /// The given prefix length.
        prefix: u8,
        /// Bits that the address has.
        bits: u8,
    },
}

impl Cidr {
    /// `addr` with a prefix of at most 32 bits for IPv4, 128 for IPv6.
    pub fn new(addr: IpAddr, prefix: u8) -> Result<Self, CidrError> {
        let bits = bits_of(addr);
        if prefix > bits {
            return Err(CidrError::TooLong { addr, prefix, bits });
        }
        Ok(Self { addr, prefix })
    }

    /// The address alone: a prefix of all its bits.
    pub const fn host(addr: IpAddr) -> Self {
        Self { addr, prefix: bits_of(addr) }
    }

    /// The address.
    pub const fn addr(&self) -> IpAddr {
        self.addr
    }

    /// The prefix length in bits.
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether `other` is in the same network.
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.addr, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()) & self.mask_v4() == 0,
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()) & self.mask_v6() == 0,
            _ => false,
        }
    }

    /// The network's address: 0 behind the prefix.
    pub fn network(&self) -> IpAddr {
        match self.addr {
            IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits() & self.mask_v4()).into(),
            IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() & self.mask_v6()).into(),
        }
    }

    /// The directed broadcast address; none in IPv6 and networks of up to two addresses (RFC 3021).
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        match self.addr {
            IpAddr::V4(a) if self.prefix < 31 => {
                Some(Ipv4Addr::from_bits(a.to_bits() | !self.mask_v4()))
            }
            _ => None,
        }
    }

    fn mask_v4(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0)
    }

    fn mask_v6(&self) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(self.prefix.min(128))).unwrap_or(0)
    }
}

const fn bits_of(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(s: &str) -> Result<Self, CidrError> {
        let (addr, prefix) = s.split_once('/').ok_or_else(|| CidrError::NoPrefix(s.into()))?;
        let addr = addr.parse().map_err(|_| CidrError::Address(addr.into()))?;
        let prefix = prefix.parse().map_err(|_| CidrError::Prefix(prefix.into()))?;
        Self::new(addr, prefix)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_value_round_trip() {
        for text in ["10.77.0.2/24", "0.0.0.0/0", "1.2.3.4/32", "fd77::2/64", "::/0", "::1/128"] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_faulty_text_says_what_is_wrong() {
        let error = |s: &str| s.parse::<Cidr>().unwrap_err().to_string();
        assert!(error("10.0.0.1").contains("no prefix length"));
        assert!(error("10.0.0/24").contains("'10.0.0' is not an IP address"));
        assert!(error("10.0.0.1/x").contains("'x' is not a prefix length"));
        assert!(error("10.0.0.1/33").contains("32 bits"));
        assert!(error("fd77::2/129").contains("128 bits"));
    }

    #[test]
    fn membership_is_decided_by_the_leading_bits() {
        let net: Cidr = "10.77.0.2/24".parse().unwrap();
        assert!(net.contains("10.77.0.255".parse().unwrap()));
        assert!(!net.contains("10.77.1.0".parse().unwrap()));
        assert!(!net.contains("::1".parse().unwrap()));
        let all: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("255.1.2.3".parse().unwrap()));
        let v6: Cidr = "fd77::2/64".parse().unwrap();
        assert!(v6.contains("fd77::ffff:1".parse().unwrap()));
        assert!(!v6.contains("fd77:0:0:1::1".parse().unwrap()));
    }

    #[test]
    fn broadcast_exists_only_where_there_are_host_bits_for_it() {
        let broadcast = |s: &str| s.parse::<Cidr>().unwrap().broadcast();
        assert_eq!(broadcast("10.77.0.2/24"), Some("10.77.0.255".parse().unwrap()));
        assert_eq!(broadcast("10.77.0.2/31"), None);
        assert_eq!(broadcast("10.77.0.2/32"), None);
        assert_eq!(broadcast("fd77::2/64"), None);
    }
}
