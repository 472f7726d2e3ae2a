//! A transparent link: every unicast address counts as ours on it.

use std::net::SocketAddrV4;
use std::time::Duration;

use pagewire_mem::PacketBuf;
use pagewire_stack::{
    BindOptions, DatagramKind, DropReason, Error, Flow, LinkConfig, LinkId, Readiness, Unreachable,
};
use pagewire_tcp::{Flags, TcpHeader};

use crate::common::gateway::{FAR, gateway, greet, guest, guest_at, lost_seq, pair};
use crate::common::{
    A, B, Pair, STATIONS, Verbs, addr, capabilities, config, forge, is_left_out, pattern,
};
use pagewire_testkit::built;
use pagewire_testkit::frames::{ip, received};

const MS: Duration = Duration::from_millis(1);

fn syn(from: SocketAddrV4, to: &str) -> PacketBuf {
    let header = TcpHeader { flags: Flags::SYN, ..TcpHeader::default() };
    forge::frame(2, from, to.parse().unwrap(), header)
}

#[test]
fn without_it_packets_to_other_hosts_are_dropped() {
    let mut p = Pair::with(guest(), config(capabilities(2), 2));
    p.b.listen(addr("0.0.0.0:80"), 4).unwrap();
    let client = p.a.connect(p.now, addr(FAR[0]), None).unwrap();
    p.run(MS);
    assert!(!p.a.readiness(client).unwrap().contains(Readiness::CONNECTED));
    assert!(p.b.counters().drops(DropReason::Ipv4NotForUs) > 0);
}

#[test]
fn an_ordinary_listener_for_all_addresses_gets_its_port_at_every_address() {
    for to in FAR {
        let mut p = pair();
        let listener = p.b.listen(addr("[::]:80"), 4).unwrap();
        let client = p.a.connect(p.now, addr(to), None).unwrap();
        p.run(MS);
        let (server, from) = p.b.accept(listener).unwrap();
        assert_eq!(p.b.local_addr(server), Ok(addr(to)));
        assert_eq!(from, p.a.local_addr(client).unwrap());
        p.transfer((B, server), (A, client), &pattern(100_000));
    }
}

#[test]
fn a_port_without_a_listener_is_closed_at_every_address() {
    let mut p = pair();
    let client = p.a.connect(p.now, addr(FAR[0]), None).unwrap();
    p.run(MS);
    assert_eq!(p.a.take_error(client), Some(Error::ConnectionRefused));
    let udp = p.a.bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    p.a.udp(udp).unwrap().connect(addr(FAR[0])).unwrap();
    p.send_and_deliver(udp, b"x", None);
    let error = p.a.recv_from(udp, &mut [0; 9]);
    assert_eq!(error, Err(Error::ConnectionRefused));
}

#[test]
fn addresses_that_are_no_single_host_elsewhere_stay_foreign() {
    let mut p = pair();
    p.b.listen(addr("0.0.0.0:80"), 4).unwrap();
    for to in ["127.0.0.1:80", "0.1.2.3:80", "224.0.0.9:80", "240.0.0.1:80"] {
        p.b.handle_frame(p.now, syn(guest_at(5000), to));
    }
    // The broadcast address of the link is none of a host either.
    p.b.handle_frame(p.now, syn(guest_at(5000), "10.0.0.255:80"));
    p.run(MS);
    assert_eq!(p.b.socket_count(), 1);
    assert_eq!(p.b.counters().drops(DropReason::Ipv4NotForUs), 4);
    assert_eq!(p.b.counters().drops(DropReason::TransportBroadcast), 1);
}

#[test]
fn a_source_that_the_routes_do_not_place_on_the_link_is_spoofed() {
    let mut p = pair();
    p.b.listen(addr("0.0.0.0:80"), 4).unwrap();
    for (from, to) in [
        ("198.51.100.1:5", FAR[0]),
        ("198.51.100.1:5", "10.0.0.2:80"),
        ("192.0.2.1:80", FAR[0]),
        ("10.0.1.1:5", FAR[0]),
    ] {
        p.b.handle_frame(p.now, syn(from.parse().unwrap(), to));
    }
    assert_eq!(p.b.counters().drops(DropReason::TransparentSource), 4);
    // Nor may it pretend to be the gateway.
    p.b.handle_frame(p.now, syn("10.0.0.2:5".parse().unwrap(), FAR[0]));
    assert_eq!(p.b.counters().drops(DropReason::Ipv4Source), 1);
    assert_eq!(p.b.socket_count(), 1);
}

#[test]
fn a_link_local_source_reaches_the_gateway_and_no_host_behind_it() {
    let mut p = pair();
    p.b.bind_every(LinkId::FIRST, DatagramKind::Echo).unwrap();
    let ping = |to: &str| {
        let ends = ["fe80::ff:fe00:1", to].map(|end| end.parse().unwrap());
        received(&built!(ip(STATIONS, ends, 64).icmpv6_echo_request(7, 1), b"ping"), 100)
    };
    p.b.handle_frame(p.now, ping("fd00::2"));
    assert_eq!(p.b.counters().icmp_echo_answered, 1);
    p.b.handle_frame(p.now, ping("2001:db8::1"));
    assert_eq!(p.b.counters().drops(DropReason::TransparentSource), 1);
}

#[test]
fn a_network_behind_the_guest_is_on_the_link_if_a_route_says_so() {
    if is_left_out("the frame is given to one shard") {
        return;
    }
    let mut b = gateway();
    b.routes = vec![("172.17.0.0/16".parse().unwrap(), "10.0.0.1".parse().unwrap())];
    let mut p = Pair::with(guest(), b);
    greet(&mut p);
    p.b.listen(addr("0.0.0.0:80"), 4).unwrap();
    p.b.handle_frame(p.now, syn("172.17.0.5:5".parse().unwrap(), FAR[0]));
    assert_eq!(p.b.counters().drops(DropReason::TransparentSource), 0);
    assert_eq!(p.b.socket_count(), 2);
}

#[test]
fn a_connection_may_be_opened_in_the_name_of_any_host() {
    if is_left_out("the port is that of another shard") {
        return;
    }
    for (from, to) in [(FAR[0], "10.0.0.1:80"), (FAR[1], "[fd00::1]:80")] {
        let mut p = pair();
        let listener = p.a.listen(addr(to), 4).unwrap();
        let client = p.b.connect(p.now, addr(to), Some(addr(from))).unwrap();
        p.run(MS);
        let (server, peer) = p.a.accept(listener).unwrap();
        assert_eq!(peer, addr(from), "the client's own address and port");
        p.transfer((B, client), (A, server), &pattern(100_000));
        p.transfer((A, server), (B, client), &pattern(100_000));
    }
}

#[test]
fn no_other_link_takes_foreign_sources() {
    let mut p = Pair::new();
    let from = Some(addr(FAR[0]));
    let refused = p.a.connect(p.now, addr("10.0.0.2:80"), from);
    assert_eq!(refused.err(), Some(Error::AddressNotAvailable));
    let mut p = pair();
    // To the gateway itself, not by a link at all.
    let refused = p.b.connect(p.now, addr("10.0.0.2:80"), from);
    assert_eq!(refused.err(), Some(Error::AddressNotAvailable));
    for odd in ["224.0.0.1:1", "0.0.0.1:1"] {
        let refused = p.b.connect(p.now, addr("10.0.0.1:80"), Some(addr(odd)));
        assert_eq!(refused.err(), Some(Error::AddressNotAvailable), "{odd}");
    }
    // A second link, by which the peer is not reached.
    let mut other = LinkConfig::new(capabilities(9), vec!["10.9.0.1/24".parse().unwrap()]);
    other.transparent = false;
    p.b.add_link(p.now, &other).unwrap();
    let refused = p.b.connect(p.now, addr("10.9.0.5:80"), from);
    assert_eq!(refused.err(), Some(Error::AddressNotAvailable));
}

#[test]
fn an_error_about_a_packet_from_a_foreign_address_reaches_its_connection() {
    if is_left_out("the port is that of another shard") {
        return;
    }
    let mut p = pair();
    // The guest's firewall says no.
    let client = p.b.connect(p.now, addr("10.0.0.1:80"), Some(addr(FAR[0]))).unwrap();
    let about = Flow::tcp(addr(FAR[0]), addr("10.0.0.1:80"), lost_seq(&mut p));
    p.a.send_unreachable(p.now, &about, Unreachable::Prohibited, None).unwrap();
    p.run(MS);
    assert_eq!(p.b.take_error(client), Some(Error::HostUnreachable));
}

#[test]
fn an_error_that_quotes_what_was_never_sent_is_dropped() {
    let mut p = pair();
    let about = Flow::tcp(addr("198.51.100.1:9"), addr("10.0.0.1:80"), 1);
    p.a.send_unreachable(p.now, &about, Unreachable::Host, None).unwrap();
    p.run(MS);
    assert_eq!(p.count(B, |c| c.icmp_errors_received), 1);
    assert_eq!(p.b.socket_count(), 0);
}

#[test]
fn the_hosts_own_address_still_answers_echo_and_others_do_not() {
    if is_left_out("the frame is given to one shard") {
        return;
    }
    let mut p = pair();
    let ping = |to: [u8; 4]| {
        let ends = [[10, 0, 0, 1].into(), to.into()];
        received(&built!(ip(STATIONS, ends, 64).icmpv4_echo_request(7, 1), b"ping"), 100)
    };
    p.b.handle_frame(p.now, ping([10, 0, 0, 2]));
    assert_eq!(p.b.counters().icmp_echo_answered, 1);
    p.b.handle_frame(p.now, ping([192, 0, 2, 1]));
    assert_eq!(p.b.counters().icmp_echo_answered, 1);
    assert_eq!(p.b.counters().drops(DropReason::EchoNoSocket), 1);
}

#[test]
fn connections_in_foreign_names_end_with_their_link() {
    if is_left_out("the port is that of another shard") {
        return;
    }
    let mut p = pair();
    let client = p.b.connect(p.now, addr("10.0.0.1:80"), Some(addr(FAR[0]))).unwrap();
    p.b.handle_link_lost(p.now, LinkId::FIRST);
    assert_eq!(p.b.take_error(client), Some(Error::NetworkDown));
}

#[test]
fn errors_that_the_application_sends_need_a_way_and_addresses_of_one_version() {
    let mut p = pair();
    let mut told = |about: Flow, from: Option<&str>| {
        let from = from.map(|from| from.parse().unwrap());
        p.b.send_unreachable(p.now, &about, Unreachable::Net, from)
    };
    let about = Flow::udp(addr("10.0.0.1:9"), addr(FAR[0]));
    assert_eq!(told(about, None), Ok(()));
    assert_eq!(told(about, Some("198.51.100.7")), Ok(()), "a router on the way");
    for odd in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "2001:db8::1"] {
        assert_eq!(told(about, Some(odd)), Err(Error::AddressNotAvailable), "{odd}");
    }
    let mixed = Flow::udp(addr("10.0.0.1:9"), addr(FAR[1]));
    assert_eq!(told(mixed, None), Err(Error::AddressFamily));
    let nowhere = Flow::udp(addr("203.0.113.9:9"), addr(FAR[0]));
    assert_eq!(told(nowhere, None), Err(Error::NetworkUnreachable));
}
