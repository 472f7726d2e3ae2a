//! RFC 8200: the header, and the walk along extension headers.

use super::*;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const NONE: u8 = 59;
const DESTINATION: u8 = 60;
const UDP: u8 = 17;

/// An options header of `units` times 8 bytes, filled with one PadN per 8 bytes.
fn options(next: u8, units: u8) -> Vec<u8> {
    let mut bytes = vec![next, units - 1, 1, 4, 0, 0, 0, 0];
    for _ in 1..units {
        bytes.extend([1, 6, 0, 0, 0, 0, 0, 0]);
    }
    bytes
}

fn problem(host: &mut Host) -> (u8, u8, u32) {
    let frame = host.sent_one();
    assert_eq!(frame[20], 58, "ICMPv6");
    (frame[54], frame[55], u32::from_be_bytes(frame[58..62].try_into().unwrap()))
}

#[test]
fn a_datagram_is_handed_up_wherever_its_bytes_landed() {
    let mut host = Host::new();
    let frame = udp_v6(b"hello");
    for head in [0, 14, 53, 54, 61, 62, 63, frame.len()] {
        let Some(Inbound::Transport(got)) = host.receive_split(&frame, head) else { panic!() };
        assert_eq!((got.src, got.dst), (ip("fd00::2"), ip("fd00::1")));
        assert_eq!(got.packet.head().len(), 8);
        assert_eq!(payload_of(got.packet.frags()), b"hello");
    }
}

#[test]
fn lengths_one_less_exact_and_one_more() {
    let mut host = Host::new();
    let frame = udp_v6(b"hello");
    let set = |len: u8| {
        let mut frame = frame.clone();
        frame[19] = len;
        frame
    };
    host.refuses(&set(14), DropReason::Ipv6PayloadLengthBeyond);
    host.refuses(&set(12), DropReason::UdpLength);
    host.refuses(&set(7), DropReason::UdpTruncated);
    host.refuses(&set(0), DropReason::UdpTruncated);
    assert!(host.receive(&set(13)).is_some());
    for len in 14..frame.len() {
        let reason = match len {
            0..54 => DropReason::Ipv6Truncated,
            _ => DropReason::Ipv6PayloadLengthBeyond,
        };
        host.refuses(&frame[..len], reason);
    }
    let mut version = frame.clone();
    version[14] = 0x40;
    host.refuses(&version, DropReason::Ipv6Version);
}

#[test]
fn sources_that_no_host_can_have_and_foreign_destinations_are_refused() {
    let mut host = Host::new();
    for source in ["::", "::1", "ff02::1", "::ffff:10.0.0.2", "fd00::1"] {
        let mut frame = udp_v6(b"x");
        frame[22..38].copy_from_slice(&v6(source));
        host.refuses(&frame, DropReason::Ipv6Source);
    }
    for dst in ["::", "::1", "fd00::3", "ff02::2", "ff02::1:ff00:2"] {
        let mut frame = udp_v6(b"x");
        frame[38..54].copy_from_slice(&v6(dst));
        host.refuses(&frame, DropReason::Ipv6NotForUs);
    }
}

#[test]
fn the_link_local_address_derived_from_the_station_is_ours() {
    let mut host = Host::new();
    let frame = built!(
        PacketBuilder::ethernet2(PEER, US)
            .ipv6(v6("fe80::ff:fe00:2"), v6("fe80::ff:fe00:1"), 64)
            .udp(1, 2),
        b"x"
    );
    assert!(host.receive(&frame).is_some());
    assert_eq!(host.net.source_for(ip("fe80::9"), 0), Ok(ip("fe80::ff:fe00:1")));
}

#[test]
fn extension_headers_are_walked_to_the_transport() {
    let mut host = Host::new();
    let atomic_fragment = [UDP, 0, 0, 0, 0, 0, 0, 7];
    let routing_done = [UDP, 0, 4, 0, 0, 0, 0, 0];
    for (first, chain) in [
        (HOP_BY_HOP, options(UDP, 1)),
        (DESTINATION, options(UDP, 2)),
        (FRAGMENT, atomic_fragment.to_vec()),
        (ROUTING, routing_done.to_vec()),
        (
            HOP_BY_HOP,
            [options(DESTINATION, 1), options(FRAGMENT, 1), atomic_fragment.to_vec()].concat(),
        ),
        // Longer than the head: what was walked goes.
        (HOP_BY_HOP, [options(DESTINATION, 8), options(DESTINATION, 8), options(UDP, 8)].concat()),
    ] {
        let frame = with_extensions(first, &chain);
        for head in [14, 54, 70, 100, frame.len().min(128)] {
            let head = head.min(frame.len());
            let Some(Inbound::Transport(got)) = host.receive_split(&frame, head) else {
                panic!("{first} {chain:02x?} {}", host.net.counters);
            };
            assert_eq!(payload_of(got.packet.frags()), b"payload");
        }
    }
}

#[test]
fn an_extension_header_one_unit_too_long_is_refused() {
    let mut host = Host::new();
    for first in [HOP_BY_HOP, DESTINATION, ROUTING] {
        // 8 bytes of UDP header and 7 of payload follow: two more units reach beyond the packet.
        let mut chain = options(UDP, 1);
        chain[1] = 2;
        host.refuses(&with_extensions(first, &chain), DropReason::Ipv6ExtensionTruncated);
    }
    // The fragment header itself cut short.
    let mut frame = with_extensions(FRAGMENT, &[UDP, 0, 0, 0, 0, 0, 0, 7]);
    frame[18..20].copy_from_slice(&7u16.to_be_bytes());
    host.refuses(&frame, DropReason::Ipv6ExtensionTruncated);
}

#[test]
fn chains_beyond_the_limits_are_refused() {
    let mut host = Host::new();
    let mut many = vec![];
    for _ in 0..9 {
        many.extend(options(DESTINATION, 1));
    }
    many.extend(options(UDP, 1));
    host.refuses(&with_extensions(DESTINATION, &many), DropReason::Ipv6ExtensionLimit);
    let mut long = vec![];
    for _ in 0..5 {
        long.extend(options(DESTINATION, 8));
        long.extend(options(DESTINATION, 7));
    }
    host.refuses(&with_extensions(DESTINATION, &long), DropReason::Ipv6ExtensionLimit);
    // The header is longer than the limit.
    host.refuses(&with_extensions(DESTINATION, &options(UDP, 40)), DropReason::Ipv6ExtensionLimit);
    // A single header has more options than the limit.
    let mut crowded = options(UDP, 8);
    crowded[2..].fill(0);
    host.refuses(&with_extensions(DESTINATION, &crowded), DropReason::Ipv6ExtensionLimit);
}

#[test]
fn an_unknown_next_header_is_answered_with_a_pointer_at_it() {
    let mut host = Host::acquainted();
    let mut frame = udp_v6(b"x");
    frame[20] = 200;
    host.refuses(&frame, DropReason::ProtocolUnknown);
    assert_eq!(problem(&mut host), (4, 1, 6));
    host.refuses(&with_extensions(DESTINATION, &options(200, 1)), DropReason::ProtocolUnknown);
    assert_eq!(problem(&mut host), (4, 1, 40));
    host.refuses(&with_extensions(NONE, &[]), DropReason::Ipv6NoNextHeader);
    assert_eq!(host.sent().len(), 0);
}

#[test]
fn hop_by_hop_options_anywhere_but_first_are_answered() {
    let mut host = Host::acquainted();
    let chain = [options(HOP_BY_HOP, 1), options(UDP, 1)].concat();
    host.refuses(&with_extensions(DESTINATION, &chain), DropReason::Ipv6HopByHopPosition);
    assert_eq!(problem(&mut host), (4, 1, 40));
}

#[test]
fn a_routing_header_with_segments_left_is_answered_with_a_pointer_at_its_type() {
    let mut host = Host::acquainted();
    for kind in [0, 2, 3, 4, 253] {
        let chain = [UDP, 0, kind, 1, 0, 0, 0, 0];
        host.refuses(&with_extensions(ROUTING, &chain), DropReason::Ipv6RoutingHeader);
        assert_eq!(problem(&mut host), (4, 0, 42));
    }
}

#[test]
fn an_unknown_option_is_treated_as_its_highest_bits_say() {
    let mut host = Host::acquainted();
    let option = |kind: u8| with_extensions(DESTINATION, &[UDP, 0, kind, 4, 0, 0, 0, 0]);
    assert!(host.receive(&option(0x1e)).is_some(), "skip");
    host.refuses(&option(0x5e), DropReason::Ipv6Option);
    assert_eq!(host.sent().len(), 0, "discard");
    host.refuses(&option(0x9e), DropReason::Ipv6Option);
    assert_eq!(problem(&mut host), (4, 2, 42));
    host.refuses(&option(0xde), DropReason::Ipv6Option);
    assert_eq!(problem(&mut host), (4, 2, 42));
    // To a multicast address: 10 is answered, 11 is not.
    let to_group = |kind: u8| {
        let mut frame = option(kind);
        frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
        frame[38..54].copy_from_slice(&v6("ff02::1"));
        frame
    };
    host.refuses(&to_group(0x9e), DropReason::Ipv6Option);
    assert_eq!(problem(&mut host), (4, 2, 42));
    host.refuses(&to_group(0xde), DropReason::Ipv6Option);
    assert_eq!(host.sent().len(), 0);
    // An option that ends one byte beyond its header.
    let long = with_extensions(DESTINATION, &[UDP, 0, 1, 5, 0, 0, 0, 0]);
    host.refuses(&long, DropReason::Ipv6OptionLength);
}
