//! ICMP of both versions: echo is answered here, errors are passed up or made.
//!
//! RFC 792 and RFC 1122 section 3.2.2 for IPv4, RFC 4443 for IPv6. An echo reply is the request
//! turned round: its payload is neither copied nor looked at.

use std::net::IpAddr;

use pagewire_mem::{CopyReason, HEAD_CAPACITY, Instant, PacketBuf, TxChecksum};

use super::input::{Meta, Origin, Outcome, Passed, take};
use super::multicast::messages::mld;
use super::reassembly::Expired;
use super::route::{Delivery, smallest_path_mtu};
use super::transport::with_headroom;
use super::wire::icmp::{self, v4, v6};
use super::wire::{ethernet, ipv4, ipv6, protocol};
use super::{IcmpKind, Mem, Net, Outgoing, Received, TooLong};
use crate::counters::DropReason;
use crate::limits::{ICMP_ERROR_LEN_V4, ICMP_ERROR_LEN_V6};

/// An ICMP error to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorOut {
    header: icmp::Header,
    /// RFC 4443 section 2.4(e.3): some are sent about multicast packets too.
    about_multicast: bool,
}

impl ErrorOut {
    const fn new(kind: u8, code: u8, word: usize) -> Self {
        let header = icmp::Header { kind, code, word: word as u32 };
        Self { header, about_multicast: false }
    }

    pub(super) const fn protocol_unreachable() -> Self {
        Self::new(v4::UNREACHABLE, 2, 0)
    }

    const fn port_unreachable(is_v4: bool) -> Self {
        if is_v4 { Self::new(v4::UNREACHABLE, 3, 0) } else { Self::new(v6::UNREACHABLE, 4, 0) }
    }

    /// A router has no way to the destination.
    pub(super) const fn net_unreachable(is_v4: bool) -> Self {
        if is_v4 { Self::new(v4::UNREACHABLE, 0, 0) } else { Self::new(v6::UNREACHABLE, 0, 0) }
    }

    /// The last router finds nobody there.
    pub(super) const fn host_unreachable(is_v4: bool) -> Self {
        if is_v4 { Self::new(v4::UNREACHABLE, 1, 0) } else { Self::new(v6::UNREACHABLE, 3, 0) }
    }

    /// A router may go no further with it.
    pub(super) const fn hop_limit_exceeded(is_v4: bool) -> Self {
        if is_v4 { Self::new(v4::TIME_EXCEEDED, 0, 0) } else { Self::new(v6::TIME_EXCEEDED, 0, 0) }
    }

    /// A router's next link takes packets of `mtu` bytes.
    pub(super) const fn packet_too_big(is_v4: bool, mtu: usize) -> Self {
        if is_v4 {
            Self::new(v4::UNREACHABLE, 4, mtu)
        } else {
            Self::new(v6::PACKET_TOO_BIG, 0, mtu)
        }
    }

    const fn is_packet_too_big(self) -> bool {
        matches!(
            (self.header.kind, self.header.code),
            (v4::UNREACHABLE, 4) | (v6::PACKET_TOO_BIG, _)
        )
    }

    const fn reassembly_timeout(is_v4: bool) -> Self {
        if is_v4 { Self::new(v4::TIME_EXCEEDED, 1, 0) } else { Self::new(v6::TIME_EXCEEDED, 1, 0) }
    }

    /// IPv6, code 0: erroneous header field.
    pub(super) const fn faulty_header(pointer: usize) -> Self {
        Self::new(v6::PARAMETER_PROBLEM, 0, pointer)
    }

    /// IPv6, code 1: unrecognised next header.
    pub(super) const fn unknown_next_header(pointer: usize) -> Self {
        Self::new(v6::PARAMETER_PROBLEM, 1, pointer)
    }

    /// IPv6, code 2: unrecognised option.
    pub(super) const fn unknown_option(pointer: usize, about_multicast: bool) -> Self {
        Self { about_multicast, ..Self::new(v6::PARAMETER_PROBLEM, 2, pointer) }
    }
}

impl Net {
    // In.

    pub(super) fn handle_icmp_v4(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        packet: &mut PacketBuf,
        meta: Meta,
    ) -> Outcome {
        let header = icmp::Header::parse(packet.head())?;
        match header.kind {
            v4::ECHO_REQUEST => answer_echo(self, mem, now, packet, meta, v4::ECHO_REPLY),
            v4::ECHO_REPLY => Err(DropReason::IcmpEchoReply),
            v4::REDIRECT => Err(DropReason::IcmpRedirect),
            v4::UNREACHABLE | v4::TIME_EXCEEDED | v4::PARAMETER_PROBLEM => {
                handle_error(self, packet, &meta, header)
            }
            // RFC 6633 section 3: "A host MUST silently discard received ICMP Source Quench
            // messages."
            v4::SOURCE_QUENCH => Err(DropReason::IcmpType),
            _ => Err(DropReason::IcmpType),
        }
    }

    pub(super) fn handle_icmp_v6(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        packet: &mut PacketBuf,
        meta: Meta,
    ) -> Outcome {
        let header = icmp::Header::parse(packet.head())?;
        if meta.src.is_unspecified() && header.kind != v6::NEIGHBOR_SOLICITATION {
            return Err(DropReason::Ipv6Source);
        }
        match header.kind {
            v6::ECHO_REQUEST => answer_echo(self, mem, now, packet, meta, v6::ECHO_REPLY),
            v6::ECHO_REPLY => Err(DropReason::IcmpEchoReply),
            v6::NEIGHBOR_SOLICITATION | v6::NEIGHBOR_ADVERTISEMENT => {
                self.handle_ndp(mem, now, packet, &meta)?;
                Ok(Passed::Nothing)
            }
            mld::QUERY | mld::REPORT_V1 | mld::DONE_V1 | mld::REPORT_V2 => {
                self.handle_mld(mem, now, packet, &meta)?;
                Ok(Passed::Nothing)
            }
            v6::ROUTER_SOLICITATION => Err(DropReason::NdpRouterSolicitation),
            v6::ROUTER_ADVERTISEMENT => Err(DropReason::NdpRouterAdvertisement),
            v6::REDIRECT => Err(DropReason::IcmpRedirect),
            // RFC 4443 section 2.1: error messages have types below 128.
            1..=127 => handle_error(self, packet, &meta, header),
            _ => Err(DropReason::IcmpType),
        }
    }

    // Out.

    /// Answers a datagram that no socket wants with "port unreachable", subject to the rules about
    /// errors and the rate limit. `received` and `packet` as they were handed up.
    pub(crate) fn send_port_unreachable(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        received: &Received,
        mut packet: PacketBuf,
    ) {
        let Received { src, dst, protocol, ecn, hop_limit, network_header, link, .. } = *received;
        let quotable = network_header > 0 && packet.push(usize::from(network_header)).is_some();
        let meta = Meta {
            src,
            dst,
            protocol,
            ecn,
            hop_limit,
            delivery: if self.is_local(dst) { Delivery::Unicast } else { Delivery::Broadcast },
            header_len: network_header,
            next_field: 0,
            origin: Origin { group: false, loopback: self.is_local(src), link },
        };
        let error = ErrorOut::port_unreachable(dst.is_ipv4());
        self.send_error_about(mem, now, &meta, packet, error, quotable);
    }

    /// Tells the sender of a datagram that its rest did not come in time.
    pub(super) fn send_reassembly_timeout(&mut self, mem: &mut Mem, now: Instant, old: Expired) {
        let Expired { src, dst, protocol, headers, payload } = old;
        let mut packet = PacketBuf::for_rx();
        let room = packet.append(headers.len());
        let quotable = !headers.is_empty() && room.is_some();
        if let Some(room) = room {
            room.copy_from_slice(&headers);
        }
        for frag in payload {
            if packet.push_frag(frag).is_err() {
                break;
            }
        }
        let meta = Meta {
            src,
            dst,
            protocol,
            ecn: 0,
            hop_limit: 0,
            // RFC 1122 section 3.2.2: nobody is told of what was sent to a group.
            delivery: if dst.is_multicast() { Delivery::Multicast } else { Delivery::Unicast },
            header_len: headers.len() as u16,
            next_field: 0,
            origin: Origin {
                group: false,
                loopback: false,
                link: self.link_to(now, Some(dst), src),
            },
        };
        let error = ErrorOut::reassembly_timeout(dst.is_ipv4());
        self.send_error_about(mem, now, &meta, packet, error, quotable);
    }

    /// Sends an error about `packet`, whose head is at its IP header (if `quotable`), where the
    /// rules allow one.
    pub(super) fn send_error_about(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        meta: &Meta,
        packet: PacketBuf,
        error: ErrorOut,
        quotable: bool,
    ) {
        // RFC 1122 section 3.2.2: "An ICMP error message MUST NOT be sent as the result of
        // receiving: an ICMP error message, a datagram destined to an IP broadcast or IP multicast
        // address, a datagram sent as a link-layer broadcast, a non-initial fragment, a datagram
        // whose source address does not define a single host". RFC 4443 section 2.4(e) agrees,
        // but for errors that are sent about multicast too. Later fragments never get here.
        let to_one =
            matches!(meta.delivery, Delivery::Unicast | Delivery::Foreign) && !meta.origin.group;
        if !quotable
            || !(to_one || error.about_multicast)
            || meta.src.is_unspecified()
            || is_icmp_error(meta, &packet)
        {
            return;
        }
        // As Linux: we are no stranger to ourselves, and how long a path's packets may be is news about
        // that path, of which one sender has many.
        let own_limit = !meta.origin.loopback && !error.is_packet_too_big();
        let to = Some(meta.src).filter(|_| own_limit);
        if !self.links.at_mut(meta.origin.link).icmp_limit.take(now, to) {
            self.counters.icmp_errors_withheld += 1;
            return;
        }
        let Some(src) = answer_source(self, meta, now) else { return };
        let Some(packet) = quote(mem, packet, meta.dst.is_ipv4(), error.header) else { return };
        if self.send_icmp(mem, now, src, meta.src, None, packet) {
            self.counters.icmp_errors_sent += 1;
        }
    }

    /// Sends an ICMP message; whether it went.
    pub(super) fn send_icmp(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        src: IpAddr,
        dst: IpAddr,
        hop_limit: Option<u8>,
        packet: PacketBuf,
    ) -> bool {
        let protocol = if dst.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 };
        let checksum_offset = Some(icmp::CHECKSUM_OFFSET);
        let dont_fragment = false;
        let out = Outgoing {
            src,
            dst,
            protocol,
            ecn: 0,
            dont_fragment,
            too_long: TooLong::CutToPath,
            hop_limit,
            by: None,
            checksum_offset,
            packet,
        };
        self.send(mem, now, out).is_ok()
    }
}

/// Turns a request round.
fn answer_echo(
    net: &mut Net,
    mem: &mut Mem,
    now: Instant,
    packet: &mut PacketBuf,
    meta: Meta,
    reply: u8,
) -> Outcome {
    if packet.head().get(1) != Some(&0) {
        return Err(DropReason::IcmpCode);
    }
    // RFC 1122 section 3.2.2.6: "An ICMP Echo Request destined to an IP broadcast or IP
    // multicast address MAY be silently discarded."
    if meta.dst.is_ipv4() && (meta.delivery != Delivery::Unicast || meta.origin.group) {
        return Err(DropReason::IcmpBroadcast);
    }
    if let [kind, _code, c0, c1, ..] = packet.head_mut() {
        (*kind, *c0, *c1) = (reply, 0, 0);
    }
    let Some(src) = answer_source(net, &meta, now) else { return Ok(Passed::Nothing) };
    let room = match meta.dst {
        IpAddr::V4(_) => ethernet::LEN + ipv4::LEN,
        // With a fragment header, should the reply be as long as a reassembled request.
        IpAddr::V6(_) if ipv6::LEN + packet.len() > net.mtu_for(meta.src) => {
            ethernet::LEN + ipv6::LEN + ipv6::FRAGMENT_LEN
        }
        IpAddr::V6(_) => ethernet::LEN + ipv6::LEN,
    };
    let mut packet = with_headroom(mem, take(packet), room, CopyReason::Icmp)?;
    (packet.gso, packet.tx_checksum) = (None, TxChecksum::Done);
    // Refusals are counted where they happen.
    if net.send_icmp(mem, now, src, meta.src, None, packet) {
        net.counters.icmp_echo_answered += 1;
    }
    Ok(Passed::Nothing)
}

/// Passes up an error about something of ours.
fn handle_error(
    net: &mut Net,
    packet: &mut PacketBuf,
    meta: &Meta,
    header: icmp::Header,
) -> Outcome {
    // Errors are answers to one host.
    if meta.delivery != Delivery::Unicast {
        return Err(DropReason::IcmpQuoteNotOurs);
    }
    // As much of the quoted packet as the head takes: all headers that we send.
    let room = HEAD_CAPACITY.min(packet.len());
    packet.linearize(room);
    let quote = packet.head().get(icmp::LEN..).unwrap_or_default();
    let (about, quoted_len) = match meta.dst {
        IpAddr::V4(_) => (icmp::parse_quoted_v4(quote)?, quoted_word(quote, 2)),
        IpAddr::V6(_) => (icmp::parse_quoted_v6(quote)?, ipv6::LEN + quoted_word(quote, 4)),
    };
    // RFC 5927 section 4: a quoted packet that we cannot have sent.
    if !net.routes.is_local(about.src) || about.src != meta.dst {
        return Err(DropReason::IcmpQuoteNotOurs);
    }
    let kind = match meta.dst {
        IpAddr::V4(_) => kind_v4(header, quoted_len),
        IpAddr::V6(_) => kind_v6(header),
    };
    let kind = match kind.ok_or(DropReason::IcmpCode)? {
        IcmpKind::PacketTooBig { mtu } => {
            let link = net.link_to(net.now, Some(about.src), about.dst);
            let most = net.links.at(link).link.mtu;
            let mtu = mtu.clamp(smallest_path_mtu(about.dst).min(most), most);
            IcmpKind::PacketTooBig { mtu }
        }
        other => other,
    };
    net.counters.icmp_errors_received += 1;
    Ok(Passed::Error { about, kind })
}

/// Which address of ours answers a packet: the one it was for, or for a group the one that
/// suits the asker.
fn answer_source(net: &Net, meta: &Meta, now: Instant) -> Option<IpAddr> {
    match meta.delivery {
        Delivery::Unicast => Some(meta.dst),
        _ => {
            let link = Some(meta.origin.link).filter(|_| !meta.origin.loopback);
            net.routes.source_for(now, link, meta.src).ok()
        }
    }
}

/// Builds an error that quotes `packet`, as much of it as may be.
fn quote(
    mem: &mut Mem,
    mut packet: PacketBuf,
    is_v4: bool,
    header: icmp::Header,
) -> Option<PacketBuf> {
    let room = match is_v4 {
        true => ICMP_ERROR_LEN_V4 - ipv4::LEN - icmp::LEN,
        false => ICMP_ERROR_LEN_V6 - ipv6::LEN - icmp::LEN,
    };
    packet.truncate(room);
    let Mem { pool, writer, ledger, .. } = mem;
    let head = packet.head();
    let (parts, copied) = writer.write(pool, head, ledger, CopyReason::Icmp);
    if copied < head.len() {
        return None;
    }
    let mut out = PacketBuf::for_tx();
    out.push(icmp::LEN)?.copy_from_slice(&header.emit());
    // A quote that is a fragment too short harms nobody.
    for part in parts.into_iter().chain(packet.take_frags()) {
        if out.push_frag(part).is_err() {
            break;
        }
    }
    Some(out)
}

/// Whether a packet, its head at the IP header, is an ICMP error itself (or a message that must
/// not be answered with one).
fn is_icmp_error(meta: &Meta, packet: &PacketBuf) -> bool {
    let kind = packet.head().get(usize::from(meta.header_len));
    match meta.protocol {
        protocol::ICMP => !matches!(kind, Some(&(v4::ECHO_REQUEST | v4::ECHO_REPLY))),
        // Redirects are the one informational type that is excluded.
        protocol::ICMPV6 => kind.is_none_or(|&kind| kind < 128 || kind == v6::REDIRECT),
        _ => false,
    }
}

fn quoted_word(quote: &[u8], at: usize) -> usize {
    match quote.get(at..at + 2) {
        Some(&[a, b]) => usize::from(u16::from_be_bytes([a, b])),
        _ => 0,
    }
}

/// What a router that does not say its MTU may have meant (RFC 1191 section 7).
fn plateau_below(len: usize) -> usize {
    const PLATEAUS: [usize; 8] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508];
    PLATEAUS.into_iter().find(|&mtu| mtu < len).unwrap_or(68)
}

fn kind_v4(header: icmp::Header, quoted_len: usize) -> Option<IcmpKind> {
    Some(match (header.kind, header.code) {
        (v4::UNREACHABLE, 0 | 6 | 11) => IcmpKind::NetUnreachable,
        (v4::UNREACHABLE, 1 | 5 | 7 | 8 | 12) => IcmpKind::HostUnreachable,
        (v4::UNREACHABLE, 2) => IcmpKind::ProtocolUnreachable,
        (v4::UNREACHABLE, 3) => IcmpKind::PortUnreachable,
        (v4::UNREACHABLE, 4) => match header.word as usize & 0xffff {
            0 => IcmpKind::PacketTooBig { mtu: plateau_below(quoted_len) },
            mtu => IcmpKind::PacketTooBig { mtu },
        },
        (v4::UNREACHABLE, 9 | 10 | 13..=15) => IcmpKind::Prohibited,
        (v4::TIME_EXCEEDED, 0 | 1) => IcmpKind::TimeExceeded,
        (v4::PARAMETER_PROBLEM, 0..=2) => IcmpKind::ParameterProblem,
        _ => return None,
    })
}

fn kind_v6(header: icmp::Header) -> Option<IcmpKind> {
    Some(match (header.kind, header.code) {
        (v6::UNREACHABLE, 0) => IcmpKind::NetUnreachable,
        (v6::UNREACHABLE, 1 | 5 | 6) => IcmpKind::Prohibited,
        (v6::UNREACHABLE, 2 | 3) => IcmpKind::HostUnreachable,
        (v6::UNREACHABLE, 4) => IcmpKind::PortUnreachable,
        // RFC 4443 section 3.2: the code is ignored by the receiver.
        (v6::PACKET_TOO_BIG, _) => IcmpKind::PacketTooBig { mtu: header.word as usize },
        (v6::TIME_EXCEEDED, 0 | 1) => IcmpKind::TimeExceeded,
        (v6::PARAMETER_PROBLEM, 1) => IcmpKind::ProtocolUnreachable,
        (v6::PARAMETER_PROBLEM, 0 | 2 | 3) => IcmpKind::ParameterProblem,
        _ => return None,
    })
}
