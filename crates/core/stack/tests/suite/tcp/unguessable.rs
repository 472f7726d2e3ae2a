//! Numbers that a stranger must not be able to guess: initial sequence numbers (RFC 6528), ephemeral ports
//! (RFC 6056), timestamps (RFC 7323 section 5.4), seen from the wire.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_stack::{BindOptions, Stack};
use pagewire_tcp::TcpHeader;

use crate::common::forge;
use crate::common::{capabilities, config};
use pagewire_testkit::frames::{arp, received};

/// The SYNs of connections to these peers, all at one address, a millisecond apart.
fn syns(secret: u8, peers: impl Iterator<Item = SocketAddr>) -> Vec<TcpHeader> {
    let mut config = config(capabilities(1), 1);
    config.secret = [secret; 32];
    let mut now = Instant::from_millis(1000);
    let mut stack = Stack::new(now, config).unwrap();
    let mut seen = Vec::new();
    for peer in peers {
        stack.connect(now, peer, None).unwrap();
        seen.extend(forge::sent(&mut stack, now));
        if seen.is_empty() {
            answer_arp(&mut stack, now, peer);
            seen.extend(forge::sent(&mut stack, now));
        }
        now += Duration::from_millis(1);
    }
    seen
}

fn answer_arp(stack: &mut Stack, now: Instant, peer: SocketAddr) {
    let SocketAddr::V4(peer) = peer else { return };
    let (them, us) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    let reply = arp(2, them, peer.ip().octets(), us, [10, 0, 0, 1]);
    stack.handle_frame(now, received(&reply, 42));
}

fn peers(n: u16) -> impl Iterator<Item = SocketAddr> {
    (0..n).map(|i| SocketAddr::from(([10, 0, 0, 2], 1000 + i)))
}

/// Whether values of 32 bits fall evenly into 16 parts: none has less than half or more than
/// twice its share.
fn even(values: impl Iterator<Item = u32>) -> bool {
    let mut parts = [0usize; 16];
    let mut n = 0;
    for value in values {
        parts[(value >> 28) as usize] += 1;
        n += 1;
    }
    parts.iter().all(|&p| p * 32 >= n && p * 8 <= n)
}

#[test]
fn initial_numbers_ports_and_timestamps_of_different_peers_have_nothing_in_common() {
    let seen = syns(7, peers(1000));
    assert_eq!(seen.len(), 1000);
    // A millisecond is 250 steps of the clock; what is left is the hash.
    assert!(even(seen.iter().map(|h| h.seq.get())));
    assert!(even(seen.iter().map(|h| h.options.timestamps.unwrap().0)));
    let steps: HashSet<u32> = seen.windows(2).map(|w| w[1].seq.since(w[0].seq)).collect();
    assert!(steps.len() >= 999, "no step comes twice");
    let ports: HashSet<u16> = seen.iter().map(|h| h.src_port).collect();
    assert!(ports.len() > 950, "{} ports", ports.len());
    let next = seen.windows(2).filter(|w| w[1].src_port == w[0].src_port + 1).count();
    assert!(next < 10, "{next} of 1,000 ports follow the last");
}

#[test]
fn another_secret_gives_other_numbers() {
    let (one, other) = (syns(7, peers(100)), syns(8, peers(100)));
    let same = one.iter().zip(&other).filter(|(a, b)| a.seq == b.seq || a.src_port == b.src_port);
    assert!(same.count() <= 2);
}

#[test]
fn numbers_between_the_same_ends_grow_with_time() {
    // RFC 6528 section 3: so that an old segment is not taken for a new one's. The same ports come
    // again when a port is given.
    let mut config = config(capabilities(1), 1);
    config.announce = false;
    let mut now = Instant::from_millis(1000);
    let peer = "10.0.0.2:80".parse().unwrap();
    let mut last = None;
    for _ in 0..20 {
        let mut stack = Stack::new(now, config.clone()).unwrap();
        answer_arp(&mut stack, now, peer);
        stack.connect(now, peer, Some("10.0.0.1:5000".parse().unwrap())).unwrap();
        let mut seen = forge::sent(&mut stack, now);
        answer_arp(&mut stack, now, peer);
        seen.extend(forge::sent(&mut stack, now));
        let seq = seen[0].seq;
        if let Some(last) = last {
            assert_eq!(seq.since(last), 2_500_000, "one each four microseconds, in ten seconds");
        }
        last = Some(seq);
        now += Duration::from_secs(10);
    }
}

#[test]
fn ports_of_datagram_sockets_are_drawn_each_by_itself() {
    // Each socket is closed before the next is made, as a resolver does: who knows one port, its own
    // question having come from there, knows nothing of the next.
    let ports = |secret: u8| {
        let mut config = config(capabilities(1), 1);
        config.secret = [secret; 32];
        let now = Instant::from_millis(1000);
        let mut stack = Stack::new(now, config).unwrap();
        let mut draw = || {
            let id = stack.bind_udp("0.0.0.0:0".parse().unwrap(), BindOptions::default()).unwrap();
            let port = stack.local_addr(id).unwrap().port();
            stack.close(now, id);
            port
        };
        (0..1000).map(|_| draw()).collect::<Vec<u16>>()
    };
    let (one, other) = (ports(7), ports(8));
    assert!(even(one.iter().map(|p| ((u32::from(p - 32_768) << 16) / 28_232) << 16)));
    let steps: HashSet<u16> = one.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    assert!(steps.len() > 900, "{} distances between 1,000 ports", steps.len());
    assert!(one.iter().zip(&other).filter(|(a, b)| a == b).count() <= 2);
}
