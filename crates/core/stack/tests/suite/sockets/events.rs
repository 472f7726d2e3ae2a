//! Events: readiness that was used up and comes again is a new event, for every kind of readiness.

use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_stack::{Answer, Readiness, SocketId};

use crate::common::gateway::{answer, asking, events, only_request, syn};
use crate::common::{A, B, Pair, Side, Verbs, addr};

const MS: Duration = Duration::from_millis(1);

/// The number of events since the last call in which the socket gained `what`.
fn gained(p: &mut Pair, side: Side, socket: impl Into<SocketId>, what: Readiness) -> usize {
    p.run(MS);
    let gained = p.reported(side, socket, what);
    p.events.clear();
    gained
}

fn send_syn(p: &mut Pair, port: u16) {
    let now: Instant = p.now;
    p.stack(B).handle_frame(now, syn(port, 77));
}

#[test]
fn each_request_is_an_event_once_the_one_before_was_taken() {
    let (mut p, listener) = asking();
    for port in 1000..1005 {
        send_syn(&mut p, port);
        assert_eq!(gained(&mut p, B, listener, Readiness::READABLE), 1, "port {port}");
        let request = only_request(&mut p, listener);
        answer(&mut p, listener, request.id, Answer::Silence);
    }
    // Two requests come and one is taken: that is no new event.
    send_syn(&mut p, 2000);
    send_syn(&mut p, 2001);
    assert_eq!(gained(&mut p, B, listener, Readiness::READABLE), 1);
    assert!(p.b.listener(listener).unwrap().poll_request().is_some());
    assert_eq!(gained(&mut p, B, listener, Readiness::READABLE), 0);
    assert_eq!(events(&mut p, listener).len(), 1);
    send_syn(&mut p, 2002);
    assert_eq!(gained(&mut p, B, listener, Readiness::READABLE), 1);
}

#[test]
fn each_arrival_is_an_event_once_all_before_was_read() {
    let mut p = Pair::new();
    let (near, far, _) = p.connect("10.0.0.2:80");
    let (client, server) = p.datagram_sockets("0.0.0.0");
    p.events.clear();
    let mut buf = [0; 100];
    for _ in 0..3 {
        p.a.send(p.now, near, b"hello").unwrap();
        assert_eq!(gained(&mut p, B, far, Readiness::READABLE), 1);
        p.b.recv(p.now, far, &mut buf).unwrap();
        p.a.send_to(p.now, client, b"hello", Some(addr("10.0.0.2:53"))).unwrap();
        assert_eq!(gained(&mut p, B, server, Readiness::READABLE), 1);
        p.b.recv_from(server, &mut buf[..]).unwrap();
    }
}

#[test]
fn each_cancelled_request_is_an_event() {
    let (mut p, listener) = asking();
    for port in 1000..1003 {
        send_syn(&mut p, port);
        only_request(&mut p, listener);
        p.events.clear();
        // The sender gives up.
        p.run(Duration::from_secs(100));
        assert_eq!(gained(&mut p, B, listener, Readiness::READABLE), 1, "port {port}");
        assert_eq!(events(&mut p, listener).len(), 1);
    }
}

#[test]
fn each_time_that_there_is_room_again_is_an_event() {
    let mut p = Pair::new();
    let (near, far, _) = p.connect("10.0.0.2:80");
    let (data, mut buf) = (vec![7; 1 << 20], vec![0; 64 << 20]);
    for _ in 0..3 {
        while p.a.send(p.now, near, &data).is_ok() {}
        p.run(Duration::from_secs(1));
        while p.a.send(p.now, near, &data).is_ok() {}
        p.events.clear();
        p.b.recv(p.now, far, &mut buf[..]).unwrap();
        p.run(Duration::from_secs(1));
        assert_eq!(gained(&mut p, A, near, Readiness::WRITABLE), 1);
    }
}
