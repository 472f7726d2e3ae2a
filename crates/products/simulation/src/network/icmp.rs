//! ICMP errors of a router between the hosts, about packets that it cannot forward.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::icmpv6::DestUnreachableCode;
use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder};
use pagewire_mem::PacketBuf;

/// The router's addresses. No host has them: there are fewer hosts than addresses below these.
pub(crate) const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 254);
pub(crate) const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0xffff, 0, 0, 1);

/// Hop limit of the message: Linux's default.
const HOPS: u8 = 64;

/// Bytes of the packet that are quoted: headers of both layers, with room for the message in front
/// of it in a packet's head.
const QUOTE: usize = 64;

/// The reason why a packet goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpError {
    /// No host has the address (RFC 792, RFC 4443 section 3.1).
    NoHost,
    /// The path takes packets of at most this number of bytes (RFC 1191, RFC 8201).
    TooBig(usize),
}

/// The source and destination of an IP packet.
pub(crate) fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let v4 = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
    let v6 = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?));
    match packet.first()? >> 4 {
        4 => Some((v4(12)?, v4(16)?)),
        6 => Some((v6(8)?, v6(24)?)),
        _ => None,
    }
}

/// The message about `packet` to its sender. `None`: such a packet is not answered, an ICMP
/// error for instance (RFC 1122 section 3.2.2, RFC 4443 section 2.4).
pub(crate) fn message(packet: &PacketBuf, error: IcmpError) -> Option<PacketBuf> {
    let head = packet.head();
    let (to, about) = addresses(head)?;
    if to.is_unspecified() || about.is_multicast() {
        return None;
    }
    let quote = head.get(..QUOTE.min(head.len()))?;
    let mut bytes = Vec::new();
    match to {
        IpAddr::V4(to) => {
            let header = usize::from(head.first()? & 15) * 4;
            // An ICMP message is answered only if it is an echo request.
            if head.get(9) == Some(&1) && head.get(header) != Some(&8) {
                return None;
            }
            let what = match error {
                IcmpError::NoHost => DestUnreachableHeader::Host,
                IcmpError::TooBig(mtu) => DestUnreachableHeader::FragmentationNeeded {
                    next_hop_mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
                },
            };
            let builder = PacketBuilder::ipv4(ROUTER_V4.octets(), to.octets(), HOPS)
                .icmpv4(Icmpv4Type::DestinationUnreachable(what));
            builder.write(&mut bytes, quote).ok()?;
        }
        IpAddr::V6(to) => {
            // RFC 4443 section 2.1: error messages have types below 128.
            if head.get(6) == Some(&58) && head.get(40).is_none_or(|&kind| kind < 128) {
                return None;
            }
            let what = match error {
                IcmpError::NoHost => {
                    Icmpv6Type::DestinationUnreachable(DestUnreachableCode::Address)
                }
                IcmpError::TooBig(mtu) => Icmpv6Type::PacketTooBig { mtu: mtu as u32 },
            };
            let builder = PacketBuilder::ipv6(ROUTER_V6.octets(), to.octets(), HOPS).icmpv6(what);
            builder.write(&mut bytes, quote).ok()?;
        }
    }
    let mut answer = PacketBuf::for_rx();
    answer.append(bytes.len())?.copy_from_slice(&bytes);
    Some(answer)
}
