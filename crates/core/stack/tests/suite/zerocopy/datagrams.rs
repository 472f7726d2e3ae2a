//! Datagrams sent by reference: cut in segments, in many pieces, by devices that cannot gather.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::{CopyReason, Frag};
use pagewire_stack::{BindOptions, Coalescing, Error, SocketOption, UdpId, UdpTarget};

use crate::common::zerocopy::{bytes, copied, done, send_to, told};
use crate::common::{Pair, Verbs, capabilities, config, pattern};

/// Where the receivers are.
fn to() -> SocketAddr {
    "10.0.0.2:53".parse().unwrap()
}

/// A sender at A that has opted in, and a receiver at B.
fn sockets(p: &mut Pair) -> (UdpId, UdpId) {
    p.meet();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    p.a.set_zerocopy(client, true).unwrap();
    (client, server)
}

#[test]
fn a_call_that_is_cut_in_datagrams_has_one_id_and_copies_nothing() {
    let mut p = Pair::new();
    let (client, server) = sockets(&mut p);
    p.a.set_option(client, SocketOption::Segment(1000)).unwrap();
    let data = Bytes::from(pattern(3500));
    // Pieces that do not end where datagrams do.
    let pieces = [0..700, 700..2300, 2300..3500].map(|part| Frag::from_bytes(data.slice(part)));
    let sent = send_to(&mut p.a, p.now, client, pieces, Some(to()));
    assert_eq!(sent, Ok((3500, Some(0))));
    p.run(Duration::from_millis(1));
    let mut got = Vec::new();
    while let Ok((frags, _)) = p.b.recv_from(server, pagewire_stack::Datagram) {
        let bytes: Vec<u8> = frags.iter().flat_map(|f| f.as_slice().unwrap().to_vec()).collect();
        got.push(bytes.len());
        let at = (got.len() - 1) * 1000;
        assert!(bytes == data[at..at + bytes.len()]);
        assert_eq!(p.a.poll_error_queue(client), None, "not before the last");
    }
    assert_eq!(got, [1000, 1000, 1000, 500]);
    assert_eq!(p.a.poll_error_queue(client), done(0, 0));
    assert_eq!(p.a.ledger().ours() + p.b.ledger().ours(), 0);
    // No longer than a datagram: nothing is cut.
    let short = send_to(&mut p.a, p.now, client, [bytes(1000)], Some(to()));
    assert_eq!(short, Ok((1000, Some(1))));
}

#[test]
fn datagrams_of_one_call_have_linuxs_bounds_and_what_fails_takes_no_id() {
    let mut p = Pair::new();
    let (client, _) = sockets(&mut p);
    let send = |p: &mut Pair, len: usize, segment: u16| {
        let to = UdpTarget { remote: Some(to()), segment: Some(segment), ..Default::default() };
        send_to(&mut p.a, p.now, client, [bytes(len)], to)
    };
    // 1500 bytes take 20 of IPv4, 8 of UDP and the rest.
    assert_eq!(send(&mut p, 3000, 1473), Err(Error::MessageTooLong));
    assert_eq!(send(&mut p, 1473, 2000), Err(Error::MessageTooLong));
    assert_eq!(send(&mut p, 129, 1), Err(Error::InvalidInput));
    assert_eq!(send(&mut p, 65_508, 1472), Err(Error::MessageTooLong));
    assert_eq!(send(&mut p, 128, 1), Ok((128, Some(0))));
    assert_eq!(send(&mut p, 1472, 2000), Ok((1472, Some(1))));
    assert_eq!(send(&mut p, 3000, 0), Ok((3000, Some(2))), "IP cuts it, as ever");
}

#[test]
fn a_datagram_in_more_pieces_than_a_packet_has_is_copied_and_says_so() {
    let mut p = Pair::new();
    let (client, server) = sockets(&mut p);
    let data = Bytes::from(pattern(1800));
    let pieces = |n: usize| (0..n).map(|at| Frag::from_bytes(data.slice(at * 100..at * 100 + 100)));
    for (n, copied) in [(17, false), (18, true)] {
        let before = p.a.ledger().get(CopyReason::DeviceLinearize);
        let target = UdpTarget { remote: Some(to()), ..UdpTarget::default() };
        let sent = send_to(&mut p.a, p.now, client, pieces(n), target).unwrap();
        assert_eq!(sent.0, n * 100);
        p.run(Duration::from_millis(1));
        let got = p.a.ledger().get(CopyReason::DeviceLinearize) - before;
        assert_eq!(got, if copied { 1800 } else { 0 });
        let mut into = [0; 2000];
        assert_eq!(p.b.recv_from(server, &mut into[..]).map(|(len, _)| len), Ok(n * 100));
        assert!(into[..n * 100] == data[..n * 100]);
        p.flush();
        assert_eq!(p.a.poll_error_queue(client), told(sent.1.unwrap(), sent.1.unwrap(), copied));
    }
}

#[test]
fn a_device_that_cannot_gather_gets_copies_of_datagrams_too() {
    let mut caps = capabilities(1);
    caps.max_frags = 1;
    let mut p = Pair::with(config(caps, 1), config(capabilities(2), 2));
    let (client, server) = sockets(&mut p);
    let sent = send_to(&mut p.a, p.now, client, [bytes(500), bytes(500)], Some(to()));
    assert_eq!(sent, Ok((1000, Some(0))));
    p.run(Duration::from_millis(1));
    assert_eq!(p.a.poll_error_queue(client), copied(0, 0), "though nobody has read it");
    let mut into = [0; 2000];
    assert_eq!(p.b.recv_from(server, &mut into[..]).map(|(len, _)| len), Ok(1000));
    assert!(into[..1000] == [pattern(500), pattern(500)].concat());
}

#[test]
fn datagrams_that_loop_back_are_copied_and_say_so() {
    let mut p = Pair::new();
    let (client, _) = sockets(&mut p);
    let here: SocketAddr = "10.0.0.1:53".parse().unwrap();
    let server = p.a.bind_udp(here, BindOptions::default()).unwrap();
    let target = UdpTarget { remote: Some(here), segment: Some(1000), ..UdpTarget::default() };
    let sent = send_to(&mut p.a, p.now, client, [bytes(2500)], target);
    assert_eq!(sent, Ok((2500, Some(0))));
    p.run(Duration::from_millis(1));
    assert_eq!(p.a.poll_error_queue(client), copied(0, 0), "though nobody has read it");
    let mut got = 0;
    while let Ok((frags, _)) = p.a.recv_from(server, pagewire_stack::Datagram) {
        got += frags.iter().map(Frag::len).sum::<usize>();
    }
    assert_eq!(got, 2500);
}

#[test]
fn a_closed_socket_is_told_nothing_and_what_waits_for_a_neighbour_is_let_go() {
    let mut p = Pair::new();
    let client = p.a.bind_udp("10.0.0.1:0".parse().unwrap(), BindOptions::default()).unwrap();
    p.a.set_zerocopy(client, true).unwrap();
    // Nobody has this address: the datagram waits, in vain.
    let nobody = Some("10.0.0.77:53".parse().unwrap());
    let memory = Bytes::from(pattern(1000));
    for id in 0..2 {
        let data = [Frag::from_bytes(memory.clone())];
        assert_eq!(send_to(&mut p.a, p.now, client, data, nobody), Ok((1000, Some(id))));
        if id == 0 {
            p.run(Duration::from_secs(60));
            assert_eq!(p.a.poll_error_queue(client), done(0, 0), "given up");
            // Errors from the network do not matter here.
            p.a.take_error(client);
        }
    }
    assert!(!memory.is_unique());
    p.a.close(p.now, client);
    p.run(Duration::from_secs(60));
    assert!(memory.is_unique(), "let go");
}

#[test]
fn calls_to_which_more_is_to_come_make_one_datagram_and_each_has_its_id() {
    for coalescing in [Coalescing::SameKind, Coalescing::Linux] {
        let mut p = Pair::changed(|a, _| a.zerocopy.coalescing = coalescing);
        let (client, server) = sockets(&mut p);
        let put = |p: &mut Pair, len: usize, more: bool| {
            // Only the first is asked where to.
            let remote = Some("10.0.0.2:99".parse().unwrap()).filter(|_| !more);
            let target = UdpTarget { remote: remote.or(Some(to())), more, ..Default::default() };
            send_to(&mut p.a, p.now, client, [bytes(len)], target)
        };
        assert_eq!(put(&mut p, 0, true), Ok((0, None)));
        assert_eq!(put(&mut p, 400, true), Ok((400, Some(0))));
        let plain = UdpTarget { remote: Some(to()), more: true, ..UdpTarget::default() };
        assert_eq!(p.a.send_to(p.now, client, b"copied", plain), Ok(6));
        p.run(Duration::from_secs(1));
        assert_eq!(p.b.udp(server).map(|udp| udp.next_len()), Ok(0), "it waits");
        assert_eq!(put(&mut p, 600, false), Ok((600, Some(1))));
        p.run(Duration::from_millis(1));
        let mut into = [0; 2000];
        assert_eq!(p.b.recv_from(server, &mut into[..]).map(|(n, _)| n), Ok(1006));
        assert!(into[..1006] == [pattern(400), b"copied".to_vec(), pattern(600)].concat());
        p.flush();
        assert_eq!(p.a.poll_error_queue(client), done(0, 1));
        // Too long: all of it is dropped, and each part with an id is reported.
        assert_eq!(put(&mut p, 60_000, true), Ok((60_000, Some(2))));
        assert_eq!(put(&mut p, 6000, true), Err(Error::MessageTooLong));
        p.flush();
        assert_eq!(p.a.poll_error_queue(client), done(2, 2));
        // Pushed, or closed over.
        assert_eq!(put(&mut p, 10, true), Ok((10, Some(3))));
        assert_eq!(p.a.udp(client).and_then(|mut udp| udp.push(p.now)), Ok(()));
        assert_eq!(p.a.udp(client).and_then(|mut udp| udp.push(p.now)), Ok(()), "nothing waits");
        p.run(Duration::from_millis(1));
        assert_eq!(p.b.recv_from(server, &mut into[..]).map(|(n, _)| n), Ok(10));
        let memory = Bytes::from(pattern(100));
        let target = UdpTarget { remote: Some(to()), more: true, ..UdpTarget::default() };
        let data = [Frag::from_bytes(memory.clone())];
        send_to(&mut p.a, p.now, client, data, target).unwrap();
        p.a.close(p.now, client);
        assert!(memory.is_unique(), "let go");
    }
}
