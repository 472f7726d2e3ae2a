//! Listeners: backlog, binding, closing, and ports used again.

use std::net::SocketAddr;
use std::time::Duration;

use pagewire_mem::PacketBuf;
use pagewire_stack::{
    BindOptions, DropReason, Error, ListenerId, Readiness, SocketOption, SynCookies, TcpId,
};
use pagewire_tcp::DropReason as TcpDropReason;

use crate::common::{A, B, Pair, Verbs, addr, is_left_out};

const V4: &str = "10.0.0.2:80";

fn established(p: &Pair, clients: &[TcpId]) -> usize {
    let connected = |id: &&TcpId| p.a.readiness(**id).unwrap().contains(Readiness::CONNECTED);
    clients.iter().filter(connected).count()
}

/// Whether a frame from one side is a TCP segment with exactly these flags.
fn has_flags(frame: &PacketBuf, flags: u8) -> bool {
    let head = frame.head();
    head.get(12..14) == Some(&[8, 0]) && head.get(23) == Some(&6) && head.get(47) == Some(&flags)
}

fn without_cookies() -> Pair {
    Pair::changed(|_, b| b.syn_cookies = SynCookies::Off)
}

#[test]
fn a_full_accept_queue_ignores_further_connections_until_some_are_accepted() {
    let mut p = without_cookies();
    let listener = p.b.listen(addr(V4), 2).unwrap();
    let clients: Vec<_> = (0..6).map(|_| p.a.connect(p.now, addr(V4), None).unwrap()).collect();
    p.run(Duration::from_millis(500));
    // A backlog of 2 lets 3 wait, as in Linux; the others are not refused.
    assert_eq!(established(&p, &clients), 3);
    let counters = p.b.counters();
    let dropped =
        counters.drops(DropReason::TcpBacklogFull) + counters.drops(DropReason::TcpHalfOpenLimit);
    assert!(dropped >= 3, "{counters}");
    for _ in 0..3 {
        p.b.accept(listener).unwrap();
    }
    assert_eq!(p.b.accept(listener), Err(Error::WouldBlock));
    p.run(Duration::from_secs(5));
    assert_eq!(established(&p, &clients), 6, "a SYN sent again finds room");
}

#[test]
fn half_open_connections_are_bounded_and_go_when_the_peer_is_silent() {
    let mut p = without_cookies();
    p.b.listen(addr(V4), 4).unwrap();
    // The acknowledgement that completes the handshake never arrives.
    p.carry = Some(Box::new(|side, frame| side == B || !has_flags(frame, 0x10)));
    for _ in 0..20 {
        p.a.connect(p.now, addr(V4), None).unwrap();
    }
    p.run(Duration::from_millis(100));
    assert_eq!(p.b.socket_count(), 1 + 5);
    assert_eq!(p.b.counters().drops(DropReason::TcpHalfOpenLimit), 15);
    p.carry = Some(Box::new(|_, _| false));
    p.run(Duration::from_secs(300));
    assert_eq!(p.b.socket_count(), 1);
}

#[test]
fn closing_a_listener_resets_whoever_was_not_accepted() {
    let mut p = Pair::new();
    let listener = p.b.listen(addr(V4), 8).unwrap();
    let clients: Vec<_> = (0..3).map(|_| p.a.connect(p.now, addr(V4), None).unwrap()).collect();
    p.run(Duration::from_millis(10));
    let (accepted, _) = p.b.accept(listener).unwrap();
    p.b.close(p.now, listener);
    p.run(Duration::from_millis(10));
    let errors: Vec<_> = clients.iter().map(|c| p.a.take_error(*c)).collect();
    assert_eq!(errors, [None, Some(Error::ConnectionReset), Some(Error::ConnectionReset)]);
    p.transfer((A, clients[0]), (B, accepted), b"the accepted one lives on");
    assert_eq!(p.b.socket_count(), 1);
    // Nobody listens any more, and the port is free.
    let late = p.a.connect(p.now, addr(V4), None).unwrap();
    p.run(Duration::from_millis(10));
    assert_eq!(p.a.take_error(late), Some(Error::ConnectionRefused));
    p.b.listen(addr(V4), 8).unwrap();
}

#[test]
fn a_connection_that_was_reset_before_it_was_accepted_is_accepted_and_says_so() {
    let mut p = Pair::new();
    let listener = p.b.listen(addr(V4), 8).unwrap();
    let client = p.a.connect(p.now, addr(V4), None).unwrap();
    p.run(Duration::from_millis(10));
    p.a.abort(p.now, client);
    p.run(Duration::from_millis(10));
    let (server, _) = p.b.accept(listener).unwrap();
    assert_eq!(p.b.recv(p.now, server, &mut [0; 1]), Err(Error::ConnectionReset));
    p.b.close(p.now, server);
    assert_eq!(p.b.socket_count(), 1);
}

#[test]
fn a_listener_is_readable_while_connections_wait() {
    let mut p = Pair::new();
    let listener = p.b.listen(addr(V4), 8).unwrap();
    assert_eq!(p.b.readiness(listener), Ok(Readiness::NONE));
    for _ in 0..2 {
        p.a.connect(p.now, addr(V4), None).unwrap();
    }
    p.run(Duration::from_millis(10));
    assert_eq!(p.reported(B, listener, Readiness::NONE), 1);
    assert_eq!(p.b.readiness(listener), Ok(Readiness::READABLE));
    p.b.accept(listener).unwrap();
    p.b.accept(listener).unwrap();
    assert_eq!(p.b.readiness(listener), Ok(Readiness::NONE));
    p.a.connect(p.now, addr(V4), None).unwrap();
    p.run(Duration::from_millis(10));
    assert_eq!(p.reported(B, listener, Readiness::NONE), 2);
}

#[test]
fn an_address_in_use_cannot_be_listened_on() {
    let mut p = Pair::new();
    let mut listen = |s: &str| p.b.listen(addr(s), 1);
    let first = listen("10.0.0.2:80").unwrap();
    assert_eq!(listen("10.0.0.2:80"), Err(Error::AddressInUse));
    assert_eq!(listen("0.0.0.0:80"), Err(Error::AddressInUse));
    assert_eq!(listen("[::]:80"), Err(Error::AddressInUse));
    assert!(listen("[fd00::2]:80").is_ok());
    assert_eq!(listen("10.0.0.3:80"), Err(Error::AddressNotAvailable));
    p.b.close(p.now, first);
    assert!(p.b.listen(addr("0.0.0.0:80"), 1).is_ok());
}

#[test]
fn port_zero_finds_a_free_port() {
    let mut p = Pair::new();
    let one = p.b.listen(addr("0.0.0.0:0"), 1).unwrap();
    let two = p.b.listen(addr("0.0.0.0:0"), 1).unwrap();
    let (one, two) = (p.b.local_addr(one).unwrap(), p.b.local_addr(two).unwrap());
    assert!(one.port() >= 32_768 && two.port() >= 32_768 && one != two);
}

#[test]
fn a_wildcard_of_ipv6_takes_both_versions() {
    let mut p = Pair::new();
    let listener = p.b.listen(addr("[::]:80"), 8).unwrap();
    for to in ["10.0.0.2:80", "[fd00::2]:80"] {
        let client = p.a.connect(p.now, addr(to), None).unwrap();
        p.run(Duration::from_millis(10));
        let (server, from) = p.b.accept(listener).unwrap();
        assert_eq!(from, p.a.local_addr(client).unwrap());
        assert_eq!(p.b.local_addr(server).unwrap(), addr(to));
    }
}

#[test]
fn a_port_in_time_wait_is_used_again_at_once() {
    let mut p = Pair::new();
    let listener = p.b.listen(addr(V4), 8).unwrap();
    let from = Some(addr("10.0.0.1:7777"));
    for round in 0..5u8 {
        let client = p.a.connect(p.now, addr(V4), from).unwrap();
        p.run(Duration::from_millis(10));
        let (server, _) = p.b.accept(listener).unwrap();
        p.transfer((A, client), (B, server), &[round; 1000]);
        // The server closes first: the connection rests at its side.
        p.b.close(p.now, server);
        p.run(Duration::from_millis(10));
        p.a.close(p.now, client);
        p.run(Duration::from_millis(10));
        assert_eq!((p.a.socket_count(), p.b.socket_count()), (0, 2), "round {round}");
    }
    p.run(Duration::from_secs(121));
    assert_eq!(p.b.socket_count(), 1);
}

#[test]
fn segments_to_a_listener_that_open_nothing_are_dropped_and_acknowledgements_reset() {
    let mut p = Pair::new();
    let (client, server, listener) = p.connect(V4);
    let _ = listener;
    // The server forgets everything about the connection, without a word.
    p.carry = Some(Box::new(|_, _| false));
    p.b.abort(p.now, server);
    p.run(Duration::from_millis(1));
    p.b.close(p.now, server);
    p.carry = None;
    p.a.send(p.now, client, b"hello?").unwrap();
    p.run(Duration::from_millis(10));
    assert_eq!(p.b.counters().drops(DropReason::TcpListenNotSyn), 1);
    assert_eq!(p.a.take_error(client), Some(Error::ConnectionReset));
}

#[test]
fn time_wait_is_bounded_and_the_oldest_goes_first() {
    if is_left_out("shards share the ephemeral ports to one peer") {
        return;
    }
    let mut p = Pair::new();
    let limit = pagewire_stack::limits::TIME_WAIT_CONNECTIONS;
    p.meet();
    // A remote port has room for 28,232 ephemeral ones.
    let to = [80, 81, 82, 83].map(|port| SocketAddr::from(([10, 0, 0, 2], port)));
    let listeners = to.map(|to| p.b.listen(to, 4096).unwrap());
    let mut left = limit + 500;
    while left > 0 {
        let n = left.min(1000);
        let clients: Vec<_> =
            (0..n).map(|i| p.a.connect(p.now, to[i % 4], None).unwrap()).collect();
        p.run(Duration::from_millis(1));
        for listener in listeners {
            while let Ok((server, _)) = p.b.accept(listener) {
                p.b.close(p.now, server);
            }
        }
        p.run(Duration::from_millis(1));
        for client in clients {
            p.a.close(p.now, client);
        }
        p.run(Duration::from_millis(1));
        left -= n;
    }
    assert_eq!(p.b.socket_count(), limit + 4);
    assert_eq!(p.b.counters().tcp_time_wait_evicted, 500);
}

#[test]
fn port_of_a_connection_can_be_bound_anywhere_again_once_it_is_gone() {
    let mut p = Pair::new();
    let (client, server, listener) = p.connect(V4);
    let port = p.a.local_addr(client).unwrap().port();
    let places = ["0.0.0.0", "10.0.0.1", "[::]"].map(|ip| addr(&format!("{ip}:{port}")));
    for at in places {
        let bound = p.a.reservations().reserve(at, BindOptions::default());
        assert_eq!(bound.map(drop), Err(Error::AddressInUse), "{at}");
    }
    // With a reset, so that nothing stays in TIME-WAIT.
    p.a.abort(p.now, client);
    p.a.close(p.now, client);
    p.run(Duration::from_millis(10));
    for at in places {
        let (reservation, _) = p.a.reservations().reserve(at, BindOptions::default()).unwrap();
        p.a.reservations().release(reservation);
    }
    // Another one there counts by itself.
    p.b.close(p.now, server);
    p.b.close(p.now, listener);
}

/// A listener of connections that have data, and one that was just opened to it.
fn deferred(p: &mut Pair, seconds: u64) -> (ListenerId, TcpId) {
    let listener = p.b.listen(addr(V4), 8).unwrap();
    let option = SocketOption::DeferAccept(Duration::from_secs(seconds));
    p.b.listener(listener).unwrap().set_option(option).unwrap();
    let client = p.a.connect(p.now, addr(V4), None).unwrap();
    p.run(Duration::from_millis(100));
    (listener, client)
}

#[test]
fn with_a_deferred_accept_a_connection_can_be_accepted_when_its_data_is_there() {
    let mut p = Pair::new();
    let (listener, client) = deferred(&mut p, 3);
    assert!(p.a.readiness(client).unwrap().contains(Readiness::CONNECTED));
    assert_eq!(p.b.readiness(listener), Ok(Readiness::NONE));
    assert_eq!(p.b.accept(listener), Err(Error::WouldBlock));
    assert_eq!(p.b.counters().tcp_drops(TcpDropReason::Deferred), 1);
    p.a.send(p.now, client, b"GET /").unwrap();
    p.run(Duration::from_millis(100));
    assert_eq!(p.b.readiness(listener), Ok(Readiness::READABLE));
    let (server, _) = p.b.accept(listener).unwrap();
    let mut buf = [0; 8];
    assert_eq!(p.b.recv(p.now, server, &mut buf[..]), Ok(5));
    p.transfer((A, client), (B, server), b"and on it goes");
}

#[test]
fn a_deferred_accept_is_over_with_its_time_and_leaves_a_connection_without_data() {
    let mut p = Pair::new();
    let (listener, client) = deferred(&mut p, 3);
    p.run(Duration::from_millis(2800));
    assert_eq!(p.b.accept(listener), Err(Error::WouldBlock));
    p.run(Duration::from_millis(200));
    let (server, _) = p.b.accept(listener).unwrap();
    p.transfer((A, client), (B, server), b"late, but there");
}

#[test]
fn a_deferred_accept_does_not_forget_a_connection_that_came_by_a_cookie() {
    let mut p = Pair::changed(|_, b| b.syn_cookies = SynCookies::Always);
    let (listener, _) = deferred(&mut p, 3);
    assert!(p.b.accept(listener).is_ok(), "as in Linux, there is nothing to wait with");
}
