//! What a datagram socket can be told beyond `std::net`, through a running host. What the stack does
//! with it is in virtual time in `crates/stack/tests/suite/udp.rs`.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use pagewire::device::Pair;
use pagewire::{Datagram, Host, LinkId, SocketOption, UdpSocket};

fn hosts() -> (Host, Host) {
    let (left, right) = Pair::new(Default::default()).expect("pair");
    let left = Host::builder().device(left).address("10.0.0.1/24").address("10.0.0.9/24");
    let right = Host::builder().device(right).address("10.0.0.2/24");
    (left.start().expect("left"), right.start().expect("right"))
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

fn bytes(datagram: &Datagram) -> Vec<u8> {
    let mut all = Vec::new();
    datagram.payload.for_each_piece(|piece| all.extend_from_slice(piece));
    all
}

fn patient(socket: UdpSocket) -> UdpSocket {
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
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
    assert_eq!((bytes(&got), got.to), (b"all".to_vec(), ip("10.0.0.255")));
    assert_eq!(got.from, client.local_addr().expect("address"));
    assert_eq!(got.link, LinkId::FIRST);
    client.set_broadcast(false).expect("option");
    assert!(client.send_to(b"all", "10.0.0.255:9000").is_err());
}

#[test]
fn an_answer_can_be_sent_from_the_address_that_was_asked() {
    let (left, right) = hosts();
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

#[test]
fn datagrams_of_one_size_are_received_as_one_where_that_is_asked_for() {
    let (left, right) = hosts();
    let server = patient(left.udp("10.0.0.1:9000").expect("server"));
    let marker = patient(left.udp("10.0.0.1:9002").expect("marker"));
    let client = right.udp("10.0.0.2:9001").expect("client");
    client.set_segment_size(100).expect("option");
    for (joining, expected) in [(true, vec![(250, Some(100))]), (false, vec![(100, None); 2])] {
        server.set_gro(joining).expect("option");
        client.send_to(&[7; 250], "10.0.0.1:9000").expect("send");
        // What was sent before this has arrived when this has.
        client.send_to(b"!", "10.0.0.1:9002").expect("send");
        marker.recv_message().expect("marker");
        for expected in expected {
            let got = server.recv_message().expect("receive");
            assert!(bytes(&got).iter().all(|&byte| byte == 7));
            assert_eq!((got.payload.len(), got.segment), expected);
        }
    }
    assert_eq!(server.recv_message().expect("receive").payload.len(), 50, "the last one");
}

#[test]
fn a_listener_that_defers_gives_out_connections_that_have_data() {
    let (left, right) = hosts();
    let listener = left.listen("10.0.0.1:80").expect("listen");
    listener.set_option(SocketOption::DeferAccept(Duration::from_secs(100))).expect("option");
    let client = right.connect("10.0.0.1:80").expect("connect");
    let sender = std::thread::spawn(move || {
        client.send(b"hello".to_vec()).expect("send");
        client
    });
    let (accepted, _) = listener.accept().expect("accept");
    assert_eq!(accepted.queued_receive().expect("queued"), 5, "without waiting");
    drop(sender.join().expect("sender"));
}
