//! Settings of a datagram socket beyond those of `std::net`, through a running host. Their effect
//! in the stack is in virtual time in `crates/core/stack/tests/suite/udp/datagrams.rs`.

use std::io::ErrorKind;
use std::net::IpAddr;

use pagewire::{LinkId, UdpSocket};

use crate::support::{PATIENCE, builders, bytes_of, hosts};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

fn patient(socket: UdpSocket) -> UdpSocket {
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    socket
}

#[test]
fn broadcasts_leave_only_where_they_are_allowed_and_are_known_by_their_address() {
    let (left, right) = hosts();
    let server = patient(left.udp("0.0.0.0:9000").expect("server"));
    let client = right.udp("10.0.0.2:9001").expect("client");
    let refused = client.send_to(b"all", "10.0.0.255:9000").expect_err("not allowed");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    client.set_broadcast(true).expect("option");
    assert_eq!(client.send_to(b"all", "10.0.0.255:9000").expect("send"), 3);
    let got = server.recv_message().expect("receive");
    assert_eq!((bytes_of([got.payload]), got.to), (b"all".to_vec(), ip("10.0.0.255")));
    assert_eq!(got.from, client.local_addr().expect("address"));
    assert_eq!(got.link, LinkId::FIRST);
    client.set_broadcast(false).expect("option");
    assert!(client.send_to(b"all", "10.0.0.255:9000").is_err());
}

#[test]
fn an_answer_can_be_sent_from_the_address_that_was_asked() {
    let (left, right) = builders();
    let left = left.address("10.0.0.9/24").start().expect("left");
    let right = right.start().expect("right");
    let server = patient(left.udp("0.0.0.0:9000").expect("server"));
    let client = patient(right.udp("10.0.0.2:9001").expect("client"));
    // Takes only what comes from the address that it asks.
    client.connect("10.0.0.9:9000").expect("connect");
    client.send(b"who").expect("send");
    let asked = server.recv_message().expect("receive");
    assert_eq!(asked.to, ip("10.0.0.9"));
    server.send_from(asked.to, b"me".to_vec(), Some(asked.from)).expect("answer");
    let mut buf = [0; 8];
    assert_eq!(client.recv(&mut buf).expect("receive"), 2);
    let refused = server.send_from(ip("10.0.0.77"), b"no".to_vec(), Some(asked.from));
    assert_eq!(refused.expect_err("not ours").kind(), ErrorKind::InvalidInput);
}
