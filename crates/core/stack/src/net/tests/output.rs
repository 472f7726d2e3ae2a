//! The way out: headers, checksums, super-frames, loopback, limits.

use pagewire_mem::{Gso, GsoKind, RxChecksum, TxChecksum};

use super::*;
use crate::limits::{LOOPBACK_PACKETS, OUT_QUEUE_FRAMES};

fn tcp_segment(payload: usize, gso: Option<u16>) -> PacketBuf {
    let mut packet = PacketBuf::for_tx();
    let mut header = [0; 32];
    header[..4].copy_from_slice(&[0, 80, 0x12, 0x34]);
    header[12] = 8 << 4;
    header[13] = 0x10;
    header[20..].copy_from_slice(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    packet.push(32).unwrap().copy_from_slice(&header);
    packet.push_frag(Frag::from_bytes(Bytes::from(pattern(payload)))).unwrap();
    packet.gso = gso.map(|size| Gso { kind: GsoKind::TcpV4, size, header_len: 32 });
    packet
}

/// Parses a TCP frame with `etherparse`: length of payload, and whether all checksums are right.
fn judged(frame: &[u8]) -> (usize, bool) {
    let packet = etherparse::PacketHeaders::from_ethernet_slice(frame).unwrap();
    let etherparse::TransportHeader::Tcp(tcp) = packet.transport.unwrap() else { panic!() };
    let payload = packet.payload.slice();
    let sum = match packet.net.unwrap() {
        etherparse::NetHeaders::Ipv4(ip, _) => {
            assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
            tcp.calc_checksum_ipv4(&ip, payload).unwrap()
        }
        etherparse::NetHeaders::Ipv6(ip, _) => tcp.calc_checksum_ipv6(&ip, payload).unwrap(),
        other => panic!("{other:?}"),
    };
    (payload.len(), sum == tcp.checksum)
}

fn with_offload(tx_checksum: bool, tso: bool) -> Host {
    let mut config = config();
    config.first_link.capabilities.tx_checksum = tx_checksum;
    config.first_link.capabilities.tso_v4 = tso;
    config.first_link.capabilities.tso_v6 = tso;
    let mut host = Host::with(config);
    host.meet();
    host
}

const FLOWS: [(&str, &str, usize); 2] = [("10.0.0.1", "10.0.0.2", 20), ("fd00::1", "fd00::2", 40)];

#[test]
fn a_super_frame_for_a_device_that_cuts_goes_out_whole_with_its_sums_prepared() {
    let mut host = with_offload(true, true);
    for (src, dst, ip_len) in FLOWS {
        let packet = tcp_segment(60_000, Some(1428));
        host.send(ip(src), ip(dst), protocol::TCP, Some(16), packet).unwrap();
        let mut sent = host.sent_packets();
        assert_eq!(sent.len(), 1);
        let mut frame = sent.pop_front().unwrap();
        let start = (14 + ip_len) as u16;
        assert_eq!(frame.tx_checksum, TxChecksum::Partial { start, offset: 16 });
        let gso = frame.gso.unwrap();
        assert_eq!((gso.size, gso.header_len), (1428, start + 32));
        assert_eq!(gso.kind == GsoKind::TcpV4, ip_len == 20);
        // Completed by whoever does: the whole is then one correct segment.
        frame.gso = None;
        pagewire_device::offload::complete_checksum(&mut frame, &mut CopyLedger::new()).unwrap();
        assert_eq!(judged(&flat(&frame)), (60_000, true));
    }
    assert_eq!(host.net.mem.ledger.ours(), 0);
}

#[test]
fn what_the_device_cannot_do_is_done_in_software() {
    for (checksum, tso) in [(false, false), (true, false)] {
        let mut host = with_offload(checksum, tso);
        for (src, dst, _) in FLOWS {
            let packet = tcp_segment(60_000, Some(1428));
            host.send(ip(src), ip(dst), protocol::TCP, Some(16), packet).unwrap();
            let sent = host.sent();
            assert_eq!(sent.len(), 60_000usize.div_ceil(1428));
            let mut total = 0;
            for frame in &sent {
                let (len, right) = judged(frame);
                assert!(right);
                total += len;
            }
            assert_eq!(total, 60_000);
        }
        assert_eq!(host.net.counters.tx_cut_in_software, 2);
    }
}

#[test]
fn a_plain_segment_has_its_checksum_completed_where_the_device_cannot() {
    let mut host = with_offload(false, false);
    for (src, dst, _) in FLOWS {
        for len in [0, 1, 2, 777, 1428] {
            let packet = tcp_segment(len, None);
            host.send(ip(src), ip(dst), protocol::TCP, Some(16), packet).unwrap();
            assert_eq!(judged(&host.sent_one()), (len, true));
        }
    }
}

#[test]
fn tcp_is_never_cut_into_ip_fragments() {
    let mut host = with_offload(true, true);
    for (src, dst, ip_len) in FLOWS {
        let longest = 1500 - ip_len - 32;
        let mut send = |payload: usize, gso: Option<u16>| {
            let packet = tcp_segment(payload, gso);
            let sent = host.send(ip(src), ip(dst), protocol::TCP, Some(16), packet);
            host.sent();
            sent
        };
        assert_eq!(send(longest, None), Ok(()));
        assert_eq!(send(longest + 1, None), Err(Error::MessageTooLong));
        assert_eq!(send(60_000, Some(longest as u16)), Ok(()));
        assert_eq!(send(60_000, Some(longest as u16 + 1)), Err(Error::MessageTooLong));
        assert_eq!(send(65_535 - ip_len - 32, Some(1400)), Ok(()));
        assert_eq!(send(65_536 - ip_len - 32, Some(1400)), Err(Error::MessageTooLong));
    }
    assert_eq!(host.drops(DropReason::OutTooLong), 6);
}

#[test]
fn a_super_frame_longer_than_the_device_takes_is_refused() {
    let mut host = Host::changed(|c| c.first_link.capabilities.max_super_frame = 20_000);
    host.meet();
    let mut send = |len| {
        let packet = tcp_segment(len, Some(1400));
        host.send(ip("10.0.0.1"), ip("10.0.0.2"), protocol::TCP, Some(16), packet)
    };
    assert_eq!(send(20_000 - 52), Ok(()));
    assert_eq!(send(20_001 - 52), Err(Error::MessageTooLong));
}

#[test]
fn a_super_frame_longer_than_an_ip_packet_has_no_length_and_is_received_whole() {
    let mut host = Host::changed(|c| c.first_link.capabilities.max_super_frame = 300_000);
    host.meet();
    let mut peer = Host::peer();
    for (src, dst, ip_len) in FLOWS {
        let mut send = |len| {
            let packet = tcp_segment(len, Some(1400));
            host.send(ip(src), ip(dst), protocol::TCP, Some(16), packet)
        };
        assert_eq!(send(300_000 - ip_len - 32), Ok(()));
        assert_eq!(send(300_001 - ip_len - 32), Err(Error::MessageTooLong));
        let mut frame = host.sent_packets().pop_front().unwrap();
        let field = if ip_len == 20 { 16 } else { 18 };
        assert_eq!(frame.head()[field..field + 2], [0, 0], "its length field");
        pagewire_device::hand_over(&mut frame);
        let mut short = frame.clone();
        let Some(Inbound::Transport(received)) = peer.receive_packet(frame) else {
            panic!("a segment");
        };
        assert_eq!(received.packet.frag_len(), 300_000 - ip_len - 32);
        // The same header in front of less than the field could say is no such thing.
        short.truncate(2000);
        assert!(peer.receive_packet(short).is_none());
    }
    assert_eq!(peer.drops(DropReason::Ipv4TotalLengthSmall), 1);
    assert_eq!(peer.drops(DropReason::TcpTruncated), 1);
}

#[test]
fn no_device_is_given_more_than_the_longest_super_frame() {
    let mut host = Host::changed(|c| c.first_link.capabilities.max_super_frame = usize::MAX);
    host.meet();
    let packet = tcp_segment(2_097_121 - 52, Some(1400));
    let sent = host.send(ip("10.0.0.1"), ip("10.0.0.2"), protocol::TCP, Some(16), packet);
    assert_eq!(sent, Err(Error::MessageTooLong));
}

#[test]
fn tcp_sets_dont_fragment_and_datagrams_do_not() {
    let mut host = Host::acquainted();
    host.send(ip("10.0.0.1"), ip("10.0.0.2"), protocol::TCP, Some(16), tcp_segment(1, None))
        .unwrap();
    assert_eq!(host.sent_one()[20] & 0x40, 0x40);
    host.send_udp(ip("10.0.0.2"), b"a").unwrap();
    host.send_udp(ip("10.0.0.2"), b"b").unwrap();
    let sent = host.sent();
    assert_eq!(sent[0][20] & 0x40, 0);
    assert_ne!(sent[0][18..20], sent[1][18..20], "identifications differ");
}

#[test]
fn ecn_and_hop_limit_are_the_callers() {
    let mut host = Host::acquainted();
    for (dst, src, hop_at) in [("10.0.0.2", "10.0.0.1", 22), ("fd00::2", "fd00::1", 21)] {
        let out = Outgoing {
            src: ip(src),
            dst: ip(dst),
            protocol: protocol::UDP,
            ecn: 2,
            dont_fragment: false,
            too_long: TooLong::CutToPath,
            hop_limit: Some(3),
            by: None,
            checksum_offset: Some(6),
            packet: udp_packet(b"x"),
        };
        host.net.send(host.now, out).unwrap();
        let frame = host.sent_one();
        assert_eq!(frame[hop_at], 3);
        let ecn = if hop_at == 22 { frame[15] & 3 } else { (frame[15] >> 4) & 3 };
        assert_eq!(ecn, 2);
    }
}

#[test]
fn groups_and_broadcast_need_no_neighbour() {
    let mut host = Host::new();
    for (dst, mac) in [
        ("255.255.255.255", [0xff; 6]),
        ("10.0.0.255", [0xff; 6]),
        ("239.1.2.3", [1, 0, 0x5e, 1, 2, 3]),
        ("ff02::fb", [0x33, 0x33, 0, 0, 0, 0xfb]),
    ] {
        host.send_udp(ip(dst), b"x").unwrap();
        assert_eq!(host.sent_one()[..6], mac);
    }
    assert!(host.net.is_broadcast(ip("10.0.0.255")) && !host.net.is_broadcast(ip("10.0.0.2")));
}

#[test]
fn a_source_that_is_not_ours_is_refused() {
    let mut host = Host::acquainted();
    let sent = host.send(ip("10.0.0.9"), ip("10.0.0.2"), protocol::UDP, None, udp_packet(b"x"));
    assert_eq!(sent, Err(Error::AddressNotAvailable));
    let sent = host.send(ip("fd00::1"), ip("10.0.0.2"), protocol::UDP, None, udp_packet(b"x"));
    assert_eq!(sent, Err(Error::AddressFamily));
    assert_eq!(host.drops(DropReason::OutSource), 2);
}

#[test]
fn the_queue_to_the_device_is_bounded() {
    let mut host = Host::acquainted();
    for _ in 0..OUT_QUEUE_FRAMES {
        host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    }
    assert_eq!(host.send_udp(ip("10.0.0.2"), b"x"), Err(Error::NoBuffers));
    assert_eq!(host.drops(DropReason::OutQueueFull), 1);
    assert_eq!(host.sent().len(), OUT_QUEUE_FRAMES);
    assert_eq!(host.send_udp(ip("10.0.0.2"), b"x"), Ok(()));
}

#[test]
fn packets_to_ourselves_come_back_without_leaving() {
    for dst in ["10.0.0.1", "fd00::1", "127.0.0.1", "127.8.8.8", "::1"] {
        let mut host = Host::new();
        assert!(host.net.is_local(ip(dst)));
        assert_eq!(host.net.link_limits(ip(dst), ip(dst), None), (65_535, 65_535));
        host.send_udp(ip(dst), &pattern(5000)).unwrap();
        assert_eq!(host.net.poll_timeout(), Some(Instant::ZERO).map(|_| host.net.now));
        let Some(Inbound::Transport(got)) = host.poll_inbound() else {
            panic!("{dst} {}", host.net.counters)
        };
        assert_eq!((got.src, got.dst), (ip(dst), ip(dst)));
        assert_eq!(payload_of(got.packet.frags()), pattern(5000));
        assert_eq!(got.packet.rx_checksum, RxChecksum::Valid);
        assert!(host.poll_inbound().is_none() && host.sent().is_empty());
        assert_eq!(host.net.mem.ledger.get(CopyReason::LoopPrivate), 5000, "a private copy");
        drop(got);
        host.no_page_is_lost();
    }
}

#[test]
fn loopback_passes_by_reference_where_that_is_asked_for() {
    let mut host = Host::changed(|c| c.loopback_by_reference = true);
    let packet = udp_packet(&pattern(100));
    let at = packet.frags()[0].addr();
    host.send(ip("10.0.0.1"), ip("10.0.0.1"), protocol::UDP, Some(6), packet).unwrap();
    let Some(Inbound::Transport(got)) = host.poll_inbound() else { panic!() };
    assert_eq!(got.packet.frags()[0].addr(), at);
    assert_eq!(host.net.mem.ledger.ours(), 0);
}

#[test]
fn the_loopback_queue_is_bounded() {
    let mut host = Host::new();
    for _ in 0..LOOPBACK_PACKETS {
        host.send_udp(ip("10.0.0.1"), b"x").unwrap();
    }
    assert_eq!(host.send_udp(ip("10.0.0.1"), b"x"), Err(Error::NoBuffers));
    assert_eq!(host.drops(DropReason::LoopbackFull), 1);
    let mut got = 0;
    while host.poll_inbound().is_some() {
        got += 1;
    }
    assert_eq!(got, LOOPBACK_PACKETS);
}

#[test]
fn what_goes_out_is_counted() {
    let mut host = Host::acquainted();
    let before = host.net.counters.clone();
    host.send_udp(ip("10.0.0.2"), &pattern(100)).unwrap();
    let after = &host.net.counters;
    assert_eq!(after.tx_frames - before.tx_frames, 1);
    assert_eq!(after.tx_bytes - before.tx_bytes, 142);
    assert_eq!((after.tx_udp, after.tx_ipv4 - before.tx_ipv4), (1, 1));
    let text = after.to_string();
    assert!(text.contains("tx_udp") && !text.contains("drop "), "{text}");
}

#[test]
fn answers_to_strangers_push_no_destination_out_of_the_cache() {
    let mut host = Host::changed(|c| c.first_link.gateways = vec![ip("10.0.0.2")]);
    host.meet();
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    let cached = |host: &Host| {
        let (now, generation) = (host.now, host.net.generation(0));
        host.net.cache.get(now, ip("10.0.0.1"), ip("10.0.0.2"), |_| generation, || false).is_some()
    };
    assert!(cached(&host));
    host.sent();
    for n in 0..1000 {
        let stranger = IpAddr::from([198, 18, (n >> 8) as u8, n as u8]);
        let mut packet = PacketBuf::for_tx();
        packet.push(20).unwrap().fill(0);
        let ends = (ip("10.0.0.1"), stranger);
        host.net.send_back(host.now, ends, None, 16, &mut packet).unwrap();
    }
    assert!(cached(&host));
    let sent = host.sent_packets();
    assert_eq!(sent.len(), 1000);
    assert!(sent.iter().all(|frame| frame.head()[..6] == PEER && frame.len() == 14 + 20 + 20));
}
