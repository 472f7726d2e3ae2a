//! Results of input: the parsed IP headers ([`Received`]), and the value that the network layer hands up to
//! the sockets ([`Inbound`]).

use std::net::IpAddr;

use pagewire_mem::PacketBuf;

use crate::counters::DropReason;
use crate::net::links::config::LinkIndex;
use crate::net::routes::Delivery;
use crate::net::wire::{ipv4, ipv6};
use crate::sockets::tuple::Tuple;

/// The result of one packet, or the reason why it was dropped. `None`: the network layer answered it or keeps
/// it, and the sockets have nothing to do.
pub(crate) type InputResult = Result<Option<Inbound>, DropReason>;

/// An input for the sockets. The packet itself is not moved: it is a quarter of a kilobyte.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inbound {
    /// The packet that was handed in is a transport packet to an address of ours (or to a group or
    /// broadcast, UDP only). Its head: exactly the transport header (its length validated, options
    /// not). Its fragments: exactly the payload.
    Transport(Received),
    /// The packet that was handed in is an echo request to another host's address, by a transparent
    /// link. Its head: the ICMP header up to the identifier. Its fragments: the rest.
    Echo(Received),
    /// An error about a packet of ours: an ICMP error whose quote is sound and names an address of
    /// ours, or a neighbour that did not answer. The sockets check whether the quoted ports and
    /// sequence number belong to a living socket (RFC 5927).
    IcmpError { about: QuotedPacket, kind: IcmpKind },
}

/// Where a packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::net) struct Origin {
    /// Whether the frame was to a group of stations, or to all.
    pub(in crate::net) group: bool,
    /// Whether the packet is from this host: its addresses are not checked.
    pub(in crate::net) loopback: bool,
    /// The link by which the packet came in; for a packet of this host to a group, the one by which it left.
    pub(in crate::net) link: LinkIndex,
}

impl Origin {
    /// A frame to our station, by this link.
    pub(in crate::net) const fn frame(link: LinkIndex) -> Self {
        Self { group: false, loopback: false, link }
    }

    /// A packet of this host.
    pub(in crate::net) const fn loopback(link: LinkIndex) -> Self {
        Self { group: false, loopback: true, link }
    }
}

/// The IP headers of a received packet, parsed once and passed up to the sockets unchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) src: IpAddr,
    /// The address or group of ours that the packet was sent to.
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    /// The two ECN bits of the IP header.
    pub(crate) ecn: u8,
    pub(crate) hop_limit: u8,
    /// The relation of `dst` to this host.
    pub(in crate::net) delivery: Delivery,
    /// Bytes of IP headers in memory in front of the head, for an ICMP error to quote; 0: gone.
    pub(in crate::net) header_len: u16,
    /// Offset, from the start of the IP header, of the field that names the protocol.
    pub(in crate::net) next_field: u16,
    /// See [`Origin`].
    pub(crate) link: LinkIndex,
    pub(in crate::net) loopback: bool,
    pub(in crate::net) group: bool,
}

impl Received {
    /// Takes the fields of an IPv4 header. `delivery` is not known yet.
    #[inline(always)]
    pub(in crate::net) fn v4(header: &ipv4::Header, origin: Origin) -> Self {
        Self {
            src: header.src.into(),
            dst: header.dst.into(),
            protocol: header.protocol,
            ecn: header.tos & 3,
            hop_limit: header.ttl,
            delivery: Delivery::Foreign,
            header_len: header.header_len.into(),
            next_field: 9,
            link: origin.link,
            loopback: origin.loopback,
            group: origin.group,
        }
    }

    /// Takes the fields of an IPv6 header. `delivery` is not known yet.
    #[inline(always)]
    pub(in crate::net) fn v6(header: &ipv6::Header, origin: Origin) -> Self {
        Self {
            src: header.src.into(),
            dst: header.dst.into(),
            protocol: header.next_header,
            ecn: header.traffic_class & 3,
            hop_limit: header.hop_limit,
            delivery: Delivery::Foreign,
            header_len: ipv6::LEN as u16,
            next_field: 6,
            link: origin.link,
            loopback: origin.loopback,
            group: origin.group,
        }
    }

    /// Whether routers may not cut the packet. Reads the IP header in front of the head of `packet`; `false` if
    /// that is gone.
    pub(crate) fn forbids_fragments(&self, packet: &mut PacketBuf) -> bool {
        let len = usize::from(self.header_len);
        if self.dst.is_ipv6() || len == 0 || packet.push(len).is_none() {
            return self.dst.is_ipv6();
        }
        let flags = packet.head().get(6).copied().unwrap_or(0);
        packet.pull(len);
        flags & ipv4::DONT_FRAGMENT != 0
    }

    /// Source, destination, link and ECN bits.
    pub(crate) fn ends(&self) -> (IpAddr, IpAddr, LinkIndex, u8) {
        (self.src, self.dst, self.link, self.ecn)
    }

    /// Whether the packet is to this host alone.
    pub(crate) fn is_unicast(&self) -> bool {
        self.delivery == Delivery::Unicast && !self.group
    }
}

/// The headers of a packet of ours, as an ICMP error quotes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QuotedPacket {
    /// Our address.
    pub(crate) src: IpAddr,
    /// The peer's address.
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    /// Our port.
    pub(crate) src_port: u16,
    /// The peer's port.
    pub(crate) dst_port: u16,
    /// TCP's sequence number, 0 for others.
    pub(crate) seq: u32,
}

impl QuotedPacket {
    /// The packet's ends, ours first.
    pub(crate) fn tuple(&self) -> Tuple {
        Tuple {
            local: self.src,
            remote: self.dst,
            local_port: self.src_port,
            remote_port: self.dst_port,
        }
    }
}

/// The reason why a packet of ours was not delivered, as ICMP reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpKind {
    /// Too long for a link on the path, which takes IP packets of `mtu` bytes.
    PacketTooBig { mtu: usize },
    /// A router has no route (soft).
    NetUnreachable,
    /// The last router, or we, cannot find the host (soft).
    HostUnreachable,
    /// The host does not speak the protocol (hard).
    ProtocolUnreachable,
    /// No socket has the port (hard).
    PortUnreachable,
    /// Administratively prohibited (soft for TCP).
    Prohibited,
    /// The hop limit or the time for reassembly ran out (soft).
    TimeExceeded,
    /// A router or the host found the header faulty (soft).
    ParameterProblem,
}
