//! Addresses that several sockets have: `SO_REUSEPORT`, `SO_REUSEADDR` and `IPV6_V6ONLY`.

use pagewire_posix::{Errno, Fd};
use pagewire_testkit::given;

use crate::support::{
    Files, addr, bound, connect, datagram, datagram6, pair, set, set_nonblocking, settle, stream,
};

fn share_port(files: &Files, fd: Fd) -> Fd {
    set(files, fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).unwrap();
    fd
}

fn share_address(files: &Files, fd: Fd) -> Fd {
    set(files, fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
    fd
}

const PORT: &str = "10.0.0.2:80";

/// Sockets of the right host that share a port, those of streams listening.
fn group(right: &Files, members: usize, new: impl Fn(&Files) -> Fd) -> Vec<Fd> {
    let member = |_| {
        let fd = share_port(right, new(right));
        right.bind(fd, addr(PORT).as_bytes()).unwrap();
        let listens = right.listen(fd, 64);
        assert!(matches!(listens, Ok(()) | Err(Errno::OPNOTSUPP)));
        set_nonblocking(right, fd);
        fd
    };
    (0..members).map(member).collect()
}

fn count<T, E>(mut next: impl FnMut() -> Result<T, E>) -> usize {
    std::iter::from_fn(|| next().ok()).count()
}

given! {
    let (left, right) = pair();

    listeners_that_share_a_port_share_its_connections {
        let listeners = group(&right, 4, stream);
        for _ in 0..64 {
            connect(&left, PORT);
        }
        settle(&left);
        let shares: Vec<_> = listeners.iter().map(|&fd| count(|| right.accept(fd))).collect();
        assert_eq!(shares.iter().sum::<usize>(), 64);
        assert!(shares.iter().all(|&share| share > 4), "{shares:?}");
    }
    a_listener_that_goes_takes_along_what_it_did_not_accept_and_the_others_go_on {
        let listeners = group(&right, 2, stream);
        let clients: Vec<_> = (0..32).map(|_| connect(&left, PORT)).collect();
        right.close(listeners[0]).unwrap();
        settle(&left);
        let lost = clients.iter().filter(|&&fd| {
            set_nonblocking(&left, fd);
            left.read(fd, &mut [0]) == Err(Errno::CONNRESET)
        });
        let lost = lost.count();
        assert!((4..28).contains(&lost), "{lost}");
        (0..8).for_each(|_| assert!(connect(&left, PORT) > 0));
        settle(&left);
        assert_eq!(count(|| right.accept(listeners[1])), 32 - lost + 8);
    }
    datagrams_of_one_peer_stay_with_one_of_those_who_share_a_port {
        let members = group(&right, 4, datagram);
        for _ in 0..64 {
            let fd = datagram(&left);
            for _ in 0..3 {
                left.sendto(fd, b"x", 0, Some(addr(PORT).as_bytes())).unwrap();
            }
            settle(&left);
        }
        let shares: Vec<_> =
            members.iter().map(|&fd| count(|| right.recv(fd, &mut [0; 8], 0))).collect();
        assert_eq!(shares.iter().sum::<usize>(), 192);
        assert!(shares.iter().all(|&share| share > 12 && share % 3 == 0), "{shares:?}");
    }
    a_member_with_a_peer_gets_what_the_peer_sends_and_nothing_else {
        let members = group(&right, 4, datagram);
        let (friend, stranger) = (datagram(&left), datagram(&left));
        left.bind(friend, addr("10.0.0.1:7").as_bytes()).unwrap();
        right.connect(members[2], addr("10.0.0.1:7").as_bytes()).unwrap();
        for fd in [friend, stranger] {
            for _ in 0..8 {
                left.sendto(fd, b"x", 0, Some(addr(PORT).as_bytes())).unwrap();
            }
        }
        settle(&left);
        let shares: Vec<_> =
            members.iter().map(|&fd| count(|| right.recv(fd, &mut [0; 8], 0))).collect();
        assert_eq!(shares[2], 8);
        assert_eq!(shares.iter().sum::<usize>(), 16);
    }
    of_datagram_sockets_that_share_an_address_the_last_one_bound_gets_what_comes {
        let bound = [(); 3].map(|()| {
            let fd = share_address(&right, datagram(&right));
            right.bind(fd, addr(PORT).as_bytes()).unwrap();
            set_nonblocking(&right, fd);
            fd
        });
        let client = datagram(&left);
        let send = || {
            left.sendto(client, b"x", 0, Some(addr(PORT).as_bytes())).unwrap();
            settle(&left);
            bound.map(|fd| right.recv(fd, &mut [0; 8], 0))
        };
        assert_eq!(send(), [Err(Errno::AGAIN), Err(Errno::AGAIN), Ok(1)]);
        right.close(bound[2]).unwrap();
        assert_eq!(send(), [Err(Errno::AGAIN), Ok(1), Err(Errno::BADF)]);
    }
    a_datagram_socket_for_ipv6_only_leaves_ipv4_to_others {
        let six = datagram6(&right);
        set(&right, six, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1).unwrap();
        right.bind(six, addr("[::]:7").as_bytes()).unwrap();
        let four = bound(&right, datagram, "0.0.0.0:7");
        let client = datagram(&left);
        left.sendto(client, b"four", 0, Some(addr("10.0.0.2:7").as_bytes())).unwrap();
        assert_eq!(right.recv(four, &mut [0; 8], 0), Ok(4));
        let mapped = addr("[::ffff:10.0.0.1]:7");
        let sent = right.sendto(six, b"x", 0, Some(mapped.as_bytes()));
        assert_eq!(sent, Err(Errno::NETUNREACH));
        assert_eq!(right.connect(six, mapped.as_bytes()), Err(Errno::NETUNREACH));
    }
}

#[test]
fn a_port_is_shared_by_those_only_who_all_said_so_before_they_were_bound() {
    for new in [stream, datagram] {
        let (_, right) = pair();
        let bind = |fd| right.bind(fd, addr(PORT).as_bytes());
        group(&right, 1, new);
        assert_eq!(bind(new(&right)), Err(Errno::ADDRINUSE));
        assert_eq!(bind(share_address(&right, new(&right))), Err(Errno::ADDRINUSE));
        let late = new(&right);
        right.bind(late, addr("10.0.0.2:81").as_bytes()).unwrap();
        share_port(&right, late);
        let fd = share_port(&right, new(&right));
        assert_eq!(right.bind(fd, addr("10.0.0.2:81").as_bytes()), Err(Errno::ADDRINUSE));
        assert_eq!(bind(fd), Ok(()));
    }
}

#[test]
fn a_datagram_socket_is_bound_to_any_address_if_it_says_so_and_sends_from_none_but_ours() {
    let (left, _) = pair();
    let fd = datagram(&left);
    let elsewhere = addr("192.0.2.9:7");
    assert_eq!(left.bind(fd, elsewhere.as_bytes()), Err(Errno::ADDRNOTAVAIL));
    set(&left, fd, libc::IPPROTO_IP, libc::IP_FREEBIND, 1).unwrap();
    assert_eq!(left.bind(fd, elsewhere.as_bytes()), Ok(()));
    assert_eq!(left.sendto(fd, b"x", 0, Some(addr(PORT).as_bytes())), Err(Errno::INVAL));
}
