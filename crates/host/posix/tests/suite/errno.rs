//! The error numbers of each call, as Linux's manual pages and source have them.

use core::time::Duration;

use pagewire_posix::Errno;
use pagewire_testkit::given;

use crate::support::{
    Files, addr, bound, connect, datagram, error, linked, listener, option, pair, reset, set,
    set_nonblocking, settle, stream, stream6,
};

const PEER: &str = "10.0.0.2:80";

given! {
    let (left, _) = pair();

    socket_refuses_what_it_does_not_know {
        let socket = |domain, kind, protocol| left.socket(domain, kind, protocol).unwrap_err();
        assert_eq!(socket(libc::AF_UNIX, libc::SOCK_STREAM, 0), Errno::AFNOSUPPORT);
        assert_eq!(socket(9999, libc::SOCK_STREAM, 0), Errno::AFNOSUPPORT);
        assert_eq!(socket(libc::AF_INET, 0x1000 | libc::SOCK_STREAM, 0), Errno::INVAL);
        assert_eq!(socket(libc::AF_INET, 15, 0), Errno::INVAL);
        assert_eq!(socket(libc::AF_INET, libc::SOCK_SEQPACKET, 0), Errno::SOCKTNOSUPPORT);
        let udp = libc::IPPROTO_UDP;
        assert_eq!(socket(libc::AF_INET, libc::SOCK_STREAM, udp), Errno::PROTONOSUPPORT);
        assert_eq!(socket(libc::AF_INET, libc::SOCK_STREAM, -1), Errno::INVAL);
    }
    numbers_are_the_lowest_free_ones_and_dup_shares_the_file {
        let (a, b) = (stream(&left), stream(&left));
        assert_eq!((a, b), (0, 1));
        left.close(a).unwrap();
        assert_eq!(left.dup(b), Ok(0));
        assert_eq!(left.fcntl(b, libc::F_DUPFD, 7), Ok(7));
        set_nonblocking(&left, 7);
        let flags = libc::O_RDWR | libc::O_NONBLOCK;
        assert_eq!(left.fcntl(b, libc::F_GETFL, 0), Ok(flags));
        left.close(b).unwrap();
        assert_eq!(left.fcntl(7, libc::F_GETFL, 0), Ok(flags));
        assert_eq!(left.fcntl(b, libc::F_GETFL, 0), Err(Errno::BADF));
        assert_eq!(left.fcntl(7, 9999, 0), Err(Errno::INVAL));
        assert_eq!(left.fcntl(7, libc::F_DUPFD, -1), Err(Errno::INVAL));
        assert_eq!(left.fcntl(7, libc::F_SETFD, libc::FD_CLOEXEC), Ok(0));
        assert_eq!(left.fcntl(7, libc::F_GETFD, 0), Ok(libc::FD_CLOEXEC));
        assert_eq!(left.fcntl(0, libc::F_GETFD, 0), Ok(0));
    }
    every_call_knows_a_bad_descriptor_and_what_is_no_socket {
        let at = addr(PEER);
        let (pipe, _) = left.pipe2(0).unwrap();
        for (fd, error) in [(9, Errno::BADF), (pipe, Errno::NOTSOCK)] {
            assert_eq!(left.bind(fd, at.as_bytes()), Err(error));
            assert_eq!(left.listen(fd, 1), Err(error));
            assert_eq!(left.accept(fd).unwrap_err(), error);
            assert_eq!(left.connect(fd, at.as_bytes()), Err(error));
            assert_eq!(left.recv(fd, &mut [0], 0), Err(error));
            assert_eq!(left.send(fd, &[0], 0), Err(error));
            assert_eq!(left.shutdown(fd, 0), Err(error));
            assert_eq!(left.getsockname(fd), Err(error));
            assert_eq!(option(&left, fd, libc::SOL_SOCKET, libc::SO_ERROR), Err(error));
        }
        assert_eq!(left.read(-1, &mut [0]), Err(Errno::BADF));
    }
    bind_refuses_short_and_foreign_addresses_and_a_second_one {
        let fd = stream(&left);
        let mine = addr("10.0.0.1:80");
        assert_eq!(left.bind(fd, &mine.as_bytes()[..15]), Err(Errno::INVAL));
        assert_eq!(left.bind(fd, &[1]), Err(Errno::INVAL));
        assert_eq!(left.bind(fd, addr("[fd00::1]:80").as_bytes()), Err(Errno::AFNOSUPPORT));
        assert_eq!(left.bind(fd, addr("10.9.9.9:80").as_bytes()), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(left.bind(fd, mine.as_bytes()), Ok(()));
        assert_eq!(left.bind(fd, mine.as_bytes()), Err(Errno::INVAL));
        let other = stream(&left);
        assert_eq!(left.bind(other, mine.as_bytes()), Err(Errno::ADDRINUSE));
        left.close(fd).unwrap();
        assert_eq!(left.bind(other, mine.as_bytes()), Ok(()));
    }
    an_address_of_any_family_that_is_all_zero_binds_as_inet {
        let fd = stream(&left);
        assert_eq!(left.bind(fd, &[0; 16]), Ok(()));
        let fd = stream(&left);
        let mut zero_family = [0; 16];
        zero_family[4..8].copy_from_slice(&[10, 0, 0, 1]);
        assert_eq!(left.bind(fd, &zero_family), Err(Errno::AFNOSUPPORT));
    }
    a_port_is_shared_by_those_who_say_so_until_one_listens {
        let mine = addr("0.0.0.0:80");
        let open = |reuse| {
            let fd = stream(&left);
            set(&left, fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse).unwrap();
            fd
        };
        let (a, b, c) = (open(1), open(1), open(0));
        assert_eq!(left.bind(a, mine.as_bytes()), Ok(()));
        assert_eq!(left.bind(b, addr("10.0.0.1:80").as_bytes()), Ok(()));
        assert_eq!(left.bind(c, mine.as_bytes()), Err(Errno::ADDRINUSE));
        assert_eq!(left.listen(a, 1), Ok(()));
        assert_eq!(left.listen(b, 1), Err(Errno::ADDRINUSE));
        assert_eq!(left.bind(open(1), mine.as_bytes()), Err(Errno::ADDRINUSE));
    }
    v6_only_leaves_ipv4_alone {
        let six = || stream6(&left);
        let any = addr("[::]:80");
        let fd = six();
        set(&left, fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1).unwrap();
        assert_eq!(left.bind(fd, addr("[::ffff:10.0.0.1]:80").as_bytes()), Err(Errno::INVAL));
        assert_eq!(left.bind(fd, any.as_bytes()), Ok(()));
        assert_eq!(set(&left, fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0), Err(Errno::INVAL));
        assert_eq!(left.listen(fd, 1), Ok(()));
        assert_eq!(left.bind(six(), any.as_bytes()), Err(Errno::ADDRINUSE));
        assert_eq!(left.bind(stream(&left), addr("0.0.0.0:80").as_bytes()), Ok(()));
    }
    connect_refuses_addresses_that_cannot_be {
        let fd = stream(&left);
        let connect = |to: &[u8]| left.connect(fd, to);
        assert_eq!(connect(&[2]), Err(Errno::INVAL));
        assert_eq!(connect(&addr(PEER).as_bytes()[..15]), Err(Errno::INVAL));
        assert_eq!(connect(addr("[fd00::2]:80").as_bytes()), Err(Errno::AFNOSUPPORT));
        assert_eq!(connect(addr("172.16.0.1:80").as_bytes()), Err(Errno::NETUNREACH));
        assert_eq!(connect(addr("10.0.0.255:80").as_bytes()), Err(Errno::NETUNREACH));
    }
    a_stream_that_was_never_connected_has_no_data_and_no_pipe {
        let fd = stream(&left);
        assert_eq!(left.recv(fd, &mut [0], 0), Err(Errno::NOTCONN));
        assert_eq!(left.recv(fd, &mut [0], libc::MSG_OOB), Err(Errno::INVAL));
        assert_eq!(left.send(fd, &[0], 0), Err(Errno::PIPE));
        assert_eq!(left.getpeername(fd), Err(Errno::NOTCONN));
        assert_eq!(left.shutdown(fd, libc::SHUT_RD), Err(Errno::NOTCONN));
        assert_eq!(left.recv(fd, &mut [0], 0), Ok(0));
        assert_eq!(left.shutdown(fd, 3), Err(Errno::INVAL));
        assert_eq!(left.shutdown(fd, -1), Err(Errno::INVAL));
    }
    options_check_length_level_and_range {
        let fd = stream(&left);
        let tcp = libc::IPPROTO_TCP;
        let set_bytes = |level, name, value: &[u8]| left.setsockopt(fd, level, name, value);
        assert_eq!(set_bytes(tcp, libc::TCP_NODELAY, &[1, 0]), Err(Errno::INVAL));
        assert_eq!(set_bytes(tcp, libc::TCP_NODELAY, &[1, 0, 0, 0, 9, 9]), Ok(()));
        assert_eq!(option(&left, fd, tcp, libc::TCP_NODELAY), Ok(1));
        assert_eq!(set(&left, fd, tcp, 9999, 1), Err(Errno::NOPROTOOPT));
        // As Linux, which reads an `int` first, but for IP.
        assert_eq!(set_bytes(tcp, 9999, &[1]), Err(Errno::INVAL));
        assert_eq!(set_bytes(libc::IPPROTO_IP, 9999, &[1]), Err(Errno::NOPROTOOPT));
        assert_eq!(set(&left, fd, 12345, 1, 1), Err(Errno::NOPROTOOPT));
        assert_eq!(option(&left, fd, tcp, 9999), Err(Errno::NOPROTOOPT));
        assert_eq!(set(&left, fd, libc::SOL_SOCKET, libc::SO_TYPE, 1), Err(Errno::NOPROTOOPT));
        assert_eq!(set(&left, datagram(&left), tcp, libc::TCP_NODELAY, 1), Err(Errno::NOPROTOOPT));
        for (name, bad) in [
            (libc::TCP_MAXSEG, 87),
            (libc::TCP_MAXSEG, 32_768),
            (libc::TCP_KEEPIDLE, 0),
            (libc::TCP_KEEPIDLE, 32_768),
            (libc::TCP_KEEPINTVL, 0),
            (libc::TCP_KEEPCNT, 128),
            (libc::TCP_SYNCNT, 0),
            (libc::TCP_USER_TIMEOUT, -1),
            (36, 2),
            (libc::TCP_FASTOPEN, -1),
            (30, 2),
        ] {
            assert_eq!(set(&left, fd, tcp, name, bad), Err(Errno::INVAL), "option {name}");
        }
        for bad in [2, -1] {
            assert_eq!(set(&left, fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, bad), Err(Errno::INVAL));
        }
        assert_eq!(set_bytes(libc::SOL_SOCKET, libc::SO_ZEROCOPY, &[1]), Err(Errno::INVAL));
        assert_eq!(set_bytes(tcp, libc::TCP_CONGESTION, b"vegas\0"), Err(Errno::NOENT));
        let mut short = [0; 2];
        assert_eq!(left.getsockopt(fd, tcp, libc::TCP_NODELAY, &mut short), Ok(2));
        let mut time = [0; 16];
        time[8..].copy_from_slice(&1_000_000i64.to_ne_bytes());
        assert_eq!(set_bytes(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time), Err(Errno::DOM));
        assert_eq!(set_bytes(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time[..8]), Err(Errno::INVAL));
    }
    options_read_back_as_linux_has_them {
        let fd = stream(&left);
        let socket = libc::SOL_SOCKET;
        let tcp = libc::IPPROTO_TCP;
        for (level, name, value, read) in [
            (socket, libc::SO_SNDBUF, 21_000, 42_000),
            (socket, libc::SO_SNDBUF, 1, 4608),
            // Compared without sign: as much as there may be.
            (socket, libc::SO_SNDBUF, -1, 8 << 20),
            (socket, libc::SO_RCVBUF, -1, 8 << 20),
            (socket, libc::SO_RCVBUF, 1, 2304),
            (socket, libc::SO_RCVBUF, 50_000, 100_000),
            (socket, libc::SO_RCVLOWAT, 0, 1),
            (socket, libc::SO_RCVLOWAT, -1, 50_000),
            (socket, libc::SO_KEEPALIVE, 7, 1),
            (socket, libc::SO_MARK, 666, 666),
            (socket, libc::SO_ZEROCOPY, 1, 1),
            (tcp, libc::TCP_CORK, 1, 1),
            (tcp, libc::TCP_KEEPIDLE, 20, 20),
            (tcp, libc::TCP_KEEPINTVL, 3, 3),
            (tcp, libc::TCP_KEEPCNT, 4, 4),
            (tcp, libc::TCP_SYNCNT, 2, 2),
            (tcp, libc::TCP_USER_TIMEOUT, 3000, 3000),
            (tcp, libc::TCP_LINGER2, 5, 5),
            (tcp, libc::TCP_LINGER2, -3, -1),
            (tcp, libc::TCP_LINGER2, 1000, 120),
            // 0 is the system's.
            (tcp, libc::TCP_LINGER2, 0, 60),
            (tcp, 25, -1, -1),
            (tcp, 25, 0, 0),
            (tcp, libc::TCP_MAXSEG, 1000, 1000),
            (tcp, libc::TCP_MAXSEG, 0, 536),
            (libc::IPPROTO_IP, libc::IP_TOS, 0x13, 0x10),
            (libc::IPPROTO_IP, libc::IP_TTL, 9, 9),
            (libc::IPPROTO_IP, libc::IP_TTL, -1, 64),
            (libc::IPPROTO_IP, libc::IP_FREEBIND, 1, 1),
        ] {
            set(&left, fd, level, name, value).unwrap();
            assert_eq!(option(&left, fd, level, name), Ok(read), "option {name} set to {value}");
        }
        assert_eq!(option(&left, fd, socket, libc::SO_TYPE), Ok(libc::SOCK_STREAM));
        assert_eq!(option(&left, fd, socket, libc::SO_PROTOCOL), Ok(libc::IPPROTO_TCP));
        assert_eq!(option(&left, fd, socket, libc::SO_DOMAIN), Ok(libc::AF_INET));
        let mut name = [0; 16];
        assert_eq!(left.getsockopt(fd, tcp, libc::TCP_CONGESTION, &mut name), Ok(16));
        assert_eq!(&name[..6], b"cubic\0");
        left.setsockopt(fd, tcp, libc::TCP_CONGESTION, b"reno").unwrap();
        left.getsockopt(fd, tcp, libc::TCP_CONGESTION, &mut name).unwrap();
        assert_eq!(&name[..5], b"reno\0");
        // Nothing is 0, where Linux takes a `char`.
        left.setsockopt(fd, libc::IPPROTO_IP, libc::IP_TOS, &[]).unwrap();
        assert_eq!(option(&left, fd, libc::IPPROTO_IP, libc::IP_TOS), Ok(0));
        let no_limit = left.setsockopt(fd, libc::IPPROTO_IP, libc::IP_TTL, &[]);
        assert_eq!(no_limit, Err(Errno::INVAL));
        let mut info = [0; 300];
        assert_eq!(left.getsockopt(fd, tcp, libc::TCP_INFO, &mut info), Ok(280));
        assert_eq!(left.getsockopt(fd, tcp, 26, &mut info), Ok(0));
        assert_eq!(left.getsockopt(fd, socket, 55, &mut info), Ok(36));
    }
}

#[test]
fn a_port_with_connections_is_free_to_those_who_reuse_if_its_listener_did() {
    for listener_reuses in [0, 1] {
        let (left, right) = pair();
        let mine = addr(PEER);
        let open = |reuse| {
            let fd = stream(&right);
            set(&right, fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse).unwrap();
            fd
        };
        let listener = open(listener_reuses);
        right.bind(listener, mine.as_bytes()).unwrap();
        right.listen(listener, 1).unwrap();
        let client = connect(&left, PEER);
        let (server, _) = right.accept(listener).unwrap();
        right.close(listener).unwrap();
        assert_eq!(right.bind(open(0), mine.as_bytes()), Err(Errno::ADDRINUSE));
        let reused = right.bind(open(1), mine.as_bytes());
        assert_eq!(reused.is_ok(), listener_reuses == 1);
        // The client did not say that its port may be shared.
        let theirs = left.getsockname(client).unwrap();
        let fd = stream(&left);
        set(&left, fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
        assert_eq!(left.bind(fd, theirs.as_bytes()), Err(Errno::ADDRINUSE));
        left.close(client).unwrap();
        right.close(server).unwrap();
        settle(&left);
        assert_eq!(left.bind(fd, theirs.as_bytes()), Ok(()));
    }
}

#[test]
fn a_connection_cut_while_it_is_made_is_an_error_for_the_next_call() {
    let (left, _right) = pair();
    let fd = stream(&left);
    set_nonblocking(&left, fd);
    let peer = addr(PEER);
    assert_eq!(left.connect(fd, peer.as_bytes()), Err(Errno::INPROGRESS));
    assert_eq!(left.shutdown(fd, libc::SHUT_WR), Ok(()));
    assert_eq!(left.send(fd, &[0], 0), Err(Errno::CONNRESET));
    assert_eq!(left.send(fd, &[0], 0), Err(Errno::PIPE));
}

given! {
    let (left, right) = pair();

    an_ipv6_socket_speaks_to_ipv4_by_mapped_addresses {
        let server = bound(&right, stream6, "[::]:80");
        right.listen(server, 1).unwrap();
        let client = stream6(&left);
        let peer = addr("[::ffff:10.0.0.2]:80");
        left.connect(client, peer.as_bytes()).unwrap();
        assert_eq!(left.getpeername(client), Ok(peer));
        let (_, from) = right.accept(server).unwrap();
        assert_eq!(Ok(from), left.getsockname(client));
        assert_eq!(from.to_std().unwrap().ip().to_string(), "::ffff:10.0.0.1");
    }
    connect_without_blocking_tells_the_outcome_once {
        let _listener = listener(&right, 80);
        let fd = stream(&left);
        set_nonblocking(&left, fd);
        let peer = addr(PEER);
        assert_eq!(left.connect(fd, peer.as_bytes()), Err(Errno::INPROGRESS));
        assert_eq!(left.connect(fd, peer.as_bytes()), Err(Errno::ALREADY));
        assert_eq!(left.getpeername(fd), Err(Errno::NOTCONN));
        assert_eq!(left.send(fd, &[0], 0), Err(Errno::AGAIN));
        assert_eq!(left.recv(fd, &mut [0], 0), Err(Errno::AGAIN));
        settle(&left);
        assert_eq!(error(&left, fd), 0);
        assert_eq!(left.connect(fd, peer.as_bytes()), Ok(()));
        assert_eq!(left.connect(fd, peer.as_bytes()), Err(Errno::ISCONN));
    }
    a_refused_connect_says_so_once_and_can_be_tried_again {
        let peer = addr(PEER);
        let fd = stream(&left);
        assert_eq!(left.connect(fd, peer.as_bytes()), Err(Errno::CONNREFUSED));
        assert_eq!(error(&left, fd), 0);
        set_nonblocking(&left, fd);
        assert_eq!(left.connect(fd, peer.as_bytes()), Err(Errno::INPROGRESS));
        settle(&left);
        assert_eq!(error(&left, fd), Errno::CONNREFUSED.raw_os_error());
        assert_eq!(error(&left, fd), 0);
        // Somebody has taken the reason away.
        assert_eq!(left.connect(fd, peer.as_bytes()), Err(Errno::CONNABORTED));
        let _listener = listener(&right, 80);
        assert_eq!(left.connect(fd, peer.as_bytes()), Err(Errno::INPROGRESS));
        settle(&left);
        assert_eq!(left.connect(fd, peer.as_bytes()), Ok(()));
    }
    shutting_down_a_listener_for_reading_closes_it {
        let fd = listener(&right, 80);
        assert_eq!(right.shutdown(fd, libc::SHUT_WR), Ok(()));
        assert_eq!(option(&right, fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN), Ok(1));
        assert_eq!(right.shutdown(fd, libc::SHUT_RD), Ok(()));
        assert_eq!(option(&right, fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN), Ok(0));
        assert_eq!(right.accept(fd).unwrap_err(), Errno::INVAL);
        assert_eq!(left.connect(stream(&left), addr(PEER).as_bytes()), Err(Errno::CONNREFUSED));
    }
    an_accepted_connection_has_its_listeners_options {
        let fd = listener(&right, 80);
        set(&right, fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
        set(&right, fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1).unwrap();
        set(&right, fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, 700).unwrap();
        let client = connect(&left, PEER);
        let (server, _) = right.accept(fd).unwrap();
        assert_eq!(option(&right, server, libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(1));
        assert_eq!(option(&right, server, libc::SOL_SOCKET, libc::SO_ZEROCOPY), Ok(1));
        // The SYN,ACK announced 700: 12 bytes of each segment are the timestamps'.
        assert_eq!(option(&left, client, libc::IPPROTO_TCP, libc::TCP_MAXSEG), Ok(700 - 12));
    }
    datagrams_have_their_own_errors {
        let fd = datagram(&left);
        assert_eq!(left.send(fd, b"x", 0), Err(Errno::DESTADDRREQ));
        assert_eq!(left.sendto(fd, b"x", 0, Some(&[2])), Err(Errno::INVAL));
        let there = addr("10.0.0.2:53");
        let long = vec![0; 65_508];
        assert_eq!(left.sendto(fd, &long, 0, Some(there.as_bytes())), Err(Errno::MSGSIZE));
        assert_eq!(left.send(fd, b"x", libc::MSG_OOB), Err(Errno::OPNOTSUPP));
        let server = bound(&right, datagram, "10.0.0.2:53");
        assert_eq!(left.sendto(fd, b"question", 0, Some(there.as_bytes())), Ok(8));
        let mut buf = [0; 4];
        let (n, from) = right.recvfrom(server, &mut buf, libc::MSG_PEEK | libc::MSG_TRUNC).unwrap();
        assert_eq!((n, from), (8, Some(addr(&from.unwrap().to_std().unwrap().to_string()))));
        assert_eq!(right.recv(server, &mut buf, 0), Ok(4));
        assert_eq!(right.recv(server, &mut buf, libc::MSG_DONTWAIT), Err(Errno::AGAIN));
        left.connect(fd, addr("10.0.0.2:54").as_bytes()).unwrap();
        left.send(fd, b"nobody there", 0).unwrap();
        assert_eq!(left.recv(fd, &mut buf, 0), Err(Errno::CONNREFUSED));
        assert_eq!(left.connect(fd, &[0; 16]), Ok(()));
        assert_eq!(left.send(fd, b"x", 0), Err(Errno::DESTADDRREQ));
        assert_eq!(left.shutdown(fd, libc::SHUT_RD), Err(Errno::NOTCONN));
    }
    a_datagram_socket_queues_what_its_buffer_takes {
        let there = addr("10.0.0.2:53");
        let server = datagram(&right);
        set(&right, server, libc::SOL_SOCKET, libc::SO_RCVBUF, 1).unwrap();
        assert_eq!(option(&right, server, libc::SOL_SOCKET, libc::SO_RCVBUF), Ok(2304));
        right.bind(server, there.as_bytes()).unwrap();
        let client = datagram(&left);
        for _ in 0..4 {
            left.sendto(client, &[0; 700], 0, Some(there.as_bytes())).unwrap();
            settle(&left);
        }
        let mut queued = 0;
        while right.recv(server, &mut [0; 700], libc::MSG_DONTWAIT).is_ok() {
            queued += 1;
        }
        assert!((1..4).contains(&queued), "{queued} of 4");
    }
    congestion_control_is_chosen_before_and_after_connecting_and_inherited {
        let name = |files: &Files, fd| {
            let mut name = [0; 16];
            files.getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut name).unwrap();
            String::from_utf8(name.split(|&b| b == 0).next().unwrap().to_vec()).unwrap()
        };
        let set = |files: &Files, fd, name: &[u8]| {
            files.setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name)
        };
        let listener = listener(&right, 80);
        set(&right, listener, b"reno\0").unwrap();
        let client = stream(&left);
        set(&left, client, b"newreno").unwrap();
        left.connect(client, addr("10.0.0.2:80").as_bytes()).unwrap();
        let (server, _) = right.accept(listener).unwrap();
        assert_eq!((name(&left, client), name(&right, server)), ("reno".into(), "reno".into()));
        set(&left, client, b"cubic").unwrap();
        assert_eq!(name(&left, client), "cubic");
    }
}

#[test]
fn listen_is_for_streams_that_are_not_connected() {
    let (left, _right, [client, _, _]) = linked();
    assert_eq!(left.listen(client, 1), Err(Errno::INVAL));
    assert_eq!(left.listen(datagram(&left), 1), Err(Errno::OPNOTSUPP));
    let fd = stream(&left);
    assert_eq!(left.accept(fd).unwrap_err(), Errno::INVAL);
    assert_eq!(left.listen(fd, -1), Ok(()));
    assert_ne!(left.getsockname(fd).unwrap().to_std().unwrap().port(), 0);
    assert_eq!(left.listen(fd, 5), Ok(()));
    assert_eq!(option(&left, fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN), Ok(1));
    assert_eq!(left.connect(fd, addr(PEER).as_bytes()), Err(Errno::ISCONN));
    assert_eq!(left.recv(fd, &mut [0], 0), Err(Errno::NOTCONN));
    assert_eq!(left.send(fd, &[0], 0), Err(Errno::PIPE));
    assert_eq!(left.accept(datagram(&left)).unwrap_err(), Errno::OPNOTSUPP);
    assert_eq!(left.accept4(fd, 1).unwrap_err(), Errno::INVAL);
}

#[test]
fn connecting_to_nobody_dissolves_the_connection() {
    let (left, right, [client, server, _]) = linked();
    assert_eq!(left.connect(client, &[0; 16]), Ok(()));
    assert_eq!(left.getpeername(client), Err(Errno::NOTCONN));
    settle(&left);
    assert_eq!(right.recv(server, &mut [0], 0), Err(Errno::CONNRESET));
    assert_eq!(left.connect(client, addr(PEER).as_bytes()), Ok(()));
}

#[test]
fn a_blocking_connect_gives_up_when_its_time_is_over() {
    let (left, _right) = pair();
    let fd = stream(&left);
    let half_second = [0i64, 500_000].map(i64::to_ne_bytes).concat();
    left.setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &half_second).unwrap();
    // Nobody has this address.
    let nobody = addr("10.0.0.77:80");
    let before = left.backend().clock();
    assert_eq!(left.connect(fd, nobody.as_bytes()), Err(Errno::INPROGRESS));
    assert_eq!(left.backend().clock() - before, Duration::from_millis(500));
    assert_eq!(left.connect(fd, nobody.as_bytes()), Err(Errno::ALREADY));
}

#[test]
fn a_blocking_receive_gives_up_when_its_time_is_over() {
    let (left, right, [client, server, _]) = linked();
    let time = [0i64, 200_000].map(i64::to_ne_bytes).concat();
    left.setsockopt(client, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time).unwrap();
    let before = left.backend().clock();
    assert_eq!(left.recv(client, &mut [0; 4], 0), Err(Errno::AGAIN));
    assert_eq!(left.backend().clock() - before, Duration::from_millis(200));
    right.send(server, b"ab", 0).unwrap();
    assert_eq!(left.recv(client, &mut [0; 4], libc::MSG_WAITALL), Ok(2));
}

#[test]
fn a_reset_is_told_once_then_the_stream_is_at_its_end() {
    let (left, right, [client, server, _]) = linked();
    reset(&right, server);
    settle(&left);
    assert_eq!(left.recv(client, &mut [0], 0), Err(Errno::CONNRESET));
    assert_eq!(left.recv(client, &mut [0], 0), Ok(0));
    assert_eq!(left.send(client, &[0], 0), Err(Errno::PIPE));
    assert_eq!(left.getpeername(client), Err(Errno::NOTCONN));
    assert_eq!(left.shutdown(client, libc::SHUT_WR), Err(Errno::NOTCONN));
}

#[test]
fn receive_flags_peek_drop_and_read_urgent_data() {
    let (left, right, [client, server, _]) = linked();
    right.send(server, b"hello", 0).unwrap();
    let mut buf = [0; 5];
    assert_eq!(left.recv(client, &mut buf, libc::MSG_PEEK), Ok(5));
    assert_eq!(&buf, b"hello");
    assert_eq!(left.recv(client, &mut [0; 2], libc::MSG_TRUNC), Ok(2));
    assert_eq!(left.recv(client, &mut buf, 0), Ok(3));
    assert_eq!(&buf[..3], b"llo");
    assert_eq!(left.recv(client, &mut buf, libc::MSG_OOB), Err(Errno::INVAL));
    assert_eq!(left.recv(client, &mut buf, libc::MSG_ERRQUEUE), Err(Errno::AGAIN));
    assert_eq!(left.recv(client, &mut buf, libc::MSG_DONTWAIT), Err(Errno::AGAIN));
}

#[test]
fn ioctl_counts_and_refuses() {
    let (left, right, [client, server, listener]) = linked();
    let ioctl = |files: &Files, fd, request| {
        let mut value = -1;
        files.ioctl(fd, request, &mut value).map(|()| value)
    };
    const INQ: u64 = 0x541b;
    const OUTQ: u64 = 0x5411;
    left.send(client, &[0; 100], 0).unwrap();
    assert_eq!(ioctl(&left, client, OUTQ), Ok(100));
    settle(&left);
    assert_eq!(ioctl(&right, server, INQ), Ok(100));
    assert_eq!(ioctl(&left, client, INQ), Ok(0));
    assert_eq!(ioctl(&right, listener, INQ), Err(Errno::INVAL));
    assert_eq!(ioctl(&left, client, 0x1234), Err(Errno::NOTTY));
    assert_eq!(ioctl(&left, 99, INQ), Err(Errno::BADF));
    let mut on = 1;
    left.ioctl(client, 0x5421, &mut on).unwrap();
    assert_eq!(left.recv(client, &mut [0], 0), Err(Errno::AGAIN));
}

#[test]
fn times_of_a_keep_alive_are_kept_while_it_is_off_and_reach_it_when_they_change() {
    let (left, _right, [client, _, _]) = linked();
    let (socket, tcp) = (libc::SOL_SOCKET, libc::IPPROTO_TCP);
    for on in [0, 1, 0, 1] {
        set(&left, client, socket, libc::SO_KEEPALIVE, on).unwrap();
        set(&left, client, tcp, libc::TCP_KEEPIDLE, 10 + on).unwrap();
        assert_eq!(option(&left, client, socket, libc::SO_KEEPALIVE), Ok(on));
        assert_eq!(option(&left, client, tcp, libc::TCP_KEEPIDLE), Ok(10 + on));
    }
    let silence = || {
        let mut info = [0; 60];
        left.getsockopt(client, tcp, libc::TCP_INFO, &mut info).unwrap();
        // tcpi_last_ack_recv: the answer to a probe.
        u32::from_ne_bytes(info[56..].try_into().unwrap())
    };
    left.backend().run(Duration::from_secs(12));
    assert!(silence() < 2000, "a probe after 11 s");
    set(&left, client, tcp, libc::TCP_QUICKACK, 0).unwrap();
    assert_eq!(option(&left, client, tcp, libc::TCP_QUICKACK), Ok(0));
}

#[test]
fn a_number_that_is_too_high_is_given_back() {
    let (left, _right) = pair();
    left.backend().world().high_numbers = Some(0);
    let refused = left.socket(libc::AF_INET, libc::SOCK_STREAM, 0);
    assert_eq!(refused, Err(Errno::MFILE));
    assert_eq!(left.backend().world().high_numbers, Some(0));
}
