//! IPv4 headers (RFC 791).

use std::net::Ipv4Addr;

use crate::counters::DropReason;

/// Bytes of an IPv4 header without options.
pub(crate) const LEN: usize = 20;

/// Bytes of the router alert option (RFC 2113).
pub(crate) const ROUTER_ALERT_LEN: usize = 4;

/// Option kinds (RFC 791 section 3.1).
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;

/// An IPv4 header. Options are validated and skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes of the header, options included.
    pub(crate) header_len: u8,
    /// The type-of-service octet: DSCP and ECN.
    pub(crate) tos: u8,
    /// Bytes of the packet, header included; on the wire 0 if the field cannot hold it.
    pub(crate) total_len: u32,
    pub(crate) id: u16,
    pub(crate) dont_fragment: bool,
    pub(crate) more_fragments: bool,
    /// In bytes, a multiple of 8.
    pub(crate) fragment_offset: u16,
    pub(crate) ttl: u8,
    pub(crate) protocol: u8,
    pub(crate) src: Ipv4Addr,
    pub(crate) dst: Ipv4Addr,
}

/// Bytes of the header that begins with this octet; not validated.
pub(crate) const fn header_len(first: u8) -> usize {
    (first & 0x0f) as usize * 4
}

/// In the first byte of the field for fragments, the seventh of the header: routers may not cut.
pub(crate) const DONT_FRAGMENT: u8 = 0x40;

impl Header {
    /// The header of a whole packet with `payload` bytes; the rest is 0.
    #[inline(always)]
    pub(crate) const fn new(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload: usize) -> Self {
        Self {
            header_len: LEN as u8,
            tos: 0,
            total_len: (LEN + payload) as u32,
            id: 0,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 0,
            protocol,
            src,
            dst,
        }
    }

    /// Parses the header, options included, at the front of a packet of `packet_len` bytes.
    #[inline(always)]
    pub(crate) fn parse(bytes: &[u8], packet_len: usize) -> Result<Self, DropReason> {
        let b = bytes.first_chunk::<LEN>().ok_or(DropReason::Ipv4Truncated)?;
        if b[0] >> 4 != 4 {
            return Err(DropReason::Ipv4Version);
        }
        let header_len = header_len(b[0]);
        let header = match bytes.get(..header_len) {
            Some(header) if header_len >= LEN => header,
            _ => return Err(DropReason::Ipv4HeaderLength),
        };
        // RFC 1122 section 3.2.1.2: "A host MUST verify the IP header checksum on every received
        // datagram and silently discard every datagram that has a bad checksum."
        if header_sum(header) != 0xffff {
            return Err(DropReason::Ipv4Checksum);
        }
        let fragment = u16::from_be_bytes([b[6], b[7]]);
        let tcp = b[9] == super::protocol::TCP && fragment & 0x3fff == 0;
        let total_len = super::length(u16::from_be_bytes([b[2], b[3]]), packet_len, tcp);
        if (total_len as usize) < header_len {
            return Err(DropReason::Ipv4TotalLengthSmall);
        }
        if total_len as usize > packet_len {
            return Err(DropReason::Ipv4TotalLengthBeyond);
        }
        // RFC 791 section 3.1: "Bit 0: reserved, must be zero".
        if fragment & 0x8000 != 0 {
            return Err(DropReason::Ipv4Flags);
        }
        if header_len > LEN {
            check_options(header.get(LEN..).unwrap_or_default())?;
        }
        Ok(Self {
            header_len: header_len as u8,
            tos: b[1],
            total_len,
            id: u16::from_be_bytes([b[4], b[5]]),
            dont_fragment: fragment & 0x4000 != 0,
            more_fragments: fragment & 0x2000 != 0,
            fragment_offset: (fragment & 0x1fff) << 3,
            ttl: b[8],
            protocol: b[9],
            src: Ipv4Addr::new(b[12], b[13], b[14], b[15]),
            dst: Ipv4Addr::new(b[16], b[17], b[18], b[19]),
        })
    }

    /// The header without options, checksum included. `header_len` is taken as 20.
    pub(crate) fn emit(&self) -> [u8; LEN] {
        let mut fragment = self.fragment_offset >> 3;
        if self.dont_fragment {
            fragment |= 0x4000;
        }
        if self.more_fragments {
            fragment |= 0x2000;
        }
        let [l0, l1] = super::length_field(self.total_len).to_be_bytes();
        let [i0, i1] = self.id.to_be_bytes();
        let [f0, f1] = fragment.to_be_bytes();
        let [s0, s1, s2, s3] = self.src.octets();
        let [d0, d1, d2, d3] = self.dst.octets();
        let mut b = [
            0x45,
            self.tos,
            l0,
            l1,
            i0,
            i1,
            f0,
            f1,
            self.ttl,
            self.protocol,
            0,
            0,
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3,
        ];
        [b[10], b[11]] = (!header_sum(&b)).to_be_bytes();
        b
    }

    /// The header with a router alert (RFC 2113), checksum included. `header_len` is taken as 24.
    pub(crate) fn emit_with_router_alert(&self) -> [u8; LEN + ROUTER_ALERT_LEN] {
        let mut b = [0; LEN + ROUTER_ALERT_LEN];
        let (header, option) = b.split_at_mut(LEN);
        header.copy_from_slice(&self.emit());
        option.copy_from_slice(&[148, ROUTER_ALERT_LEN as u8, 0, 0]);
        (b[0], b[10], b[11]) = (0x46, 0, 0);
        [b[10], b[11]] = (!header_sum(&b)).to_be_bytes();
        b
    }

    /// Whether the packet is a part of a datagram.
    pub(crate) const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset > 0
    }
}

/// The sum over a header, whose length is a multiple of four.
fn header_sum(header: &[u8]) -> u16 {
    let (words, _) = header.as_chunks::<4>();
    super::fold(words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum())
}

/// Walks the options: each must end within the header, and none may be a source route.
fn check_options(mut options: &[u8]) -> Result<(), DropReason> {
    while let [kind, rest @ ..] = options {
        match *kind {
            END_OF_OPTIONS => return Ok(()),
            NO_OPERATION => options = rest,
            kind => {
                let len = rest.first().map_or(0, |&len| usize::from(len));
                if len < 2 {
                    return Err(DropReason::Ipv4OptionLength);
                }
                options = options.get(len..).ok_or(DropReason::Ipv4OptionLength)?;
                // RFC 7126 section 4.3: packets with source routes are to be dropped.
                if matches!(kind, LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE) {
                    return Err(DropReason::Ipv4SourceRoute);
                }
            }
        }
    }
    Ok(())
}
