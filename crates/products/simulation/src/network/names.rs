//! [`Names`]: the addresses of hosts, and the resolver that turns names into addresses.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustc_hash::FxHashMap;

/// The versions of IP that hosts speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpVersion {
    /// Addresses from `10.0.0.0/8`.
    #[default]
    V4,
    /// Addresses from `fd00::/64`.
    V6,
    /// Both, IPv4 first.
    Both,
}

impl IpVersion {
    /// The addresses of the host with this number, in the order of preference.
    pub(crate) fn addresses(self, host: u32) -> Vec<IpAddr> {
        let n = host + 1;
        let v4 = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | n));
        let v6 = IpAddr::V6(Ipv6Addr::from_bits(0xfd00_u128 << 112 | u128::from(n)));
        match self {
            Self::V4 => vec![v4],
            Self::V6 => vec![v6],
            Self::Both => vec![v4, v6],
        }
    }
}

/// The addresses of each name, and the host of each address.
#[derive(Debug, Default)]
pub(crate) struct Names {
    names: HashMap<String, Vec<IpAddr>>,
    /// The host of each address; looked up for every packet.
    hosts: FxHashMap<IpAddr, u32>,
}

impl Names {
    /// Names of hosts are compared in lower case, and without a dot at the end.
    pub(crate) fn normal(name: &str) -> String {
        name.strip_suffix('.').unwrap_or(name).to_lowercase()
    }

    pub(crate) fn set(&mut self, name: &str, addresses: Vec<IpAddr>) {
        self.names.insert(Self::normal(name), addresses);
    }

    /// Gives a host its addresses. `Err`: another host has this one.
    pub(crate) fn assign(&mut self, host: u32, addresses: &[IpAddr]) -> Result<(), IpAddr> {
        if let Some(&taken) = addresses.iter().find(|addr| self.hosts.contains_key(addr)) {
            return Err(taken);
        }
        self.hosts.extend(addresses.iter().map(|&addr| (addr, host)));
        Ok(())
    }

    /// The addresses for a host that is given none: those of its number, or of the next number whose addresses
    /// nobody has.
    pub(crate) fn free(&self, ip: IpVersion, host: u32) -> Vec<IpAddr> {
        let mut number = host;
        loop {
            let addresses = ip.addresses(number);
            if !addresses.iter().any(|addr| self.hosts.contains_key(addr)) {
                return addresses;
            }
            number += 1;
        }
    }

    /// The addresses of a name, in the order of preference.
    pub(crate) fn resolve(&self, name: &str) -> Option<&[IpAddr]> {
        self.names.get(&Self::normal(name)).map(Vec::as_slice)
    }

    /// The addresses that a program on a host with `own` addresses finds for `name`, as by a resolver with a hosts
    /// file: the names that were set, and `localhost`.
    pub(crate) fn resolve_on(&self, name: &str, own: &[IpAddr]) -> Option<Vec<IpAddr>> {
        if Self::normal(name) != "localhost" {
            return self.resolve(name).map(<[IpAddr]>::to_vec);
        }
        // RFC 6724 section 2.1: `::1` has the highest precedence.
        let v6 = own.iter().any(IpAddr::is_ipv6).then_some(IpAddr::V6(Ipv6Addr::LOCALHOST));
        let v4 = own.iter().any(IpAddr::is_ipv4).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Some(v6.into_iter().chain(v4).collect())
    }

    /// The number of the host that has this address.
    pub(crate) fn host_of(&self, addr: IpAddr) -> Option<u32> {
        self.hosts.get(&addr).copied()
    }
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
