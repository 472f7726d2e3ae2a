//! Header formats: each a small plain value with `parse` and `emit`.
//!
//! A header is copied out of the packet's head once and only the copy is believed: a peer that
//! shares the memory cannot change its mind. Every error is the [`DropReason`] that is counted.
//!
//! [`DropReason`]: crate::counters::DropReason

pub(crate) mod arp;
pub(crate) mod ethernet;
pub(crate) mod icmp;
pub(crate) mod ipv4;
pub(crate) mod ipv6;
pub(crate) mod ndp;
pub(crate) mod udp;

#[cfg(test)]
mod tests;

use std::net::IpAddr;

/// Protocol numbers: transports and IPv6 extension headers share one space (RFC 8200 section 4).
pub(crate) mod protocol {
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const ICMP: u8 = 1;
    pub(crate) const IGMP: u8 = 2;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const FRAGMENT: u8 = 44;
    pub(crate) const ICMPV6: u8 = 58;
    pub(crate) const NO_NEXT_HEADER: u8 = 59;
    pub(crate) const DESTINATION_OPTIONS: u8 = 60;
}

/// Lengths and offsets of TCP headers, in bytes (RFC 9293 section 3.1).
pub(crate) mod tcp {
    /// A header without options.
    pub(crate) const LEN: usize = 20;
    pub(crate) const DATA_OFFSET: usize = 12;
    pub(crate) const CHECKSUM_OFFSET: u16 = 16;
}

/// The sum over the pseudo-header of TCP, UDP and ICMPv6 (RFC 9293 section 3.1, RFC 8200 section
/// 8.1), not complemented. `len` is that of transport header and payload.
pub(crate) fn pseudo_header_sum(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> u16 {
    // The IPv4 form has 16 bits of length, the IPv6 form 32; the sums are the same.
    let rest = u64::from(protocol) + len as u64;
    fold(words_of(src) + words_of(dst) + rest)
}

/// An address as a sum of 32-bit words: 16-bit words can be added later (RFC 1071 section 2(C)).
fn words_of(addr: IpAddr) -> u64 {
    match addr {
        IpAddr::V4(a) => u64::from(a.to_bits()),
        IpAddr::V6(a) => {
            let bits = a.to_bits();
            let word = |shift: u32| u64::from((bits >> shift) as u32);
            word(96) + word(64) + word(32) + word(0)
        }
    }
}

/// A sum of words brought to 16 bits, carries added in.
pub(crate) const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The length field for `len` bytes; 0 if it cannot hold them.
pub(crate) fn length_field(len: u32) -> u16 {
    u16::try_from(len).unwrap_or(0)
}

/// The length in a field, of a packet with `len` bytes from where it counts. A TCP super-frame
/// (`may_be_super`) too long for the field has 0 there, as in Linux, and no padding of a link.
pub(crate) fn length(field: u16, len: usize, may_be_super: bool) -> u32 {
    match field {
        0 if may_be_super && len > usize::from(u16::MAX) => len as u32,
        field => u32::from(field),
    }
}

/// Joins `parts` into an array that they fill exactly.
fn concat<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut out = [0; N];
    let bytes = parts.iter().flat_map(|part| part.iter());
    debug_assert_eq!(parts.iter().map(|p| p.len()).sum::<usize>(), N);
    for (to, from) in out.iter_mut().zip(bytes) {
        *to = *from;
    }
    out
}
