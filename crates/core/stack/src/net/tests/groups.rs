//! Groups, as frames: reports and their headers to the last byte, whose packets are taken, and queries that
//! are not believed. Times of reports are tested in `multicast/tests.rs`.

use super::*;
use crate::net::LinkId;

const ALERT_V6: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
const ROUTER: &str = "fe80::ff:fe00:2";

fn join(host: &mut Host, group: &str) {
    let Host { net, now } = host;
    net.join_group(*now, LinkId::FIRST, ip(group)).unwrap();
}

fn leave(host: &mut Host, group: &str) {
    let Host { net, now } = host;
    net.leave_group(*now, LinkId::FIRST, ip(group));
}

/// Lets time pass until no report is due any more.
fn settle(host: &mut Host) {
    for _ in 0..4 {
        host.pass(Duration::from_secs(10));
    }
    host.sent();
}

/// An IGMP message in a frame to the group of stations of `to`.
fn igmp(src: [u8; 4], to: [u8; 4], ttl: u8, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&message).ones_complement();
    message[2..4].copy_from_slice(&sum.to_be().to_be_bytes());
    let mac = Mac::for_multicast(IpAddr::from(to)).0;
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(PEER, mac)
        .ipv4(src, to, ttl)
        .write(&mut frame, etherparse::IpNumber(2), &message)
        .unwrap();
    frame
}

/// An MLD message, whose checksum is made right.
fn mld(src: &str, to: &str, hop_limit: u8, alert: &[u8; 8], message: &[u8]) -> Vec<u8> {
    let mac = Mac::for_multicast(ip(to)).0;
    let mut frame = [&mac[..], &PEER, &[0x86, 0xdd, 0x60, 0, 0, 0, 0]].concat();
    frame.extend([(8 + message.len()) as u8, 0, hop_limit]);
    frame.extend(v6(src));
    frame.extend(v6(to));
    frame.extend(alert);
    let at = frame.len();
    frame.extend(message);
    let sum = sum_v6(&v6(src), &v6(to), message);
    frame[at + 2..at + 4].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// The checksum of ICMPv6 by the book: 16 bits at a time.
fn sum_v6(src: &[u8], dst: &[u8], message: &[u8]) -> u16 {
    let len = (message.len() as u32).to_be_bytes();
    let all = [src, dst, &len, &[0, 0, 0, 58], message].concat();
    let mut sum: u32 =
        all.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

const GENERAL_V3: [u8; 12] = [0x11, 10, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0];

fn general_mld() -> Vec<u8> {
    let mut query = vec![130, 0, 0, 0, 0x03, 0xe8, 0, 0];
    query.extend([0; 16]);
    query.extend([2, 125, 0, 0]);
    query
}

#[test]
fn an_igmp_report_has_a_router_alert_and_a_time_to_live_of_1() {
    let mut host = Host::new();
    join(&mut host, "239.1.2.3");
    let frame = host.sent_one();
    #[rustfmt::skip]
    let expected = [
        0x01, 0x00, 0x5e, 0, 0, 0x16, 2, 0, 0, 0, 0, 1, 0x08, 0x00,
        // 24 bytes of header, 40 in all, 224.0.0.22, a router alert.
        0x46, 0xc0, 0, 40, 0, 0, 0x40, 0, 1, 2, 0xf9, 0xf8, 10, 0, 0, 1, 224, 0, 0, 22, 148, 4, 0, 0,
        // A report of one record: to exclude nothing.
        0x22, 0, 0xe8, 0xf9, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 2, 3,
    ];
    assert_eq!(frame, expected, "{frame:02x?}");
    leave(&mut host, "239.1.2.3");
    let frame = host.sent_one();
    assert_eq!(frame[46..], [3, 0, 0, 0, 239, 1, 2, 3], "to include nothing");
}

#[test]
fn an_mld_report_comes_from_the_link_local_address_with_a_router_alert() {
    let mut host = Host::new();
    join(&mut host, "ff05::1:3");
    let frame = host.sent_one();
    assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
    // 36 bytes behind the header, a hop limit of 1.
    assert_eq!(frame[14..22], [0x60, 0, 0, 0, 0, 36, 0, 1]);
    assert_eq!(frame[22..38], v6("fe80::ff:fe00:1"));
    assert_eq!(frame[38..54], v6("ff02::16"));
    assert_eq!(frame[54..62], ALERT_V6);
    assert_eq!(frame[62..64], [143, 0]);
    assert_eq!(frame[66..74], [0, 0, 0, 1, 4, 0, 0, 0]);
    assert_eq!(frame[74..], v6("ff05::1:3"));
    let zeroed = [&frame[62..64], &[0, 0], &frame[66..]].concat();
    let sum = sum_v6(&frame[22..38], &frame[38..54], &zeroed);
    assert_eq!(frame[64..66], sum.to_be_bytes());
}

#[test]
fn a_long_report_is_summed_and_gathered_from_pages() {
    let mut host = Host::new();
    for n in 0..100 {
        join(&mut host, &format!("239.1.1.{n}"));
    }
    settle(&mut host);
    assert!(host.receive(&igmp(PEER_V4, [224, 0, 0, 1], 1, &GENERAL_V3)).is_none());
    host.pass(Duration::from_secs(1));
    let frame = host.sent_one();
    assert_eq!(frame.len(), 14 + 24 + 8 + 100 * 8);
    assert_eq!(frame[44..46], [0, 100]);
    let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&frame[38..]).ones_complement();
    assert_eq!(sum, 0);
}

#[test]
fn the_solicited_node_groups_of_our_addresses_are_reported_to_who_asks() {
    let mut host = Host::new();
    assert_eq!(host.net.poll_timeout(), None, "and where nothing is announced, to nobody else");
    host.receive(&mld(ROUTER, "ff02::1", 1, &ALERT_V6, &general_mld()));
    host.pass(Duration::from_secs(1));
    let frame = host.sent_one();
    assert_eq!(frame[68..70], [0, 1], "both addresses have the same group");
    assert_eq!(frame[74..], v6("ff02::1:ff00:1"));
}

#[test]
fn a_group_is_heard_from_its_first_member_to_its_last() {
    for (group, bytes) in [("239.1.2.3", [239, 1, 2, 3]), ("224.0.0.251", [224, 0, 0, 251])] {
        let mac = Mac::for_multicast(ip(group)).0;
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(PEER, mac)
            .ipv4(PEER_V4, bytes, 1)
            .udp(5353, 5353)
            .write(&mut frame, b"hello")
            .unwrap();
        let mut host = Host::new();
        host.refuses(&frame, DropReason::EthernetNotForUs);
        join(&mut host, group);
        join(&mut host, group);
        assert_eq!(host.receive_transport(&frame).ip.dst, ip(group));
        leave(&mut host, group);
        host.receive_transport(&frame);
        // Another group with the same station address: only the low 23 bits are in it.
        let mut other = Vec::new();
        let alias = [bytes[0] ^ 1, bytes[1], bytes[2], bytes[3]];
        let udp = PacketBuilder::ethernet2(PEER, mac).ipv4(PEER_V4, alias, 1).udp(5353, 5353);
        udp.write(&mut other, b"hello").unwrap();
        host.refuses(&other, DropReason::Ipv4NotForUs);
        leave(&mut host, group);
        host.refuses(&frame, DropReason::EthernetNotForUs);
    }
}

#[test]
fn a_switch_without_an_address_may_ask_too() {
    let mut host = Host::new();
    join(&mut host, "239.1.2.3");
    settle(&mut host);
    host.receive(&igmp([0; 4], [224, 0, 0, 1], 1, &GENERAL_V3));
    host.pass(Duration::from_secs(1));
    assert_eq!(host.sent_one()[46..], [2, 0, 0, 0, 239, 1, 2, 3]);
}

#[test]
fn messages_from_beyond_a_router_or_without_an_alert_are_not_believed() {
    let mut host = Host::new();
    join(&mut host, "239.1.2.3");
    settle(&mut host);
    let reason = DropReason::GroupMessage;
    host.refuses(&igmp(PEER_V4, [224, 0, 0, 1], 2, &GENERAL_V3), reason);
    host.refuses(&igmp(PEER_V4, [224, 0, 0, 1], 1, &GENERAL_V3[..10]), reason);
    let mut damaged = igmp(PEER_V4, [224, 0, 0, 1], 1, &GENERAL_V3);
    damaged[36] ^= 1;
    host.refuses(&damaged, DropReason::IcmpChecksum);
    let query = general_mld();
    let pad = [58, 0, 1, 4, 0, 0, 0, 0];
    host.refuses(&mld(ROUTER, "ff02::1", 255, &ALERT_V6, &query), reason);
    host.refuses(&mld("fd00::2", "ff02::1", 1, &ALERT_V6, &query), reason);
    host.refuses(&mld(ROUTER, "ff02::1", 1, &pad, &query), reason);
    host.refuses(&mld(ROUTER, "ff02::1", 1, &ALERT_V6, &query[..26]), reason);
    assert_eq!(host.net.poll_timeout(), None, "nothing is to be said");
}

#[test]
fn with_an_older_router_reports_are_in_its_words() {
    let mut host = Host::new();
    join(&mut host, "239.1.2.3");
    join(&mut host, "ff05::1:3");
    settle(&mut host);
    host.receive(&igmp(PEER_V4, [224, 0, 0, 1], 1, &[0x11, 10, 0, 0, 0, 0, 0, 0]));
    host.pass(Duration::from_secs(1));
    let report = host.sent_one();
    assert_eq!(report[30..34], [239, 1, 2, 3], "to the group itself");
    assert_eq!(report[38..], [0x16, 0, 0xf8, 0xfa, 239, 1, 2, 3]);
    leave(&mut host, "239.1.2.3");
    let gone = host.sent_one();
    assert_eq!((&gone[30..34], gone[38]), (&[224, 0, 0, 2][..], 0x17), "to all routers");
    let mut query = vec![130, 0, 0, 0, 0x03, 0xe8, 0, 0];
    query.extend([0; 16]);
    host.receive(&mld(ROUTER, "ff02::1", 1, &ALERT_V6, &query));
    host.pass(Duration::from_secs(1));
    let sent = host.sent();
    let of_group = sent.iter().find(|frame| frame[38..54] == v6("ff05::1:3")).unwrap();
    assert_eq!((of_group[62], &of_group[70..]), (131, &v6("ff05::1:3")[..]));
    leave(&mut host, "ff05::1:3");
    let gone = host.sent_one();
    assert_eq!((&gone[38..54], gone[62]), (&v6("ff02::2")[..], 132));
}

#[test]
fn a_link_that_is_gone_says_nothing_of_its_groups() {
    let mut host = Host::new();
    join(&mut host, "239.1.2.3");
    host.net.handle_link_lost(0);
    host.pass(Duration::from_secs(5));
    assert_eq!(host.sent().len(), 0);
    assert_eq!(host.net.poll_timeout(), None);
    leave(&mut host, "239.1.2.3");
}
