//! Sends ICMP errors about received packets (RFC 792, RFC 1122 section 3.2.2, RFC 4443).

use std::net::IpAddr;

use pagewire_mem::{CopyReason, Instant, PacketBuf};

use crate::error::Error;
use crate::limits::{ICMP_ERROR_LEN_V4, ICMP_ERROR_LEN_V6};
use crate::net::head::append;
use crate::net::icmp::unreachable::{Flow, Unreachable};
use crate::net::input::reassembly::ExpiredDatagram;
use crate::net::input::received::Received;
use crate::net::routes::Delivery;
use crate::net::wire::icmp::{self, v4, v6};
use crate::net::wire::{ipv4, ipv6, protocol};
use crate::net::{Mem, Net, Outgoing, TooLong};

/// Offset of the field of an IPv6 header that names the next one.
const NEXT_HEADER: usize = 6;

#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct IcmpError {
    header: icmp::Header,
    /// RFC 4443 section 2.4(e.3): some are sent about multicast packets too.
    about_multicast: bool,
}

impl IcmpError {
    const fn new(kind: u8, code: u8, word: usize) -> Self {
        let header = icmp::Header { kind, code, word: word as u32 };
        Self { header, about_multicast: false }
    }

    pub(in crate::net) const fn protocol_unreachable() -> Self {
        Self::new(v4::UNREACHABLE, 2, 0)
    }

    const fn port_unreachable(is_v4: bool) -> Self {
        if is_v4 { Self::new(v4::UNREACHABLE, 3, 0) } else { Self::new(v6::UNREACHABLE, 4, 0) }
    }

    /// A router has no way to the destination.
    pub(in crate::net) const fn net_unreachable(is_v4: bool) -> Self {
        if is_v4 { Self::new(v4::UNREACHABLE, 0, 0) } else { Self::new(v6::UNREACHABLE, 0, 0) }
    }

    /// The last router finds no such host.
    pub(in crate::net) const fn host_unreachable(is_v4: bool) -> Self {
        if is_v4 { Self::new(v4::UNREACHABLE, 1, 0) } else { Self::new(v6::UNREACHABLE, 3, 0) }
    }

    /// A router may go no further with it.
    pub(in crate::net) const fn hop_limit_exceeded(is_v4: bool) -> Self {
        if is_v4 { Self::new(v4::TIME_EXCEEDED, 0, 0) } else { Self::new(v6::TIME_EXCEEDED, 0, 0) }
    }

    /// A router's next link takes packets of `mtu` bytes.
    pub(in crate::net) const fn packet_too_big(is_v4: bool, mtu: usize) -> Self {
        if is_v4 {
            Self::new(v4::UNREACHABLE, 4, mtu)
        } else {
            Self::new(v6::PACKET_TOO_BIG, 0, mtu)
        }
    }

    /// A failure that the application reports.
    pub(in crate::net) fn of(why: Unreachable, is_v4: bool) -> icmp::Header {
        let error = match why {
            Unreachable::Net => Self::net_unreachable(is_v4),
            Unreachable::Host => Self::host_unreachable(is_v4),
            Unreachable::Protocol if is_v4 => Self::protocol_unreachable(),
            Unreachable::Protocol => Self::unknown_next_header(NEXT_HEADER),
            Unreachable::Port => Self::port_unreachable(is_v4),
            Unreachable::Prohibited if is_v4 => Self::new(v4::UNREACHABLE, 13, 0),
            Unreachable::Prohibited => Self::new(v6::UNREACHABLE, 1, 0),
            Unreachable::TooBig { mtu } if is_v4 => {
                Self::packet_too_big(true, mtu.min(u16::MAX.into()) as usize)
            }
            Unreachable::TooBig { mtu } => Self::packet_too_big(false, mtu as usize),
            Unreachable::TimeExceeded => Self::hop_limit_exceeded(is_v4),
        };
        error.header
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
    pub(in crate::net) const fn faulty_header(pointer: usize) -> Self {
        Self::new(v6::PARAMETER_PROBLEM, 0, pointer)
    }

    /// IPv6, code 1: unrecognised next header.
    pub(in crate::net) const fn unknown_next_header(pointer: usize) -> Self {
        Self::new(v6::PARAMETER_PROBLEM, 1, pointer)
    }

    /// IPv6, code 2: unrecognised option.
    pub(in crate::net) const fn unknown_option(pointer: usize, about_multicast: bool) -> Self {
        Self { about_multicast, ..Self::new(v6::PARAMETER_PROBLEM, 2, pointer) }
    }
}

impl Net {
    /// Answers a datagram that no socket takes, as it was handed up, with "port unreachable".
    pub(crate) fn send_port_unreachable(
        &mut self,
        now: Instant,
        received: &Received,
        packet: PacketBuf,
    ) {
        let error = IcmpError::port_unreachable(received.dst.is_ipv4());
        self.send_about_payload(now, received, packet, error);
    }
}

impl Net {
    /// Sends an error about a packet of `about` to its sender.
    pub(crate) fn send_unreachable(
        &mut self,
        now: Instant,
        about: &Flow,
        why: Unreachable,
        from: Option<IpAddr>,
    ) -> Result<(), Error> {
        let (sender, to) = (about.from.ip(), about.to.ip());
        let from = match from {
            Some(from) if from.is_loopback() || !self.may_send_from((from, sender), None) => {
                return Err(Error::AddressNotAvailable);
            }
            Some(from) => from,
            // Only the host itself knows.
            None if matches!(why, Unreachable::Port | Unreachable::Protocol) => to,
            None => self.routes.source_for(now, None, sender)?,
        };
        let packet = quote_of(about, why).ok_or(Error::AddressFamily)?;
        let out = Outgoing {
            src: from,
            dst: sender,
            protocol: if sender.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 },
            ecn: 0,
            dont_fragment: false,
            too_long: TooLong::CutToPath,
            hop_limit: None,
            by: None,
            checksum_offset: Some(icmp::CHECKSUM_OFFSET),
            packet,
        };
        self.send(now, out)?;
        self.counters.icmp_errors_sent += 1;
        Ok(())
    }
}

/// An error about a packet of a flow, of which nothing is left.
fn quote_of(about: &Flow, why: Unreachable) -> Option<PacketBuf> {
    let mut packet = PacketBuf::for_tx();
    packet.push(Flow::QUOTED)?.copy_from_slice(&about.emit());
    let (protocol, len) = (about.protocol, about.transport_len());
    match (about.from.ip(), about.to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = ipv4::Header::new(src, dst, protocol, len);
            packet.push(ipv4::LEN)?.copy_from_slice(&ip.emit());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let ip = ipv6::Header::new(src, dst, protocol, len);
            packet.push(ipv6::LEN)?.copy_from_slice(&ip.emit());
        }
        _ => return None,
    }
    let header = IcmpError::of(why, about.from.is_ipv4());
    packet.push(icmp::LEN)?.copy_from_slice(&header.emit());
    Some(packet)
}

impl Net {
    /// Tells the sender of a datagram that fragments did not come in time.
    pub(in crate::net) fn send_reassembly_timeout(&mut self, now: Instant, old: ExpiredDatagram) {
        let ExpiredDatagram { received, headers, payload } = old;
        let mut packet = PacketBuf::for_rx();
        if headers.is_empty() || append(&mut packet, &headers) == 0 {
            return;
        }
        for frag in payload {
            if packet.push_frag(frag).is_err() {
                break;
            }
        }
        // The link that the fragment came by may be gone.
        let link = self.link_to(now, Some(received.dst), received.src);
        let received = Received { header_len: headers.len() as u16, link, ..received };
        let error = IcmpError::reassembly_timeout(received.dst.is_ipv4());
        self.send_icmp_error(now, &received, packet, error);
    }

    /// Sends an error about `packet`, whose IP headers were taken off.
    pub(in crate::net) fn send_about_payload(
        &mut self,
        now: Instant,
        received: &Received,
        mut packet: PacketBuf,
        error: IcmpError,
    ) {
        let len = usize::from(received.header_len);
        if len > 0 && packet.push(len).is_some() {
            self.send_icmp_error(now, received, packet, error);
        }
    }

    /// Sends an error about `packet`, its head at the IP header, if rules and rate limit allow one.
    pub(in crate::net) fn send_icmp_error(
        &mut self,
        now: Instant,
        received: &Received,
        packet: PacketBuf,
        error: IcmpError,
    ) {
        // RFC 1122 section 3.2.2: "An ICMP error message MUST NOT be sent as the result of
        // receiving: an ICMP error message, a datagram destined to an IP broadcast or IP multicast
        // address, a datagram sent as a link-layer broadcast, a non-initial fragment, a datagram
        // whose source address does not define a single host". RFC 4443 section 2.4(e) agrees,
        // but for errors that are sent about multicast too. Later fragments never get here.
        let to_one =
            matches!(received.delivery, Delivery::Unicast | Delivery::Foreign) && !received.group;
        if !(to_one || error.about_multicast)
            || received.src.is_unspecified()
            || is_icmp_error(received, &packet)
        {
            return;
        }
        // As Linux: this host is no stranger, and one sender has many paths, each with its MTU.
        let own_limit = !received.loopback && !error.is_packet_too_big();
        let to = Some(received.src).filter(|_| own_limit);
        if !self.links.at_mut(received.link).icmp_limit.take(now, to) {
            self.counters.icmp_errors_withheld += 1;
            return;
        }
        let Some(src) = self.answer_source(received, now) else { return };
        let Some(packet) = quote(&mut self.mem, packet, received.dst.is_ipv4(), error.header)
        else {
            return;
        };
        if self.send_icmp(now, (src, received.src), None, packet) {
            self.counters.icmp_errors_sent += 1;
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
    // A quote that is a fragment too short does no harm.
    for part in parts.into_iter().chain(packet.take_frags()) {
        if out.push_frag(part).is_err() {
            break;
        }
    }
    Some(out)
}

/// Whether a packet, its head at the IP header, is an ICMP error or must not be answered with one.
fn is_icmp_error(received: &Received, packet: &PacketBuf) -> bool {
    let kind = packet.head().get(usize::from(received.header_len));
    match received.protocol {
        protocol::ICMP => !matches!(kind, Some(&(v4::ECHO_REQUEST | v4::ECHO_REPLY))),
        // Redirects are the one informational type that is excluded.
        protocol::ICMPV6 => kind.is_none_or(|&kind| kind < 128 || kind == v6::REDIRECT),
        _ => false,
    }
}
