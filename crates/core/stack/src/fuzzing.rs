//! The parsers, for fuzz targets. Not part of the interface.
//!
//! `black_box` keeps the compiler from removing a parser whose result is unused.

use core::hint::black_box;

use crate::net::wire::{arp, ethernet, icmp, ipv4, ipv6, ndp, udp};

/// An Ethernet header that parses is emitted as it was.
pub fn ethernet(data: &[u8]) {
    if let Ok(header) = ethernet::Header::parse(data) {
        assert_eq!(data.get(..ethernet::LEN), Some(&header.emit()[..]));
    }
}

/// An ARP packet that parses is emitted and parsed again to the same value.
pub fn arp(data: &[u8]) {
    if let Ok(packet) = arp::Packet::parse(data) {
        assert_eq!(arp::Packet::parse(&packet.emit()), Ok(packet));
    }
}

/// An IPv4 header, in a packet that is as long as the bytes. One that parses is emitted (without
/// its options) and parsed again to the same value.
pub fn ipv4(data: &[u8]) {
    if let Ok(header) = ipv4::Header::parse(data, data.len()) {
        let again = ipv4::Header::parse(&header.emit(), data.len());
        assert_eq!(again, Ok(ipv4::Header { header_len: ipv4::LEN as u8, ..header }));
    }
}

/// An IPv6 header, then everything as each kind of extension header.
pub fn ipv6(data: &[u8]) {
    if let Ok(header) = ipv6::Header::parse(data, data.len()) {
        assert_eq!(ipv6::Header::parse(&header.emit(), data.len()), Ok(header));
    }
    if let Ok(fragment) = ipv6::Fragment::parse(data) {
        assert_eq!(ipv6::Fragment::parse(&fragment.emit()), Ok(fragment));
    }
    let _ = black_box(ipv6::Extension::parse(data));
    black_box(ipv6::check_options(data));
}

/// An ICMP message, and what an error quotes in both versions.
pub fn icmp(data: &[u8]) {
    let _ = black_box(icmp::Header::parse(data));
    let _ = black_box(icmp::parse_quoted_v4(data));
    let _ = black_box(icmp::parse_quoted_v6(data));
}

/// A neighbour discovery message that parses is emitted and parsed again to the same value.
pub fn ndp(data: &[u8]) {
    if let Ok(message) = ndp::Message::parse(data) {
        let (bytes, len) = message.emit();
        assert_eq!(bytes.get(..len).map(ndp::Message::parse), Some(Ok(message)));
    }
}

/// A UDP header, in a packet that is as long as the bytes: one that parses is emitted and parsed
/// again to the same value.
pub fn udp(data: &[u8]) {
    if let Ok(header) = udp::Header::parse(data, data.len()) {
        assert_eq!(udp::Header::parse(&black_box(header.emit()), data.len()), Ok(header));
    }
}
