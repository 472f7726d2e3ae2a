//! A [`PacketSummary`]: the headers of a packet in readable form, for timelines and comparisons.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use etherparse::{LaxPacketHeaders, NetHeaders, TcpHeader, TransportHeader};
use pagewire_mem::{CopyLedger, PacketBuf};
use smallvec::SmallVec;

use crate::limits::PAYLOAD_SHOWN;
use crate::network::icmp::addresses;

/// A TCP segment's flow: both ends, in its direction.
pub(crate) type TcpFlow = (IpAddr, u16, IpAddr, u16);

/// The readable headers of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PacketSummary {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) transport: Transport,
    payload: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp { flow: TcpFlow, flags: String, seq: u32, ack: Option<u32>, window: u16, len: usize },
    Udp { ports: (u16, u16), len: usize },
    Icmp { what: String },
    Other,
}

impl PacketSummary {
    pub(crate) fn flow(&self) -> Option<TcpFlow> {
        match self.transport {
            Transport::Tcp { flow, .. } => Some(flow),
            Transport::Udp { .. } | Transport::Icmp { .. } | Transport::Other => None,
        }
    }

    /// The summary of a packet whose headers are readable.
    pub(crate) fn of(packet: &PacketBuf) -> Option<Self> {
        let head = packet.head();
        let (from, to) = addresses(head)?;
        let headers = LaxPacketHeaders::from_ip(head).ok()?;
        let header_len = headers.net.as_ref().map_or(0, NetHeaders::header_len);
        let mut payload = packet.len();
        let transport = match headers.transport {
            Some(TransportHeader::Tcp(tcp)) => {
                payload = header_len + tcp.header_len();
                let len = packet.len().saturating_sub(payload);
                Transport::Tcp {
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
                Transport::Udp { ports: (udp.source_port, udp.destination_port), len }
            }
            Some(TransportHeader::Icmpv4(icmp)) => {
                Transport::Icmp { what: format!("{:?}", icmp.icmp_type) }
            }
            Some(TransportHeader::Icmpv6(icmp)) => {
                Transport::Icmp { what: format!("{:?}", icmp.icmp_type) }
            }
            Some(TransportHeader::Igmp(_)) | None => Transport::Other,
        };
        Some(Self { from, to, transport, payload })
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

/// The form for comparisons: without the names of hosts.
impl fmt::Display for PacketSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.transport {
            Transport::Tcp { flow, flags, seq, len, .. } => {
                write!(f, "TCP {}>{} {flags} seq {seq} len {len}", flow.1, flow.3)
            }
            Transport::Udp { ports, len } => write!(f, "UDP {}>{} len {len}", ports.0, ports.1),
            Transport::Icmp { what } => write!(f, "ICMP {what}"),
            Transport::Other => f.write_str("IP"),
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
