//! Published ports: clients of this machine reach the guest, from their own addresses where a guest
//! can answer those.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use pagewire_gateway::limits::CONNECTIONS;
use pagewire_gateway::{Ask, Direction, How, Judge, Publish, Rules, Verdict};

use crate::support::namespaces::{Line, NEAR_V4, NEAR_V6, Outside, worlds};
use crate::support::{PATIENCE, World, allow_all, eventually, pattern, rest, world_with};

/// A guest whose address is known, with these rules, and that many connections.
fn known(judge: impl Judge + 'static, connections: usize) -> World {
    let guest = "10.0.2.15".parse().unwrap();
    world_with(|b| b.judge(judge), |config| config.guest(guest).connections(connections))
}

/// A world whose guest listens on port 80.
fn world_that_listens() -> (World, pagewire::TcpListener) {
    let world = known(allow_all, CONNECTIONS);
    let listener = world.inside.listen("10.0.2.15:80").unwrap();
    (world, listener)
}

fn publish(world: &World, what: &str) -> SocketAddr {
    let what: Publish = what.parse().unwrap();
    world.guest.publish(&what).unwrap()[0]
}

#[test]
fn a_client_of_a_published_port_reaches_the_guest_and_gets_its_answer() {
    let (world, listener) = world_that_listens();
    let at = publish(&world, "127.0.0.1:0:80");
    let mut client = TcpStream::connect(at).unwrap();
    let (mut served, from) = listener.accept().unwrap();
    // No guest could answer 127.0.0.1: the gateway's address stands for it.
    assert_eq!(from.ip().to_string(), "10.0.2.2");
    client.write_all(&pattern(1 << 20)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(rest(&served) == pattern(1 << 20));
    served.write_all(b"thanks").unwrap();
    drop(served);
    assert_eq!(rest(client), b"thanks");
    assert_eq!(world.journal.wait_for_ends(1), [How::Finished]);
    assert_eq!(world.guest.counters().clients, 1);
}

#[test]
fn a_client_that_the_guest_refuses_is_reset() {
    let (world, listener) = world_that_listens();
    let at = publish(&world, "127.0.0.1:0:81");
    let mut client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let error = client.read(&mut [0]).expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(world.journal.wait_for_ends(1), [How::Refused]);
    drop(listener);
}

#[test]
fn a_client_that_rules_refuse_is_reset_and_the_guest_hears_nothing() {
    let rules = |ask: &Ask| match ask.direction {
        Direction::In => Some(Verdict::Refuse),
        Direction::Out => Some(Verdict::Allow),
    };
    let world = known(rules, CONNECTIONS);
    let listener = world.inside.listen("10.0.2.15:80").unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = publish(&world, "127.0.0.1:0:80");
    let mut client = TcpStream::connect(at).unwrap();
    let error = client.read(&mut [0]).expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(listener.accept().map(drop).expect_err("nobody").kind(), ErrorKind::WouldBlock);
}

#[test]
fn clients_that_no_rule_permits_are_reset_once_a_rule_permits_some() {
    let dir = tempfile::tempdir().unwrap();
    for (rule, permitted) in [
        ("from:127.0.0.0/8:80/tcp", true),
        ("from:127.0.0.1", true),
        // The port is the guest's.
        ("from:127.0.0.1:81", false),
        ("from:10.0.0.0/8", false),
        ("10.0.0.0/8", true),
    ] {
        let rules = Rules::default().allow(rule.parse().unwrap());
        let guest = "10.0.2.15".parse().unwrap();
        let world = world_with(|b| b.rules(rules), |config| config.guest(guest));
        let listener = world.inside.listen("10.0.2.15:80").unwrap();
        listener.set_nonblocking(!permitted).unwrap();
        let at = publish(&world, "127.0.0.1:0:80");
        let path = dir.path().join(rule.replace('/', "_"));
        let by_path: Publish = format!("{}:80", path.display()).parse().unwrap();
        world.guest.publish(&by_path).unwrap();
        let mut client = TcpStream::connect(at).unwrap();
        let mut neighbour = UnixStream::connect(&path).unwrap();
        if permitted {
            for _ in 0..2 {
                listener.accept().unwrap().0.write_all(b"hi").unwrap();
            }
            assert_eq!(rest(client), b"hi", "{rule}");
            assert_eq!(rest(neighbour), b"hi", "{rule}");
        } else {
            assert!(client.read(&mut [0]).is_err(), "{rule}");
            assert!(neighbour.read(&mut [0]).is_ok_and(|n| n == 0), "{rule}");
            let nobody = listener.accept().map(drop).expect_err("nobody");
            assert_eq!(nobody.kind(), ErrorKind::WouldBlock, "{rule}");
        }
    }
}

#[test]
fn a_unix_socket_can_be_published() {
    let (world, listener) = world_that_listens();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("guest.sock");
    let what: Publish = format!("{}:80", path.display()).parse().unwrap();
    assert_eq!(world.guest.publish(&what).unwrap(), []);
    let mut client = UnixStream::connect(&path).unwrap();
    let (mut served, _) = listener.accept().unwrap();
    client.write_all(b"by a path").unwrap();
    let mut got = [0; 9];
    served.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"by a path");
    drop(world);
    assert!(!path.exists(), "the path goes with the guest");
    // The socket of a killed process is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let opened = what.open().unwrap();
    assert_eq!(what.open().expect_err("in use").kind(), ErrorKind::AddrInUse);
    drop(opened);
}

#[test]
fn a_port_of_all_addresses_serves_a_guest_that_has_one_version_of_ip() {
    let world = known(allow_all, CONNECTIONS);
    let inner = world.inside.udp("10.0.2.15:53").unwrap();
    // Opened first, as a process does that gives up its rights.
    let what: Publish = "0:53/udp".parse().unwrap();
    let opened = what.open().unwrap();
    let port = opened[0].address().unwrap().port();
    world.guest.serve(&what, opened).unwrap();
    let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(b"question", ("127.0.0.1", port)).unwrap();
    inner.set_read_timeout(Some(PATIENCE)).unwrap();
    let (n, _) = inner.recv_from(&mut [0; 16]).unwrap();
    assert_eq!(n, 8);
    let error = world.guest.publish(&"127.0.0.1:0:53/udp".parse().unwrap()).expect_err("twice");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}

#[test]
fn a_port_that_is_taken_is_not_published_and_neither_is_one_without_a_guests_address() {
    let (world, _listener) = world_that_listens();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let what = format!("{}:80", taken.local_addr().unwrap());
    let error = world.guest.publish(&what.parse().unwrap()).expect_err("taken");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let nameless = crate::support::world();
    let error = nameless.guest.publish(&"127.0.0.1:0:80".parse().unwrap()).expect_err("where?");
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
}

#[test]
fn clients_beyond_the_limit_wait_in_the_backlog() {
    let world = known(allow_all, 1);
    let listener = world.inside.listen("10.0.2.15:80").unwrap();
    let at = publish(&world, "127.0.0.1:0:80");
    let first = TcpStream::connect(at).unwrap();
    let (served, _) = listener.accept().unwrap();
    let mut second = TcpStream::connect(at).unwrap();
    assert_eq!(world.guest.counters().clients, 1);
    drop((first, served));
    let (mut served, _) = listener.accept().unwrap();
    served.write_all(b"!").unwrap();
    second.read_exact(&mut [0]).unwrap();
}

#[test]
fn over_a_tap_the_guest_sees_the_clients_own_address() {
    let outside = |outside: Outside, line: Line| {
        line.wait();
        for address in [SocketAddr::from((NEAR_V4, 8080)), SocketAddr::from((NEAR_V6, 8080))] {
            let what: Publish = format!("{address}:80").parse().unwrap();
            outside.guest.publish(&what).unwrap();
            let mut client = TcpStream::connect(address).unwrap();
            let mut seen = String::new();
            client.read_to_string(&mut seen).unwrap();
            assert_eq!(seen, client.local_addr().unwrap().to_string());
        }
        eventually(|| outside.guest.connections() == 0);
    };
    worlds(outside, |line| {
        let listener = TcpListener::bind("[::]:80").unwrap();
        line.go_on();
        for _ in 0..2 {
            let (mut served, from) = listener.accept().unwrap();
            let plain = SocketAddr::new(from.ip().to_canonical(), from.port());
            served.write_all(plain.to_string().as_bytes()).unwrap();
        }
    });
}

#[test]
fn a_port_is_published_and_closed_while_the_guest_runs_and_clients_stay() {
    let world = known(allow_all, CONNECTIONS);
    let listener = world.inside.listen("10.0.2.15:80").unwrap();
    let _service = world.inside.udp("10.0.2.15:53").unwrap();
    let [tcp, udp] = ["127.0.0.1:0:80", "127.0.0.1:0:53/udp"].map(|text| text.parse().unwrap());
    let there = world.guest.publish(&tcp).unwrap()[0];
    let datagrams = world.guest.publish(&udp).unwrap()[0];
    assert_eq!(world.guest.published(), [tcp.clone(), udp.clone()]);
    let mut client = std::net::TcpStream::connect(there).unwrap();
    let (mut served, _) = listener.accept().unwrap();

    assert!(world.guest.unpublish(&tcp) && world.guest.unpublish(&udp));
    assert!(!world.guest.unpublish(&tcp), "it is not published any more");
    assert!(world.guest.published().is_empty());
    let refused = std::net::TcpStream::connect(there).expect_err("closed");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    std::net::UdpSocket::bind(datagrams).expect("the port is free");
    client.write_all(b"still here").unwrap();
    served.read_exact(&mut [0; 10]).unwrap();
    // The same ports again.
    world.guest.publish(&udp).unwrap();
    world.guest.publish(&tcp).unwrap();
}

#[test]
fn of_several_sockets_all_are_published_or_none() {
    let world = known(allow_all, CONNECTIONS);
    let _service = world.inside.udp("10.0.2.15:54").unwrap();
    world.guest.publish(&"127.0.0.1:0:54/udp".parse().unwrap()).unwrap();
    // The second port of the guest has a socket.
    let what: Publish = "127.0.0.1:30053-30054:53-54/udp".parse().unwrap();
    let refused = world.guest.publish(&what).expect_err("taken");
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    assert_eq!(world.guest.published().len(), 1);
    std::net::UdpSocket::bind("127.0.0.1:30053").expect("the first port is free");
}

#[test]
fn single_ports_of_what_was_published_are_listed_and_closed() {
    let world = known(allow_all, CONNECTIONS);
    let range: Publish = "127.0.0.1:30080-30082:80".parse().unwrap();
    world.guest.publish(&range).unwrap();
    let any = publish(&world, "0:90");
    let listed = |world: &World| {
        let ports = world.guest.published_ports();
        ports.iter().map(|port| (port.host.to_string(), port.guest.port())).collect::<Vec<_>>()
    };
    let all = listed(&world);
    assert_eq!(all[1], ("127.0.0.1:30081".to_owned(), 81));
    assert!(all.contains(&(any.to_string(), 90)), "{all:?}");
    let those = world.guest.published_ports();
    assert_eq!(world.guest.unpublish_ports(&those[1..2]), 1);
    assert_eq!(world.guest.unpublish_ports(&those[1..2]), 0);
    assert!(TcpStream::connect("127.0.0.1:30081").is_err());
    assert_eq!(listed(&world).len(), all.len() - 1);
    // What has no port left is not published.
    world.guest.unpublish_ports(&those);
    assert!(world.guest.published().is_empty());
}
