//! RFC 791 and RFC 1122 section 3.2: what is taken, and why the rest is not.

use super::*;

#[test]
fn a_datagram_is_handed_up_with_its_header_in_the_head_and_its_payload_in_fragments() {
    let mut host = Host::new();
    let frame = udp_v4(b"hello");
    for head in [0, 1, 14, 20, 34, 41, 42, 43, frame.len()] {
        let Some(Inbound::Transport(got)) = host.receive_split(&frame, head) else { panic!() };
        assert_eq!((got.src, got.dst), (ip("10.0.0.2"), ip("10.0.0.1")));
        assert_eq!((got.protocol, got.hop_limit), (protocol::UDP, 64));
        assert_eq!(got.packet.head().len(), 8, "{head} bytes had landed in the head");
        assert_eq!(payload_of(got.packet.frags()), b"hello");
    }
    assert_eq!(host.net.counters.total_drops(), 0);
}

#[test]
fn payload_behind_the_headers_moves_to_pages_and_is_counted() {
    let mut host = Host::new();
    let frame = tcp_v4(&pattern(1000));
    // 14 + 20 + 32 bytes of headers: 62 bytes of payload are in the head.
    let got = host.receive_transport(&frame);
    assert_eq!(got.packet.head().len(), 32);
    assert_eq!(payload_of(got.packet.frags()), pattern(1000));
    assert_eq!(host.net.mem.ledger.get(CopyReason::LinearHead), 62);
    assert_eq!(host.net.counters.rx_head_payloads, 1);
    // Rightly predicted: nothing moves.
    let Some(Inbound::Transport(got)) = host.receive_split(&frame, 66) else { panic!() };
    assert_eq!(payload_of(got.packet.frags()), pattern(1000));
    assert_eq!(host.net.mem.ledger.ours(), 62);
    drop(got);
}

#[test]
fn a_full_packet_whose_head_holds_payload_is_still_taken_whole() {
    let mut host = Host::new();
    let payload = pattern(100 + 17 * 50);
    let frame = with_v4_header(udp_v4(&payload), |_| ());
    let mut packet = PacketBuf::for_rx();
    let cut = frame.len() - 17 * 50;
    packet.append(cut.min(128)).unwrap().copy_from_slice(&frame[..cut.min(128)]);
    assert!(cut > 128);
    let mut rest = &frame[128..];
    while !rest.is_empty() {
        let n = rest.len().div_ceil(17).max(51).min(rest.len());
        packet.push_frag(Frag::from_bytes(Bytes::copy_from_slice(&rest[..n]))).unwrap();
        rest = &rest[n..];
    }
    assert_eq!(packet.frags().len(), MAX_FRAGS);
    let got = host.receive_packet(packet);
    let Some(Inbound::Transport(got)) = got else { panic!("{}", host.net.counters) };
    assert_eq!(payload_of(got.packet.frags()), payload);
}

#[test]
fn options_are_skipped_even_where_all_headers_together_outgrow_the_head() {
    let mut host = Host::new();
    let mut frame = tcp_v4(&pattern(500));
    // The longest IP options and the longest TCP header.
    let extra_tcp = 60 - 32;
    frame.splice(66..66, vec![1; extra_tcp]);
    frame[46] = 15 << 4;
    frame.splice(34..34, vec![1; 40]);
    frame[14] = 0x4f;
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    fix_v4(&mut frame);
    let mut packet = rx_packet(&frame, 128);
    packet.rx_checksum = pagewire_mem::RxChecksum::Valid;
    let got = host.receive_packet(packet);
    let Some(Inbound::Transport(got)) = got else { panic!("{}", host.net.counters) };
    assert_eq!(got.packet.head().len(), 60);
    assert_eq!(payload_of(got.packet.frags()), pattern(500));
    assert_eq!(got.header_len, 0, "the IP header had to go");
}

#[test]
fn link_padding_is_trimmed() {
    let mut host = Host::new();
    let mut frame = udp_v4(b"x");
    frame.resize(60, 0xee);
    assert_eq!(payload_of(host.receive_transport(&frame).packet.frags()), b"x");
}

#[test]
fn a_frame_cut_anywhere_is_refused_with_the_reason_of_the_layer_it_was_cut_in() {
    let mut host = Host::new();
    for frame in [udp_v4(b"hello"), tcp_v4(b"hello")] {
        for len in 0..frame.len() {
            let reason = match len {
                0..14 => DropReason::EthernetTruncated,
                14..34 => DropReason::Ipv4Truncated,
                _ => DropReason::Ipv4TotalLengthBeyond,
            };
            host.refuses(&frame[..len], reason);
            host.refuses_split(&frame[..len], len / 2, reason);
        }
    }
}

#[test]
fn a_source_that_no_host_can_have_is_refused() {
    let mut host = Host::new();
    for source in [
        [0, 0, 0, 0],
        [0, 1, 2, 3],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [239, 1, 1, 1],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
        [10, 0, 0, 255],
        US_V4,
    ] {
        let frame = with_v4_header(udp_v4(b"x"), |b| b[12..16].copy_from_slice(&source));
        host.refuses(&frame, DropReason::Ipv4Source);
    }
}

#[test]
fn only_our_addresses_are_ours() {
    let mut host = Host::new();
    for dst in [[10, 0, 0, 3], [10, 0, 1, 1], [127, 0, 0, 1], [224, 0, 0, 2], [0, 0, 0, 0]] {
        let frame = with_v4_header(udp_v4(b"x"), |b| b[16..20].copy_from_slice(&dst));
        host.refuses(&frame, DropReason::Ipv4NotForUs);
    }
}

#[test]
fn broadcast_and_all_hosts_datagrams_reach_udp_but_never_tcp() {
    let mut host = Host::new();
    for (dst, mac) in [
        ([10, 0, 0, 255], [0xff; 6]),
        ([255, 255, 255, 255], [0xff; 6]),
        ([224, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]),
    ] {
        let frame =
            built!(PacketBuilder::ethernet2(PEER, mac).ipv4(PEER_V4, dst, 1).udp(1, 2), b"x");
        assert_eq!(host.receive_transport(&frame).dst, IpAddr::from(dst));
        let frame = built!(
            PacketBuilder::ethernet2(PEER, mac).ipv4(PEER_V4, dst, 1).tcp(1, 2, 3, 4).syn(),
            &[]
        );
        host.refuses(&frame, DropReason::TransportBroadcast);
    }
    assert_eq!(host.sent().len(), 0);
}

#[test]
fn a_unicast_packet_in_a_link_broadcast_is_refused() {
    let mut host = Host::new();
    let mut frame = udp_v4(b"x");
    frame[..6].fill(0xff);
    host.refuses(&frame, DropReason::Ipv4LinkBroadcast);
}

#[test]
fn frames_that_are_not_for_us_are_refused_at_the_link() {
    let mut host = Host::new();
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = udp_v4(b"x");
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    host.refuses(&with(0, &STRANGER), DropReason::EthernetNotForUs);
    host.refuses(&with(0, &[1, 0, 0x5e, 0, 0, 2]), DropReason::EthernetNotForUs);
    host.refuses(&with(0, &[0x33, 0x33, 0xff, 1, 2, 3]), DropReason::EthernetNotForUs);
    host.refuses(&with(6, &[1]), DropReason::EthernetSource);
    host.refuses(&with(12, &[0x81, 0]), DropReason::EthernetVlan);
    host.refuses(&with(12, &[0x88, 0xa8]), DropReason::EthernetVlan);
    host.refuses(&with(12, &[0, 46]), DropReason::EthernetLength);
    host.refuses(&with(12, &[0x88, 0xcc]), DropReason::EthernetType);
    host.refuses(&with(12, &[0x86, 0xdd]), DropReason::Ipv6Truncated);
}

#[test]
fn a_wrong_transport_checksum_is_refused_unless_the_device_has_verified_it() {
    let mut host = Host::new();
    for (frame, reason) in [
        (udp_v4(&pattern(300)), DropReason::UdpChecksum),
        (tcp_v4(&pattern(301)), DropReason::TcpChecksum),
        (echo_v4(&pattern(302)), DropReason::IcmpChecksum),
        (udp_v6(&pattern(303)), DropReason::UdpChecksum),
        (echo_v6(&pattern(304)), DropReason::IcmpChecksum),
    ] {
        let mut bad = frame.clone();
        *bad.last_mut().unwrap() ^= 1;
        host.refuses(&bad, reason);
        let before = host.net.counters.total_drops();
        host.receive(&frame);
        let mut packet = rx_packet(&bad, 50);
        packet.rx_checksum = pagewire_mem::RxChecksum::Valid;
        host.receive_packet(packet);
        assert_eq!(host.net.counters.total_drops(), before);
    }
}

#[test]
fn a_udp_checksum_of_zero_means_none_in_ipv4_only() {
    let mut host = Host::new();
    let mut frame = udp_v4(b"x");
    frame[40..42].fill(0);
    assert!(host.receive(&frame).is_some());
    let mut frame = udp_v6(b"x");
    frame[60..62].fill(0);
    host.refuses(&frame, DropReason::UdpChecksum);
}

#[test]
fn transport_header_lengths_one_less_exact_and_one_more() {
    let mut host = Host::new();
    // TCP's data offset: 5 words are the least, 8 are right, 10 end beyond the segment.
    let offset = |words: u8| {
        let mut frame = tcp_v4(b"hello");
        frame[46] = words << 4;
        frame
    };
    for words in 0..5 {
        host.refuses(&offset(words), DropReason::TcpDataOffset);
    }
    host.refuses(&offset(10), DropReason::TcpDataOffset);
    host.refuses(&offset(15), DropReason::TcpDataOffset);
    host.refuses(&offset(7), DropReason::TcpChecksum);
    assert!(host.receive(&offset(8)).is_some());
    // Port 0, of either side.
    for at in [34, 36] {
        let mut frame = vec![];
        let (src, dst) = if at == 34 { (0, 1000) } else { (2000, 0) };
        PacketBuilder::ethernet2(PEER, US)
            .ipv4(PEER_V4, US_V4, 64)
            .tcp(src, dst, 1, 1)
            .write(&mut frame, &[])
            .unwrap();
        host.refuses(&frame, DropReason::TcpPort);
    }
    // UDP's length.
    let length = |len: u8| {
        let mut frame = udp_v4(b"hello");
        frame[39] = len;
        frame[40..42].fill(0);
        frame
    };
    host.refuses(&length(7), DropReason::UdpLength);
    host.refuses(&length(14), DropReason::UdpLength);
    assert_eq!(payload_of(host.receive_transport(&length(13)).packet.frags()), b"hello");
    assert_eq!(payload_of(host.receive_transport(&length(12)).packet.frags()), b"hell");
    assert_eq!(payload_of(host.receive_transport(&length(8)).packet.frags()), b"");
    // IPv4's header length, beyond the frame, and its total length, below UDP's length and header.
    let set = |at: usize, value: u8| with_v4_header(udp_v4(b"hello"), |header| header[at] = value);
    host.refuses(&set(0, 0x4f), DropReason::Ipv4HeaderLength);
    host.refuses(&set(3, 32), DropReason::UdpLength);
    host.refuses(&set(3, 20), DropReason::UdpTruncated);
}

#[test]
fn an_ip_medium_carries_packets_without_a_link_header() {
    let mut host = Host::changed(|c| c.first_link.capabilities.medium = Medium::Ip);
    assert!(host.receive(&udp_v4(b"x")[14..]).is_some());
    assert!(host.receive(&udp_v6(b"x")[14..]).is_some());
    host.refuses(&[0x50; 40], DropReason::IpVersion);
    host.refuses(&[], DropReason::IpVersion);
    host.send_udp(ip("10.0.0.9"), b"y").unwrap();
    assert_eq!(host.sent_one()[0], 0x45);
    assert_eq!(host.send_udp(ip("10.9.9.9"), b"y"), Err(Error::NetworkUnreachable));
}

#[test]
fn without_pages_a_payload_in_the_head_is_dropped_with_its_reason() {
    let mut host = Host::new();
    let mut taken = vec![];
    let mut writer = PageWriter::new();
    while writer.refill(&mut host.net.mem.pool, 64) {
        let spare = writer.spare();
        taken.push(writer.commit(spare));
    }
    host.refuses(&udp_v4(b"hello"), DropReason::NoPages);
    drop(taken);
    host.net.mem.pool.drain();
    assert!(host.receive(&udp_v4(b"hello")).is_some());
    host.no_page_is_lost();
}
