//! Floods of forged SYNs, and their cost for everybody else (RFC 4987).

use std::net::SocketAddrV4;
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::Instant;
use pagewire_stack::{DropReason, StackConfig, SynCookies, TcpConfig, TcpId};
use pagewire_tcp::{Flags, Seq, TcpHeader};

use crate::common::forge::{self, Rng};
use crate::common::{A, B, Pair, Verbs, addr, capabilities, config, pattern, ready};

const V4: &str = "10.0.0.2:80";
const TARGET: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 0, 0, 2), 80);

/// B routes to the world through A.
fn server(cookies: SynCookies) -> StackConfig {
    let mut b = config(capabilities(2), 2);
    b.gateways = vec!["10.0.0.1".parse().unwrap()];
    b.syn_cookies = cookies;
    b
}

fn pair(cookies: SynCookies) -> Pair {
    let mut p = Pair::with(config(capabilities(1), 1), server(cookies));
    p.meet();
    p
}

/// A SYN from an address and port that nobody has.
fn forged(rng: &mut Rng) -> pagewire_mem::PacketBuf {
    let (from, syn) = forge::stranger(rng);
    forge::frame(2, from, TARGET, syn)
}

/// Lets virtual time pass while `per_second` forged SYNs come in at B, until `done`.
fn flood(p: &mut Pair, per_second: u64, rng: &mut Rng, mut done: impl FnMut(&mut Pair) -> bool) {
    let begin = p.now;
    let mut sent = 0;
    while !done(p) {
        let due = p.now.saturating_since(begin).as_micros() as u64 * per_second / 1_000_000;
        while sent < due {
            p.b.handle_frame(p.now, forged(rng));
            sent += 1;
        }
        p.run(Duration::from_micros(50));
        assert!(p.now.saturating_since(begin) < Duration::from_secs(60), "it does not happen");
    }
}

/// Moves `data` from A to B, and says how long that took.
fn transfer(
    p: &mut Pair,
    (client, end): (TcpId, TcpId),
    data: &Bytes,
    per_second: u64,
    rng: &mut Rng,
) -> Duration {
    let begin = p.now;
    let mut left = data.clone();
    let (mut got, mut chunks) = (0, Vec::new());
    flood(p, per_second, rng, |p| {
        while !left.is_empty() {
            let piece = left.slice(..left.len().min(64 << 10));
            let mut frags = std::iter::once(pagewire_mem::Frag::from_bytes(piece)).collect();
            let Some(n) = ready(p.a.send(p.now, client, &mut frags)) else {
                break;
            };
            left = left.slice(n..);
        }
        while let Some(n) =
            ready(p.b.recv(p.now, end, pagewire_stack::Chunks { max: 1 << 20, into: &mut chunks }))
        {
            got += n;
            chunks.clear();
        }
        got == data.len()
    });
    p.now.saturating_since(begin)
}

#[test]
fn flood_of_two_hundred_thousand_a_second_leaves_flows_and_newcomers_alone() {
    // A window's worth in a round trip: 128 MB/s, so that the transfer takes half a second.
    let mut b = server(SynCookies::WhenFull);
    b.tcp.recv_buffer = 256 << 10;
    let mut p = Pair::with(config(capabilities(1), 1), b);
    p.meet();
    p.delay = Duration::from_millis(1);
    let (client, server, listener) = p.connect(V4);
    let data = Bytes::from(pattern(64 << 20));
    let mut rng = Rng(7);
    let warm = transfer(&mut p, (client, server), &data, 0, &mut rng);
    let alone = transfer(&mut p, (client, server), &data, 0, &mut rng);
    let before = p.b.counters().rx_frames;
    let flooded = transfer(&mut p, (client, server), &data, 200_000, &mut rng);
    println!("64 MiB: first {warm:?}, alone {alone:?}, flooded {flooded:?}");
    assert!(flooded.mul_f64(0.9) <= alone, "{flooded:?} with the flood, {alone:?} without");

    // A second of it, and somebody who wants in.
    let end = p.now + Duration::from_secs(1);
    let newcomer = p.a.connect(p.now, addr(V4), None).unwrap();
    let asked = p.now;
    let mut accepted: Option<(TcpId, Instant)> = None;
    flood(&mut p, 200_000, &mut rng, |p| {
        if accepted.is_none() {
            accepted = p.b.accept(listener).ok().map(|(id, _)| (id, p.now));
        }
        p.now >= end
    });
    let (newcomer_end, at) = accepted.expect("the newcomer is let in");
    let took = at.saturating_since(asked);
    assert!(took < Duration::from_millis(10), "at once, not when its SYN is sent again: {took:?}");
    p.transfer((A, newcomer), (B, newcomer_end), &pattern(100_000));

    let counters = p.b.counters();
    assert!(counters.rx_frames - before > 200_000);
    assert!(counters.tcp_syn_cookies_sent > 200_000, "{counters}");
    assert_eq!(counters.tcp_syn_cookies_received, 1);
    // A backlog of 16 has 17 half open; beside them two connections and the listener.
    assert!(p.b.socket_count() <= 17 + 3, "{} sockets", p.b.socket_count());
}

#[test]
fn connection_through_a_cookie_has_scaling_sack_and_timestamps() {
    let mut p = pair(SynCookies::Always);
    let (client, server, _) = p.connect(V4);
    assert_eq!(p.b.counters().tcp_syn_cookies_received, 1);
    p.transfer((A, client), (B, server), &pattern(1 << 20));
    p.transfer((B, server), (A, client), &pattern(1 << 20));
    // More than what an unscaled window could say.
    assert!(p.a.tcp(client).unwrap().info().send_window > 65_535);
    assert!(p.b.tcp(server).unwrap().info().send_window > 65_535);
    let info = p.b.tcp(server).unwrap().info();
    assert!(info.srtt < Duration::from_millis(5), "no time was measured in a cookie: {info:?}");
}

#[test]
fn connection_through_a_cookie_works_without_timestamps() {
    let mut a = config(capabilities(1), 1);
    a.tcp = TcpConfig { timestamps: false, ..TcpConfig::default() };
    let mut p = Pair::with(a, server(SynCookies::Always));
    p.meet();
    let (client, server, _) = p.connect(V4);
    p.transfer((A, client), (B, server), &pattern(1 << 20));
    let info = p.a.tcp(client).unwrap().info();
    assert!(info.send_window <= 65_535, "scaling is not remembered: {info:?}");
}

#[test]
fn connection_through_a_cookie_works_over_ipv6() {
    let mut p = pair(SynCookies::Always);
    let (client, server, _) = p.connect("[fd00::2]:80");
    p.transfer((A, client), (B, server), &pattern(100_000));
    assert_eq!(p.b.counters().tcp_syn_cookies_received, 1);
}

#[test]
fn nothing_is_remembered_of_a_syn_that_got_a_cookie() {
    let mut p = pair(SynCookies::Always);
    p.b.listen(addr(V4), 16).unwrap();
    let mut rng = Rng(1);
    for _ in 0..10_000 {
        p.b.handle_frame(p.now, forged(&mut rng));
        p.run(Duration::from_micros(5));
    }
    assert_eq!(p.b.socket_count(), 1);
    assert_eq!(p.b.counters().tcp_syn_cookies_sent, 10_000);
}

#[test]
fn data_that_comes_with_the_cookie_is_taken() {
    let mut p = pair(SynCookies::Always);
    let listener = p.b.listen(addr(V4), 16).unwrap();
    // The bare acknowledgement is lost; the first data brings the cookie.
    let mut lost = false;
    p.carry = Some(Box::new(move |side, frame| {
        let bare = side == A
            && forge::parse(frame).is_some_and(|(_, _, h)| h.flags == Flags::ACK)
            && !std::mem::replace(&mut lost, true);
        !bare
    }));
    let client = p.a.connect(p.now, addr(V4), None).unwrap();
    p.run(Duration::from_millis(1));
    assert_eq!(p.b.accept(listener), Err(pagewire_stack::Error::WouldBlock));
    p.a.send(p.now, client, b"hello").unwrap();
    p.run(Duration::from_millis(1));
    let (end, _) = p.b.accept(listener).unwrap();
    let mut buf = [0; 8];
    assert_eq!(p.b.recv(p.now, end, &mut buf[..]), Ok(5));
}

#[test]
fn cookie_that_finds_the_accept_queue_full_is_ignored() {
    let mut p = pair(SynCookies::Always);
    let listener = p.b.listen(addr(V4), 0).unwrap();
    p.delay = Duration::from_millis(1);
    let first = p.a.connect(p.now, addr(V4), None).unwrap();
    let second = p.a.connect(p.now, addr(V4), None).unwrap();
    p.run(Duration::from_millis(20));
    // Both believe that they are connected; a backlog of 0 holds one.
    assert_eq!(p.b.counters().drops(DropReason::TcpBacklogFull), 1);
    assert_eq!(p.b.socket_count(), 2);
    p.b.accept(listener).unwrap();
    // The other's cookie still counts: its first data opens the connection.
    for id in [first, second] {
        p.a.send(p.now, id, b"x").unwrap();
    }
    p.run(Duration::from_secs(2));
    assert!(p.b.accept(listener).is_ok());
}

#[test]
fn acknowledgements_are_no_cookies_at_a_listener_that_sent_none() {
    let mut p = pair(SynCookies::WhenFull);
    p.b.listen(addr(V4), 16).unwrap();
    let resets = p.b.counters().tcp_resets_sent;
    let header = TcpHeader { seq: Seq(5), ack: Seq(77), flags: Flags::ACK, ..TcpHeader::default() };
    p.b.handle_frame(p.now, forge::frame(2, "10.0.0.1:5".parse().unwrap(), TARGET, header));
    p.run(Duration::from_millis(1));
    let counters = p.b.counters();
    assert_eq!(counters.tcp_syn_cookies_failed, 0);
    assert_eq!(counters.drops(DropReason::TcpListenNotSyn), 1);
    assert_eq!(counters.tcp_resets_sent, resets + 1);
}

#[test]
fn without_cookies_a_flood_keeps_newcomers_out_and_is_counted() {
    let mut p = pair(SynCookies::Off);
    let listener = p.b.listen(addr(V4), 16).unwrap();
    let mut rng = Rng(9);
    let end = p.now + Duration::from_millis(200);
    flood(&mut p, 200_000, &mut rng, |p| p.now >= end);
    p.a.connect(p.now, addr(V4), None).unwrap();
    let end = p.now + Duration::from_millis(200);
    flood(&mut p, 200_000, &mut rng, |p| p.now >= end);
    assert!(p.b.accept(listener).is_err());
    assert!(p.b.counters().drops(DropReason::TcpHalfOpenLimit) > 70_000);
    assert_eq!(p.b.socket_count(), 1 + 17);
}

#[test]
fn connection_through_a_cookie_works_within_the_host() {
    let mut p = pair(SynCookies::Always);
    let listener = p.b.listen(addr(V4), 16).unwrap();
    p.b.connect(p.now, addr(V4), None).unwrap();
    p.run(Duration::from_millis(1));
    assert!(p.b.accept(listener).is_ok());
    assert_eq!(p.b.counters().tcp_syn_cookies_received, 1);
}

#[test]
fn cookie_waits_for_the_address_of_the_gateway() {
    let mut p = Pair::with(config(capabilities(1), 1), server(SynCookies::Always));
    p.b.listen(addr(V4), 16).unwrap();
    let answers = p.watch(|side, frame| {
        let (_, _, header) = forge::parse(frame).filter(|_| side == B)?;
        (header.flags == Flags::SYN | Flags::ACK && header.ack == Seq(8)).then_some(())
    });
    let syn = TcpHeader { seq: Seq(7), flags: Flags::SYN, ..TcpHeader::default() };
    for port in 1..4 {
        let from = SocketAddrV4::new([198, 18, 0, 1].into(), port);
        p.b.handle_frame(p.now, forge::frame(2, from, TARGET, syn));
    }
    p.run(Duration::from_millis(10));
    assert_eq!(answers.borrow().len(), 3, "all that were asked before it was known");
    // And at once from then on, the frame complete.
    let (now, from) = (p.now, SocketAddrV4::new([198, 19, 0, 1].into(), 9));
    p.stack(B).handle_frame(now, forge::frame(2, from, TARGET, syn));
    p.run(Duration::ZERO);
    assert_eq!(answers.borrow().len(), 4);
}
