//! ICMP of both versions: echo is answered here, errors go up. RFC 792 and RFC 1122 section 3.2.2 for
//! IPv4, RFC 4443 for IPv6. `errors.rs` sends errors.
//!
//! An echo reply is the request turned round: the payload is neither copied nor read.

pub(super) mod errors;
pub(super) mod unreachable;

use std::net::IpAddr;

use pagewire_mem::{CopyReason, HEAD_CAPACITY, Instant, PacketBuf, TxChecksum};

use crate::counters::DropReason;
use crate::net::head::{spill_head, with_headroom};
use crate::net::input::received::{IcmpKind, Inbound, InputResult, Received};
use crate::net::multicast::messages::mld;
use crate::net::routes::Delivery;
use crate::net::routes::path_mtu::smallest_path_mtu;
use crate::net::strays::queue::StrayKind;
use crate::net::wire::icmp::{self, v4, v6};
use crate::net::wire::{ethernet, ipv4, ipv6, protocol};
use crate::net::{Net, Outgoing, TooLong};

impl Net {
    /// Handles an ICMP message, its head at the ICMP header, checksum verified.
    pub(super) fn handle_icmp(
        &mut self,
        now: Instant,
        packet: &mut PacketBuf,
        received: &Received,
    ) -> InputResult {
        let header = icmp::Header::parse(packet.head())?;
        if received.dst.is_ipv4() {
            return match header.kind {
                v4::ECHO_REQUEST => self.answer_echo(now, packet, received, v4::ECHO_REPLY),
                v4::ECHO_REPLY => Err(DropReason::IcmpEchoReply),
                v4::REDIRECT => Err(DropReason::IcmpRedirect),
                v4::UNREACHABLE | v4::TIME_EXCEEDED | v4::PARAMETER_PROBLEM => {
                    self.handle_icmp_error(packet, received, header)
                }
                // RFC 6633 section 3: "A host MUST silently discard received ICMP Source Quench
                // messages."
                v4::SOURCE_QUENCH => Err(DropReason::IcmpType),
                _ => Err(DropReason::IcmpType),
            };
        }
        if received.src.is_unspecified() && header.kind != v6::NEIGHBOR_SOLICITATION {
            return Err(DropReason::Ipv6Source);
        }
        match header.kind {
            v6::ECHO_REQUEST => self.answer_echo(now, packet, received, v6::ECHO_REPLY),
            v6::ECHO_REPLY => Err(DropReason::IcmpEchoReply),
            v6::NEIGHBOR_SOLICITATION | v6::NEIGHBOR_ADVERTISEMENT => {
                self.handle_ndp(now, packet, received).map(|()| None)
            }
            mld::QUERY | mld::REPORT_V1 | mld::DONE_V1 | mld::REPORT_V2 => {
                self.handle_mld(now, packet, received).map(|()| None)
            }
            v6::ROUTER_SOLICITATION => Err(DropReason::NdpRouterSolicitation),
            v6::ROUTER_ADVERTISEMENT => Err(DropReason::NdpRouterAdvertisement),
            v6::REDIRECT => Err(DropReason::IcmpRedirect),
            // RFC 4443 section 2.1: error messages have types below 128.
            1..=127 => self.handle_icmp_error(packet, received, header),
            _ => Err(DropReason::IcmpType),
        }
    }
}

impl Net {
    /// Our address that answers a packet: its destination; for a group, one for the sender.
    pub(super) fn answer_source(&self, received: &Received, now: Instant) -> Option<IpAddr> {
        if received.delivery == Delivery::Unicast {
            return Some(received.dst);
        }
        let link = Some(received.link).filter(|_| !received.loopback);
        self.routes.source_for(now, link, received.src).ok()
    }

    /// Sends an ICMP message; whether it went.
    pub(super) fn send_icmp(
        &mut self,
        now: Instant,
        (src, dst): (IpAddr, IpAddr),
        hop_limit: Option<u8>,
        packet: PacketBuf,
    ) -> bool {
        let out = Outgoing {
            src,
            dst,
            protocol: if dst.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 },
            ecn: 0,
            dont_fragment: false,
            too_long: TooLong::CutToPath,
            hop_limit,
            by: None,
            checksum_offset: Some(icmp::CHECKSUM_OFFSET),
            packet,
        };
        self.send(now, out).is_ok()
    }
}

impl Net {
    /// Turns an echo request into the reply.
    fn answer_echo(
        &mut self,
        now: Instant,
        packet: &mut PacketBuf,
        received: &Received,
        reply: u8,
    ) -> InputResult {
        if packet.head().get(1) != Some(&0) {
            return Err(DropReason::IcmpCode);
        }
        if self.is_for_another(received) {
            if !received.is_unicast() {
                return Err(DropReason::IcmpBroadcast);
            }
            spill_head(&mut self.mem, packet, icmp::IDENT_LEN, CopyReason::Icmp)?;
            return Ok(Some(Inbound::Echo(*received)));
        }
        // RFC 1122 section 3.2.2.6: "An ICMP Echo Request destined to an IP broadcast or IP
        // multicast address MAY be silently discarded."
        if received.dst.is_ipv4() && !received.is_unicast() {
            return Err(DropReason::IcmpBroadcast);
        }
        if let [kind, _code, c0, c1, ..] = packet.head_mut() {
            (*kind, *c0, *c1) = (reply, 0, 0);
        }
        let Some(src) = self.answer_source(received, now) else { return Ok(None) };
        let room = match received.dst {
            IpAddr::V4(_) => ethernet::LEN + ipv4::LEN,
            // With a fragment header, should the reply be as long as a reassembled request.
            IpAddr::V6(_) if ipv6::LEN + packet.len() > self.mtu_for(received.src) => {
                ethernet::LEN + ipv6::LEN + ipv6::FRAGMENT_LEN
            }
            IpAddr::V6(_) => ethernet::LEN + ipv6::LEN,
        };
        let mut packet = with_headroom(&mut self.mem, packet.take(), room, CopyReason::Icmp)?;
        (packet.gso, packet.tx_checksum) = (None, TxChecksum::Done);
        // Refusals are counted where they happen.
        if self.send_icmp(now, (src, received.src), None, packet) {
            self.counters.icmp_echo_answered += 1;
        }
        Ok(None)
    }

    /// Passes up an error about a packet of ours.
    fn handle_icmp_error(
        &mut self,
        packet: &mut PacketBuf,
        received: &Received,
        header: icmp::Header,
    ) -> InputResult {
        // Errors are answers to one host.
        if received.delivery != Delivery::Unicast {
            return Err(DropReason::IcmpQuoteNotOurs);
        }
        // As much of the quoted packet as the head takes: all headers that we send.
        let room = HEAD_CAPACITY.min(packet.len());
        packet.linearize(room);
        let quote = packet.head().get(icmp::LEN..).unwrap_or_default();
        let (about, quoted_len) = match received.dst {
            IpAddr::V4(_) => (icmp::parse_quoted_v4(quote)?, quoted_word(quote, 2)),
            IpAddr::V6(_) => (icmp::parse_quoted_v6(quote)?, ipv6::LEN + quoted_word(quote, 4)),
        };
        // RFC 5927 section 4: a quoted packet that we cannot have sent. Of a foreign source it came by
        // a transparent link.
        let ours = self.routes.is_local(about.src) || self.is_for_another(received);
        if !ours || about.src != received.dst {
            return Err(DropReason::IcmpQuoteNotOurs);
        }
        let kind = match received.dst {
            IpAddr::V4(_) => kind_v4(header, quoted_len),
            IpAddr::V6(_) => kind_v6(header),
        };
        let kind = match kind.ok_or(DropReason::IcmpCode)? {
            IcmpKind::PacketTooBig { mtu } => {
                let link = self.link_to(self.now, Some(about.src), about.dst);
                let most = self.links.at(link).device.mtu;
                let mtu = mtu.clamp(smallest_path_mtu(about.dst).min(most), most);
                IcmpKind::PacketTooBig { mtu }
            }
            other => other,
        };
        self.counters.icmp_errors_received += 1;
        let error = Inbound::IcmpError { about, kind };
        if let IcmpKind::PacketTooBig { mtu } = kind
            && self.spread_path_report(&about, mtu)
        {
            return Ok(Some(error));
        }
        if let Some(home) = self.foreign_home_of_quote(&about) {
            self.pass_to(home, StrayKind::Inbound(error), &mut PacketBuf::for_rx());
            return Ok(None);
        }
        Ok(Some(error))
    }
}

fn quoted_word(quote: &[u8], at: usize) -> usize {
    match quote.get(at..at + 2) {
        Some(&[a, b]) => usize::from(u16::from_be_bytes([a, b])),
        _ => 0,
    }
}

/// Guesses the MTU of a router that reports none: the next lower plateau (RFC 1191 section 7).
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
