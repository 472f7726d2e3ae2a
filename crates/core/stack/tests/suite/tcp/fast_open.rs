//! TCP Fast Open between two stacks (RFC 7413): cookies, data in the SYN, limits. `pagewire-tcp`'s
//! conformance tests check single segments.

use std::net::SocketAddr;
use std::time::Duration;

use pagewire_stack::{
    ConnectOptions, Error, FastOpenConfig, FastOpenKeys, FastOpenMode, ListenerId, Readiness,
    SocketOption, TcpId,
};

use crate::common::{A, B, Pair, Verbs, forge};

const BOTH: FastOpenMode = FastOpenMode::CLIENT.union(FastOpenMode::SERVER);

fn addr() -> SocketAddr {
    "10.0.0.2:80".parse().unwrap()
}

/// Both hosts do Fast Open, one way takes 10 ms, and B listens with this limit.
fn pair(mode: FastOpenMode, limit: u32) -> (Pair, ListenerId) {
    let mut p = Pair::met();
    p.delay = Duration::from_millis(10);
    p.a.fast_open().configure(FastOpenConfig { mode, ..FastOpenConfig::default() });
    p.b.fast_open().configure(FastOpenConfig { mode, ..FastOpenConfig::default() });
    let listener = p.b.listen(addr(), 16).unwrap();
    if limit > 0 {
        p.b.listener(listener).unwrap().set_option(SocketOption::FastOpen(limit)).unwrap();
    }
    (p, listener)
}

/// Connects with Fast Open, by a cookie.
fn connect_to(p: &mut Pair, to: SocketAddr) -> Result<TcpId, Error> {
    let options = ConnectOptions { fast_open: Some(false), ..Default::default() };
    p.a.connect(p.now, to, options)
}

fn connect(p: &mut Pair) -> TcpId {
    connect_to(p, addr()).unwrap()
}

fn set_keys(p: &mut Pair, keys: FastOpenKeys) {
    let config = FastOpenConfig { mode: BOTH, keys: Some(keys), ..FastOpenConfig::default() };
    p.b.fast_open().configure(config);
}

/// Two stacks of which the client has a cookie.
fn warm_pair() -> (Pair, ListenerId) {
    let (mut p, listener) = pair(BOTH, 8);
    warm(&mut p, listener);
    (p, listener)
}

/// Has A get a cookie.
fn warm(p: &mut Pair, listener: ListenerId) {
    let id = connect(p);
    assert!(!p.a.tcp(id).unwrap().is_deferred(), "there is no cookie yet");
    p.run(Duration::from_millis(100));
    let (server, _) = p.b.accept(listener).unwrap();
    p.a.close(p.now, id);
    p.b.close(p.now, server);
    p.run(Duration::from_millis(100));
}

/// Connects with `data` in the SYN.
fn open(p: &mut Pair, data: &[u8]) -> (TcpId, usize) {
    let id = connect(p);
    assert!(p.a.tcp(id).unwrap().is_deferred());
    assert!(p.a.readiness(id).unwrap().contains(Readiness::WRITABLE));
    let sent = p.a.send(p.now, id, data).unwrap();
    (id, sent)
}

#[test]
fn rfc7413_4_2_2_a_request_and_its_answer_take_one_round_trip() {
    let (mut p, listener) = warm_pair();
    assert_eq!(p.b.counters().tcp_fast_open_cookie_requests, 1);
    let start = p.now;
    let (client, sent) = open(&mut p, b"question");
    assert_eq!(sent, 8);
    let mut server = None;
    p.until("the data of the SYN", |p| {
        server = server.or_else(|| p.b.accept(listener).ok());
        server.is_some()
    });
    let (server, _) = server.unwrap();
    assert_eq!(p.now - start, Duration::from_millis(10), "half a round trip");
    let mut buf = [0; 100];
    assert_eq!(p.b.recv(p.now, server, &mut buf[..]).unwrap(), 8);
    assert_eq!(&buf[..8], b"question");
    assert_eq!(p.b.send(p.now, server, b"answer").unwrap(), 6);
    p.until("the answer", |p| p.a.tcp(client).unwrap().queued() == 6);
    assert_eq!(p.now - start, Duration::from_millis(20), "one round trip");
    assert_eq!(p.a.recv(p.now, client, &mut buf[..]).unwrap(), 6);
    p.run(Duration::from_millis(100));
    assert!(p.a.tcp(client).unwrap().info().syn_data);
    assert!(p.b.tcp(server).unwrap().info().syn_data);
    assert_eq!(p.a.counters().tcp_fast_open_active, 1);
    assert_eq!(p.b.counters().tcp_fast_open_passive, 1);
    p.transfer((A, client), (B, server), &crate::common::pattern(100_000));
    p.transfer((B, server), (A, client), &crate::common::pattern(100_000));
}

#[test]
fn rfc7413_4_2_2_more_than_a_segment_follows_the_handshake() {
    let (mut p, listener) = warm_pair();
    let data = crate::common::pattern(5000);
    let (client, sent) = open(&mut p, &data);
    assert_eq!(sent, 1420, "the MSS that the server announced, less 40");
    assert_eq!(p.a.send(p.now, client, &data[sent..]), Err(Error::WouldBlock));
    p.run(Duration::from_millis(100));
    assert_eq!(p.a.send(p.now, client, &data[sent..]), Ok(5000 - sent));
    p.run(Duration::from_millis(100));
    let (server, _) = p.b.accept(listener).unwrap();
    let mut got = vec![0; 6000];
    assert_eq!(p.b.recv(p.now, server, &mut got[..]), Ok(5000));
    assert_eq!(&got[..5000], &data);
}

#[test]
fn rfc7413_4_2_2_without_fast_open_at_the_server_the_data_follows_the_handshake() {
    let (mut p, listener) = warm_pair();
    p.b.listener(listener).unwrap().set_option(SocketOption::FastOpen(0)).unwrap();
    let (client, _) = open(&mut p, b"question");
    p.run(Duration::from_millis(15));
    assert_eq!(p.b.accept(listener).err(), Some(Error::WouldBlock));
    p.run(Duration::from_millis(100));
    let (server, _) = p.b.accept(listener).unwrap();
    let mut buf = [0; 100];
    assert_eq!(p.b.recv(p.now, server, &mut buf[..]), Ok(8));
    assert!(!p.a.tcp(client).unwrap().info().syn_data);
}

#[test]
fn rfc7413_4_1_2_a_server_with_new_keys_hands_out_new_cookies() {
    let (mut p, _) = warm_pair();
    // The keys have changed: the cookie is refused, and replaced.
    set_keys(&mut p, FastOpenKeys::new([9; 16], None));
    open(&mut p, b"1");
    p.run(Duration::from_millis(100));
    let counters = p.b.counters();
    let seen = (counters.tcp_fast_open_passive_failures, counters.tcp_fast_open_passive);
    assert_eq!(seen, (1, 0));
    // Rotated: the cookie is good once more, and replaced.
    set_keys(&mut p, FastOpenKeys::new([10; 16], Some([9; 16])));
    open(&mut p, b"2");
    p.run(Duration::from_millis(100));
    assert_eq!(p.b.counters().tcp_fast_open_passive, 1);
    set_keys(&mut p, FastOpenKeys::new([10; 16], None));
    open(&mut p, b"3");
    p.run(Duration::from_millis(100));
    let counters = p.b.counters();
    let seen = (counters.tcp_fast_open_passive_failures, counters.tcp_fast_open_passive);
    assert_eq!(seen, (1, 2));
}

#[test]
fn a_listener_may_have_keys_of_its_own() {
    let (mut p, listener) = pair(BOTH, 8);
    let own = SocketOption::FastOpenKeys(Some(FastOpenKeys::new([7; 16], None)));
    p.b.listener(listener).unwrap().set_option(own).unwrap();
    warm(&mut p, listener);
    set_keys(&mut p, FastOpenKeys::new([9; 16], None));
    open(&mut p, b"1");
    p.run(Duration::from_millis(100));
    assert_eq!(p.b.counters().tcp_fast_open_passive, 1);
}

/// RFC 7413 section 5.1: the limit, and what a reset costs.
#[test]
fn rfc7413_5_1_pending_connections_are_limited_and_resets_count_for_a_minute() {
    let (mut p, listener) = pair(BOTH, 2);
    warm(&mut p, listener);
    // Nothing but SYNs reaches the server.
    let clients: Vec<_> = (0..3).map(|_| open(&mut p, b"data").0).collect();
    p.run(Duration::from_millis(12));
    let counters = p.b.counters();
    let seen = (counters.tcp_fast_open_passive, counters.tcp_fast_open_overflows);
    assert_eq!(seen, (2, 1), "the third falls back to a handshake without data");
    p.run(Duration::from_millis(100));
    // The refusal keeps this client from trying again, until it forgets.
    p.a.fast_open().forget_cookies();
    warm(&mut p, listener);
    open(&mut p, b"data");
    p.run(Duration::from_millis(100));
    assert_eq!(p.b.counters().tcp_fast_open_passive, 3, "complete handshakes do not count");
    drop(clients);

    // Two clients that reset before their handshakes are complete use up the limit.
    for _ in 0..2 {
        let (id, _) = open(&mut p, b"data");
        p.run(Duration::from_millis(11));
        p.a.abort(p.now, id);
        // A's SYN-SENT says nothing when it is gone; the SYN,ACK finds nobody, and is reset.
        p.run(Duration::from_millis(100));
    }
    assert_eq!(p.b.counters().tcp_fast_open_passive, 5);
    open(&mut p, b"data");
    p.run(Duration::from_millis(100));
    assert_eq!(p.b.counters().tcp_fast_open_passive, 5, "both still count");
    p.run(Duration::from_secs(60));
    p.a.fast_open().forget_cookies();
    warm(&mut p, listener);
    open(&mut p, b"data");
    p.run(Duration::from_millis(100));
    assert_eq!(p.b.counters().tcp_fast_open_passive, 6);
}

#[test]
fn a_closed_connection_no_longer_counts_for_the_limit() {
    let (mut p, listener) = pair(BOTH, 1);
    warm(&mut p, listener);
    // The SYN,ACK is lost, again and again.
    p.carry = Some(Box::new(|side, _| side == A));
    open(&mut p, b"data");
    p.run(Duration::from_millis(20));
    let (server, _) = p.b.accept(listener).unwrap();
    p.b.close(p.now, server);
    p.carry = None;
    p.run(Duration::from_millis(50));
    open(&mut p, b"data");
    p.run(Duration::from_millis(100));
    assert_eq!(p.b.counters().tcp_fast_open_passive, 2);
}

#[test]
fn data_without_a_cookie_is_taken_where_the_settings_say_so() {
    let mode = BOTH | FastOpenMode::CLIENT_NO_COOKIE;
    let (mut p, listener) = pair(mode, 8);
    open(&mut p, b"1");
    p.run(Duration::from_millis(100));
    assert_eq!(p.b.counters().tcp_fast_open_passive, 0);
    p.a.fast_open().forget_cookies();
    p.b.listener(listener).unwrap().set_option(SocketOption::FastOpenNoCookie(true)).unwrap();
    open(&mut p, b"2");
    p.run(Duration::from_millis(100));
    assert_eq!(p.b.counters().tcp_fast_open_passive, 1);
    p.b.listener(listener).unwrap().set_option(SocketOption::FastOpenNoCookie(false)).unwrap();
    let mode = mode | FastOpenMode::SERVER_NO_COOKIE;
    p.b.fast_open().configure(FastOpenConfig { mode, ..FastOpenConfig::default() });
    open(&mut p, b"3");
    p.run(Duration::from_millis(100));
    assert_eq!(p.b.counters().tcp_fast_open_passive, 2);
}

#[test]
fn every_listener_does_it_where_the_settings_say_so() {
    let (mut p, listener) = pair(BOTH | FastOpenMode::SERVER_ALWAYS, 0);
    warm(&mut p, listener);
    open(&mut p, b"data");
    p.run(Duration::from_millis(100));
    assert_eq!(p.b.counters().tcp_fast_open_passive, 1);
}

#[test]
fn a_host_that_does_not_do_it_says_so() {
    let (mut p, _) = pair(FastOpenMode::empty(), 0);
    assert_eq!(connect_to(&mut p, addr()).err(), Some(Error::NotSupported));
    let id = p.a.connect(p.now, addr(), None).unwrap();
    let set = p.a.tcp(id).and_then(|mut tcp| tcp.set_option(p.now, SocketOption::FastOpen(1)));
    assert_eq!(set, Err(Error::InvalidInput), "that is a setting of listeners");
}

#[test]
fn a_deferred_connection_that_is_closed_has_sent_nothing() {
    let (mut p, _) = warm_pair();
    let id = connect(&mut p);
    p.run(Duration::from_secs(5));
    let before = p.carried;
    p.a.close(p.now, id);
    p.run(Duration::from_secs(5));
    assert_eq!(p.carried, before);
}

#[test]
fn a_deferred_connection_can_send_its_syn_without_data() {
    let (mut p, listener) = warm_pair();
    let id = connect(&mut p);
    p.a.tcp(id).unwrap().send_syn();
    p.run(Duration::from_millis(100));
    assert!(p.a.readiness(id).unwrap().contains(Readiness::CONNECTED));
    assert!(p.b.accept(listener).is_ok());
    assert!(!p.a.tcp(id).unwrap().info().syn_data);
}

#[test]
fn rfc7413_4_1_3_1_a_path_that_swallows_such_connections_is_left_alone_for_a_while() {
    let (mut p, listener) = pair(BOTH, 8);
    let rest = Duration::from_secs(3600);
    p.a.fast_open().configure(FastOpenConfig { mode: BOTH, rest, ..FastOpenConfig::default() });
    warm(&mut p, listener);
    p.carry = Some(Box::new(|_, _| false));
    open(&mut p, b"data");
    p.run(Duration::from_secs(30));
    assert_eq!(p.a.counters().tcp_fast_open_black_holes, 1);
    p.carry = None;
    let id = connect(&mut p);
    assert!(!p.a.tcp(id).unwrap().is_deferred(), "Fast Open has a rest");
    p.run(Duration::from_secs(3600));
    let (id, _) = open(&mut p, b"data");
    p.run(Duration::from_millis(100));
    assert!(p.a.tcp(id).unwrap().info().syn_data);
}

/// Connects, with data in the SYN or not; whether it was.
fn tries(p: &mut Pair, to: &str) -> bool {
    let id = connect_to(p, to.parse().unwrap()).unwrap();
    let with_data = p.a.tcp(id).unwrap().is_deferred();
    if with_data {
        p.a.send(p.now, id, b"data").unwrap();
    }
    p.run(Duration::from_millis(200));
    with_data
}

#[test]
fn rfc7413_4_1_3_1_a_server_that_took_no_data_in_a_syn_is_sent_none_for_a_minute() {
    let (mut p, listener) = warm_pair();
    let other = p.b.listen("10.0.0.2:81".parse().unwrap(), 16).unwrap();
    p.b.listener(other).unwrap().set_option(SocketOption::FastOpen(8)).unwrap();
    p.b.listener(listener).unwrap().set_option(SocketOption::FastOpen(0)).unwrap();
    assert!(tries(&mut p, "10.0.0.2:80"));
    assert_eq!(p.a.counters().tcp_fast_open_refused, 1);
    for _ in 0..3 {
        assert!(!tries(&mut p, "10.0.0.2:80"), "not again at once");
    }
    assert!(tries(&mut p, "10.0.0.2:81"), "it was that port");
    p.run(Duration::from_secs(60));
    assert!(tries(&mut p, "10.0.0.2:80"), "perhaps it does by now");
    p.run(Duration::from_secs(60));
    assert!(!tries(&mut p, "10.0.0.2:80"), "it does not: twice as long");
    p.b.listener(listener).unwrap().set_option(SocketOption::FastOpen(8)).unwrap();
    p.run(Duration::from_secs(60));
    for _ in 0..3 {
        assert!(tries(&mut p, "10.0.0.2:80"));
    }
    assert_eq!(p.a.counters().tcp_fast_open_refused, 2);
}

#[test]
fn rfc7413_4_1_3_1_a_server_that_does_not_answer_is_sent_no_data_in_the_next_syn() {
    let (mut p, _) = warm_pair();
    // Neighbours are found, and that is all.
    p.carry = Some(Box::new(|_, frame| forge::parse(frame).is_none()));
    let (client, _) = open(&mut p, b"data");
    let mut error = None;
    for _ in 0..300 {
        p.run(Duration::from_secs(1));
        error = error.or_else(|| p.a.take_error(client));
        if error.is_some() {
            break;
        }
    }
    assert_eq!(error, Some(Error::TimedOut));
    assert_eq!(p.a.counters().tcp_fast_open_refused, 1);
    p.carry = None;
    assert!(!tries(&mut p, "10.0.0.2:80"));
}

#[test]
fn a_closed_listener_resets_those_that_wait_although_their_handshakes_are_not_complete() {
    let (mut p, listener) = warm_pair();
    p.carry = Some(Box::new(|side, _| side == A));
    let (client, _) = open(&mut p, b"data");
    p.run(Duration::from_millis(20));
    p.carry = None;
    p.b.close(p.now, listener);
    p.run(Duration::from_millis(100));
    assert_eq!(p.a.take_error(client), Some(Error::ConnectionRefused));
}
