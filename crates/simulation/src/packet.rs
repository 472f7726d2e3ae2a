//! Packets as people read them: for the timeline.

use std::fmt::Write as _;
use std::net::IpAddr;

use etherparse::{LaxPacketHeaders, NetHeaders, TcpHeader, TransportHeader};
use pagewire_mem::PacketBuf;

use crate::icmp::addresses;

/// A TCP segment's flow: both ends, in its direction.
pub(crate) type Flow = (IpAddr, u16, IpAddr, u16);

/// What matters of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp { flow: Flow, flags: String, seq: u32, ack: Option<u32>, window: u16, len: usize },
    Udp { ports: (u16, u16), len: usize },
    Icmp { what: String },
    Other,
}

impl Summary {
    /// A TCP segment's.
    pub(crate) fn flow(&self) -> Option<Flow> {
        match self.kind {
            Kind::Tcp { flow, .. } => Some(flow),
            Kind::Udp { .. } | Kind::Icmp { .. } | Kind::Other => None,
        }
    }

    /// Of a packet whose headers are readable.
    pub(crate) fn of(packet: &PacketBuf) -> Option<Self> {
        let head = packet.head();
        let (from, to) = addresses(head)?;
        let headers = LaxPacketHeaders::from_ip(head).ok()?;
        let header_len = headers.net.as_ref().map_or(0, NetHeaders::header_len);
        let kind = match headers.transport {
            Some(TransportHeader::Tcp(tcp)) => {
                let len = packet.len().saturating_sub(header_len + tcp.header_len());
                Kind::Tcp {
                    flow: (from, tcp.source_port, to, tcp.destination_port),
                    flags: flags(&tcp),
                    seq: tcp.sequence_number,
                    ack: tcp.ack.then_some(tcp.acknowledgment_number),
                    window: tcp.window_size,
                    len,
                }
            }
            Some(TransportHeader::Udp(udp)) => Kind::Udp {
                ports: (udp.source_port, udp.destination_port),
                len: packet.len().saturating_sub(header_len + 8),
            },
            Some(TransportHeader::Icmpv4(icmp)) => {
                Kind::Icmp { what: format!("{:?}", icmp.icmp_type) }
            }
            Some(TransportHeader::Icmpv6(icmp)) => {
                Kind::Icmp { what: format!("{:?}", icmp.icmp_type) }
            }
            Some(TransportHeader::Igmp(_)) | None => Kind::Other,
        };
        Some(Self { from, to, kind })
    }
}

fn flags(tcp: &TcpHeader) -> String {
    let all = [
        (tcp.syn, "SYN"),
        (tcp.fin, "FIN"),
        (tcp.rst, "RST"),
        (tcp.psh, "PSH"),
        (tcp.ack, "ACK"),
        (tcp.urg, "URG"),
        (tcp.ece, "ECE"),
        (tcp.cwr, "CWR"),
    ];
    let mut text = String::new();
    for (_, name) in all.iter().filter(|(set, _)| *set) {
        let separator = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{separator}{name}");
    }
    text
}
