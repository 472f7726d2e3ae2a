//! RFC 792, RFC 1122 section 3.2.2, RFC 4443: echo and errors, both ways.

use pagewire_mem::TxChecksum;

use super::*;
use crate::limits::{
    ICMP_DESTINATION_BURST, ICMP_DESTINATION_INTERVAL, ICMP_ERROR_LEN_V4, ICMP_ERROR_LEN_V6,
    ICMP_ERRORS_BURST,
};
use crate::net::{IcmpKind, QuotedPacket};

fn checksum_is_right(frame: &[u8]) -> bool {
    let packet = etherparse::SlicedPacket::from_ethernet(frame).unwrap();
    match (packet.net.unwrap(), packet.transport.unwrap()) {
        (etherparse::NetSlice::Ipv4(_), etherparse::TransportSlice::Icmpv4(icmp)) => {
            icmp.header().icmp_type.calc_checksum(icmp.payload()) == icmp.checksum()
        }
        (etherparse::NetSlice::Ipv6(ip), etherparse::TransportSlice::Icmpv6(icmp)) => {
            let (src, dst) = (ip.header().source(), ip.header().destination());
            icmp.is_checksum_valid(src, dst)
        }
        other => panic!("{other:?}"),
    }
}

fn without_offload() -> Host {
    let mut host = Host::changed(|c| c.first_link.capabilities.tx_checksum = false);
    host.meet();
    host
}

#[test]
fn an_echo_request_comes_back_with_its_payload_untouched() {
    for payload in [0, 1, 20, 100, 1000] {
        let mut host = without_offload();
        for (request, reply) in [(echo_v4(&pattern(payload)), 0), (echo_v6(&pattern(payload)), 129)]
        {
            assert!(host.receive(&request).is_none());
            let answer = host.sent_one();
            assert!(checksum_is_right(&answer), "{payload}");
            let at = if reply == 0 { 34 } else { 54 };
            assert_eq!(answer[at], reply);
            assert_eq!(answer[at + 4..], request[at + 4..], "identifier, sequence and payload");
            assert_eq!(answer[..6], PEER);
        }
        assert_eq!(host.net.mem.ledger.ours(), 0, "nothing was copied");
        assert_eq!(host.net.counters.icmp_echo_answered, 2);
        assert_eq!(host.net.counters.total_drops(), 0);
    }
}

#[test]
fn the_payload_of_an_echo_goes_back_in_the_memory_it_came_in() {
    let mut host = Host::acquainted();
    let frame = echo_v4(&pattern(1000));
    let packet = rx_packet(&frame, 60);
    let at = packet.frags()[0].addr();
    host.receive_packet(packet);
    let sent = host.sent_packets();
    assert_eq!(sent[0].frags()[0].addr(), at);
}

/// Frames as the host hands them to its device, each with a message that is complete.
fn complete_messages(host: &mut Host) -> Vec<Vec<u8>> {
    let messages = host.sent_packets();
    for packet in &messages {
        assert_eq!(packet.tx_checksum, TxChecksum::Done, "devices complete TCP and UDP only");
    }
    let messages: Vec<_> = messages.iter().map(flat).collect();
    assert!(messages.iter().all(|frame| checksum_is_right(frame)), "{messages:02x?}");
    messages
}

#[test]
fn no_device_is_left_the_checksum_of_an_icmp_message() {
    // This one completes checksums, of TCP and UDP.
    let mut host = Host::acquainted();
    for payload in [0, 1, 64, 1000] {
        let data = pattern(payload);
        // The neighbour is asked for, answered and advertised.
        host.receive(&solicitation(PEER, "fd00::2", "fd00::1", 255));
        assert_eq!(complete_messages(&mut host).len(), 1);
        host.send_udp(ip(&format!("fd00::{}", 100 + payload)), &data).unwrap();
        assert_eq!(complete_messages(&mut host).len(), 1);
        host.pass(Duration::from_secs(10));
        host.sent();
        host.meet();
        // Replies, and replies for others, such as a gateway's.
        host.receive(&echo_v4(&data));
        host.receive(&echo_v6(&data));
        for (protocol, kind, src, dst) in [
            (protocol::ICMP, 0, "10.0.0.1", "10.0.0.2"),
            (protocol::ICMPV6, 129, "fd00::1", "fd00::2"),
        ] {
            let mut reply = udp_packet(&data);
            reply.head_mut().copy_from_slice(&[kind, 0, 0, 0, 0, 1, 0, 2]);
            host.send(ip(src), ip(dst), protocol, Some(2), reply).unwrap();
        }
        assert_eq!(complete_messages(&mut host).len(), 4);
        // Errors.
        unwanted(&mut host, &udp_v4(&data));
        unwanted(&mut host, &udp_v6(&data));
        assert_eq!(complete_messages(&mut host).len(), 2);
        host.now += ICMP_DESTINATION_INTERVAL * 2;
    }
}

#[test]
fn an_echo_request_of_many_fragments_is_answered_in_fragments() {
    for (request, at, src, dst) in [
        (echo_v4(&pattern(5000)), 34, "10.0.0.2", "10.0.0.1"),
        (echo_v6(&pattern(5000)), 54, "fd00::2", "fd00::1"),
    ] {
        let (mut a, mut b) = (Host::acquainted(), Host::peer());
        // `b` asks with a hand-made datagram.
        let mut packet = PacketBuf::for_tx();
        packet.push(8).unwrap().copy_from_slice(&request[at..at + 8]);
        packet.push_frag(Frag::from_bytes(Bytes::copy_from_slice(&request[at + 8..]))).unwrap();
        let protocol = if at == 34 { protocol::ICMP } else { protocol::ICMPV6 };
        b.send(ip(src), ip(dst), protocol, None, packet).unwrap();
        converse(&mut a, &mut b);
        assert_eq!(a.net.counters.icmp_echo_answered, 1);
        assert_eq!(a.net.counters.tx_fragments, 4);
        assert_eq!(b.drops(DropReason::IcmpEchoReply), 1, "a valid reply came");
        assert_eq!(b.net.counters.reassembled, 1);
    }
}

#[test]
fn echo_requests_to_broadcast_and_ipv4_groups_are_refused() {
    let mut host = Host::acquainted();
    for (dst, mac) in [([10, 0, 0, 255], [0xff; 6]), ([224, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1])] {
        let frame = built!(
            PacketBuilder::ethernet2(PEER, mac).ipv4(PEER_V4, dst, 64).icmpv4_echo_request(1, 1),
            b"smurf"
        );
        host.refuses(&frame, DropReason::IcmpBroadcast);
    }
    // RFC 4443 section 4.2 allows the answer to a multicast request; it comes from our address.
    let frame = icmpv6(PEER, [0x33, 0x33, 0, 0, 0, 1], "fd00::2", "ff02::1", 1, (128, 0, 0), b"x");
    host.receive(&frame);
    assert_eq!(host.sent_one()[22..38], v6("fd00::1"));
}

#[test]
fn malformed_messages_are_refused_with_their_reasons() {
    let mut host = Host::acquainted();
    host.refuses(&icmpv4(US, (8, 1, 0), b""), DropReason::IcmpCode);
    host.refuses(&icmpv4(US, (0, 0, 0), b""), DropReason::IcmpEchoReply);
    host.refuses(&icmpv4(US, (13, 0, 0), &[0; 12]), DropReason::IcmpType);
    host.refuses(&icmpv4(US, (4, 0, 0), &[0; 28]), DropReason::IcmpType);
    host.refuses(&icmpv4(US, (5, 1, 0), &[0; 28]), DropReason::IcmpRedirect);
    host.refuses(&icmpv4(US, (3, 3, 0), &[0; 19]), DropReason::IcmpTruncated);
    host.refuses(&icmpv4(US, (3, 3, 0), &[0; 28]), DropReason::IcmpQuote);
    let cut = with_v4_header(icmpv4(US, (8, 0, 0), b""), |b| b[3] = 27);
    host.refuses(&cut, DropReason::IcmpTruncated);
    let v6 = |header, payload: &[u8]| icmpv6(PEER, US, "fd00::2", "fd00::1", 64, header, payload);
    host.refuses(&v6((128, 1, 0), b""), DropReason::IcmpCode);
    host.refuses(&v6((200, 0, 0), b""), DropReason::IcmpType);
    host.refuses(&v6((1, 4, 0), &[0; 39]), DropReason::IcmpTruncated);
    host.refuses(&v6((1, 4, 0), &[0; 48]), DropReason::IcmpQuote);
    assert_eq!(host.sent().len(), 0);
}

fn unwanted(host: &mut Host, frame: &[u8]) {
    let received = host.receive_transport(frame);
    host.refuse(received);
}

#[test]
fn an_unwanted_datagram_is_answered_with_an_error_that_quotes_it() {
    for payload in [0, 30, 400, 1400] {
        let mut host = without_offload();
        let frame = udp_v4(&pattern(payload));
        unwanted(&mut host, &frame);
        let error = host.sent_one();
        assert!(checksum_is_right(&error));
        assert_eq!((error[34], error[35]), (3, 3));
        let quoted = (frame.len() - 14).min(ICMP_ERROR_LEN_V4 - 28);
        assert_eq!(error[42..], frame[14..14 + quoted], "from the IP header on, as it was");
        let frame = udp_v6(&pattern(payload));
        unwanted(&mut host, &frame);
        let error = host.sent_one();
        assert!(checksum_is_right(&error));
        assert_eq!((error[54], error[55]), (1, 4));
        let quoted = (frame.len() - 14).min(ICMP_ERROR_LEN_V6 - 48);
        assert_eq!(error[62..], frame[14..14 + quoted]);
    }
}

#[test]
fn no_error_is_sent_about_a_broadcast_a_group_or_an_error() {
    let mut host = Host::acquainted();
    for (dst, mac) in [([10, 0, 0, 255], [0xff; 6]), ([224, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1])] {
        let frame =
            built!(PacketBuilder::ethernet2(PEER, mac).ipv4(PEER_V4, dst, 64).udp(1, 2), b"x");
        unwanted(&mut host, &frame);
    }
    // An unknown protocol is answered, but not when it is in a fragment or from nobody.
    let unknown = with_v4_header(udp_v4(b"x"), |b| b[9] = 200);
    host.refuses(&unknown, DropReason::ProtocolUnknown);
    let error = host.sent_one();
    assert_eq!((error[34], error[35]), (3, 2));
    assert_eq!(host.net.counters.icmp_errors_sent, 1);
}

#[test]
fn errors_to_one_host_are_limited_in_rate() {
    let mut host = Host::acquainted();
    let frame = udp_v4(b"x");
    for _ in 0..ICMP_ERRORS_BURST + 20 {
        unwanted(&mut host, &frame);
    }
    assert_eq!(host.sent().len(), ICMP_DESTINATION_BURST as usize);
    let withheld = ICMP_ERRORS_BURST + 20 - ICMP_DESTINATION_BURST;
    assert_eq!(host.net.counters.icmp_errors_withheld, u64::from(withheld));
    host.now += ICMP_DESTINATION_INTERVAL * 2;
    for _ in 0..20 {
        unwanted(&mut host, &frame);
    }
    assert_eq!(host.sent().len(), 2, "one for each second that passed");
}

#[test]
fn nobody_learns_from_the_errors_that_he_gets_how_many_others_got() {
    // CVE-2020-25705: packets in a resolver's name to `closed` of its peer's ports, then one of the
    // attacker's own. Whether that is answered must not tell how many of those ports were closed.
    for closed in [0, 1, ICMP_ERRORS_BURST - 1, ICMP_ERRORS_BURST, 1000] {
        let mut host = Host::acquainted();
        for _ in 0..closed {
            unwanted(&mut host, &udp_v4(b"x"));
        }
        host.sent();
        unwanted(&mut host, &udp_v6(b"x"));
        assert_eq!(host.sent().len(), 1, "after {closed}");
    }
}

/// A UDP datagram of ours, as a router quotes it: without the link header.
fn ours_v4() -> Vec<u8> {
    built!(
        PacketBuilder::ethernet2(US, PEER).ipv4(US_V4, PEER_V4, 64).udp(1000, 2000),
        b"what we sent"
    )
    .split_off(14)
}

fn ours_v6() -> Vec<u8> {
    built!(
        PacketBuilder::ethernet2(US, PEER).ipv6(v6("fd00::1"), v6("fd00::2"), 64).udp(1000, 2000),
        b"what we sent"
    )
    .split_off(14)
}

#[test]
fn errors_about_packets_of_ours_are_passed_up() {
    let mut host = Host::new();
    for (header, expected) in [
        ((3, 0, 0), IcmpKind::NetUnreachable),
        ((3, 1, 0), IcmpKind::HostUnreachable),
        ((3, 2, 0), IcmpKind::ProtocolUnreachable),
        ((3, 3, 0), IcmpKind::PortUnreachable),
        ((3, 4, 1400), IcmpKind::PacketTooBig { mtu: 1400 }),
        ((3, 4, 9000), IcmpKind::PacketTooBig { mtu: 1500 }),
        ((3, 4, 68), IcmpKind::PacketTooBig { mtu: 552 }),
        ((3, 5, 0), IcmpKind::HostUnreachable),
        ((3, 13, 0), IcmpKind::Prohibited),
        ((11, 0, 0), IcmpKind::TimeExceeded),
        ((12, 0, 0), IcmpKind::ParameterProblem),
    ] {
        for quote in [28, 30, 40] {
            let frame = icmpv4(US, header, &ours_v4()[..quote]);
            let Some(Inbound::IcmpError { about, kind }) = host.receive(&frame) else { panic!() };
            assert_eq!(kind, expected);
            let expected = QuotedPacket {
                src: ip("10.0.0.1"),
                dst: ip("10.0.0.2"),
                protocol: protocol::UDP,
                src_port: 1000,
                dst_port: 2000,
                seq: 0,
            };
            assert_eq!(about, expected);
        }
    }
    for (header, expected) in [
        ((1, 0, 0), IcmpKind::NetUnreachable),
        ((1, 1, 0), IcmpKind::Prohibited),
        ((1, 3, 0), IcmpKind::HostUnreachable),
        ((1, 4, 0), IcmpKind::PortUnreachable),
        ((2, 0, 1400), IcmpKind::PacketTooBig { mtu: 1400 }),
        ((2, 0, 100), IcmpKind::PacketTooBig { mtu: 1280 }),
        ((3, 0, 0), IcmpKind::TimeExceeded),
        ((4, 0, 0), IcmpKind::ParameterProblem),
        ((4, 1, 6), IcmpKind::ProtocolUnreachable),
    ] {
        let frame = icmpv6(PEER, US, "fd00::2", "fd00::1", 64, header, &ours_v6());
        let Some(Inbound::IcmpError { about, kind }) = host.receive(&frame) else { panic!() };
        assert_eq!((kind, about.dst), (expected, ip("fd00::2")));
    }
    assert_eq!(host.net.counters.total_drops(), 0);
}

#[test]
fn an_error_about_a_packet_to_ourselves_comes_back_too() {
    for dst in ["10.0.0.1", "127.0.0.1", "::1", "fd00::1"] {
        let mut host = Host::new();
        host.send_udp(ip(dst), b"nobody listens").unwrap();
        let Some(Inbound::Transport(received)) = host.poll_inbound() else { panic!() };
        host.refuse(received);
        let Some(Inbound::IcmpError { about, kind }) = host.poll_inbound() else {
            panic!("{dst} {}", host.net.counters)
        };
        assert_eq!((kind, about.dst), (IcmpKind::PortUnreachable, ip(dst)));
        assert_eq!((about.src_port, about.dst_port), (1000, 2000));
    }
}

#[test]
fn a_router_that_does_not_say_its_mtu_is_guessed_from_what_it_refused() {
    let mut host = Host::new();
    let mut quote = ours_v4();
    quote[2..4].copy_from_slice(&1500u16.to_be_bytes());
    let frame = icmpv4(US, (3, 4, 0), &quote);
    let Some(Inbound::IcmpError { kind, .. }) = host.receive(&frame) else { panic!() };
    assert_eq!(kind, IcmpKind::PacketTooBig { mtu: 1492 });
}

#[test]
fn errors_about_packets_that_we_cannot_have_sent_are_refused() {
    let mut config = config();
    config.first_link.addresses.push("10.0.0.9/24".parse().unwrap());
    config.first_link.addresses.push("fd00::9/64".parse().unwrap());
    let mut host = Host::with(config);
    let mut foreign = ours_v4();
    foreign[12..16].copy_from_slice(&[10, 0, 0, 7]);
    host.refuses(&icmpv4(US, (3, 3, 0), &foreign), DropReason::IcmpQuoteNotOurs);
    // Ours too, but another one than what the error is to: errors go to where the packet came from.
    for other in [[10, 0, 0, 9], [127, 0, 0, 1]] {
        let mut foreign = ours_v4();
        foreign[12..16].copy_from_slice(&other);
        host.refuses(&icmpv4(US, (3, 3, 0), &foreign), DropReason::IcmpQuoteNotOurs);
    }
    for other in ["fd00::9", "fe80::ff:fe00:1"] {
        let frame = icmpv6(PEER, US, "fd00::2", other, 64, (1, 4, 0), &ours_v6());
        host.refuses(&frame, DropReason::IcmpQuoteNotOurs);
    }
    let mut fragment = ours_v4();
    fragment[7] = 1;
    host.refuses(&icmpv4(US, (3, 3, 0), &fragment), DropReason::IcmpQuote);
    host.refuses(&icmpv4(US, (3, 200, 0), &ours_v4()), DropReason::IcmpCode);
    for len in 0..28 {
        host.refuses(&icmpv4(US, (3, 3, 0), &ours_v4()[..len]), DropReason::IcmpTruncated);
    }
    let mut short = ours_v4();
    short[0] = 0x44;
    host.refuses(&icmpv4(US, (3, 3, 0), &short), DropReason::IcmpQuote);
    let mut version = ours_v4();
    version[0] = 0x65;
    host.refuses(&icmpv4(US, (3, 3, 0), &version), DropReason::IcmpQuote);
}
