//! Packets as people read them: for the timeline.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use etherparse::{LaxPacketHeaders, NetHeaders, TcpHeader, TransportHeader};
use pagewire_mem::{CopyLedger, PacketBuf};
use smallvec::SmallVec;

use crate::icmp::addresses;
use crate::limits::PAYLOAD_SHOWN;

/// A TCP segment's flow: both ends, in its direction.
pub(crate) type Flow = (IpAddr, u16, IpAddr, u16);

/// What matters of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) kind: Kind,
    /// Where its payload begins.
    payload: usize,
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
        let mut payload = packet.len();
        let kind = match headers.transport {
            Some(TransportHeader::Tcp(tcp)) => {
                payload = header_len + tcp.header_len();
                let len = packet.len().saturating_sub(payload);
                Kind::Tcp {
                    flow: (from, tcp.source_port, to, tcp.destination_port),
                    flags: flags(&tcp),
                    seq: tcp.sequence_number,
                    ack: tcp.ack.then_some(tcp.acknowledgment_number),
                    window: tcp.window_size,
                    len,
                }
            }
            Some(TransportHeader::Udp(udp)) => {
                payload = header_len + 8;
                let len = packet.len().saturating_sub(payload);
                Kind::Udp { ports: (udp.source_port, udp.destination_port), len }
            }
            Some(TransportHeader::Icmpv4(icmp)) => {
                Kind::Icmp { what: format!("{:?}", icmp.icmp_type) }
            }
            Some(TransportHeader::Icmpv6(icmp)) => {
                Kind::Icmp { what: format!("{:?}", icmp.icmp_type) }
            }
            Some(TransportHeader::Igmp(_)) | None => Kind::Other,
        };
        Some(Self { from, to, kind, payload })
    }

    /// The first bytes of the payload as text, in quotes; empty if there is none.
    pub(crate) fn text(&self, packet: &PacketBuf, ledger: &mut CopyLedger) -> String {
        let mut bytes = SmallVec::<[u8; PAYLOAD_SHOWN]>::new();
        let mut add = |piece: &[u8]| {
            let room = PAYLOAD_SHOWN - bytes.len();
            bytes.extend(piece.iter().take(room).copied());
        };
        add(packet.head().get(self.payload..).unwrap_or_default());
        let mut skip = self.payload.saturating_sub(packet.head().len());
        for frag in packet.frags() {
            frag.for_each_piece(ledger, |piece| {
                add(piece.get(skip..).unwrap_or_default());
                skip = skip.saturating_sub(piece.len());
            });
        }
        let more = if packet.len() > self.payload + bytes.len() { "…" } else { "" };
        if bytes.is_empty() { String::new() } else { format!("\"{}\"{more}", readable(&bytes)) }
    }
}

/// Bytes as text, one letter each but for ends of lines; a dot for what is no letter.
fn readable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        match byte {
            b'\n' => text += "\\n",
            b'\r' => text += "\\r",
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push('.'),
        }
    }
    text
}

/// For what is compared: without names.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Tcp { flow, flags, seq, len, .. } => {
                write!(f, "TCP {}>{} {flags} seq {seq} len {len}", flow.1, flow.3)
            }
            Kind::Udp { ports, len } => write!(f, "UDP {}>{} len {len}", ports.0, ports.1),
            Kind::Icmp { what } => write!(f, "ICMP {what}"),
            Kind::Other => f.write_str("IP"),
        }
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
