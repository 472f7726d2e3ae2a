//! A host with several devices: what a program sees. What the stack does with them is in virtual
//! time in `crates/core/stack/tests/suite/links`.

use std::io::{Read, Write};

use pagewire::device::DeviceError;
use pagewire::net::{TcpSocket, TcpStream};
use pagewire::{Host, HostBuilder, Link, LinkId};

use crate::support::{Odd, exchange, pair};

/// A host with two links, forwarding or not, and a peer on each.
fn three(forwarding: bool) -> (Host, Host, Host) {
    let ((here, left), (there, right)) = (pair(), pair());
    let host = Host::builder()
        .device(here)
        .address("10.0.0.1/24")
        .address("fd00::1/64")
        .link(Link::new(there).address("10.0.1.1/24").address("fd01::1/64"))
        .ip_forwarding(forwarding)
        .start()
        .expect("host");
    let left = Host::builder().device(left).address("10.0.0.2/24").address("fd00::2/64");
    let left = left.gateway("10.0.0.1").gateway("fd00::1").start().expect("left");
    let right = Host::builder().device(right).address("10.0.1.2/24").address("fd01::2/64");
    let right = right.gateway("10.0.1.1").gateway("fd01::1").start().expect("right");
    (host, left, right)
}

#[test]
fn each_link_reaches_its_own_peer_and_counts_for_itself() {
    let (host, left, right) = three(false);
    let listener = host.listen("0.0.0.0:80").expect("listen");
    for (peer, to) in [(&left, "10.0.0.1:80"), (&right, "10.0.1.1:80")] {
        let near = peer.connect(to).expect("connect");
        let (far, from) = listener.accept().expect("accept");
        assert_eq!(from, near.local_addr().expect("address"));
        exchange(near, far, 100_000);
    }
    let stats = host.stats();
    assert_eq!(stats.links.len(), 2);
    for link in &stats.links {
        assert!(link.device.rx_bytes > 100_000 && link.device.tx_bytes > 100_000, "{link:?}");
        assert_eq!(link.device_error, None);
    }
    assert!(stats.to_string().contains("device of link 1"));
}

#[test]
fn the_address_of_one_link_is_reached_by_the_other() {
    let (host, left, _right) = three(false);
    let listener = host.listen("10.0.1.1:80").expect("listen");
    let near = left.connect("10.0.1.1:80").expect("connect");
    exchange(near, listener.accept().expect("accept").0, 10_000);
}

#[test]
fn peers_on_two_links_reach_each_other_by_reference() {
    const LEN: usize = 4 << 20;
    let (host, left, right) = three(true);
    for to in ["10.0.1.2:80", "[fd01::2]:80"] {
        let listener = right.listen(to).expect("listen");
        let near = left.connect(to).expect("connect");
        let (far, from) = listener.accept().expect("accept");
        assert_eq!(from, near.local_addr().expect("address"), "no address is translated");
        exchange(near, far, LEN);
    }
    let stats = host.stats();
    assert!(stats.counters.forwarded_bytes > 4 * LEN as u64);
    assert_eq!(stats.ledger.ours(), 0, "{stats}");
}

#[test]
fn a_link_whose_device_fails_leaves_the_others_working() {
    let ((end, _left), (there, right)) = (pair(), pair());
    let host = Host::builder()
        .device(Odd { end, acts: || Err(DeviceError::Closed), ready: None })
        .address("10.0.0.1/24")
        .link(Link::new(there).address("10.0.1.1/24"))
        .manual()
        .start()
        .expect("host");
    let right = Host::builder().device(right).address("10.0.1.2/24").start().expect("right");
    let socket = host.udp("0.0.0.0:0").expect("socket");
    socket.send_to(b"anybody there?", "10.0.0.2:9").expect("it waits for an answer");
    host.turn();
    let error = host.stats().links[0].device_error.clone();
    assert_eq!(error, Some(DeviceError::Closed.to_string()));
    assert_eq!(host.stats().links[1].device_error, None);

    let listener = right.listen("10.0.1.2:80").expect("listen");
    let mut near = host.connect("10.0.1.2:80").expect("connect");
    near.write_all(b"still here").expect("write");
    let mut far = listener.accept().expect("accept").0;
    let mut heard = [0; 10];
    far.read_exact(&mut heard).expect("read");
    assert_eq!(&heard, b"still here");
}

#[test]
fn links_come_and_go_while_the_host_runs() {
    let (here, _left) = pair();
    let host = Host::builder().device(here).address("10.0.0.1/24").start().expect("host");
    let listener = host.listen("0.0.0.0:80").expect("listen");
    let mut last = LinkId::FIRST;
    for _ in 0..3 {
        let (there, right) = pair();
        let link = host.add_link(Link::new(there).address("10.0.1.1/24")).expect("link");
        assert!(link != last, "an id is not used again");
        let right: HostBuilder = Host::builder().device(right).address("10.0.1.2/24");
        let right = right.start().expect("right");
        let near = right.connect("10.0.1.1:80").expect("connect");
        exchange(near, listener.accept().expect("accept").0, 10_000);
        assert!(host.remove_link(link).is_some());
        assert!(host.remove_link(link).is_none(), "it is gone");
        last = link;
    }
    assert_eq!(host.stats().links.len(), 1);
    let (there, _) = pair();
    let twice = host.add_link(Link::new(there).address("10.0.0.1/24"));
    assert!(twice.expect_err("refused").to_string().contains("twice"));
    assert_eq!(host.stats().links.len(), 1, "nothing has changed");
}

#[tokio::test]
async fn a_link_that_is_named_after_the_address_is_the_only_one_of_a_listener() {
    let (host, left, right) = three(false);
    let socket = TcpSocket::new_v4_on(&host);
    socket.bind("0.0.0.0:80".parse().unwrap()).unwrap();
    socket.bind_device(Some(b"link2")).unwrap();
    let listener = socket.listen(8).unwrap();
    let refused = TcpStream::connect_on(&left, "10.0.0.1:80").await.expect_err("not its link");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let near = TcpStream::connect_on(&right, "10.0.1.1:80").await.unwrap();
    assert_eq!(listener.accept().await.unwrap().1, near.local_addr().unwrap());
}
