//! Parses frames of ours that a device refused. The sockets report the refusal to the connection.

use pagewire_mem::PacketBuf;
use pagewire_mem::link::Medium;
use pagewire_tcp::{Flags, TcpHeader};

use crate::net::links::config::LinkIndex;
use crate::net::wire::{ethernet, icmp, ipv4, ipv6, protocol};
use crate::net::{Net, QuotedPacket};

impl Net {
    /// The TCP segment in a frame made for this link, as an ICMP error quotes it, and its length.
    pub(crate) fn refused_segment(
        &self,
        link: LinkIndex,
        frame: &PacketBuf,
    ) -> Option<(QuotedPacket, u32)> {
        let skip = match self.links.at(link).device.medium {
            Medium::Ethernet => ethernet::LEN,
            Medium::Ip => 0,
        };
        let packet = frame.head().get(skip..)?;
        let (about, ip_len) = match packet.first()? >> 4 {
            4 => (icmp::parse_quoted_v4(packet), ipv4::header_len(*packet.first()?)),
            _ => (icmp::parse_quoted_v6(packet), ipv6::LEN),
        };
        let about = about.ok().filter(|about| about.protocol == protocol::TCP)?;
        let (header, header_len) = TcpHeader::parse(packet.get(ip_len..)?).ok()?;
        let payload = frame.len().checked_sub(skip + ip_len + header_len)?;
        let marks = (header.flags & (Flags::SYN | Flags::FIN)).iter().count();
        Some((about, u32::try_from(payload + marks).ok()?))
    }
}
