//! Datagram sockets as ip(7), ipv6(7) and udp(7) have them: path MTU discovery, broadcasts, what a packet
//! said, several datagrams as one; and the options that are refused.

use std::io::{IoSlice, IoSliceMut};

use pagewire_device::Capabilities;
use pagewire_posix::{Errno, Fd, ReceiveMessage, SendMessage, SockAddr};
use pagewire_stack::LinkConfig;

use crate::support::{
    Files, addr, bound, control_message, datagram, datagram6, error, option, pair, set, settle,
    stream,
};

const DO: i32 = libc::IP_PMTUDISC_DO;

/// The oldest entry of the error queue: its number, origin and `ee_info`, and where the datagram went.
fn queued_error(files: &Files, fd: Fd) -> Result<(i32, u8, u32, SockAddr), Errno> {
    let mut control = [0; 128];
    let mut message = ReceiveMessage { control: &mut control, ..Default::default() };
    files.recvmsg(fd, &mut message, libc::MSG_ERRQUEUE)?;
    let name = message.name.unwrap();
    let word = |at: usize| control[16 + at..20 + at].try_into().unwrap();
    Ok((i32::from_ne_bytes(word(0)), control[20], u32::from_ne_bytes(word(8)), name))
}

#[test]
fn datagram_that_may_not_be_cut_is_refused_with_the_mtu_of_its_path() {
    let new: [fn(&Files) -> Fd; 2] = [datagram, datagram6];
    for (new, level, names, to, headers) in [
        (
            new[0],
            libc::IPPROTO_IP,
            (libc::IP_MTU_DISCOVER, libc::IP_MTU, libc::IP_RECVERR),
            "10.0.0.2:53",
            28,
        ),
        (
            new[1],
            libc::IPPROTO_IPV6,
            (libc::IPV6_MTU_DISCOVER, libc::IPV6_MTU, libc::IPV6_RECVERR),
            "[fd00::2]:53",
            48,
        ),
    ] {
        let (left, right) = pair();
        let (discover, mtu, errors) = names;
        let server = bound(&right, new, to);
        let fd = new(&left);
        assert_eq!(option(&left, fd, level, mtu), Err(Errno::NOTCONN));
        assert_eq!(option(&left, fd, level, discover), Ok(libc::IP_PMTUDISC_WANT));
        assert_eq!(set(&left, fd, level, discover, 6), Err(Errno::INVAL));
        // Before there is a socket below, and after.
        set(&left, fd, level, discover, DO).unwrap();
        set(&left, fd, level, errors, 1).unwrap();
        left.connect(fd, addr(to).as_bytes()).unwrap();
        assert_eq!(option(&left, fd, level, mtu), Ok(1500));
        let remote = to.parse::<std::net::SocketAddr>().unwrap().ip();
        left.backend().with(|stack, _| stack.set_path_mtu(remote, Some(1400)));
        assert_eq!(option(&left, fd, level, mtu), Ok(1400));
        assert_eq!(left.send(fd, &vec![1; 1401 - headers], 0), Err(Errno::MSGSIZE));
        let local = libc::SO_EE_ORIGIN_LOCAL;
        assert_eq!(queued_error(&left, fd), Ok((libc::EMSGSIZE, local, 1400, addr(to))));
        assert_eq!(queued_error(&left, fd), Err(Errno::AGAIN));
        assert_eq!(error(&left, fd), 0);
        let mut buf = vec![0; 2000];
        for (how, len) in [(DO, 1400), (libc::IP_PMTUDISC_PROBE, 1500), (0, 2000), (1, 2000)] {
            set(&left, fd, level, discover, how).unwrap();
            let len = len - headers;
            assert_eq!(left.send(fd, &buf[..len], 0), Ok(len), "{how}");
            assert_eq!(right.recv(server, &mut buf, 0), Ok(len), "{how}");
        }
        set(&left, fd, level, discover, libc::IP_PMTUDISC_PROBE).unwrap();
        assert_eq!(left.send(fd, &buf[..1501 - headers], 0), Err(Errno::MSGSIZE));
        assert_eq!(queued_error(&left, fd).map(|e| e.2), Ok(1500));
        // A port that nobody has: the error comes from the network, about that address.
        let nobody = addr(&to.replace(":53", ":54"));
        left.sendto(fd, b"x", 0, Some(nobody.as_bytes())).unwrap();
        settle(&left);
        assert_eq!(queued_error(&left, fd).err(), Some(Errno::AGAIN), "it is connected elsewhere");
        left.connect(fd, nobody.as_bytes()).unwrap();
        left.send(fd, b"x", 0).unwrap();
        settle(&left);
        let origin = match level {
            libc::IPPROTO_IP => libc::SO_EE_ORIGIN_ICMP,
            _ => libc::SO_EE_ORIGIN_ICMP6,
        };
        assert_eq!(queued_error(&left, fd), Ok((libc::ECONNREFUSED, origin, 0, nobody)));
    }
}

#[test]
fn datagrams_over_ipv6_are_as_long_as_on_linux() {
    let (left, right) = pair();
    let to = addr("[fd00::2]:53");
    let (fd, server) = (datagram6(&left), bound(&right, datagram6, "[fd00::2]:53"));
    let mut buf = vec![7; 65_528];
    assert_eq!(left.sendto(fd, &buf, 0, Some(to.as_bytes())), Err(Errno::MSGSIZE));
    assert_eq!(left.sendto(fd, &buf[1..], 0, Some(to.as_bytes())), Ok(65_527));
    assert_eq!(right.recv(server, &mut buf, 0), Ok(65_527));
}

/// Receives a message: its length, its sender and its ancillary data.
fn receive(files: &Files, fd: Fd, room: usize) -> Result<(usize, SockAddr, Vec<u8>), Errno> {
    let (mut buf, mut control) = (vec![0; room], [0; 256]);
    let mut iov = [IoSliceMut::new(&mut buf)];
    let mut message = ReceiveMessage { iov: &mut iov, control: &mut control, ..Default::default() };
    let n = files.recvmsg(fd, &mut message, libc::MSG_DONTWAIT)?;
    let (from, len) = (message.name.unwrap(), message.control_len);
    assert_eq!(message.flags, 0);
    Ok((n, from, control[..len].to_vec()))
}

fn send_with(files: &Files, fd: Fd, to: &str, control: &[u8]) -> Result<usize, Errno> {
    let (name, iov) = (addr(to), [IoSlice::new(b"data")]);
    files.sendmsg(fd, &SendMessage { name: Some(name.as_bytes()), iov: &iov, control }, 0)
}

#[test]
fn broadcasts_need_so_broadcast() {
    let (left, right) = pair();
    let server = bound(&right, datagram, "0.0.0.0:53");
    set(&right, server, libc::SOL_IP, libc::IP_PKTINFO, 1).unwrap();
    let fd = datagram(&left);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_BROADCAST);
    for to in ["10.0.0.255:53", "255.255.255.255:53"] {
        assert_eq!(option(&left, fd, level, name), Ok(0));
        assert_eq!(send_with(&left, fd, to, &[]), Err(Errno::ACCESS));
        set(&left, fd, level, name, 7).unwrap();
        assert_eq!(option(&left, fd, level, name), Ok(1));
        assert_eq!(send_with(&left, fd, to, &[]), Ok(4));
        settle(&left);
        let (_, _, control) = receive(&right, server, 100).unwrap();
        // The link's address, and that in the header.
        let header = to.parse::<std::net::SocketAddrV4>().unwrap().ip().octets();
        let info = [&1u32.to_ne_bytes()[..], &[10, 0, 0, 2], &header].concat();
        assert_eq!(control, control_message(libc::SOL_IP, libc::IP_PKTINFO, &info));
        set(&left, fd, level, name, 0).unwrap();
    }
    // Before there is a socket below, and for connect too.
    let other = datagram(&left);
    assert_eq!(left.connect(other, addr("10.0.0.255:53").as_bytes()), Err(Errno::ACCESS));
    let other = datagram(&left);
    set(&left, other, level, name, 1).unwrap();
    assert_eq!(left.connect(other, addr("10.0.0.255:53").as_bytes()), Ok(()));
}

#[test]
fn packet_information_says_the_address_and_the_link_and_chooses_them() {
    let (left, right) = pair();
    let v4 = |link: u32, ours: [u8; 4], header: [u8; 4]| {
        let info = [&link.to_ne_bytes()[..], &ours, &header].concat();
        control_message(libc::SOL_IP, libc::IP_PKTINFO, &info)
    };
    let v6 = |link: u32, ip: &str| {
        let ip: std::net::Ipv6Addr = ip.parse().unwrap();
        let info = [&ip.octets()[..], &link.to_ne_bytes()].concat();
        control_message(libc::SOL_IPV6, libc::IPV6_PKTINFO, &info)
    };
    let server = bound(&right, datagram6, "[::]:53");
    let client = datagram6(&left);
    for (to, told) in
        [("[fd00::2]:53", v6(1, "fd00::2")), ("[::ffff:10.0.0.2]:53", v6(1, "::ffff:10.0.0.2"))]
    {
        let name = libc::IPV6_RECVPKTINFO;
        assert_eq!(send_with(&left, client, to, &[]), Ok(4));
        settle(&left);
        assert_eq!(receive(&right, server, 100).unwrap().2, [], "nobody asked");
        set(&right, server, libc::SOL_IPV6, name, 1).unwrap();
        assert_eq!(option(&right, server, libc::SOL_IPV6, name), Ok(1));
        assert_eq!(send_with(&left, client, to, &[]), Ok(4));
        settle(&left);
        assert_eq!(receive(&right, server, 100).unwrap().2, told);
        set(&right, server, libc::SOL_IPV6, name, 0).unwrap();
    }
    let there = "10.0.0.2:54";
    let (v4_server, v4_client) = (bound(&right, datagram, there), datagram(&left));
    set(&right, v4_server, libc::SOL_IP, libc::IP_PKTINFO, 1).unwrap();
    for (control, sent) in [
        (v4(0, [0; 4], [9; 4]), Ok(4)),
        (v4(1, [0; 4], [0; 4]), Ok(4)),
        (v4(1, [10, 0, 0, 1], [0; 4]), Ok(4)),
        (v4(1, [10, 0, 0, 7], [0; 4]), Err(Errno::INVAL)),
        (v4(9, [0; 4], [0; 4]), Err(Errno::NODEV)),
        (v6(0, "fd00::1"), Err(Errno::INVAL)),
        (v6(0, "::ffff:10.0.0.1"), Ok(4)),
        (control_message(libc::SOL_IP, libc::IP_PKTINFO, &[0; 8]), Err(Errno::INVAL)),
    ] {
        assert_eq!(send_with(&left, v4_client, there, &control), sent, "{control:?}");
        settle(&left);
        if sent.is_ok() {
            let (_, from, told) = receive(&right, v4_server, 100).unwrap();
            assert_eq!(from.to_std().unwrap().ip().to_string(), "10.0.0.1");
            assert_eq!(told, v4(1, [10, 0, 0, 2], [10, 0, 0, 2]));
        }
    }
    for (control, sent) in [
        (v6(1, "fd00::1"), Ok(4)),
        (v6(0, "fd00::7"), Err(Errno::INVAL)),
        // Packet information of the other version is passed over.
        (v4(9, [10, 0, 0, 7], [0; 4]), Ok(4)),
    ] {
        assert_eq!(send_with(&left, client, "[fd00::2]:53", &control), sent, "{control:?}");
    }
}

#[test]
fn packet_information_chooses_among_links() {
    let (left, _right) = pair();
    let fd = datagram(&left);
    set(&left, fd, libc::SOL_SOCKET, libc::SO_BROADCAST, 1).unwrap();
    let other = left.backend().with(|stack, now| {
        let capabilities = Capabilities::offloading([2, 0, 0, 0, 0, 77], 1500);
        let addresses = vec!["10.0.7.1/24".parse().unwrap()];
        let link = LinkConfig::new(capabilities, addresses);
        stack.add_link(now, &link).unwrap()
    });
    let mut frames = std::collections::VecDeque::new();
    left.backend().with(|stack, now| while stack.poll_transmit_on(now, other, &mut frames) {});
    frames.clear();
    let by = |link: u32| {
        let info = [&link.to_ne_bytes()[..], &[0; 8]].concat();
        control_message(libc::SOL_IP, libc::IP_PKTINFO, &info)
    };
    let everybody = "255.255.255.255:53";
    assert_eq!(send_with(&left, fd, everybody, &by(1)), Ok(4));
    assert!(!left.backend().with(|stack, _| stack.has_frames(other)));
    assert_eq!(send_with(&left, fd, everybody, &by(other.scope_id())), Ok(4));
    left.backend().with(|stack, now| {
        stack.poll_transmit_on(now, other, &mut frames);
    });
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0].head()[26..30], [10, 0, 7, 1], "from that link's address");
}

#[test]
fn datagrams_received_as_one_say_their_size() {
    let (left, right) = pair();
    let there = addr("10.0.0.2:53");
    let (server, fd) = (datagram(&right), datagram(&left));
    let (level, name) = (libc::IPPROTO_UDP, libc::UDP_GRO);
    assert_eq!(option(&right, server, level, name), Ok(0));
    set(&right, server, level, name, 1).unwrap();
    assert_eq!(option(&right, server, level, name), Ok(1));
    right.bind(server, there.as_bytes()).unwrap();
    let send = || {
        for len in [700, 700, 700, 100, 700] {
            left.sendto(fd, &vec![7; len], 0, Some(there.as_bytes())).unwrap();
        }
        settle(&left);
    };
    send();
    let size = control_message(libc::IPPROTO_UDP, libc::UDP_GRO, &700i32.to_ne_bytes());
    let (n, _, control) = receive(&right, server, 65_535).unwrap();
    assert_eq!((n, control), (2200, size));
    let (n, _, control) = receive(&right, server, 65_535).unwrap();
    assert_eq!((n, control), (700, vec![]));
    set(&right, server, level, name, 0).unwrap();
    send();
    for len in [700, 700, 700, 100, 700] {
        assert_eq!(receive(&right, server, 65_535).map(|r| (r.0, r.2)), Ok((len, vec![])));
    }
    let stream = stream(&left);
    assert_eq!(set(&left, stream, level, name, 1), Err(Errno::NOPROTOOPT));
}

#[test]
fn signatures_of_segments_are_refused_as_by_a_kernel_without_them() {
    // TCP_MD5SIG, TCP_MD5SIG_EXT, TCP_AO_ADD_KEY to TCP_AO_REPAIR: who asks for one must not go on
    // unprotected.
    let (left, _) = pair();
    let fd = stream(&left);
    for name in [14, 32, 38, 39, 40, 41, 42] {
        let refused = left.setsockopt(fd, libc::IPPROTO_TCP, name, &[0; 256]);
        assert_eq!(refused, Err(Errno::NOPROTOOPT), "{name}");
        assert_eq!(option(&left, fd, libc::IPPROTO_TCP, name), Err(Errno::NOPROTOOPT), "{name}");
    }
}

#[test]
fn joining_a_group_from_some_sources_only_is_refused() {
    // IP_UNBLOCK_SOURCE to IP_DROP_SOURCE_MEMBERSHIP, MCAST_BLOCK_SOURCE and its like, MCAST_MSFILTER.
    let (left, _) = pair();
    let fd = datagram(&left);
    for name in (37..=41).chain([43, 44, 46, 47, 48]) {
        let refused = left.setsockopt(fd, libc::IPPROTO_IP, name, &[0; 264]);
        assert_eq!(refused, Err(Errno::NOPROTOOPT), "{name}");
    }
    let fd = datagram6(&left);
    for name in [43, 44, 46, 47, 48] {
        let refused = left.setsockopt(fd, libc::IPPROTO_IPV6, name, &[0; 264]);
        assert_eq!(refused, Err(Errno::NOPROTOOPT), "{name}");
    }
}
