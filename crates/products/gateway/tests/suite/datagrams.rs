//! Datagrams and echo requests of a guest: RFC 4787's requirements on mappings and filters, sources,
//! sizes, and errors of the network. The numbers in names are that RFC's.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use pagewire_gateway::{Ask, Verdict};
use pagewire_testkit::{Need, can};

use crate::support::namespaces::{Line, NEAR_V4, NEAR_V6, Outside, worlds};
use crate::support::{PATIENCE, World, allow_all, eventually, far, world, world_with};

/// A socket of this machine, and the address by which the guest reaches it.
fn outer() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, far(port))
}

/// A socket of the guest.
fn inner(world: &World, port: u16) -> pagewire::UdpSocket {
    let socket = world.inside.udp(("10.0.2.15", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn hear(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut room = [0; 65_536];
    let (n, from) = socket.recv_from(&mut room).expect("a datagram");
    (room[..n].to_vec(), from)
}

fn hear_inside(socket: &pagewire::UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut room = [0; 65_536];
    let (n, from) = socket.recv_from(&mut room).expect("a datagram");
    (room[..n].to_vec(), from)
}

#[test]
fn a_question_goes_out_and_its_answer_comes_from_whom_it_was_asked() {
    let world = world();
    let ((outer, at), inner) = (outer(), inner(&world, 0));
    inner.send_to(b"question", at).unwrap();
    let (question, from) = hear(&outer);
    assert_eq!(question, b"question");
    outer.send_to(b"answer", from).unwrap();
    assert_eq!(hear_inside(&inner), (b"answer".to_vec(), at));
}

#[test]
fn req_1_one_port_of_the_guest_is_one_port_for_all_destinations() {
    let world = world();
    let inner = inner(&world, 0);
    let ((first, at_first), (second, at_second)) = (outer(), outer());
    inner.send_to(b"1", at_first).unwrap();
    inner.send_to(b"2", at_second).unwrap();
    assert_eq!(hear(&first).1, hear(&second).1);
    assert_eq!(world.guest.counters().endpoints_opened, 1);
}

#[test]
fn two_ports_of_the_guest_are_two() {
    let world = world();
    let ((outer, at), a, b) = (outer(), inner(&world, 1001), inner(&world, 1002));
    a.send_to(b"a", at).unwrap();
    let (_, from_a) = hear(&outer);
    b.send_to(b"b", at).unwrap();
    let (_, from_b) = hear(&outer);
    assert_ne!(from_a, from_b);
    outer.send_to(b"to a", from_a).unwrap();
    assert_eq!(hear_inside(&a).0, b"to a");
}

#[test]
fn req_8_an_address_that_the_guest_has_sent_nothing_to_is_not_heard() {
    let world = world();
    let ((outer, at), inner) = (outer(), inner(&world, 0));
    inner.send_to(b"hello", at).unwrap();
    let (_, from) = hear(&outer);
    // The whole of 127/8 is this machine's.
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    stranger.send_to(b"who?", ("127.0.0.1", from.port())).unwrap();
    eventually(|| world.guest.counters().datagrams_filtered == 1);
    // Another port of a known address is.
    let known = UdpSocket::bind("127.0.0.1:0").unwrap();
    known.send_to(b"again", from).unwrap();
    let (again, by) = hear_inside(&inner);
    assert_eq!((again, by), (b"again".to_vec(), far(known.local_addr().unwrap().port())));
}

#[test]
fn many_datagrams_of_one_size_arrive_whole_and_apart() {
    let world = world();
    let ((outer, at), inner) = (outer(), inner(&world, 0));
    for round in 0..20u8 {
        for i in 0..50u8 {
            inner.send_to(&[&[round, i][..], &[7; 998]].concat(), at).unwrap();
        }
        for i in 0..50u8 {
            let (got, _) = hear(&outer);
            assert_eq!((got.len(), got[0], got[1]), (1000, round, i));
        }
    }
    assert_eq!(world.guest.counters().datagrams_out, 1000);
}

#[test]
fn datagrams_of_every_size_pass_both_ways() {
    let world = world();
    let ((outer, at), inner) = (outer(), inner(&world, 0));
    for size in [0, 1, 511, 513, 1472, 9000, 60_000, 65_507] {
        let data = crate::support::pattern(size);
        inner.send_to(&data, at).unwrap();
        let (got, from) = hear(&outer);
        assert!(got == data, "{size} out: {}", got.len());
        outer.send_to(&data, from).unwrap();
        let (got, _) = hear_inside(&inner);
        assert!(got == data, "{size} in: {}", got.len());
    }
}

#[test]
fn what_rules_refuse_or_drop_opens_nothing() {
    let rules = |ask: &Ask| match ask.to.port() {
        1 => Some(Verdict::Refuse),
        _ => Some(Verdict::Drop),
    };
    let world = world_with(|builder| builder.judge(rules), |config| config);
    let inner = inner(&world, 0);
    inner.connect(far(1)).unwrap();
    inner.send(b"x").unwrap();
    let refused = inner.recv(&mut [0; 16]).expect_err("port unreachable");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    inner.send_to(b"x", far(2)).unwrap();
    eventually(|| world.guest.counters().denied == 2);
    assert_eq!(world.guest.counters().endpoints_opened, 0);
}

#[test]
fn a_closed_port_of_the_network_is_one_for_the_guest() {
    let world = world();
    let ((outer, at), inner) = (outer(), inner(&world, 0));
    drop(outer);
    inner.connect(at).unwrap();
    inner.send(b"x").unwrap();
    let refused = inner.recv(&mut [0; 16]).expect_err("port unreachable");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(world.guest.counters().errors_in, 1);
}

#[test]
fn a_published_port_is_reached_from_the_clients_side_and_answers_from_there() {
    let guest = "10.0.2.15".parse().unwrap();
    let world = world_with(|b| b.judge(allow_all), |config| config.guest(guest));
    let inner = inner(&world, 53);
    let published = world.guest.publish(&"127.0.0.1:0:53/udp".parse().unwrap()).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.send_to(b"question", published[0]).unwrap();
    let (question, from) = hear_inside(&inner);
    assert_eq!(question, b"question");
    inner.send_to(b"answer", from).unwrap();
    assert_eq!(hear(&client), (b"answer".to_vec(), published[0]));
}

#[test]
fn over_a_tap_the_network_sees_the_guests_datagrams_as_a_router_would_pass_them() {
    let outside = |outside: Outside, line: Line| {
        for address in [SocketAddr::from((NEAR_V4, 7)), SocketAddr::from((NEAR_V6, 7))] {
            let socket = UdpSocket::bind(address).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            line.go_on();
            let (question, from) = hear(&socket);
            assert_eq!(question, b"question");
            socket.send_to(b"answer", from).unwrap();
            line.wait();
        }
        line.wait();
        assert_eq!(outside.guest.counters().datagrams_out, 3);
    };
    worlds(outside, |line| {
        for to in [SocketAddr::from((NEAR_V4, 7)), SocketAddr::from((NEAR_V6, 7))] {
            line.wait();
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.connect(to).unwrap();
            socket.send(b"question").unwrap();
            let mut room = [0; 16];
            assert_eq!(socket.recv(&mut room).unwrap(), 6);
            line.go_on();
        }
        // Errors of the network are the guest's.
        let errno = |to: &str| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            socket.connect(to).unwrap();
            socket.send(b"x").unwrap();
            socket.recv(&mut [0; 16]).expect_err("unreachable").raw_os_error().unwrap()
        };
        assert_eq!(errno("192.0.2.1:9"), libc::ECONNREFUSED);
        line.go_on();
    });
}

#[test]
fn an_echo_request_is_answered_by_whom_it_was_sent_to() {
    if !can(&[Need::Program("ping")]) {
        return;
    }
    let outside = |outside: Outside, line: Line| {
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap();
        line.go_on();
        line.wait();
        let counters = outside.guest.counters();
        assert_eq!((counters.echoes_out, counters.echoes_in), (4, 4));
    };
    worlds(outside, |line| {
        line.wait();
        for to in [NEAR_V4.to_string(), NEAR_V6.to_string()] {
            let ping = std::process::Command::new("ping");
            let done = { ping }.args(["-n", "-c", "2", "-i", "0.2", "-W", "5", &to]).output();
            let done = done.unwrap();
            let text = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success() && text.contains("2 received"), "{text}");
        }
        line.go_on();
    });
}

#[test]
fn a_guest_whose_relay_panics_has_no_network_and_its_gateway_says_so() {
    let judge = |_: &Ask| -> Option<Verdict> { panic!("of this test") };
    let world = world_with(|builder| builder.judge(judge), |config| config);
    assert!(world.guest.host().check().is_ok());
    let inner = inner(&world, 0);
    inner.send_to(b"question", far(9)).unwrap();
    eventually(|| world.guest.host().check().is_err());
}
