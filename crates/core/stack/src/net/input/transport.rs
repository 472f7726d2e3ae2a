//! Between steps R3 (ip) and R4 (demux): leaves the transport header alone in the head and the payload
//! in fragments, and verifies the checksum, for all transports.

use pagewire_mem::checksum::Checksum;
use pagewire_mem::{CopyReason, HEAD_CAPACITY, Instant, PacketBuf, RxChecksum};

use crate::counters::DropReason;
use crate::net::Net;
use crate::net::head::{spill_head, trim};
use crate::net::icmp::errors::IcmpError;
use crate::net::input::received::{Inbound, InputResult, Received};
use crate::net::wire::{self, protocol, pseudo_header_sum, tcp, udp};

impl Net {
    /// Handles a transport packet, its head at that header: hands up verified TCP and UDP.
    pub(in crate::net) fn verify_and_hand_up(
        &mut self,
        now: Instant,
        packet: &mut PacketBuf,
        mut received: Received,
    ) -> InputResult {
        let v4 = received.dst.is_ipv4();
        let header_len = match received.protocol {
            protocol::TCP => self.tcp_header(packet, &mut received)?,
            protocol::UDP => self.udp_header(packet, &mut received)?,
            protocol::IGMP if v4 => {
                self.counters.rx_igmp += 1;
                // As much of a long one as the head takes.
                let len = packet.len().clamp(wire::icmp::LEN, HEAD_CAPACITY);
                reserve(packet, &mut received, len, DropReason::GroupMessage)?;
                self.verify(packet, &received, DropReason::IcmpChecksum)?;
                return self.handle_igmp(now, packet, &received).map(|()| None);
            }
            protocol::ICMP | protocol::ICMPV6 if v4 == (received.protocol == protocol::ICMP) => {
                self.counters.rx_icmp += 1;
                reserve(packet, &mut received, wire::icmp::LEN, DropReason::IcmpTruncated)?;
                self.verify(packet, &received, DropReason::IcmpChecksum)?;
                return self.handle_icmp(now, packet, &received);
            }
            // RFC 1122 section 3.2.2.1: code 2, protocol unreachable, "when the designated
            // transport protocol is not supported"; RFC 8200 section 4: unrecognised next header.
            _ => {
                let error = match v4 {
                    true => IcmpError::protocol_unreachable(),
                    false => IcmpError::unknown_next_header(usize::from(received.next_field)),
                };
                self.send_about_payload(now, &received, packet.take(), error);
                return Err(DropReason::ProtocolUnknown);
            }
        };
        if packet.head().len() > header_len {
            self.counters.rx_head_payloads += 1;
            spill_head(&mut self.mem, packet, header_len, CopyReason::LinearHead)?;
        }
        Ok(Some(Inbound::Transport(received)))
    }

    /// Checks a TCP header; returns its length.
    #[inline(always)]
    fn tcp_header(
        &mut self,
        packet: &mut PacketBuf,
        received: &mut Received,
    ) -> Result<usize, DropReason> {
        self.counters.rx_tcp += 1;
        // RFC 1122 section 4.2.3.10: "A TCP implementation MUST silently discard an
        // incoming SYN segment that is addressed to a broadcast or multicast address."
        if !received.is_unicast() {
            return Err(DropReason::TransportBroadcast);
        }
        reserve(packet, received, tcp::LEN, DropReason::TcpTruncated)?;
        let words = packet.head().get(tcp::DATA_OFFSET).map_or(0, |b| b >> 4);
        let header_len = usize::from(words) * 4;
        if header_len < tcp::LEN || header_len > packet.len() {
            return Err(DropReason::TcpDataOffset);
        }
        reserve(packet, received, header_len, DropReason::TcpDataOffset)?;
        self.verify(packet, received, DropReason::TcpChecksum)?;
        // RFC 6335 section 6: port 0 is reserved; it cannot be answered.
        if let [0, 0, _, _, ..] | [_, _, 0, 0, ..] = packet.head() {
            return Err(DropReason::TcpPort);
        }
        Ok(header_len)
    }

    /// Checks a UDP header; returns its length.
    #[inline(always)]
    fn udp_header(
        &mut self,
        packet: &mut PacketBuf,
        received: &mut Received,
    ) -> Result<usize, DropReason> {
        let v4 = received.dst.is_ipv4();
        self.counters.rx_udp += 1;
        if received.src.is_unspecified() {
            return Err(if v4 { DropReason::Ipv4Source } else { DropReason::Ipv6Source });
        }
        reserve(packet, received, udp::LEN, DropReason::UdpTruncated)?;
        let header = udp::Header::parse(packet.head(), packet.len())?;
        trim(packet, usize::from(header.len));
        // RFC 768: "An all zero transmitted checksum value means that the transmitter
        // generated no checksum"; RFC 8200 section 8.1: not in IPv6.
        match header.checksum {
            0 if v4 || packet.rx_checksum == RxChecksum::Valid => {}
            0 => return Err(DropReason::UdpChecksum),
            _ => self.verify(packet, received, DropReason::UdpChecksum)?,
        }
        Ok(udp::LEN)
    }
}

impl Net {
    /// Verifies the transport checksum unless the device has: the whole sum must be all ones.
    pub(in crate::net) fn verify(
        &mut self,
        packet: &PacketBuf,
        received: &Received,
        otherwise: DropReason,
    ) -> Result<(), DropReason> {
        if packet.rx_checksum == RxChecksum::Valid {
            return Ok(());
        }
        self.counters.rx_checksums_verified += 1;
        let Received { src, dst, protocol, .. } = *received;
        let mut sum = Checksum::new();
        if !matches!(protocol, protocol::ICMP | protocol::IGMP) {
            sum.add_u16(pseudo_header_sum(src, dst, protocol, packet.len()));
        }
        sum.add_bytes(packet.head());
        for frag in packet.frags() {
            sum.add_frag(frag, &mut self.mem.ledger);
        }
        if sum.finish() == 0 { Ok(()) } else { Err(otherwise) }
    }
}

/// Makes sure that the head holds the next `n` bytes, if need be in place of earlier headers.
fn reserve(
    packet: &mut PacketBuf,
    received: &mut Received,
    n: usize,
    too_short: DropReason,
) -> Result<(), DropReason> {
    if packet.len() < n {
        return Err(too_short);
    }
    if !packet.linearize(n) {
        return Err(DropReason::HeadTooLong);
    }
    if packet.headroom() < usize::from(received.header_len) {
        received.header_len = 0;
    }
    Ok(())
}
