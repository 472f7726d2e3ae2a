//! Datagram sockets and groups: receivers of a datagram to a group, and copies that come back. Reports on the
//! link are tested in `src/net/tests/groups.rs` and `src/net/multicast/tests.rs`.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::{Frag, FragVec};
use pagewire_stack::limits::{SOCKET_GROUPS_V4, SOCKET_GROUPS_V6};
use pagewire_stack::{
    BindOptions, DropReason, Error, GroupLink, LinkId, SocketOption, Stack, UdpId,
};

use crate::common::{Pair, Verbs, addr, is_left_out, pattern};

const MDNS: &str = "224.0.0.251";
const GROUPS: [(&str, &str); 2] = [("239.1.2.3", "0.0.0.0:7000"), ("ff05::1:3", "[::]:7000")];

fn ip(s: &str) -> std::net::IpAddr {
    s.parse().unwrap()
}

fn at(group: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip(group), port)
}

fn shared(stack: &mut Stack, local: &str) -> UdpId {
    let options = BindOptions { reuse: true, ..BindOptions::default() };
    stack.bind_udp(addr(local), options).unwrap()
}

/// All datagrams that the socket has received.
fn all(p: &mut Pair, b: bool, id: UdpId) -> Vec<Vec<u8>> {
    let stack = if b { &mut p.b } else { &mut p.a };
    let (mut all, mut buf) = (Vec::new(), vec![0; 70_000]);
    while let Ok((n, _)) = stack.recv_from(id, &mut buf[..]) {
        all.push(buf[..n].to_vec());
    }
    all
}

#[test]
fn two_hosts_talk_by_a_group_of_either_version() {
    if is_left_out("packets to groups do not go to other shards yet") {
        return;
    }
    for (group, local) in GROUPS {
        let mut p = Pair::new();
        let (one, other) = (
            p.a.bind_udp(addr(local), BindOptions::default()).unwrap(),
            p.b.bind_udp(addr(local), BindOptions::default()).unwrap(),
        );
        p.a.udp(one).unwrap().join_group(p.now, ip(group), GroupLink::Route).unwrap();
        p.b.udp(other).unwrap().join_group(p.now, ip(group), GroupLink::Route).unwrap();
        p.a.send_to(p.now, one, b"hello", Some(at(group, 7000))).unwrap();
        p.b.send_to(p.now, other, b"world", Some(at(group, 7000))).unwrap();
        p.run(Duration::from_millis(1));
        // Each hears itself too.
        for b in [false, true] {
            let mut got = all(&mut p, b, if b { other } else { one });
            got.sort();
            assert_eq!(got, [b"hello".to_vec(), b"world".to_vec()], "{group}");
        }
        p.b.udp(other).unwrap().leave_group(p.now, ip(group), GroupLink::Route).unwrap();
        p.run(Duration::from_secs(5));
        let before = p.b.counters().drops(DropReason::EthernetNotForUs);
        p.send_and_deliver(one, b"gone", Some(at(group, 7000)));
        assert_eq!(all(&mut p, true, other), Vec::<Vec<u8>>::new());
        assert_eq!(p.b.counters().drops(DropReason::EthernetNotForUs), before + 1);
    }
}

#[test]
fn a_datagram_to_a_group_reaches_every_socket_that_is_to_have_it_by_reference() {
    let mut p = Pair::new();
    let options = BindOptions { reuse: true, ..BindOptions::default() };
    let any: Vec<_> = (0..3).map(|_| shared(&mut p.b, "0.0.0.0:7000")).collect();
    let to_group = p.b.bind_udp(at("239.1.2.3", 7000), options).unwrap();
    let to_both = shared(&mut p.b, "[::]:7000");
    // These get none: another group, another port, an address of ours, another peer.
    let others = [
        p.b.bind_udp(at("239.9.9.9", 7000), options).unwrap(),
        p.b.bind_udp(addr("0.0.0.0:7001"), BindOptions::default()).unwrap(),
        shared(&mut p.b, "10.0.0.2:7000"),
        shared(&mut p.b, "0.0.0.0:7000"),
    ];
    p.b.udp(others[3]).unwrap().connect(addr("10.0.0.9:7000")).unwrap();
    // As on Linux, it is enough that one has joined.
    p.b.udp(any[0]).unwrap().join_group(p.now, ip("239.1.2.3"), GroupLink::Route).unwrap();
    let from = p.a.bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    let data = Bytes::from(pattern(1400));
    let frags: FragVec = [Frag::from_bytes(data.clone())].into_iter().collect();
    p.send_and_deliver(from, frags, Some(at("239.1.2.3", 7000)));
    for id in any.iter().copied().chain([to_group, to_both]) {
        let message = p.b.recv_from(id, pagewire_stack::Message(usize::MAX)).unwrap();
        assert_eq!(message.payload[0].addr(), data.as_ptr().addr());
        assert_eq!((message.to.ip(), message.link), (ip("239.1.2.3"), LinkId::FIRST));
    }
    for id in others {
        assert_eq!(p.b.recv_from(id, pagewire_stack::Datagram).unwrap_err(), Error::WouldBlock);
    }
    assert_eq!(p.a.ledger().ours() + p.b.ledger().ours(), 0);
    assert_eq!(p.b.receive_memory_used(), 0);
}

#[test]
fn who_asks_for_its_own_groups_only_gets_no_others() {
    for (group, local) in GROUPS {
        let mut p = Pair::new();
        let (member, other) = (shared(&mut p.b, local), shared(&mut p.b, local));
        let v6 = ip(group).is_ipv6();
        for id in [member, other] {
            let all = if v6 { SocketOption::MulticastAllV6 } else { SocketOption::MulticastAllV4 };
            p.b.set_option(id, all(false)).unwrap();
        }
        p.b.udp(member).unwrap().join_group(p.now, ip(group), GroupLink::Route).unwrap();
        let from = p.a.bind_udp(addr(local), BindOptions::default()).unwrap();
        p.send_and_deliver(from, b"hello", Some(at(group, 7000)));
        assert_eq!(all(&mut p, true, member).len(), 1);
        assert_eq!(all(&mut p, true, other).len(), 0);
    }
}

#[test]
fn nobody_is_told_that_a_group_has_no_socket_at_a_port() {
    if is_left_out("packets to groups do not go to other shards yet") {
        return;
    }
    let mut p = Pair::new();
    let member = p.b.bind_udp(addr("0.0.0.0:7000"), BindOptions::default()).unwrap();
    p.b.udp(member).unwrap().join_group(p.now, ip(MDNS), GroupLink::Route).unwrap();
    let from = p.a.bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    p.send_and_deliver(from, b"hello", Some(at(MDNS, 7001)));
    assert_eq!(p.b.counters().drops(DropReason::UdpNoSocket), 1);
    assert_eq!(p.b.counters().icmp_errors_sent, 0);
}

#[test]
fn datagrams_to_a_group_go_one_hop_and_come_back_unless_told_otherwise() {
    let mut p = Pair::new();
    let id = p.a.bind_udp(addr("0.0.0.0:7000"), BindOptions::default()).unwrap();
    p.a.udp(id).unwrap().join_group(p.now, ip(MDNS), GroupLink::Route).unwrap();
    p.run(Duration::from_secs(5));
    let seen = p.watch(|_, frame| Some(frame.head()[22]));
    for (hops, loops) in [(1, true), (7, false), (0, true)] {
        p.a.set_option(id, SocketOption::MulticastTtlV4(hops)).unwrap();
        p.a.set_option(id, SocketOption::MulticastLoopV4(loops)).unwrap();
        p.send_and_deliver(id, b"hello", Some(at(MDNS, 7000)));
        assert_eq!(all(&mut p, false, id).len(), usize::from(loops), "{hops} {loops}");
    }
    assert_eq!(*seen.borrow(), [1, 7], "what goes no hop stays here");
}

#[test]
fn a_datagram_to_a_group_may_be_longer_than_a_packet() {
    if is_left_out("packets to groups do not go to other shards yet") {
        return;
    }
    for (group, local) in GROUPS {
        let mut p = Pair::new();
        let to = p.b.bind_udp(addr(local), BindOptions::default()).unwrap();
        p.b.udp(to).unwrap().join_group(p.now, ip(group), GroupLink::Route).unwrap();
        let from = p.a.bind_udp(addr(local), BindOptions::default()).unwrap();
        let data = pattern(9000);
        p.send_and_deliver(from, &data, Some(at(group, 7000)));
        assert!(all(&mut p, true, to) == [data]);
        // No error reports that the rest did not come: RFC 1122 section 3.2.2.
        let mut count = 0;
        p.carry = Some(Box::new(move |_, _| {
            count += 1;
            count > 1
        }));
        p.a.send_to(p.now, from, &pattern(9000), Some(at(group, 7000))).unwrap();
        p.run(Duration::from_secs(90));
        assert_eq!(p.b.counters().icmp_errors_sent, 0);
    }
}

#[test]
fn a_socket_that_is_closed_leaves_its_groups() {
    let mut p = Pair::new();
    let (one, other) = (shared(&mut p.b, "0.0.0.0:7000"), shared(&mut p.b, "0.0.0.0:7000"));
    for id in [one, other] {
        p.b.udp(id).unwrap().join_group(p.now, ip("239.1.2.3"), GroupLink::Route).unwrap();
    }
    p.run(Duration::from_secs(5));
    let said = p.b.counters().tx_group_reports;
    p.b.close(p.now, one);
    p.run(Duration::from_secs(5));
    assert_eq!(p.b.counters().tx_group_reports, said, "one is left");
    p.b.close(p.now, other);
    p.run(Duration::from_secs(5));
    assert_eq!(p.b.counters().tx_group_reports, said + 2);
}

#[test]
fn memberships_follow_linuxs_rules() {
    let mut p = Pair::new();
    let (now, b) = (p.now, &mut p.b);
    let id = b.bind_udp(addr("[::]:7000"), BindOptions::default()).unwrap();
    let join = |b: &mut Stack, group: &str, link| b.udp(id)?.join_group(now, ip(group), link);
    let leave = |b: &mut Stack, group: &str, link| b.udp(id)?.leave_group(now, ip(group), link);
    let first = GroupLink::Number(1);
    for (group, first_again) in [("239.1.2.3", first), ("ff05::1:3", GroupLink::Route)] {
        let none = Err(Error::AddressNotAvailable);
        assert_eq!(leave(b, group, first), none);
        assert_eq!(join(b, group, first), Ok(()));
        assert_eq!(join(b, group, first_again), Err(Error::AddressInUse));
        assert_eq!(join(b, group, GroupLink::Number(7)), Err(Error::NoSuchLink));
        assert_eq!(leave(b, group, GroupLink::Route), Ok(()));
        assert_eq!(leave(b, group, first), none);
    }
    assert_eq!(join(b, "10.0.0.2", first), Err(Error::InvalidInput));
    let by = |address: &str| GroupLink::Address(ip(address));
    assert_eq!(join(b, "239.1.2.3", by("10.0.0.2")), Ok(()));
    assert_eq!(join(b, "239.1.2.4", by("10.0.0.77")), Err(Error::NoSuchLink));
    for n in 1..SOCKET_GROUPS_V4 {
        assert_eq!(join(b, &format!("239.7.7.{n}"), first), Ok(()));
    }
    assert_eq!(join(b, "239.8.8.8", first), Err(Error::NoBuffers));
    for n in 0..SOCKET_GROUPS_V6 {
        assert_eq!(join(b, &format!("ff05::{n:x}"), first), Ok(()));
    }
    assert_eq!(join(b, "ff05::abc", first), Err(Error::NoMemory));
}
