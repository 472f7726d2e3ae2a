//! Byte path, step R3 (ip), what is rare of it: IPv6 extension headers and fragments.
//!
//! Read `input.rs` first; fragments wait in `reassembly.rs`.

use std::net::IpAddr;

use pagewire_mem::{CopyReason, Instant, PacketBuf};
use smallvec::SmallVec;

use super::icmp::ErrorOut;
use super::input::{Meta, Outcome, Passed, take};
use super::reassembly::{Fragment, Key};
use super::route::Delivery;
use super::transport::{append, spill_head};
use super::wire::ipv6::OptionsVerdict;
use super::wire::{ipv4, ipv6, protocol};
use super::{Mem, Net};
use crate::counters::DropReason;
use crate::limits::{EXTENSION_BYTES, EXTENSION_HEADERS};

impl Net {
    /// Walks extension headers (RFC 8200 section 4), the packet's head at the IPv6 header.
    pub(super) fn walk_extensions(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        packet: &mut PacketBuf,
        mut meta: Meta,
        reassembled: bool,
    ) -> Outcome {
        // Where the next header begins, from the packet's front; and bytes taken off the front.
        let (mut at, mut gone) = (usize::from(meta.header_len), 0);
        let begin = at;
        for count in 0.. {
            let first = count == 0 && !reassembled;
            match meta.protocol {
                protocol::HOP_BY_HOP if first => {}
                // RFC 8200 section 4.1: hop-by-hop options come first or not at all; section 4:
                // elsewhere the value 0 is an unrecognised next header.
                protocol::HOP_BY_HOP => {
                    let error = ErrorOut::unknown_next_header(usize::from(meta.next_field));
                    self.send_error_about(mem, now, &meta, take(packet), error, gone == 0);
                    return Err(DropReason::Ipv6HopByHopPosition);
                }
                protocol::DESTINATION_OPTIONS | protocol::ROUTING | protocol::FRAGMENT => {}
                protocol::NO_NEXT_HEADER => return Err(DropReason::Ipv6NoNextHeader),
                _ => break,
            }
            if count >= EXTENSION_HEADERS || gone + at - begin > EXTENSION_BYTES {
                return Err(DropReason::Ipv6ExtensionLimit);
            }
            let fits = |packet: &mut PacketBuf, at: &mut usize, gone: &mut usize, n: usize| {
                if packet.len() < *at + n {
                    return Err(DropReason::Ipv6ExtensionTruncated);
                }
                if !packet.linearize(*at + n) {
                    packet.pull(*at);
                    *gone += core::mem::take(at);
                    if !packet.linearize(n) {
                        return Err(DropReason::Ipv6ExtensionLimit);
                    }
                }
                Ok(())
            };
            fits(packet, &mut at, &mut gone, 8)?;
            let bytes = packet.head().get(at..).unwrap_or_default();
            if meta.protocol == protocol::FRAGMENT {
                let part = ipv6::Fragment::parse(bytes)?;
                meta.next_field = (gone + at) as u16;
                meta.protocol = part.next_header;
                self.counters.rx_fragments += 1;
                if reassembled {
                    return Err(DropReason::FragmentNested);
                }
                // RFC 6946 section 4: a fragment that is the whole packet is taken as such.
                if part.offset != 0 || part.more {
                    let end = at + ipv6::FRAGMENT_LEN;
                    let quote = if gone == 0 { end } else { 0 };
                    let head = packet.head();
                    let headers = SmallVec::from_slice(head.get(..quote).unwrap_or_default());
                    let total = gone + packet.len();
                    let len = total - gone - end;
                    let key = Key { src: meta.src, dst: meta.dst, id: part.id, protocol: 0 };
                    // RFC 8200 section 4.5: a length that is no multiple of 8 and an end beyond
                    // 65,535 bytes are answered with a parameter problem, code 0.
                    let pointer = if part.more && !len.is_multiple_of(8) {
                        Some(4)
                    } else if usize::from(part.offset) + len > usize::from(u16::MAX) {
                        Some(gone + at + 2)
                    } else {
                        None
                    };
                    if let Some(pointer) = pointer {
                        let reason = match pointer {
                            4 => DropReason::FragmentLength,
                            _ => DropReason::FragmentTooBig,
                        };
                        let error = ErrorOut::faulty_header(pointer);
                        self.send_error_about(mem, now, &meta, take(packet), error, gone == 0);
                        return Err(reason);
                    }
                    packet.pull(end);
                    let range = (usize::from(part.offset), part.more);
                    return self.handle_fragment(mem, now, packet, meta, key, headers, range);
                }
                at += ipv6::FRAGMENT_LEN;
                continue;
            }
            let extension = ipv6::Extension::parse(bytes)?;
            fits(packet, &mut at, &mut gone, extension.len)?;
            let bytes = packet.head().get(at..at + extension.len).unwrap_or_default();
            let error = if meta.protocol == protocol::ROUTING {
                // RFC 8200 section 4.4: without segments left it is ignored, with them an
                // unrecognised type (all are to us; RFC 5095 forbids type 0) is answered with a
                // pointer at it.
                let segments_left = bytes.get(3).is_some_and(|&left| left > 0);
                segments_left.then(|| {
                    (DropReason::Ipv6RoutingHeader, ErrorOut::faulty_header(gone + at + 2), false)
                })
            } else {
                match ipv6::check_options(bytes) {
                    OptionsVerdict::Fine => None,
                    OptionsVerdict::Drop(reason) => return Err(reason),
                    OptionsVerdict::Problem { at: option, unicast_only } => {
                        let error = ErrorOut::unknown_option(gone + at + option, !unicast_only);
                        Some((DropReason::Ipv6Option, error, unicast_only))
                    }
                }
            };
            if let Some((reason, error, unicast_only)) = error {
                if !(unicast_only && meta.delivery != Delivery::Unicast) {
                    self.send_error_about(mem, now, &meta, take(packet), error, gone == 0);
                }
                return Err(reason);
            }
            meta.next_field = (gone + at) as u16;
            meta.protocol = extension.next_header;
            at += extension.len;
        }
        packet.pull(at);
        meta.header_len = if gone == 0 { at as u16 } else { 0 };
        self.handle_transport(mem, now, packet, meta)
    }

    /// Takes a fragment, its head at its payload; goes on with the datagram if it was the last
    /// one missing.
    #[expect(clippy::too_many_arguments, reason = "what two kinds of header have in common")]
    pub(super) fn handle_fragment(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        packet: &mut PacketBuf,
        meta: Meta,
        key: Key,
        headers: SmallVec<[u8; 64]>,
        (offset, more): (usize, bool),
    ) -> Outcome {
        // No fragment of a broadcast is kept: nothing that we take from them is long.
        if meta.delivery == Delivery::Broadcast {
            return Err(DropReason::TransportBroadcast);
        }
        spill_head(mem, packet, 0, CopyReason::LinearHead)?;
        let Meta { ecn, hop_limit, protocol, .. } = meta;
        let payload = packet.take_frags();
        let fragment = Fragment { offset, more, ecn, hop_limit, protocol, headers, payload };
        let whole = self.reassembly.handle_fragment(mem, now, key, fragment, &mut self.counters)?;
        let Some(whole) = whole else { return Ok(Passed::Nothing) };
        self.counters.reassembled += 1;
        *packet = whole.packet;
        // The headers as one packet would have had them.
        let protocol = whole.protocol;
        let header_len = match (meta.src, meta.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = ipv4::Header {
                    header_len: ipv4::LEN as u8,
                    tos: whole.ecn,
                    total_len: (ipv4::LEN + whole.len) as u32,
                    id: key.id as u16,
                    dont_fragment: false,
                    more_fragments: false,
                    fragment_offset: 0,
                    ttl: whole.hop_limit,
                    protocol,
                    src,
                    dst,
                };
                append(packet, &header.emit())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = ipv6::Header {
                    traffic_class: whole.ecn,
                    flow_label: 0,
                    payload_len: whole.len as u32,
                    next_header: protocol,
                    hop_limit: whole.hop_limit,
                    src,
                    dst,
                };
                append(packet, &header.emit())
            }
            _ => return Err(DropReason::IpVersion),
        };
        let meta = Meta {
            protocol,
            ecn: whole.ecn,
            hop_limit: whole.hop_limit,
            header_len: header_len as u16,
            next_field: if meta.src.is_ipv4() { 9 } else { 6 },
            ..meta
        };
        if meta.src.is_ipv6() {
            return self.walk_extensions(mem, now, packet, meta, true);
        }
        packet.pull(header_len);
        self.handle_transport(mem, now, packet, meta)
    }
}
