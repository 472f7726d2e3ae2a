//! Variant of step R3 (ip): IPv6 extension headers, and fragments of both versions.
//!
//! Read `mod.rs` first; fragments wait in `reassembly.rs`.

use std::net::IpAddr;

use pagewire_mem::{CopyReason, Instant, PacketBuf};
use smallvec::SmallVec;

use crate::counters::DropReason;
use crate::limits::{EXTENSION_BYTES, EXTENSION_HEADERS};
use crate::net::Net;
use crate::net::head::{append, spill_head};
use crate::net::icmp::errors::IcmpError;
use crate::net::input::reassembly::{DatagramKey, ReceivedFragment};
use crate::net::input::received::{InputResult, Received};
use crate::net::routes::Delivery;
use crate::net::wire::ipv6::OptionsVerdict;
use crate::net::wire::{ipv4, ipv6, protocol};

/// A received fragment of a datagram. The packet behind it has the payload only.
pub(crate) struct ReceivedPart {
    pub(super) received: Received,
    pub(super) part: ipv6::Fragment,
    /// The IP headers, for an ICMP error about the first fragment.
    pub(super) headers: SmallVec<[u8; 64]>,
}

/// Why a packet is dropped, and the error that its sender is sent.
struct HeaderRefusal {
    reason: DropReason,
    error: Option<IcmpError>,
}

impl From<DropReason> for HeaderRefusal {
    fn from(reason: DropReason) -> Self {
        Self { reason, error: None }
    }
}

/// Extension headers on the way to the transport's.
struct HeaderWalk<'a> {
    packet: &'a mut PacketBuf,
    /// Where the next header begins, from the packet's front.
    at: usize,
    /// Bytes taken off the front, for lack of room in the head: they cannot be quoted.
    gone: usize,
    fragments: u64,
}

impl Net {
    /// Walks extension headers (RFC 8200 section 4), the packet's head at the IPv6 header.
    pub(in crate::net) fn walk_extensions(
        &mut self,
        now: Instant,
        packet: &mut PacketBuf,
        mut received: Received,
        reassembled: bool,
    ) -> InputResult {
        let mut walk =
            HeaderWalk { packet, at: usize::from(received.header_len), gone: 0, fragments: 0 };
        let found = walk.find_transport(&mut received, reassembled);
        let HeaderWalk { at, gone, fragments, .. } = walk;
        self.counters.rx_fragments += fragments;
        match found {
            Ok(None) => {
                packet.pull(at);
                received.header_len = if gone == 0 { at as u16 } else { 0 };
                self.verify_and_hand_up(now, packet, received)
            }
            Ok(Some(part)) => {
                let quote = if gone == 0 { at } else { 0 };
                let headers = SmallVec::from_slice(packet.head().get(..quote).unwrap_or_default());
                packet.pull(at);
                self.handle_fragment(now, packet, ReceivedPart { received, part, headers })
            }
            Err(HeaderRefusal { reason, error }) => {
                if let (Some(error), 0) = (error, gone) {
                    self.send_icmp_error(now, &received, packet.take(), error);
                }
                Err(reason)
            }
        }
    }
}

impl HeaderWalk<'_> {
    /// Walks up to the transport header, or behind the header of a fragment, which is returned.
    fn find_transport(
        &mut self,
        received: &mut Received,
        reassembled: bool,
    ) -> Result<Option<ipv6::Fragment>, HeaderRefusal> {
        let begin = self.at;
        for count in 0.. {
            match received.protocol {
                protocol::HOP_BY_HOP if count == 0 && !reassembled => {}
                // RFC 8200 section 4.1: hop-by-hop options come first or not at all; section 4:
                // elsewhere the value 0 is an unrecognised next header.
                protocol::HOP_BY_HOP => {
                    let error = IcmpError::unknown_next_header(usize::from(received.next_field));
                    let reason = DropReason::Ipv6HopByHopPosition;
                    return Err(HeaderRefusal { reason, error: Some(error) });
                }
                protocol::DESTINATION_OPTIONS | protocol::ROUTING | protocol::FRAGMENT => {}
                protocol::NO_NEXT_HEADER => return Err(DropReason::Ipv6NoNextHeader.into()),
                _ => break,
            }
            if count >= EXTENSION_HEADERS || self.gone + self.at - begin > EXTENSION_BYTES {
                return Err(DropReason::Ipv6ExtensionLimit.into());
            }
            self.need(8)?;
            let field = self.pointer();
            if received.protocol == protocol::FRAGMENT {
                let part = ipv6::Fragment::parse(self.rest())?;
                self.fragments += 1;
                (received.protocol, received.next_field) = (part.next_header, field as u16);
                if reassembled {
                    return Err(DropReason::FragmentNested.into());
                }
                self.at += ipv6::FRAGMENT_LEN;
                // RFC 6946 section 4: a fragment that is the whole packet is no part of a datagram.
                if part.offset != 0 || part.more {
                    self.check_fragment(part, field)?;
                    return Ok(Some(part));
                }
            } else {
                let extension = ipv6::Extension::parse(self.rest())?;
                self.need(extension.len)?;
                self.check_extension(received.protocol, extension.len)?;
                (received.protocol, received.next_field) =
                    (extension.next_header, self.pointer() as u16);
                self.at += extension.len;
            }
        }
        Ok(None)
    }

    /// Makes sure that the head holds the next `n` bytes.
    fn need(&mut self, n: usize) -> Result<(), DropReason> {
        if self.packet.len() < self.at + n {
            return Err(DropReason::Ipv6ExtensionTruncated);
        }
        if !self.packet.linearize(self.at + n) {
            self.packet.pull(self.at);
            self.gone += core::mem::take(&mut self.at);
            if !self.packet.linearize(n) {
                return Err(DropReason::Ipv6ExtensionLimit);
            }
        }
        Ok(())
    }

    /// Returns the head from the next header on.
    fn rest(&self) -> &[u8] {
        self.packet.head().get(self.at..).unwrap_or_default()
    }

    /// Offset of the next header in the packet as it came.
    fn pointer(&self) -> usize {
        self.gone + self.at
    }

    /// RFC 8200 section 4.5: a length that is no multiple of 8 and an end beyond 65,535 bytes are
    /// answered with a parameter problem, code 0. `field`: the offset of the fragment header.
    fn check_fragment(&self, part: ipv6::Fragment, field: usize) -> Result<(), HeaderRefusal> {
        let len = self.packet.len() - self.at;
        let (reason, pointer) = if part.more && !len.is_multiple_of(8) {
            (DropReason::FragmentLength, 4)
        } else if usize::from(part.offset) + len > usize::from(u16::MAX) {
            (DropReason::FragmentTooBig, field + 2)
        } else {
            return Ok(());
        };
        Err(HeaderRefusal { reason, error: Some(IcmpError::faulty_header(pointer)) })
    }

    /// Checks the routing header or the options that come next.
    fn check_extension(&self, protocol: u8, len: usize) -> Result<(), HeaderRefusal> {
        let bytes = self.rest().get(..len).unwrap_or_default();
        let (reason, error) = if protocol == protocol::ROUTING {
            // RFC 8200 section 4.4: without segments left it is ignored, with them an
            // unrecognised type (all are to us; RFC 5095 forbids type 0) is answered with a
            // pointer at it.
            if bytes.get(3).is_none_or(|&left| left == 0) {
                return Ok(());
            }
            (DropReason::Ipv6RoutingHeader, IcmpError::faulty_header(self.pointer() + 2))
        } else {
            match ipv6::check_options(bytes) {
                OptionsVerdict::Fine => return Ok(()),
                OptionsVerdict::Drop(reason) => return Err(reason.into()),
                OptionsVerdict::Problem { at, unicast_only } => {
                    let pointer = self.pointer() + at;
                    (DropReason::Ipv6Option, IcmpError::unknown_option(pointer, !unicast_only))
                }
            }
        };
        Err(HeaderRefusal { reason, error: Some(error) })
    }
}

impl Net {
    /// Handles a fragment, its head at the payload. `headers`: what was in front, for an ICMP error.
    pub(in crate::net) fn handle_fragment(
        &mut self,
        now: Instant,
        packet: &mut PacketBuf,
        fragment: ReceivedPart,
    ) -> InputResult {
        let ReceivedPart { received, part, .. } = fragment;
        // No fragment of a broadcast is kept: no long datagram is expected by broadcast.
        if received.delivery == Delivery::Broadcast {
            return Err(DropReason::TransportBroadcast);
        }
        let ipv6::Fragment { offset, more, id, .. } = part;
        let v4 = received.dst.is_ipv4();
        let protocol = if v4 { received.protocol } else { 0 };
        let key = DatagramKey { src: received.src, dst: received.dst, id, protocol };
        let Some(fragment) = self.keep_fragment(&key, fragment, packet) else { return Ok(None) };
        spill_head(&mut self.mem, packet, 0, CopyReason::LinearHead)?;
        let headers = fragment.headers;
        let (offset, payload) = (usize::from(offset), packet.take_frags());
        let fragment = ReceivedFragment { offset, more, received, headers, payload };
        let whole = self.reassembly.handle_fragment(
            &mut self.mem,
            now,
            key,
            fragment,
            &mut self.counters,
        )?;
        let Some(whole) = whole else { return Ok(None) };
        self.counters.reassembled += 1;
        *packet = whole.packet;
        // The headers of the datagram as one packet.
        let (protocol, ecn, hop_limit) = (whole.protocol, whole.ecn, whole.hop_limit);
        let header_len = match (received.src, received.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = ipv4::Header {
                    tos: ecn,
                    id: id as u16,
                    ttl: hop_limit,
                    ..ipv4::Header::new(src, dst, protocol, whole.len)
                };
                append(packet, &header.emit())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = ipv6::Header {
                    traffic_class: ecn,
                    hop_limit,
                    ..ipv6::Header::new(src, dst, protocol, whole.len)
                };
                append(packet, &header.emit())
            }
            _ => return Err(DropReason::IpVersion),
        };
        let next_field = if v4 { 9 } else { 6 };
        let received = Received {
            protocol,
            ecn,
            hop_limit,
            header_len: header_len as u16,
            next_field,
            ..received
        };
        if !v4 {
            return self.walk_extensions(now, packet, received, true);
        }
        packet.pull(header_len);
        self.verify_and_hand_up(now, packet, received)
    }
}
