//! Router advertisements: RFC 4861 section 4.2, with the resolvers of RFC 8106.

use std::net::{IpAddr, Ipv6Addr};

use super::AutoconfConfig;
use crate::limits::{RA_LIFETIME, RA_PREFERRED, RA_VALID};

const HOP_LIMIT: u8 = 64;

/// Flags: addresses by DHCPv6 (M), other settings by DHCPv6 (O).
const MANAGED: u8 = 0x80;
const OTHER: u8 = 0x40;

/// Flags of a prefix: on the link (L), guests may make addresses in it (A).
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;

/// Options (RFC 4861 section 4.6, RFC 8106 section 5).
const SOURCE_LINK_ADDRESS: u8 = 1;
const PREFIX: u8 = 3;
const MTU: u8 = 5;
const RESOLVERS: u8 = 25;
const SEARCH_LIST: u8 = 31;

/// The message behind type, code and checksum.
pub(super) fn body(config: &AutoconfConfig, mac: [u8; 6], mtu: usize) -> Vec<u8> {
    let mut body = vec![HOP_LIMIT];
    let managed = if config.guest.is_some() { MANAGED | OTHER } else { OTHER };
    body.push(if config.dhcp { managed } else { 0 });
    let lifetime = u16::try_from(RA_LIFETIME.as_secs()).unwrap_or(u16::MAX);
    body.extend_from_slice(&lifetime.to_be_bytes());
    // Reachable time, retransmission timer: not specified.
    body.extend_from_slice(&[0; 8]);

    option(&mut body, SOURCE_LINK_ADDRESS, &mac);
    let mut link_mtu = [0; 6];
    link_mtu[2..].copy_from_slice(&(mtu as u32).to_be_bytes());
    option(&mut body, MTU, &link_mtu);
    if config.network.prefix() < 128 {
        option(&mut body, PREFIX, &prefix(config));
    }
    let seconds = (RA_LIFETIME.as_secs() as u32).to_be_bytes();
    if !config.dns.is_empty() {
        let mut data = vec![0, 0];
        data.extend_from_slice(&seconds);
        data.extend(config.dns.iter().flat_map(Ipv6Addr::octets));
        option(&mut body, RESOLVERS, &data);
    }
    if !config.search.is_empty() {
        let mut data = vec![0, 0];
        data.extend_from_slice(&seconds);
        data.extend(config.search.iter().flat_map(|domain| encoded(domain)));
        option(&mut body, SEARCH_LIST, &data);
    }
    body
}

/// RFC 4861 section 4.6.2.
fn prefix(config: &AutoconfConfig) -> [u8; 30] {
    let mut data = [0; 30];
    let autonomous = if config.network.prefix() == 64 { AUTONOMOUS } else { 0 };
    data[0] = config.network.prefix();
    data[1] = ON_LINK | autonomous;
    data[2..6].copy_from_slice(&(RA_VALID.as_secs() as u32).to_be_bytes());
    data[6..10].copy_from_slice(&(RA_PREFERRED.as_secs() as u32).to_be_bytes());
    if let IpAddr::V6(network) = config.network.network() {
        data[14..].copy_from_slice(&network.octets());
    }
    data
}

/// Appends an option: its length counts units of eight bytes, type and length included.
fn option(body: &mut Vec<u8>, kind: u8, data: &[u8]) {
    let units = (2 + data.len()).div_ceil(8);
    let end = body.len() + 8 * units;
    body.extend_from_slice(&[kind, units as u8]);
    body.extend_from_slice(data);
    body.resize(end, 0);
}

/// A name as DNS encodes it (RFC 1035 section 3.1).
pub(super) fn encoded(name: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len() + 2);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes
}
