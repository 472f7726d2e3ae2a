//! TIME-WAIT after the application has closed: answers to segments, SYNs that reopen the connection, and use of
//! the ports (RFC 9293 section 3.6.1, RFC 6191, RFC 1337).

use std::net::SocketAddrV4;
use std::time::Duration;

use pagewire_stack::{Error, ListenerId, StackConfig, TcpConfig, TcpId, TimeWaitReuse};
use pagewire_tcp::{DropReason, Flags, Seq, TcpHeader, TcpOptions};

use crate::common::forge;
use crate::common::{A, B, Pair, Verbs, addr, capabilities, config};

const V4: &str = "10.0.0.2:80";
const PEER: &str = "10.0.0.1:7777";

fn v4(s: &str) -> SocketAddrV4 {
    s.parse().unwrap()
}

/// A connection from 10.0.0.1:7777 that rests in TIME-WAIT at B, with the header of the
/// acknowledgement of B's FIN, the last segment of A's, and nobody at A that remembers.
fn resting(b: StackConfig, timestamps: bool) -> (Pair, ListenerId, TcpHeader) {
    let mut a = config(capabilities(1), 1);
    a.tcp.timestamps = timestamps;
    let mut p = Pair::with(a, b);
    p.meet();
    let (client, server, listener) = p.connect_from(PEER, V4);
    p.b.close(p.now, server);
    p.run(Duration::from_millis(10));
    let fin = close_client(&mut p, client);
    assert!(fin.flags.contains(Flags::FIN));
    assert_eq!((p.a.socket_count(), p.b.socket_count()), (0, 2));
    (p, listener, fin)
}

/// Closes the connection at A; returns its FIN, the last segment.
fn close_client(p: &mut Pair, client: TcpId) -> TcpHeader {
    let seen = p.watch(|side, frame| forge::parse(frame).filter(|_| side == A));
    p.a.close(p.now, client);
    p.run(Duration::from_millis(10));
    p.carry = None;
    seen.take().pop().unwrap().2
}

fn plain_b() -> StackConfig {
    config(capabilities(2), 2)
}

/// B's answers to this segment.
fn answers(p: &mut Pair, header: TcpHeader) -> Vec<TcpHeader> {
    p.b.handle_frame(p.now, forge::frame(2, v4(PEER), v4(V4), header));
    forge::sent(&mut p.b, p.now)
}

/// The peer's timestamp some time later.
fn later(fin: &TcpHeader, ms: u32) -> TcpOptions {
    let timestamps = fin.options.timestamps.map(|(value, echo)| (value.wrapping_add(ms), echo));
    TcpOptions { timestamps, ..TcpOptions::default() }
}

#[test]
fn fin_again_is_acknowledged_each_time_and_restarts_the_wait() {
    let (mut p, _, fin) = resting(plain_b(), true);
    for _ in 0..5 {
        p.run(Duration::from_secs(40));
        let said = answers(&mut p, fin);
        assert_eq!(said.len(), 1);
        assert_eq!((said[0].flags, said[0].seq, said[0].ack), (Flags::ACK, fin.ack, fin.seq + 1));
    }
    assert_eq!(p.b.socket_count(), 2, "200 seconds on, it rests still");
    p.run(Duration::from_secs(61));
    assert_eq!(p.b.socket_count(), 1);
}

#[test]
fn stray_data_is_acknowledged_and_stray_acknowledgements_at_a_limited_rate() {
    let (mut p, _, fin) = resting(plain_b(), true);
    let data = TcpHeader { flags: Flags::ACK | Flags::FIN, seq: fin.seq + 5000, ..fin };
    assert_eq!(answers(&mut p, data).len(), 1);
    let stray = TcpHeader { flags: Flags::ACK, seq: fin.seq - 5000, ..fin };
    let said: usize = (0..1000).map(|_| answers(&mut p, stray).len()).sum();
    assert_eq!(said, 1, "one answer in half a second");
    p.run(Duration::from_millis(501));
    assert_eq!(answers(&mut p, stray).len(), 1);
}

#[test]
fn bare_acknowledgement_is_not_answered_and_restarts_the_wait() {
    let (mut p, _, fin) = resting(plain_b(), true);
    p.run(Duration::from_secs(50));
    let bare = TcpHeader { flags: Flags::ACK, seq: fin.seq + 1, options: later(&fin, 9), ..fin };
    assert_eq!(answers(&mut p, bare), []);
    p.run(Duration::from_secs(50));
    assert_eq!(p.b.socket_count(), 2);
}

#[test]
fn fin_without_ack_is_dropped_and_a_syn_with_fin_answered_where_nobody_remembers() {
    // RFC 9293 section 3.10.7.4, fifth and fourth check.
    let (mut p, _, fin) = resting(plain_b(), false);
    assert_eq!(answers(&mut p, TcpHeader { flags: Flags::FIN, ..fin }), []);
    assert_eq!(p.b.counters().tcp_drops(DropReason::AckMissing), 1);
    let both = TcpHeader { flags: Flags::SYN | Flags::FIN, ..syn(&fin, fin.seq + 1000, None) };
    assert_eq!(answers(&mut p, both).iter().map(|h| h.flags).collect::<Vec<_>>(), [Flags::ACK]);
    assert_eq!(answers(&mut p, both), []);
    assert_eq!(p.b.socket_count(), 2, "it rests still");
}

#[test]
fn reset_at_the_exact_number_ends_the_wait_others_do_not() {
    let (mut p, _, fin) = resting(plain_b(), true);
    for off in [1, 0x8000_0000, u32::MAX] {
        let reset = TcpHeader { flags: Flags::RST, seq: fin.seq + 1 + off, ..fin };
        assert_eq!(answers(&mut p, reset), []);
        assert_eq!(p.b.socket_count(), 2);
    }
    assert_eq!(p.b.counters().tcp_drops(DropReason::RstNotNext), 3);
    let reset = TcpHeader { flags: Flags::RST, seq: fin.seq + 1, ..fin };
    assert_eq!(answers(&mut p, reset), []);
    assert_eq!(p.b.socket_count(), 1);
}

#[test]
fn rfc_1337_has_resets_ignored_if_it_is_asked_for() {
    let mut b = plain_b();
    b.tcp.rfc1337 = true;
    let (mut p, _, fin) = resting(b, true);
    let reset = TcpHeader { flags: Flags::RST, seq: fin.seq + 1, ..fin };
    assert_eq!(answers(&mut p, reset), []);
    assert_eq!(p.b.socket_count(), 2);
}

fn syn(fin: &TcpHeader, seq: Seq, stamp: Option<i32>) -> TcpHeader {
    let timestamps = match (stamp, fin.options.timestamps) {
        (Some(ahead), Some((value, _))) => Some((value.wrapping_add(ahead as u32), 0)),
        _ => None,
    };
    let options = TcpOptions { mss: Some(1460), timestamps, ..TcpOptions::default() };
    TcpHeader { flags: Flags::SYN, seq, ack: Seq(0), options, ..*fin }
}

#[test]
fn syn_with_a_newer_timestamp_reopens_whatever_its_number() {
    // RFC 6191 section 2.
    let (mut p, _, fin) = resting(plain_b(), true);
    let said = answers(&mut p, syn(&fin, fin.seq - 1_000_000, Some(1)));
    assert_eq!(said.len(), 1);
    assert_eq!(said[0].flags, Flags::SYN | Flags::ACK);
    assert!(said[0].seq.gt(fin.ack), "beyond the largest number of the old connection");
}

#[test]
fn syn_with_a_higher_number_reopens_if_its_timestamp_is_the_same_or_missing() {
    for (timestamps, stamp) in [(true, Some(0)), (true, None), (false, None)] {
        let (mut p, _, fin) = resting(plain_b(), timestamps);
        let said = answers(&mut p, syn(&fin, fin.seq + 2, stamp));
        assert_eq!(said.len(), 1);
        assert_eq!(said[0].flags, Flags::SYN | Flags::ACK, "{timestamps} {stamp:?}");
        assert!(said[0].seq.gt(fin.ack));
    }
}

#[test]
fn old_duplicate_of_a_syn_reopens_nothing() {
    let (mut p, _, fin) = resting(plain_b(), true);
    for (seq, stamp) in [(fin.seq + 2, Some(-1)), (fin.seq - 1000, Some(0)), (fin.seq, None)] {
        let said = answers(&mut p, syn(&fin, seq, stamp));
        assert!(said.iter().all(|h| h.flags == Flags::ACK), "{said:?}");
        assert_eq!(p.b.socket_count(), 2);
        p.run(Duration::from_millis(600));
    }
}

#[test]
fn syn_that_may_reopen_is_acknowledged_if_nobody_listens() {
    let (mut p, listener, fin) = resting(plain_b(), true);
    p.b.close(p.now, listener);
    let said = answers(&mut p, syn(&fin, fin.seq + 2, Some(1)));
    assert_eq!(said.iter().map(|h| h.flags).collect::<Vec<_>>(), [Flags::ACK]);
    assert_eq!(p.b.socket_count(), 1);
}

/// Somebody else is let in and not accepted, which is all that the listener takes.
fn fill_the_queue(p: &mut Pair, listener: ListenerId) {
    p.b.listener(listener).unwrap().set_backlog(0).unwrap();
    p.a.connect(p.now, addr(V4), Some(addr("10.0.0.1:7778"))).unwrap();
    p.run(Duration::from_millis(10));
}

#[test]
fn connection_rests_on_if_the_listener_drops_the_syn_that_would_reopen_it() {
    let (mut p, listener, fin) = resting(plain_b(), true);
    fill_the_queue(&mut p, listener);
    assert_eq!(p.b.socket_count(), 3);
    let reopen = syn(&fin, fin.seq + 2, Some(1));
    assert_eq!(answers(&mut p, reopen), []);
    assert_eq!(p.b.counters().drops(pagewire_stack::DropReason::TcpBacklogFull), 1);
    assert_eq!(p.b.socket_count(), 3, "it is still there");
    assert_eq!(answers(&mut p, fin).iter().map(|h| h.flags).collect::<Vec<_>>(), [Flags::ACK]);
    // Once there is room, the SYN sent again is taken.
    p.b.accept(listener).unwrap();
    let said = answers(&mut p, reopen);
    assert_eq!(said.iter().map(|h| h.flags).collect::<Vec<_>>(), [Flags::SYN | Flags::ACK]);
    assert_eq!(p.b.socket_count(), 3, "in its place");
}

#[test]
fn connection_that_its_owner_has_yet_rests_on_if_the_listener_drops_the_syn() {
    let mut p = Pair::with(config(capabilities(1), 1), plain_b());
    p.meet();
    let (client, server, listener) = p.connect_from(PEER, V4);
    p.b.shutdown(p.now, server, std::net::Shutdown::Write).unwrap();
    p.run(Duration::from_millis(10));
    let fin = close_client(&mut p, client);
    fill_the_queue(&mut p, listener);
    assert_eq!(answers(&mut p, syn(&fin, fin.seq + 2, Some(1))), []);
    assert_eq!(answers(&mut p, fin).iter().map(|h| h.flags).collect::<Vec<_>>(), [Flags::ACK]);
    assert!(p.b.readiness(server).is_ok());
}

/// A connection of A's that rests at A, between the same ports.
fn resting_at_the_client(reuse: TimeWaitReuse, timestamps: bool) -> (Pair, ListenerId) {
    let mut a = config(capabilities(1), 1);
    a.time_wait_reuse = reuse;
    a.tcp = TcpConfig { timestamps, ..TcpConfig::default() };
    let mut p = Pair::with(a, plain_b());
    p.meet();
    let (client, server, listener) = p.connect_from(PEER, V4);
    p.a.close(p.now, client);
    p.run(Duration::from_millis(10));
    p.b.close(p.now, server);
    p.run(Duration::from_millis(10));
    assert_eq!((p.a.socket_count(), p.b.socket_count()), (1, 1));
    (p, listener)
}

#[test]
fn connect_takes_the_ports_of_a_connection_in_time_wait_after_a_second_if_set() {
    let (mut p, listener) = resting_at_the_client(TimeWaitReuse::On, true);
    let again = p.a.connect(p.now, addr(V4), Some(addr(PEER)));
    assert_eq!(again, Err(Error::AddressNotAvailable), "not within the second");
    p.run(Duration::from_secs(2));
    let client = p.a.connect(p.now, addr(V4), Some(addr(PEER))).unwrap();
    p.run(Duration::from_millis(10));
    let (server, from) = p.b.accept(listener).unwrap();
    assert_eq!(from, addr(PEER));
    p.transfer((A, client), (B, server), &[7; 10_000]);
    assert_eq!(p.a.counters().tcp_time_wait_reused, 1);
}

#[test]
fn connect_leaves_time_wait_alone_without_timestamps_or_unless_set() {
    // Linux's default takes ports only from connections of a host to itself.
    for (reuse, timestamps) in
        [(TimeWaitReuse::Off, true), (TimeWaitReuse::Loopback, true), (TimeWaitReuse::On, false)]
    {
        let (mut p, _) = resting_at_the_client(reuse, timestamps);
        p.run(Duration::from_secs(2));
        let again = p.a.connect(p.now, addr(V4), Some(addr(PEER)));
        assert_eq!(again, Err(Error::AddressNotAvailable), "{reuse:?} {timestamps}");
        // Another port is no question.
        assert!(p.a.connect(p.now, addr(V4), None).is_ok());
    }
}

#[test]
fn connection_of_a_host_to_itself_takes_the_ports_by_default() {
    let mut p = Pair::new();
    let to = addr("10.0.0.1:80");
    let listener = p.a.listen(to, 8).unwrap();
    for round in 0..3 {
        let client = p.a.connect(p.now, to, Some(addr(PEER))).unwrap();
        p.run(Duration::from_millis(10));
        let (server, _) = p.a.accept(listener).unwrap();
        p.a.close(p.now, client);
        p.run(Duration::from_millis(10));
        p.a.close(p.now, server);
        p.run(Duration::from_secs(2));
        assert_eq!(p.a.counters().tcp_time_wait_reused, round);
    }
}
