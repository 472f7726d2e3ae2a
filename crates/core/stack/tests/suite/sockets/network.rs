//! Services of the network layer for sockets: echo, path MTU, unreachable hosts, timers.

use std::time::Duration;

use bytes::Bytes;
use pagewire_device::Capabilities;

use crate::common::{A, B, Pair, capabilities, config, pattern};

#[test]
fn a_peer_with_a_smaller_mtu_gets_segments_that_it_can_take() {
    let small = Capabilities { mtu: 1300, max_super_frame: 1300, ..capabilities(2) };
    let mut p = Pair::with(config(capabilities(1), 1), config(small, 2));
    let (client, server, _) = p.connect("10.0.0.2:80");
    p.transfer_by_reference((A, client), (B, server), Bytes::from(pattern(1_000_000)), 1 << 20);
    assert_eq!(p.a.tcp(client).unwrap().info().send_mss, 1300 - 40 - 12);
}

#[test]
fn a_stack_without_sockets_and_neighbours_waits_for_nothing() {
    let mut p = Pair::new();
    p.run(Duration::from_secs(10));
    assert_eq!(p.a.poll_timeout(), None);
    assert_eq!(p.carried, 0);
}

#[test]
fn addresses_are_announced_where_asked() {
    let mut p = Pair::changed(|a, _| a.announce = true);
    p.run(Duration::from_secs(10));
    assert!(p.carried >= 2);
    assert_eq!(p.b.counters().address_conflicts, 0);
}

#[test]
fn a_timer_fires_late_by_less_than_a_seventh_of_a_millisecond() {
    let mut p = Pair::met();
    p.carry = Some(Box::new(|_, _| false));
    let begun = p.now;
    p.a.connect(p.now, "10.0.0.2:80".parse().unwrap(), None).unwrap();
    p.flush();
    let sent = p.a.counters().tx_tcp;
    // The SYN is sent again after a second (RFC 6298 section 2).
    while p.a.counters().tx_tcp == sent {
        assert!(p.step(begun + Duration::from_secs(2)));
        p.flush();
    }
    let late = p.now - (begun + Duration::from_secs(1));
    assert!(p.now >= begun + Duration::from_secs(1) && late < Duration::from_micros(140));
}
