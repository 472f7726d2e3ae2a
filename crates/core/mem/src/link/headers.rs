//! The ends of a frame's headers, as far as a device needs them to separate payload from headers,
//! to follow a flow, and to cut a super-frame.
//!
//! Parsing here is no validation: the stack reads and validates every field again.

use super::limits::MAX_SUPER_FRAME;

const ETHERNET: usize = 14;
const VLAN_TAG: usize = 4;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
/// ICMP for IPv4, in the protocol field of an IP header.
pub const IPPROTO_ICMP: u8 = 1;
/// TCP, in the protocol field of an IP header.
pub const IPPROTO_TCP: u8 = 6;
/// UDP, in the protocol field of an IP header.
pub const IPPROTO_UDP: u8 = 17;
const IPPROTO_ICMPV6: u8 = 58;

/// FIN in the flags byte of a TCP header.
pub const TCP_FIN: u8 = 0x01;
/// SYN in the flags byte of a TCP header.
pub const TCP_SYN: u8 = 0x02;
/// PSH in the flags byte of a TCP header.
pub const TCP_PSH: u8 = 0x08;
/// CWR in the flags byte of a TCP header.
pub const TCP_CWR: u8 = 0x80;

/// The header behind the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A TCP segment.
    Tcp,
    /// The first or only fragment of a UDP datagram.
    Udp,
    /// Anything else, later IP fragments included.
    Other,
}

/// Offsets in a frame, from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Where the IP header begins.
    pub ip: usize,
    /// The IP header is one of IPv6.
    pub v6: bool,
    /// Where the transport header begins.
    pub transport_at: usize,
    /// The kind of transport header.
    pub transport: Transport,
    /// Where payload begins: the length of all headers.
    pub payload: usize,
    /// Where the IP packet ends by its length field; beyond any frame if it has none.
    pub end: usize,
}

/// Why a frame could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// More bytes are needed: at least this many.
    Need(usize),
    /// Neither IPv4 nor IPv6 over Ethernet, or a header that contradicts itself.
    NotIp,
}

/// Finds the headers in the first bytes of a frame.
#[inline(always)]
pub fn parse(frame: &[u8]) -> Result<Layout, ParseError> {
    let mut ip = ETHERNET;
    let mut ethertype = be16(frame, ip - 2)?;
    if ethertype == ETHERTYPE_VLAN {
        ip += VLAN_TAG;
        ethertype = be16(frame, ip - 2)?;
    }
    parse_packet(frame, ip, ethertype)
}

/// Finds the headers in the first bytes of an IP packet that has no link header.
pub fn parse_ip(packet: &[u8]) -> Result<Layout, ParseError> {
    match byte(packet, 0)? >> 4 {
        4 => parse_packet(packet, 0, ETHERTYPE_IPV4),
        6 => parse_packet(packet, 0, ETHERTYPE_IPV6),
        _ => Err(ParseError::NotIp),
    }
}

/// Finds the headers of a frame whose head is exactly its headers. An Ethernet header is no multiple of four
/// bytes long, unlike all behind it, so that the length tells whether there is one.
pub fn parse_head(head: &[u8]) -> Result<Layout, ParseError> {
    if head.len().is_multiple_of(4) { parse_ip(head) } else { parse(head) }
}

/// Finds the headers of the packet of this type that begins at `ip`.
#[inline(always)]
fn parse_packet(frame: &[u8], ip: usize, ethertype: u16) -> Result<Layout, ParseError> {
    let (protocol, transport_at, end, v6) = match ethertype {
        ETHERTYPE_IPV4 => {
            let first = byte(frame, ip)?;
            let header = usize::from(first & 0x0f) * 4;
            if first >> 4 != 4 || header < 20 {
                return Err(ParseError::NotIp);
            }
            let total = length(be16(frame, ip + 2)?);
            // RFC 791, section 3.1: the low 13 bits are the fragment's offset.
            let later = be16(frame, ip + 6)? & 0x1fff != 0;
            let protocol = byte(frame, ip + 9)?;
            (if later { 0xff } else { protocol }, ip + header, ip + total, false)
        }
        ETHERTYPE_IPV6 => {
            if byte(frame, ip)? >> 4 != 6 {
                return Err(ParseError::NotIp);
            }
            let payload = length(be16(frame, ip + 4)?);
            (byte(frame, ip + 6)?, ip + 40, ip + 40 + payload, true)
        }
        _ => return Err(ParseError::NotIp),
    };
    let (transport, payload) = match protocol {
        IPPROTO_TCP => {
            let header = usize::from(byte(frame, transport_at + 12)? >> 4) * 4;
            if header < 20 {
                return Err(ParseError::NotIp);
            }
            (Transport::Tcp, transport_at + header)
        }
        IPPROTO_UDP => (Transport::Udp, transport_at + 8),
        _ => (Transport::Other, transport_at),
    };
    if end < payload {
        return Err(ParseError::NotIp);
    }
    Ok(Layout { ip, v6, transport_at, transport, payload, end })
}

impl Layout {
    /// Source and destination address, adjacent in the header.
    #[inline]
    pub fn addresses<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        let (at, len) = if self.v6 { (self.ip + 8, 32) } else { (self.ip + 12, 8) };
        frame.get(at..at + len)
    }

    /// The protocol whose checksum covers the rest, and the field's offset; `None` for fragments.
    pub fn checksum(&self, frame: &[u8]) -> Option<(u8, usize)> {
        let protocol = if self.v6 {
            *frame.get(self.ip + 6)?
        } else {
            // RFC 791, section 3.1: "more fragments", and the fragment's offset.
            let whole = be16(frame, self.ip + 6).is_ok_and(|field| field & 0x3fff == 0);
            *frame.get(self.ip + 9).filter(|_| whole)?
        };
        let offset = match protocol {
            IPPROTO_TCP => 16,
            IPPROTO_UDP => 6,
            IPPROTO_ICMP if !self.v6 => 2,
            IPPROTO_ICMPV6 if self.v6 => 2,
            _ => return None,
        };
        Some((protocol, offset))
    }

    /// Whether the packet is a whole UDP datagram of the length that its header says.
    pub fn is_whole_datagram(&self, frame: &[u8]) -> bool {
        let whole = self.checksum(frame).is_some_and(|(protocol, _)| protocol == IPPROTO_UDP);
        let len = be16(frame, self.transport_at + 4).map(usize::from);
        whole && len == Ok(self.end - self.transport_at)
    }

    /// Sequence number of a TCP segment.
    #[inline]
    pub fn tcp_seq(&self, frame: &[u8]) -> Option<u32> {
        let at = self.transport_at + 4;
        frame.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// The flags byte of a TCP segment.
    #[inline]
    pub fn tcp_flags(&self, frame: &[u8]) -> Option<u8> {
        frame.get(self.transport_at + 13).copied()
    }

    /// Length of the headers of the connection's data segments: time stamps if this one has them.
    pub fn tcp_data_header(&self, frame: &[u8]) -> usize {
        let bare = self.transport_at + 20;
        let mut options = frame.get(bare..self.payload).unwrap_or_default();
        // RFC 9293, section 3.1: kind 0 ends the list, kind 1 is one byte, others have a length.
        while let Some((&kind, rest)) = options.split_first() {
            options = match kind {
                0 => break,
                1 => rest,
                // RFC 7323, section 3.2: kind 8, 10 bytes; senders pad it to 12.
                8 => return bare + 12,
                _ => match rest.first().and_then(|&n| options.get(usize::from(n.max(2))..)) {
                    Some(next) => next,
                    None => break,
                },
            };
        }
        bare
    }
}

/// The value of a length field; 0 stands for a super-frame too long for it.
#[inline]
const fn length(field: u16) -> usize {
    match field {
        0 => MAX_SUPER_FRAME,
        length => length as usize,
    }
}

#[inline]
fn byte(frame: &[u8], at: usize) -> Result<u8, ParseError> {
    frame.get(at).copied().ok_or(ParseError::Need(at + 1))
}

#[inline]
fn be16(frame: &[u8], at: usize) -> Result<u16, ParseError> {
    match frame.get(at..at + 2) {
        Some(&[high, low]) => Ok(u16::from_be_bytes([high, low])),
        _ => Err(ParseError::Need(at + 2)),
    }
}
