//! IPv6 headers and extension headers (RFC 8200).

use std::net::Ipv6Addr;

use crate::counters::DropReason;
use crate::limits::EXTENSION_OPTIONS;

/// Bytes of an IPv6 header.
pub(crate) const LEN: usize = 40;

/// Bytes of a fragment header.
pub(crate) const FRAGMENT_LEN: usize = 8;

/// A hop-by-hop header with a router alert for MLD (RFC 2711 section 2.1, value 0), then ICMPv6.
pub(crate) const ROUTER_ALERT: [u8; 8] = [super::protocol::ICMPV6, 0, 5, 2, 0, 0, 1, 0];

/// Whether an IPv6 packet has a hop-by-hop header with a router alert for MLD.
pub(crate) fn has_router_alert(bytes: &[u8]) -> bool {
    let Some(options) = bytes.get(LEN..) else { return false };
    let Some(len) = Extension::parse(options).ok().map(|header| header.len) else { return false };
    let mut options = options.get(2..len).unwrap_or_default();
    while let [kind, rest @ ..] = options {
        match (kind, rest) {
            (5, [2, 0, 0, ..]) => return bytes.get(6) == Some(&super::protocol::HOP_BY_HOP),
            (0, _) => options = rest,
            (_, [len, rest @ ..]) => options = rest.get(usize::from(*len)..).unwrap_or_default(),
            (_, []) => return false,
        }
    }
    false
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) traffic_class: u8,
    /// 20 bits.
    pub(crate) flow_label: u32,
    /// Bytes behind this header; on the wire 0 if the field cannot hold it.
    pub(crate) payload_len: u32,
    pub(crate) next_header: u8,
    pub(crate) hop_limit: u8,
    pub(crate) src: Ipv6Addr,
    pub(crate) dst: Ipv6Addr,
}

impl Header {
    /// The header of a packet with `payload` bytes; the rest is 0.
    #[inline(always)]
    pub(crate) const fn new(src: Ipv6Addr, dst: Ipv6Addr, next_header: u8, payload: usize) -> Self {
        let payload_len = payload as u32;
        Self { traffic_class: 0, flow_label: 0, payload_len, next_header, hop_limit: 0, src, dst }
    }

    /// Parses the header at the front of `bytes`, of `packet_len` bytes (padding included).
    pub(crate) fn parse(bytes: &[u8], packet_len: usize) -> Result<Self, DropReason> {
        let b = bytes.first_chunk::<LEN>().ok_or(DropReason::Ipv6Truncated)?;
        if b[0] >> 4 != 6 {
            return Err(DropReason::Ipv6Version);
        }
        let behind = packet_len.saturating_sub(LEN);
        let tcp = b[6] == super::protocol::TCP;
        let payload_len = super::length(u16::from_be_bytes([b[4], b[5]]), behind, tcp);
        if LEN + payload_len as usize > packet_len {
            return Err(DropReason::Ipv6PayloadLengthBeyond);
        }
        // RFC 2675 section 3: a payload length of 0 with a hop-by-hop header announces a
        // jumbogram. We take none: a super-frame needs no such header inside of the machine.
        if b[4..6] == [0, 0] && b[6] == super::protocol::HOP_BY_HOP {
            return Err(DropReason::Ipv6Jumbogram);
        }
        let mut src = [0; 16];
        src.copy_from_slice(&b[8..24]);
        let mut dst = [0; 16];
        dst.copy_from_slice(&b[24..40]);
        Ok(Self {
            traffic_class: (b[0] << 4) | (b[1] >> 4),
            flow_label: u32::from_be_bytes([0, b[1] & 0x0f, b[2], b[3]]),
            payload_len,
            next_header: b[6],
            hop_limit: b[7],
            src: src.into(),
            dst: dst.into(),
        })
    }

    pub(crate) fn emit(&self) -> [u8; LEN] {
        let first =
            (6 << 28) | (u32::from(self.traffic_class) << 20) | (self.flow_label & 0x000f_ffff);
        let mut b = [0; LEN];
        b[0..4].copy_from_slice(&first.to_be_bytes());
        b[4..6].copy_from_slice(&super::length_field(self.payload_len).to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.src.octets());
        b[24..40].copy_from_slice(&self.dst.octets());
        b
    }
}

/// A fragment header (RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) next_header: u8,
    /// In bytes, a multiple of 8.
    pub(crate) offset: u16,
    pub(crate) more: bool,
    pub(crate) id: u32,
}

impl Fragment {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let b = bytes.first_chunk::<FRAGMENT_LEN>().ok_or(DropReason::Ipv6ExtensionTruncated)?;
        let word = u16::from_be_bytes([b[2], b[3]]);
        Ok(Self {
            next_header: b[0],
            offset: word & 0xfff8,
            more: word & 1 == 1,
            id: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
        })
    }

    pub(crate) fn emit(&self) -> [u8; FRAGMENT_LEN] {
        let [o0, o1] = ((self.offset & 0xfff8) | u16::from(self.more)).to_be_bytes();
        let [i0, i1, i2, i3] = self.id.to_be_bytes();
        [self.next_header, 0, o0, o1, i0, i1, i2, i3]
    }
}

/// The beginning that all other extension headers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extension {
    pub(crate) next_header: u8,
    /// Bytes of the whole header.
    pub(crate) len: usize,
}

impl Extension {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let b = bytes.first_chunk::<2>().ok_or(DropReason::Ipv6ExtensionTruncated)?;
        Ok(Self { next_header: b[0], len: (usize::from(b[1]) + 1) * 8 })
    }
}

/// The action that the options of a hop-by-hop or destination header demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionsVerdict {
    /// Nothing: all known, or to be skipped.
    Fine,
    /// Drop the packet.
    Drop(DropReason),
    /// Drop it and send a parameter problem for byte `at`; only to unicast if `unicast_only`.
    Problem { at: usize, unicast_only: bool },
}

/// Walks the options of a hop-by-hop or destination header.
pub(crate) fn check_options(header: &[u8]) -> OptionsVerdict {
    let mut at = 2;
    for _ in 0..=EXTENSION_OPTIONS {
        let Some(&kind) = header.get(at) else { return OptionsVerdict::Fine };
        // Pad1 is a single octet without a length.
        if kind == 0 {
            at += 1;
            // Padding never needs more than seven octets; the count of options bounds the rest.
            continue;
        }
        let end = match header.get(at + 1) {
            Some(&len) => at + 2 + usize::from(len),
            None => return OptionsVerdict::Drop(DropReason::Ipv6OptionLength),
        };
        if end > header.len() {
            return OptionsVerdict::Drop(DropReason::Ipv6OptionLength);
        }
        // PadN, router alert (RFC 2711): nothing to do for a host.
        if kind != 1 && kind != 5 {
            // RFC 8200 section 4.2: the two highest bits say what to do with an option that is
            // not recognised: skip, discard, discard and report, report unless multicast.
            match kind >> 6 {
                0 => {}
                1 => return OptionsVerdict::Drop(DropReason::Ipv6Option),
                2 => return OptionsVerdict::Problem { at, unicast_only: false },
                _ => return OptionsVerdict::Problem { at, unicast_only: true },
            }
        }
        at = end;
    }
    if at >= header.len() {
        OptionsVerdict::Fine
    } else {
        OptionsVerdict::Drop(DropReason::Ipv6ExtensionLimit)
    }
}
