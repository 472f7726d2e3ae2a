//! Byte path, between R3 (ip) and R4 (demux): the transport header ends up alone in the head, the
//! payload in fragments, and the checksum verified. Once, here, for all transports.

use pagewire_mem::checksum::Checksum;
use pagewire_mem::{CopyReason, HEAD_CAPACITY, Instant, PacketBuf, RxChecksum};

use super::icmp::ErrorOut;
use super::input::{Meta, Outcome, Passed, take, trim};
use super::route::Delivery;
use super::wire::{icmp, protocol, pseudo_header_sum, udp};
use super::{Mem, Net};
use crate::counters::DropReason;

/// Bytes of a TCP header without options, and where its data offset is.
const TCP_LEN: usize = 20;
const TCP_DATA_OFFSET: usize = 12;

impl Net {
    /// Takes a transport packet, its head at the transport header: verifies its checksum and hands
    /// it to whom it concerns.
    pub(super) fn handle_transport(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        packet: &mut PacketBuf,
        mut meta: Meta,
    ) -> Outcome {
        let v4 = meta.dst.is_ipv4();
        let header_len = match meta.protocol {
            protocol::TCP => {
                self.counters.rx_tcp += 1;
                // RFC 1122 section 4.2.3.10: "A TCP implementation MUST silently discard an
                // incoming SYN segment that is addressed to a broadcast or multicast address."
                if meta.delivery != Delivery::Unicast || meta.origin.group {
                    return Err(DropReason::TransportBroadcast);
                }
                reserve(packet, &mut meta, TCP_LEN, DropReason::TcpTruncated)?;
                let words = packet.head().get(TCP_DATA_OFFSET).map_or(0, |b| b >> 4);
                let header_len = usize::from(words) * 4;
                if header_len < TCP_LEN || header_len > packet.len() {
                    return Err(DropReason::TcpDataOffset);
                }
                reserve(packet, &mut meta, header_len, DropReason::TcpDataOffset)?;
                self.verify(mem, packet, &meta, DropReason::TcpChecksum)?;
                // RFC 6335 section 6: port 0 is reserved; nobody can be answered there.
                if let [0, 0, _, _, ..] | [_, _, 0, 0, ..] = packet.head() {
                    return Err(DropReason::TcpPort);
                }
                header_len
            }
            protocol::UDP => {
                self.counters.rx_udp += 1;
                if meta.src.is_unspecified() {
                    return Err(if v4 { DropReason::Ipv4Source } else { DropReason::Ipv6Source });
                }
                reserve(packet, &mut meta, udp::LEN, DropReason::UdpTruncated)?;
                let header = udp::Header::parse(packet.head(), packet.len())?;
                trim(packet, usize::from(header.len));
                // RFC 768: "An all zero transmitted checksum value means that the transmitter
                // generated no checksum"; RFC 8200 section 8.1: not in IPv6.
                match header.checksum {
                    0 if v4 || packet.rx_checksum == RxChecksum::Valid => {}
                    0 => return Err(DropReason::UdpChecksum),
                    _ => self.verify(mem, packet, &meta, DropReason::UdpChecksum)?,
                }
                udp::LEN
            }
            protocol::IGMP if v4 => {
                self.counters.rx_igmp += 1;
                // As much of a long one as the head takes.
                let len = packet.len().clamp(icmp::LEN, HEAD_CAPACITY);
                reserve(packet, &mut meta, len, DropReason::GroupMessage)?;
                self.verify(mem, packet, &meta, DropReason::IcmpChecksum)?;
                self.handle_igmp(mem, now, packet, &meta)?;
                return Ok(Passed::Nothing);
            }
            protocol::ICMP if v4 => {
                self.counters.rx_icmp += 1;
                reserve(packet, &mut meta, icmp::LEN, DropReason::IcmpTruncated)?;
                self.verify(mem, packet, &meta, DropReason::IcmpChecksum)?;
                return self.handle_icmp_v4(mem, now, packet, meta);
            }
            protocol::ICMPV6 if !v4 => {
                self.counters.rx_icmp += 1;
                reserve(packet, &mut meta, icmp::LEN, DropReason::IcmpTruncated)?;
                self.verify(mem, packet, &meta, DropReason::IcmpChecksum)?;
                return self.handle_icmp_v6(mem, now, packet, meta);
            }
            // RFC 1122 section 3.2.2.1: code 2, protocol unreachable, "when the designated
            // transport protocol is not supported"; RFC 8200 section 4: unrecognised next header.
            _ => {
                let quotable =
                    meta.header_len > 0 && packet.push(usize::from(meta.header_len)).is_some();
                let error = match v4 {
                    true => ErrorOut::protocol_unreachable(),
                    false => ErrorOut::unknown_next_header(usize::from(meta.next_field)),
                };
                self.send_error_about(mem, now, &meta, take(packet), error, quotable);
                return Err(DropReason::ProtocolUnknown);
            }
        };
        if packet.head().len() > header_len {
            self.counters.rx_head_payloads += 1;
            spill_head(mem, packet, header_len, CopyReason::LinearHead)?;
        }
        Ok(Passed::Transport(meta))
    }

    /// Verifies the transport checksum unless the device has: the sum over pseudo-header, header
    /// and payload must be all ones.
    pub(super) fn verify(
        &mut self,
        mem: &mut Mem,
        packet: &PacketBuf,
        meta: &Meta,
        otherwise: DropReason,
    ) -> Result<(), DropReason> {
        if packet.rx_checksum == RxChecksum::Valid {
            return Ok(());
        }
        self.counters.rx_checksums_verified += 1;
        let mut sum = Checksum::new();
        if !matches!(meta.protocol, protocol::ICMP | protocol::IGMP) {
            sum.add_u16(pseudo_header_sum(meta.src, meta.dst, meta.protocol, packet.len()));
        }
        sum.add_bytes(packet.head());
        for frag in packet.frags() {
            sum.add_frag(frag, &mut mem.ledger);
        }
        if sum.finish() == 0 { Ok(()) } else { Err(otherwise) }
    }
}

/// Makes sure that the head holds the next `n` bytes; headers already taken off may have to go
/// for it, and with them the chance to quote them.
fn reserve(
    packet: &mut PacketBuf,
    meta: &mut Meta,
    n: usize,
    too_short: DropReason,
) -> Result<(), DropReason> {
    if packet.len() < n {
        return Err(too_short);
    }
    if !packet.linearize(n) {
        return Err(DropReason::HeadTooLong);
    }
    if packet.headroom() < usize::from(meta.header_len) {
        meta.header_len = 0;
    }
    Ok(())
}

/// Appends header bytes to the head; returns how many.
pub(super) fn append(packet: &mut PacketBuf, bytes: &[u8]) -> usize {
    match packet.append(bytes.len()) {
        Some(room) => {
            room.copy_from_slice(bytes);
            bytes.len()
        }
        None => 0,
    }
}

/// Moves what the head holds beyond `keep` bytes into pages, in front of the fragments.
pub(super) fn spill_head(
    mem: &mut Mem,
    packet: &mut PacketBuf,
    keep: usize,
    reason: CopyReason,
) -> Result<(), DropReason> {
    let Mem { pool, writer, ledger, .. } = mem;
    let Some(extra) = packet.head().get(keep..).filter(|extra| !extra.is_empty()) else {
        return Ok(());
    };
    let (mut parts, copied) = writer.write(pool, extra, ledger, reason);
    if copied < extra.len() {
        return Err(DropReason::NoPages);
    }
    packet.truncate_head(keep);
    let mut rest = packet.take_frags().into_iter();
    // A packet that is full already: its first fragment joins the bytes from the head.
    if rest.len() + parts.len() > pagewire_mem::MAX_FRAGS
        && let Some(first) = rest.next()
    {
        let (more, copied) = writer.write_frag(pool, &first, ledger, reason);
        if copied < first.len() {
            return Err(DropReason::NoPages);
        }
        parts.extend(more);
    }
    for frag in parts.into_iter().chain(rest) {
        packet.push_frag(frag).map_err(|_| DropReason::TooManyFragments)?;
    }
    Ok(())
}

/// The same packet with `room` bytes for headers in front of the head: a received one that goes
/// back.
pub(super) fn with_headroom(
    mem: &mut Mem,
    mut packet: PacketBuf,
    room: usize,
    reason: CopyReason,
) -> Result<PacketBuf, DropReason> {
    if packet.headroom() >= room {
        return Ok(packet);
    }
    spill_head(mem, &mut packet, HEAD_CAPACITY - room, reason)?;
    let mut new = PacketBuf::for_tx();
    let head = packet.head();
    new.push(head.len()).ok_or(DropReason::HeadTooLong)?.copy_from_slice(head);
    for frag in packet.take_frags() {
        new.push_frag(frag).map_err(|_| DropReason::TooManyFragments)?;
    }
    Ok(new)
}
