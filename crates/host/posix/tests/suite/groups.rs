//! Groups as ip(7) and ipv6(7) have them: joining, leaving, and how datagrams are sent there. What goes
//! over the link is in `crates/core/stack`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use pagewire_posix::{Errno, Fd};

use crate::support::{
    Files, addr, bound, datagram, datagram6, option, pair, set, set_nonblocking, stream,
};

const V4: i32 = libc::IPPROTO_IP;
const V6: i32 = libc::IPPROTO_IPV6;
const JOIN: i32 = libc::IP_ADD_MEMBERSHIP;
const LEAVE: i32 = libc::IP_DROP_MEMBERSHIP;
const MCAST_JOIN_GROUP: i32 = 42;
const MCAST_LEAVE_GROUP: i32 = 45;

/// `struct ip_mreq`.
fn mreq(group: &str, address: &str) -> Vec<u8> {
    [group, address].iter().flat_map(|a| a.parse::<Ipv4Addr>().unwrap().octets()).collect()
}

/// `struct ip_mreqn`.
fn mreqn(group: &str, number: i32) -> Vec<u8> {
    [mreq(group, "0.0.0.0"), number.to_ne_bytes().to_vec()].concat()
}

/// `struct ipv6_mreq`.
fn mreq6(group: &str, number: i32) -> Vec<u8> {
    let group = group.parse::<Ipv6Addr>().unwrap().octets();
    [&group[..], &number.to_ne_bytes()].concat()
}

/// `struct group_req`.
fn group_req(group: &str, number: i32) -> Vec<u8> {
    let mut value = vec![0; 136];
    value[..4].copy_from_slice(&number.to_ne_bytes());
    let (family, at, octets) = match group.parse().unwrap() {
        IpAddr::V4(a) => (libc::AF_INET, 12, a.octets().to_vec()),
        IpAddr::V6(a) => (libc::AF_INET6, 16, a.octets().to_vec()),
    };
    value[8..10].copy_from_slice(&(family as u16).to_ne_bytes());
    value[at..at + octets.len()].copy_from_slice(&octets);
    value
}

/// The datagrams that are there to read.
fn all(files: &Files, fd: Fd) -> Vec<Vec<u8>> {
    files.backend().run(Duration::from_millis(5));
    set_nonblocking(files, fd);
    let (mut all, mut buffer) = (Vec::new(), [0; 100]);
    while let Ok(n) = files.read(fd, &mut buffer) {
        all.push(buffer[..n].to_vec());
    }
    all
}

#[test]
fn a_socket_joins_before_or_after_it_is_bound_and_hears_the_group() {
    for (before, v6) in [(true, false), (false, false), (true, true), (false, true)] {
        let (left, right) = pair();
        let (to, any) =
            if v6 { ("[ff05::7]:5000", "[::]:5000") } else { ("239.0.0.7:5000", "0.0.0.0:5000") };
        let open = |files: &Files| if v6 { datagram6(files) } else { datagram(files) };
        let fd = open(&right);
        let join = || match v6 {
            true => right.setsockopt(fd, V6, libc::IPV6_ADD_MEMBERSHIP, &mreq6("ff05::7", 0)),
            false => right.setsockopt(fd, V4, JOIN, &mreq("239.0.0.7", "0.0.0.0")),
        };
        if before {
            join().unwrap();
        }
        right.bind(fd, addr(any).as_bytes()).unwrap();
        if !before {
            join().unwrap();
        }
        assert_eq!(join(), Err(Errno::ADDRINUSE));
        let from = open(&left);
        assert_eq!(left.sendto(from, b"hello", 0, Some(addr(to).as_bytes())), Ok(5));
        assert_eq!(all(&right, fd), [b"hello"]);
        let left_again = match v6 {
            true => right.setsockopt(fd, V6, libc::IPV6_DROP_MEMBERSHIP, &mreq6("ff05::7", 0)),
            false => right.setsockopt(fd, V4, LEAVE, &mreq("239.0.0.7", "0.0.0.0")),
        };
        assert_eq!(left_again, Ok(()));
        left.sendto(from, b"hello", 0, Some(addr(to).as_bytes())).unwrap();
        assert_eq!(all(&right, fd).len(), 0);
    }
}

#[test]
fn a_socket_may_be_bound_to_a_group() {
    let (left, right) = pair();
    let fd = bound(&right, datagram, "239.0.0.7:5000");
    right.setsockopt(fd, V4, JOIN, &mreq("239.0.0.7", "10.0.0.2")).unwrap();
    let from = datagram(&left);
    left.sendto(from, b"hello", 0, Some(addr("239.0.0.7:5000").as_bytes())).unwrap();
    left.sendto(from, b"to one", 0, Some(addr("10.0.0.2:5000").as_bytes())).unwrap();
    assert_eq!(all(&right, fd), [b"hello"]);
    // A socket bound to a group sends from an address of its own.
    let to = bound(&left, datagram, "10.0.0.1:6000");
    right.sendto(fd, b"answer", 0, Some(addr("10.0.0.1:6000").as_bytes())).unwrap();
    assert_eq!(all(&left, to), [b"answer"]);
}

#[test]
fn joins_and_leaves_fail_as_on_linux() {
    for bound in [false, true] {
        let (left, _) = pair();
        let fd = datagram(&left);
        if bound {
            left.bind(fd, addr("0.0.0.0:5000").as_bytes()).unwrap();
        }
        let v4 = |name, value: &[u8]| left.setsockopt(fd, V4, name, value);
        let group = "239.0.0.7";
        assert_eq!(v4(LEAVE, &mreqn(group, 1)), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(v4(JOIN, &mreqn(group, 1)[..7]), Err(Errno::INVAL));
        assert_eq!(v4(JOIN, &mreqn("10.0.0.7", 1)), Err(Errno::INVAL));
        assert_eq!(v4(JOIN, &mreqn(group, 9)), Err(Errno::NODEV));
        assert_eq!(v4(JOIN, &mreq(group, "10.9.9.9")), Err(Errno::NODEV));
        assert_eq!(v4(JOIN, &mreqn(group, 1)), Ok(()));
        // The same by other names.
        assert_eq!(v4(JOIN, &mreq(group, "10.0.0.1")), Err(Errno::ADDRINUSE));
        assert_eq!(v4(JOIN, &mreq(group, "0.0.0.0")), Err(Errno::ADDRINUSE));
        assert_eq!(v4(MCAST_JOIN_GROUP, &group_req(group, 1)), Err(Errno::ADDRINUSE));
        assert_eq!(v4(MCAST_JOIN_GROUP, &group_req("ff05::7", 1)), Err(Errno::INVAL));
        assert_eq!(v4(MCAST_JOIN_GROUP, &group_req(group, 1)[..100]), Err(Errno::INVAL));
        // igmp_max_memberships.
        for n in 1..20 {
            assert_eq!(v4(MCAST_JOIN_GROUP, &group_req(&format!("239.1.0.{n}"), 0)), Ok(()));
        }
        assert_eq!(v4(JOIN, &mreq("239.1.0.99", "0.0.0.0")), Err(Errno::NOBUFS));
        assert_eq!(v4(MCAST_LEAVE_GROUP, &group_req(group, 0)), Ok(()));
        assert_eq!(v4(LEAVE, &mreqn(group, 1)), Err(Errno::ADDRNOTAVAIL));
        let fd = datagram6(&left);
        let v6 = |name, value: &[u8]| left.setsockopt(fd, V6, name, value);
        let (join, leave) = (libc::IPV6_ADD_MEMBERSHIP, libc::IPV6_DROP_MEMBERSHIP);
        assert_eq!(v6(leave, &mreq6("ff05::7", 1)), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(v6(join, &mreq6("fd00::7", 1)), Err(Errno::INVAL));
        assert_eq!(v6(join, &mreq6("ff05::7", 9)), Err(Errno::NODEV));
        assert_eq!(v6(join, &mreq6("ff05::7", 1)[..19]), Err(Errno::INVAL));
        assert_eq!(v6(MCAST_JOIN_GROUP, &group_req("ff05::7", 1)), Ok(()));
        assert_eq!(v6(MCAST_JOIN_GROUP, &group_req(group, 1)), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(v6(join, &mreq6("ff05::7", 0)), Err(Errno::ADDRINUSE));
        assert_eq!(v6(leave, &mreq6("ff05::7", 1)), Ok(()));
        // A stream is in no group.
        let fd = stream(&left);
        assert_eq!(left.setsockopt(fd, V4, JOIN, &mreqn(group, 1)), Err(Errno::PROTO));
    }
}

#[test]
fn settings_for_groups_are_read_back_and_bounded_as_on_linux() {
    let (left, _) = pair();
    let fd = datagram6(&left);
    let (ttl, on, all) = (libc::IP_MULTICAST_TTL, libc::IP_MULTICAST_LOOP, 49);
    for (level, names) in
        [(V4, [ttl, on, all]), (V6, [libc::IPV6_MULTICAST_HOPS, libc::IPV6_MULTICAST_LOOP, 29])]
    {
        for name in names {
            assert_eq!(option(&left, fd, level, name), Ok(1), "{name}");
            assert_eq!(set(&left, fd, level, name, 0), Ok(()));
            assert_eq!(option(&left, fd, level, name), Ok(0), "{name}");
        }
        assert_eq!(set(&left, fd, level, names[0], 255), Ok(()));
        assert_eq!(set(&left, fd, level, names[0], 256), Err(Errno::INVAL));
        assert_eq!(set(&left, fd, level, names[0], -2), Err(Errno::INVAL));
        assert_eq!(option(&left, fd, level, names[0]), Ok(255));
        assert_eq!(set(&left, fd, level, names[0], -1), Ok(()));
        assert_eq!(option(&left, fd, level, names[0]), Ok(1));
        assert_eq!(set(&left, fd, level, names[2], 2), Err(Errno::INVAL));
    }
    assert_eq!(set(&left, fd, V6, libc::IPV6_MULTICAST_LOOP, 2), Err(Errno::INVAL));
    // A value of one byte will do.
    assert_eq!(left.setsockopt(fd, V4, ttl, &[9]), Ok(()));
    assert_eq!(option(&left, fd, V4, ttl), Ok(9));
    let by = libc::IP_MULTICAST_IF;
    let address = |text: &str| i32::from_ne_bytes(text.parse::<Ipv4Addr>().unwrap().octets());
    assert_eq!(set(&left, fd, V4, by, address("10.0.0.1")), Ok(()));
    assert_eq!(option(&left, fd, V4, by), Ok(address("10.0.0.1")));
    assert_eq!(set(&left, fd, V4, by, address("10.0.0.9")), Err(Errno::ADDRNOTAVAIL));
    assert_eq!(left.setsockopt(fd, V4, by, &mreqn("0.0.0.0", 9)), Err(Errno::ADDRNOTAVAIL));
    assert_eq!(left.setsockopt(fd, V4, by, &mreqn("0.0.0.0", 1)), Ok(()));
    assert_eq!(option(&left, fd, V4, by), Ok(0));
    assert_eq!(set(&left, fd, V6, libc::IPV6_MULTICAST_IF, 9), Err(Errno::NODEV));
    assert_eq!(set(&left, fd, V6, libc::IPV6_MULTICAST_IF, 1), Ok(()));
    assert_eq!(option(&left, fd, V6, libc::IPV6_MULTICAST_IF), Ok(1));
    let fd = stream(&left);
    assert_eq!(set(&left, fd, V4, ttl, 3), Err(Errno::INVAL));
    assert_eq!(set(&left, fd, V4, by, 0), Err(Errno::INVAL));
}

#[test]
fn what_was_set_before_binding_holds_after_it() {
    let (left, right) = pair();
    let fd = datagram(&left);
    left.setsockopt(fd, V4, JOIN, &mreq("239.0.0.7", "0.0.0.0")).unwrap();
    set(&left, fd, V4, libc::IP_MULTICAST_LOOP, 0).unwrap();
    left.bind(fd, addr("0.0.0.0:5000").as_bytes()).unwrap();
    left.sendto(fd, b"hello", 0, Some(addr("239.0.0.7:5000").as_bytes())).unwrap();
    assert_eq!(all(&left, fd).len(), 0);
    set(&left, fd, V4, libc::IP_MULTICAST_LOOP, 1).unwrap();
    left.sendto(fd, b"hello", 0, Some(addr("239.0.0.7:5000").as_bytes())).unwrap();
    assert_eq!(all(&left, fd).len(), 1);
    drop(right);
}
