//! Frames with solicitations and DHCPv6 messages: recognising, reading and building them.

use std::net::Ipv6Addr;

use etherparse::icmpv6::NdpOptionsIterator;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use pagewire::device::{PacketBuf, RxChecksum};
use pagewire::memory::CopyLedger;
use pagewire::parts::intercept::{copy_out, frame_of};

/// Ethernet and IPv6 headers.
const HEADERS: usize = 14 + 40;

/// Longest message that is read: a frame of the usual MTU. Larger ones are malformed.
pub(super) const LONGEST: usize = 1514;

/// ICMPv6 types, next headers and ports.
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const ICMP6: u8 = 58;
const UDP: u8 = 17;
const SERVER_PORT: u16 = 547;
const CLIENT_PORT: u16 = 546;

/// The group of all nodes on the link (RFC 4291 section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The group of all DHCPv6 servers on the link (RFC 8415 section 7.1).
const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// Our side of the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ours {
    pub(super) mac: [u8; 6],
    pub(super) link_local: Ipv6Addr,
}

/// A message for us.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked<'a> {
    /// A router solicitation; `from`: `None` if the guest has no address yet.
    Router { from: Option<Ipv6Addr>, mac: [u8; 6] },
    /// A DHCPv6 message of a client.
    Dhcp { from: Ipv6Addr, mac: [u8; 6], message: &'a [u8] },
}

/// Whether a frame is a router solicitation, or UDP for a DHCPv6 server. Reads a few header bytes
/// of every frame.
#[inline]
pub(super) fn is_asked(frame: &mut PacketBuf) -> bool {
    // An Ethernet header of IPv6: all else passes after one comparison.
    if frame.head().get(12..14).is_some_and(|kind| kind != [0x86, 0xdd]) {
        return false;
    }
    if !frame.linearize(HEADERS + 4) {
        return false;
    }
    let head = frame.head();
    if head.get(12..14) != Some(&[0x86, 0xdd]) {
        return false;
    }
    match head.get(20) {
        Some(&ICMP6) => head.get(HEADERS) == Some(&ROUTER_SOLICITATION),
        Some(&UDP) => {
            // To the group only: RFC 8415 section 18.4 has servers ignore other messages.
            head.get(38..54) == Some(&ALL_SERVERS.octets())
                && head.get(HEADERS + 2..HEADERS + 4) == Some(&SERVER_PORT.to_be_bytes())
        }
        _ => false,
    }
}

/// Reads such a frame. Its bytes are copied out first: they must not change any more.
pub(super) fn read<'a>(
    frame: &PacketBuf,
    into: &'a mut [u8; LONGEST],
    ledger: &mut CopyLedger,
) -> Option<Asked<'a>> {
    let checked = frame.rx_checksum == RxChecksum::Valid;
    let bytes = copy_out(frame, into, ledger)?;
    let packet = SlicedPacket::from_ethernet(bytes).ok()?;
    let mac = *bytes.get(6..12)?.first_chunk()?;
    let Some(NetSlice::Ipv6(ip)) = &packet.net else { return None };
    let (source, dst) = (ip.header().source_addr(), ip.header().destination_addr());
    match packet.transport? {
        TransportSlice::Icmpv6(icmp) => {
            // RFC 4861 section 6.1.1: validation of router solicitations.
            let sum = checked || icmp.is_checksum_valid(source.octets(), dst.octets());
            let valid = ip.header().hop_limit() == 255 && icmp.code_u8() == 0 && sum;
            let mut options = NdpOptionsIterator::from_slice(icmp.slice().get(8..)?);
            if !valid || options.any(|option| option.is_err()) {
                return None;
            }
            let from = (!source.is_unspecified()).then_some(source);
            Some(Asked::Router { from, mac })
        }
        TransportSlice::Udp(udp) => {
            let sum = udp
                .to_header()
                .calc_checksum_ipv6_raw(source.octets(), dst.octets(), udp.payload())
                .is_ok_and(|sum| sum == udp.checksum());
            if !(checked || sum) || !source.is_unicast_link_local() {
                return None;
            }
            Some(Asked::Dhcp { from: source, mac, message: udp.payload() })
        }
        _ => None,
    }
}

/// An advertisement to one guest, or to all.
pub(super) fn advertisement(
    ours: &Ours,
    to: Option<(Ipv6Addr, [u8; 6])>,
    body: &[u8],
) -> Option<PacketBuf> {
    let (to, mac) = to.unwrap_or((ALL_NODES, group_mac(ALL_NODES)));
    // RFC 4861 section 6.1.2: from the link-local address, with hop limit 255.
    let front = PacketBuilder::ethernet2(ours.mac, mac)
        .ipv6(ours.link_local.octets(), to.octets(), 255)
        .icmpv6_raw(ROUTER_ADVERTISEMENT, 0, *body.first_chunk()?);
    let rest = body.get(4..)?;
    let mut bytes = Vec::with_capacity(front.size(rest.len()));
    front.write(&mut bytes, rest).ok()?;
    frame_of(bytes, HEADERS)
}

/// A DHCPv6 answer to a client.
pub(super) fn dhcp(ours: &Ours, to: (Ipv6Addr, [u8; 6]), message: &[u8]) -> Option<PacketBuf> {
    let front = PacketBuilder::ethernet2(ours.mac, to.1)
        .ipv6(ours.link_local.octets(), to.0.octets(), 64)
        .udp(SERVER_PORT, CLIENT_PORT);
    let mut bytes = Vec::with_capacity(front.size(message.len()));
    front.write(&mut bytes, message).ok()?;
    frame_of(bytes, HEADERS)
}

/// RFC 2464 section 7.
fn group_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}
