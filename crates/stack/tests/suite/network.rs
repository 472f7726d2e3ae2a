//! What the network layer does for the sockets: echo, path MTU, unreachable hosts, timers.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use pagewire_device::{Capabilities, Medium};
use pagewire_mem::checksum::Checksum;
use pagewire_mem::{Instant, PacketBuf};
use pagewire_stack::{Error, Readiness, SocketId, Stack};

use crate::common::{A, B, Pair, Verbs, capabilities, config, pattern, plain};

/// A stack on a device without link headers, and a packet's way through it.
fn answer_of(packet: &[u8]) -> Vec<u8> {
    let capabilities = Capabilities { medium: Medium::Ip, ..plain(2) };
    let mut stack = Stack::new(Instant::ZERO, config(capabilities, 2)).unwrap();
    let mut frame = PacketBuf::for_rx();
    frame.append(packet.len()).unwrap().copy_from_slice(packet);
    stack.handle_frame(Instant::ZERO, frame);
    let mut out = VecDeque::new();
    stack.poll_transmit(Instant::ZERO, &mut out);
    assert_eq!(out.len(), 1, "{}", stack.counters());
    let answer = out.pop_front().unwrap();
    let mut bytes = answer.head().to_vec();
    for frag in answer.frags() {
        bytes.extend_from_slice(frag.as_slice().unwrap());
    }
    bytes
}

fn sum(parts: &[&[u8]]) -> [u8; 2] {
    let mut sum = Checksum::new();
    for part in parts {
        sum.add_bytes(part);
    }
    sum.finish().to_be_bytes()
}

#[test]
fn an_ipv4_ping_is_answered() {
    let mut icmp = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1];
    icmp.extend_from_slice(b"are you there?");
    let checksum = sum(&[&icmp]);
    icmp[2..4].copy_from_slice(&checksum);
    let mut packet = vec![0x45, 0, 0, 20 + icmp.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0];
    packet.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let checksum = sum(&[&packet]);
    packet[10..12].copy_from_slice(&checksum);
    packet.extend_from_slice(&icmp);

    let answer = answer_of(&packet);
    assert_eq!(answer.len(), packet.len());
    assert_eq!(answer[12..20], [10, 0, 0, 2, 10, 0, 0, 1]);
    assert_eq!(answer[20..22], [0, 0]);
    assert_eq!(answer[24..], packet[24..]);
    assert_eq!(sum(&[&answer[20..]]), [0, 0]);
}

#[test]
fn an_ipv6_ping_is_answered() {
    let (mut src, mut dst) = ([0u8; 16], [0u8; 16]);
    (src[0], src[15], dst[0], dst[15]) = (0xfd, 1, 0xfd, 2);
    let mut icmp = vec![128, 0, 0, 0, 0x12, 0x34, 0, 1];
    icmp.extend_from_slice(b"are you there?");
    let pseudo = |icmp: &[u8]| {
        let len = icmp.len() as u8;
        [&src[..], &dst[..], &[0, 0, 0, len, 0, 0, 0, 58], icmp].concat()
    };
    let checksum = sum(&[&pseudo(&icmp)]);
    icmp[2..4].copy_from_slice(&checksum);
    let mut packet = vec![0x60, 0, 0, 0, 0, icmp.len() as u8, 58, 64];
    packet.extend_from_slice(&src);
    packet.extend_from_slice(&dst);
    packet.extend_from_slice(&icmp);

    let answer = answer_of(&packet);
    assert_eq!(answer.len(), packet.len());
    assert_eq!((&answer[8..24], &answer[24..40]), (&dst[..], &src[..]));
    assert_eq!(answer[40..42], [129, 0]);
    assert_eq!(answer[44..], packet[44..]);
    assert_eq!(sum(&[&pseudo(&answer[40..])]), [0, 0]);
}

#[test]
fn a_peer_with_a_smaller_mtu_gets_segments_that_it_can_take() {
    let small = Capabilities { mtu: 1300, max_super_frame: 1300, ..capabilities(2) };
    let mut p = Pair::with(config(capabilities(1), 1), config(small, 2));
    let (client, server, _) = p.connect("10.0.0.2:80");
    p.transfer_by_reference((A, client), (B, server), Bytes::from(pattern(1_000_000)), 1 << 20);
    assert_eq!(p.a.tcp(client).unwrap().info().send_mss, 1300 - 40 - 12);
}

#[test]
fn port_unreachable_ends_an_attempt_to_connect() {
    let mut p = Pair::met();
    // The answer to the SYN is an ICMP error that quotes it, as from a firewall.
    p.carry = Some(Box::new(|_, _| false));
    let to = "10.0.0.2:80".parse().unwrap();
    let client = p.a.connect(p.now, to, None).unwrap();
    let mut frames = VecDeque::new();
    p.a.poll_transmit(p.now, &mut frames);
    let syn = frames.pop_front().unwrap();
    let mut icmp = vec![3, 3, 0, 0, 0, 0, 0, 0];
    icmp.extend_from_slice(&syn.head()[14..14 + 28]);
    let checksum = sum(&[&icmp]);
    icmp[2..4].copy_from_slice(&checksum);
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    packet.extend_from_slice(&[0x45, 0, 0, 20 + icmp.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0]);
    packet.extend_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
    let checksum = sum(&[&packet[14..]]);
    packet[24..26].copy_from_slice(&checksum);
    packet.extend_from_slice(&icmp);
    let mut frame = PacketBuf::for_rx();
    frame.append(packet.len()).unwrap().copy_from_slice(&packet);
    p.a.handle_frame(p.now, frame);
    p.flush();
    assert!(p.a.readiness(client).unwrap().contains(Readiness::ERROR));
    assert_eq!(p.a.take_error(client), Some(Error::ConnectionRefused));
}

#[test]
fn a_stack_without_sockets_and_neighbours_waits_for_nothing() {
    let mut p = Pair::new();
    p.run(Duration::from_secs(10));
    assert_eq!(p.a.poll_timeout(), None);
    assert_eq!(p.carried, 0);
}

#[test]
fn addresses_are_announced_where_asked() {
    let mut a = config(capabilities(1), 1);
    a.announce = true;
    let mut p = Pair::with(a, config(capabilities(2), 2));
    p.run(Duration::from_secs(10));
    assert!(p.carried >= 2);
    assert_eq!(p.b.counters().address_conflicts, 0);
}

#[test]
fn a_timer_fires_late_by_less_than_a_seventh_of_a_millisecond() {
    let mut p = Pair::met();
    p.carry = Some(Box::new(|_, _| false));
    let begun = p.now;
    p.a.connect(p.now, "10.0.0.2:80".parse().unwrap(), None).unwrap();
    p.flush();
    let sent = p.a.counters().tx_tcp;
    // The SYN is sent again after a second (RFC 6298 section 2).
    while p.a.counters().tx_tcp == sent {
        assert!(p.step(begun + Duration::from_secs(2)));
        p.flush();
    }
    let late = p.now - (begun + Duration::from_secs(1));
    assert!(p.now >= begun + Duration::from_secs(1) && late < Duration::from_micros(140));
}

#[test]
fn every_page_is_home_when_everything_is_closed() {
    let mut p = Pair::new();
    let (client, server, listener) = p.connect("10.0.0.2:80");
    p.transfer((A, client), (B, server), &pattern(3_000_000));
    let now = p.now;
    p.a.send(now, client, &pattern(100_000)).unwrap();
    p.run(Duration::from_millis(5));
    let now = p.now;
    for (side, id) in [(A, SocketId::from(client)), (B, server.into()), (B, listener.into())] {
        p.stack(side).close(now, id);
    }
    p.run(Duration::from_secs(1));
    for stack in [&mut p.a, &mut p.b] {
        stack.end_turn();
        let audit = stack.pool_audit();
        // What is out is the rest of the run of pages that the writer fills.
        assert!(audit.is_conserved() && audit.out <= 64, "{audit:?}");
    }
}
