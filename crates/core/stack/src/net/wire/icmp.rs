//! ICMP headers of both versions (RFC 792, RFC 4443), and what errors quote.

use std::net::IpAddr;

use super::{ipv4, ipv6, protocol};
use crate::counters::DropReason;
use crate::limits::EXTENSION_HEADERS;
use crate::net::QuotedPacket;

/// Bytes of an ICMP header: type, code, checksum and one word.
pub(crate) const LEN: usize = 8;

pub(crate) const CHECKSUM_OFFSET: u16 = 2;

/// Bytes of the header of an echo up to the end of its identifier.
pub(crate) const IDENT_LEN: usize = 6;

/// Types of RFC 792.
pub(crate) mod v4 {
    pub(crate) const ECHO_REPLY: u8 = 0;
    pub(crate) const UNREACHABLE: u8 = 3;
    pub(crate) const SOURCE_QUENCH: u8 = 4;
    pub(crate) const REDIRECT: u8 = 5;
    pub(crate) const ECHO_REQUEST: u8 = 8;
    pub(crate) const TIME_EXCEEDED: u8 = 11;
    pub(crate) const PARAMETER_PROBLEM: u8 = 12;
}

/// Types of RFC 4443 and RFC 4861.
pub(crate) mod v6 {
    pub(crate) const UNREACHABLE: u8 = 1;
    pub(crate) const PACKET_TOO_BIG: u8 = 2;
    pub(crate) const TIME_EXCEEDED: u8 = 3;
    pub(crate) const PARAMETER_PROBLEM: u8 = 4;
    pub(crate) const ECHO_REQUEST: u8 = 128;
    pub(crate) const ECHO_REPLY: u8 = 129;
    pub(crate) const ROUTER_SOLICITATION: u8 = 133;
    pub(crate) const ROUTER_ADVERTISEMENT: u8 = 134;
    pub(crate) const NEIGHBOR_SOLICITATION: u8 = 135;
    pub(crate) const NEIGHBOR_ADVERTISEMENT: u8 = 136;
    pub(crate) const REDIRECT: u8 = 137;
}

/// An ICMP header; `output.rs` computes the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) code: u8,
    /// Identifier and sequence number, MTU, pointer or nothing.
    pub(crate) word: u32,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let b = bytes.first_chunk::<LEN>().ok_or(DropReason::IcmpTruncated)?;
        Ok(Self { kind: b[0], code: b[1], word: u32::from_be_bytes([b[4], b[5], b[6], b[7]]) })
    }

    /// The header with a checksum of 0.
    pub(crate) fn emit(&self) -> [u8; LEN] {
        let [w0, w1, w2, w3] = self.word.to_be_bytes();
        [self.kind, self.code, 0, 0, w0, w1, w2, w3]
    }
}

/// Reads what an ICMP error quotes of an IPv4 packet, with any length and header checksum.
pub(crate) fn parse_quoted_v4(bytes: &[u8]) -> Result<QuotedPacket, DropReason> {
    let b = bytes.first_chunk::<{ ipv4::LEN }>().ok_or(DropReason::IcmpTruncated)?;
    let header_len = ipv4::header_len(b[0]);
    if b[0] >> 4 != 4 || header_len < ipv4::LEN {
        return Err(DropReason::IcmpQuote);
    }
    // The ports are in the first fragment only.
    if u16::from_be_bytes([b[6], b[7]]) & 0x1fff != 0 {
        return Err(DropReason::IcmpQuote);
    }
    let src = IpAddr::from([b[12], b[13], b[14], b[15]]);
    let dst = IpAddr::from([b[16], b[17], b[18], b[19]]);
    quoted(src, dst, b[9], bytes.get(header_len..).unwrap_or_default())
}

/// Reads what an ICMPv6 error quotes.
pub(crate) fn parse_quoted_v6(bytes: &[u8]) -> Result<QuotedPacket, DropReason> {
    let b = bytes.first_chunk::<{ ipv6::LEN }>().ok_or(DropReason::IcmpTruncated)?;
    let header = ipv6::Header {
        payload_len: 0,
        ..ipv6::Header::parse(&b[..], usize::MAX).map_err(|_| DropReason::IcmpQuote)?
    };
    let mut next = header.next_header;
    let mut rest = bytes.get(ipv6::LEN..).unwrap_or_default();
    for _ in 0..EXTENSION_HEADERS {
        match next {
            protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS | protocol::ROUTING => {
                let ext = ipv6::Extension::parse(rest).map_err(|_| DropReason::IcmpTruncated)?;
                next = ext.next_header;
                rest = rest.get(ext.len..).ok_or(DropReason::IcmpTruncated)?;
            }
            protocol::FRAGMENT => {
                let part = ipv6::Fragment::parse(rest).map_err(|_| DropReason::IcmpTruncated)?;
                if part.offset != 0 {
                    return Err(DropReason::IcmpQuote);
                }
                next = part.next_header;
                rest = rest.get(ipv6::FRAGMENT_LEN..).unwrap_or_default();
            }
            _ => break,
        }
    }
    quoted(header.src.into(), header.dst.into(), next, rest)
}

fn quoted(src: IpAddr, dst: IpAddr, protocol: u8, rest: &[u8]) -> Result<QuotedPacket, DropReason> {
    let mut quoted = QuotedPacket { src, dst, protocol, src_port: 0, dst_port: 0, seq: 0 };
    if matches!(protocol, protocol::TCP | protocol::UDP) {
        // RFC 792: "The internet header plus the first 64 bits of the original datagram's data."
        let b = rest.first_chunk::<8>().ok_or(DropReason::IcmpTruncated)?;
        quoted.src_port = u16::from_be_bytes([b[0], b[1]]);
        quoted.dst_port = u16::from_be_bytes([b[2], b[3]]);
        if protocol == protocol::TCP {
            quoted.seq = u32::from_be_bytes([b[4], b[5], b[6], b[7]]);
        }
    }
    Ok(quoted)
}
