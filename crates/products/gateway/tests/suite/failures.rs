//! Failures of the network reach the guest's own kernel as they are: real kernels on both sides of the
//! gateway.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant as Wall};

use pagewire_gateway::{Builder, How, Resolver};
use pagewire_testkit::frames::dns_query;
use pagewire_testkit::ip;
use rustix::net::sockopt;

use crate::support::namespaces::{Line, NEAR_V4, NEAR_V6, Outside, SILENT, worlds, worlds_with};
use crate::support::{PATIENCE, eventually, rest};

/// Far longer than a refusal takes, and shorter than the guest's first retransmission.
const AT_ONCE: Duration = Duration::from_millis(500);

/// The error of a connection that fails at once.
#[track_caller]
fn fails_at_once(to: impl Into<IpAddr>, port: u16) -> io::Error {
    let (to, begun) = (to.into(), Wall::now());
    let error = TcpStream::connect((to, port)).expect_err("it cannot be reached");
    assert!(begun.elapsed() < AT_ONCE, "{to}: {error} after {:?}", begun.elapsed());
    error
}

#[test]
fn a_closed_port_is_refused() {
    let outside = |outside: Outside, line: Line| {
        line.wait();
        assert_eq!(outside.journal.ends(), [How::Refused; 2]);
    };
    worlds(outside, |line| {
        assert_eq!(fails_at_once(NEAR_V4, 9).kind(), ErrorKind::ConnectionRefused);
        assert_eq!(fails_at_once(NEAR_V6, 9).kind(), ErrorKind::ConnectionRefused);
        line.go_on();
    });
}

#[test]
fn no_route_an_unreachable_one_and_a_prohibited_one_are_told_apart() {
    let outside = |outside: Outside, line: Line| {
        line.wait();
        let (net, host) = (How::NetUnreachable, How::HostUnreachable);
        let ends = [net, net, host, host, How::Prohibited, How::Prohibited];
        assert_eq!(outside.journal.ends(), ends);
    };
    worlds(outside, |line| {
        let errno = |to: &str| {
            let to: IpAddr = to.parse().unwrap();
            fails_at_once(to, 80).raw_os_error().unwrap()
        };
        assert_eq!(errno("192.88.99.1"), libc::ENETUNREACH);
        assert_eq!(errno("2001:db8:9::1"), libc::ENETUNREACH);
        assert_eq!(errno("203.0.113.1"), libc::EHOSTUNREACH);
        assert_eq!(errno("2001:db8:1::1"), libc::EHOSTUNREACH);
        // Linux reports "administratively prohibited" so, each version its own way.
        assert_eq!(errno("203.0.113.65"), libc::EHOSTUNREACH);
        assert_eq!(errno("2001:db8:2::1"), libc::EACCES);
        line.go_on();
    });
}

#[test]
fn a_silent_host_is_silent_and_the_dial_ends_when_the_guest_gives_up() {
    let outside = |outside: Outside, line: Line| {
        line.wait();
        assert_eq!(outside.guest.connections(), 2, "one dial each");
        line.wait();
        // The guest's kernel sends nothing when its program gives up: its SYNs stop.
        assert_eq!(outside.journal.wait_for_ends(2), [How::GaveUp; 2]);
        assert_eq!(outside.guest.counters().opened, 0);
    };
    worlds(outside, |line| {
        let silent = SocketAddr::from((SILENT, 80));
        let limit = Duration::from_millis(1300);
        let other = std::thread::spawn(move || {
            TcpStream::connect_timeout(&silent, limit).expect_err("silence").kind()
        });
        let first = TcpStream::connect_timeout(&silent, limit / 2).expect_err("silence");
        assert_eq!(first.kind(), ErrorKind::TimedOut);
        line.go_on();
        assert_eq!(other.join().unwrap(), ErrorKind::TimedOut);
        line.go_on();
    });
}

#[test]
fn a_full_backlog_waits() {
    let outside = |outside: Outside, line: Line| {
        let server = TcpListener::bind((NEAR_V4, 80)).unwrap();
        rustix::net::listen(&server, 0).unwrap();
        let filler = TcpStream::connect((NEAR_V4, 80)).unwrap();
        line.go_on();
        eventually(|| outside.guest.counters().dialled == 1);
        assert_eq!(outside.guest.counters().opened, 0);
        drop((server.accept().unwrap(), filler));
        // The kernel's next SYN finds room.
        let (mut served, _) = server.accept().unwrap();
        served.write_all(b"!").unwrap();
        line.wait();
    };
    worlds(outside, |line| {
        line.wait();
        TcpStream::connect((NEAR_V4, 80)).unwrap().read_exact(&mut [0]).unwrap();
        line.go_on();
    });
}

#[test]
fn a_reset_in_the_middle_is_a_reset() {
    let outside = |outside: Outside, line: Line| {
        let server = TcpListener::bind((NEAR_V4, 80)).unwrap();
        line.go_on();
        let (mut first, _) = server.accept().unwrap();
        first.read_exact(&mut [0; 5]).unwrap();
        sockopt::set_socket_linger(&first, Some(Duration::ZERO)).unwrap();
        drop(first);
        let (mut second, _) = server.accept().unwrap();
        let error = second.read_to_end(&mut Vec::new()).expect_err("reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        line.wait();
        assert_eq!(outside.journal.wait_for_ends(2), [How::PeerReset, How::GuestReset]);
    };
    worlds(outside, |line| {
        line.wait();
        let mut first = TcpStream::connect((NEAR_V4, 80)).unwrap();
        first.write_all(b"hello").unwrap();
        let error = first.read(&mut [0]).expect_err("reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let mut second = TcpStream::connect((NEAR_V4, 80)).unwrap();
        second.write_all(b"hello").unwrap();
        sockopt::set_socket_linger(&second, Some(Duration::ZERO)).unwrap();
        drop(second);
        line.go_on();
    });
}

#[test]
fn each_side_may_end_first() {
    let outside = |outside: Outside, line: Line| {
        let server = TcpListener::bind((NEAR_V6, 80)).unwrap();
        line.go_on();
        let (mut first, _) = server.accept().unwrap();
        assert_eq!(rest(&first), b"to the end");
        first.write_all(b"and back").unwrap();
        drop(first);
        let (mut second, _) = server.accept().unwrap();
        second.write_all(b"to the end").unwrap();
        second.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&second), b"and back");
        line.wait();
        assert_eq!(outside.journal.wait_for_ends(2), [How::Finished; 2]);
    };
    worlds(outside, |line| {
        line.wait();
        let mut first = TcpStream::connect((NEAR_V6, 80)).unwrap();
        first.write_all(b"to the end").unwrap();
        first.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&first), b"and back");
        let mut second = TcpStream::connect((NEAR_V6, 80)).unwrap();
        assert_eq!(rest(&second), b"to the end");
        second.write_all(b"and back").unwrap();
        drop(second);
        line.go_on();
    });
}

#[test]
fn when_the_gateway_ends_both_sides_are_reset() {
    let outside = |outside: Outside, line: Line| {
        let server = TcpListener::bind((NEAR_V4, 80)).unwrap();
        line.go_on();
        let (mut served, _) = server.accept().unwrap();
        line.wait();
        assert_eq!(outside.gateway.guests(), 1);
        drop(outside.guest);
        assert_eq!(outside.gateway.guests(), 0);
        assert_eq!(outside.journal.ends(), [How::Removed]);
        let error = served.read(&mut [0]).expect_err("reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        line.wait();
    };
    worlds(outside, |line| {
        line.wait();
        let mut stream = TcpStream::connect((NEAR_V4, 80)).unwrap();
        line.go_on();
        let error = stream.read(&mut [0]).expect_err("reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        line.go_on();
    });
}

#[test]
fn when_the_guest_is_gone_the_far_side_is_reset() {
    let outside = |outside: Outside, line: Line| {
        let server = TcpListener::bind((NEAR_V4, 80)).unwrap();
        line.go_on();
        let (mut served, _) = server.accept().unwrap();
        line.wait();
        let error = served.read(&mut [0]).expect_err("reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(outside.journal.wait_for_ends(1), [How::Removed]);
        assert!(outside.guest.host().check().is_err());
    };
    worlds(outside, |line| {
        line.wait();
        let stream = TcpStream::connect((NEAR_V4, 80)).unwrap();
        // As when a virtual machine's process is killed.
        ip("link delete guest0");
        line.go_on();
        drop(stream);
    });
}

#[test]
fn when_the_hosts_address_changes_new_connections_leave_from_the_new_one() {
    let outside = |outside: Outside, line: Line| {
        let server = TcpListener::bind("0.0.0.0:80").unwrap();
        let leave_from = |source: &str| {
            ip(&format!("address add {source}/32 dev lo"));
            ip(&format!("route replace local {NEAR_V4} dev lo table local src {source}"));
        };
        leave_from("192.0.2.77");
        line.go_on();
        let (mut served, from) = server.accept().unwrap();
        assert_eq!(from.ip().to_string(), "192.0.2.77");
        served.write_all(b"1").unwrap();
        line.wait();
        leave_from("192.0.2.78");
        ip("address delete 192.0.2.77/32 dev lo");
        line.go_on();
        let (mut served, from) = server.accept().unwrap();
        assert_eq!(from.ip().to_string(), "192.0.2.78");
        served.write_all(b"2").unwrap();
        line.wait();
        assert_eq!(outside.guest.counters().broken, 0);
    };
    worlds(outside, |line| {
        for _ in 0..2 {
            line.wait();
            TcpStream::connect((NEAR_V4, 80)).unwrap().read_exact(&mut [0]).unwrap();
            line.go_on();
        }
    });
}

#[test]
fn a_resolver_that_is_down_fails_the_guests_question_at_once_and_may_come_back() {
    let at = SocketAddr::from((NEAR_V4, 53));
    let outside = move |outside: Outside, line: Line| {
        line.wait();
        let resolver = UdpSocket::bind(at).unwrap();
        resolver.set_read_timeout(Some(PATIENCE)).unwrap();
        line.go_on();
        let mut message = [0; 512];
        let (len, from) = resolver.recv_from(&mut message).unwrap();
        // An answer that has no records: there is none of this type.
        message[2] |= 0x80;
        resolver.send_to(&message[..len], from).unwrap();
        line.wait();
        assert_eq!(outside.guest.dns_counters().queries, 2);
    };
    let resolver = move |builder: Builder| builder.resolver(Resolver::At(vec![at]));
    worlds_with(resolver, outside, |line| {
        let names = UdpSocket::bind("0.0.0.0:0").unwrap();
        names.connect("10.0.2.2:53").unwrap();
        names.set_read_timeout(Some(PATIENCE)).unwrap();
        let rcode = |id: u8| {
            let query = dns_query(id.into(), "example.org", 1);
            names.send(&query).unwrap();
            let mut answer = [0; 512];
            assert!(names.recv(&mut answer).unwrap() >= query.len());
            assert_eq!(answer[1], id);
            answer[3] & 0xf
        };
        const SERVFAIL: u8 = 2;
        let begun = Wall::now();
        assert_eq!(rcode(1), SERVFAIL);
        assert!(begun.elapsed() < AT_ONCE, "after {:?}", begun.elapsed());
        line.go_on();
        line.wait();
        assert_eq!(rcode(2), 0);
        line.go_on();
    });
}
