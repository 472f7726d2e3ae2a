//! Requests: SYNs that the application of a transparent link answers. Tests of the requests that it sees, of
//! the effects of its answers, and that nothing stays behind, however a request or a connection ends.

use std::net::Shutdown;
use std::time::Duration;

use pagewire_mem::Frag;
use pagewire_stack::limits::{REQUEST_HALF_OPEN, SYN_REQUESTS};
use pagewire_stack::{
    Answer, Cancel, DropReason, Error, LinkId, ListenerId, Readiness, SynEvent, TcpId, Unreachable,
};
use pagewire_tcp::{Flags, Seq, State, TcpHeader, TcpOptions};

use crate::common::gateway::{
    FAR, answer, arrive, arrive_at, asked, asking, asks, assert_no_timer, events, far_v4, gateway,
    guest, lost_seq, only_end, only_request, pair, segment, syn,
};
use crate::common::{A, B, Pair, Verbs, addr, forge, pattern};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn has(p: &Pair, side: crate::common::Side, id: TcpId, what: Readiness) -> bool {
    let stack = if side == A { &p.a } else { &p.b };
    stack.readiness(id).is_ok_and(|readiness| readiness.contains(what))
}

/// The guest connects, and the gateway accepts: both ends in the middle of the handshake.
fn half_open(p: &mut Pair, listener: ListenerId) -> (TcpId, TcpId) {
    let client = p.a.connect(p.now, addr(FAR[0]), None).unwrap();
    p.run(MS);
    let request = only_request(p, listener);
    let server = answer(p, listener, request.id, Answer::Accept).unwrap();
    (client, server)
}

/// Nothing is left at the gateway but the listener: no socket, no timer, no entry of the demux.
fn assert_clean(p: &mut Pair, listener: ListenerId, client: std::net::SocketAddr) {
    p.run(MS);
    assert_eq!(p.b.socket_count(), 1, "the listener alone");
    assert_eq!(events(p, listener), []);
    assert_no_timer(p);
    // The same ends once more: an entry of the demux would take the SYN.
    p.carry = None;
    let request = asks(p, listener, syn(client.port(), 77));
    assert_eq!(request.from, client);
    answer(p, listener, request.id, Answer::Forget);
}

#[test]
fn a_syn_is_shown_with_its_addresses_before_anything_answers_it() {
    for to in FAR {
        let (mut p, listener) = asking();
        let client = p.a.connect(p.now, addr(to), None).unwrap();
        let sent = p.b.counters().tx_tcp;
        p.run(500 * MS);
        assert!(p.reported(B, listener, Readiness::READABLE) > 0);
        let request = only_request(&mut p, listener);
        assert_eq!(request.to, addr(to));
        assert_eq!(request.from, p.a.local_addr(client).unwrap());
        assert_eq!((request.link, request.hop_limit), (LinkId::FIRST, 64));
        assert_eq!(p.b.counters().tx_tcp, sent, "nothing was sent");
        assert!(!p.b.readiness(listener).unwrap().contains(Readiness::READABLE));
    }
}

#[test]
fn an_accepted_request_is_an_ordinary_connection_to_the_foreign_address() {
    for to in FAR {
        let (mut p, listener, client, request) = asked(to);
        let server = answer(&mut p, listener, request.id, Answer::Accept).unwrap();
        assert_eq!(p.b.info(server).unwrap().state, State::SynReceived);
        assert_eq!(p.b.local_addr(server), Ok(addr(to)));
        assert!(!has(&p, A, client, Readiness::CONNECTED));
        p.run(MS);
        assert!(has(&p, A, client, Readiness::CONNECTED));
        assert!(p.reported(B, server, Readiness::CONNECTED) > 0);
        let data = pattern(300_000);
        p.transfer((A, client), (B, server), &data);
        p.transfer((B, server), (A, client), &data);
        for (side, id) in [(A, client), (B, server)] {
            let now = p.now;
            p.stack(side).shutdown(now, id, Shutdown::Write).unwrap();
        }
        p.run(MS);
        assert!(has(&p, A, client, Readiness::READ_CLOSED));
        assert!(has(&p, B, server, Readiness::READ_CLOSED));
    }
}

#[test]
fn a_refused_request_is_a_refused_connection() {
    for to in FAR {
        let (mut p, listener, client, request) = asked(to);
        answer(&mut p, listener, request.id, Answer::Refuse);
        p.run(MS);
        assert_eq!(p.a.take_error(client), Some(Error::ConnectionRefused));
        let client = p.a.local_addr(client).unwrap();
        if client.is_ipv4() {
            assert_clean(&mut p, listener, client);
        }
    }
}

#[test]
fn an_unreachable_destination_is_told_by_icmp_and_the_connect_fails_at_once() {
    let cases = [
        (Unreachable::Net, Error::NetworkUnreachable),
        (Unreachable::Host, Error::HostUnreachable),
        (Unreachable::Prohibited, Error::HostUnreachable),
        (Unreachable::Port, Error::ConnectionRefused),
        (Unreachable::Protocol, Error::ProtocolUnreachable),
        (Unreachable::TimeExceeded, Error::HostUnreachable),
    ];
    for to in FAR {
        for (why, error) in cases {
            let (mut p, listener, client, request) = asked(to);
            answer(&mut p, listener, request.id, Answer::Unreachable(why));
            p.run(MS);
            assert_eq!(p.a.take_error(client), Some(error), "{to} {why:?}");
            assert_eq!(p.b.counters().tx_tcp, 0);
        }
    }
}

#[test]
fn silence_is_silence_until_the_sender_gives_up_and_repetitions_ask_nobody() {
    let (mut p, listener, client, request) = asked(FAR[0]);
    answer(&mut p, listener, request.id, Answer::Silence);
    p.run(20 * SECOND);
    assert!(p.b.counters().drops(DropReason::TcpRequestRepeated) >= 3);
    assert_eq!(events(&mut p, listener), []);
    assert_eq!(p.b.counters().tx_tcp, 0);
    p.run(300 * SECOND);
    assert_eq!(p.a.take_error(client), Some(Error::TimedOut));
    assert_eq!(events(&mut p, listener), [], "whoever was answered does not give up");
    let late = p.b.listener(listener).unwrap().answer(p.now, request.id, Answer::Accept);
    assert_eq!(late, Err(Error::NoSuchSocket));
    assert_no_timer(&mut p);
}

#[test]
fn a_forgotten_request_is_asked_again_by_the_next_syn() {
    let (mut p, listener, client, first) = asked(FAR[0]);
    answer(&mut p, listener, first.id, Answer::Forget);
    p.run(1100 * MS);
    let second = only_request(&mut p, listener);
    assert_ne!(first.id, second.id);
    answer(&mut p, listener, second.id, Answer::Accept).unwrap();
    p.run(MS);
    assert!(has(&p, A, client, Readiness::CONNECTED));
}

#[test]
fn repeated_syns_are_one_request_and_a_late_answer_still_counts() {
    for to in FAR {
        let (mut p, listener) = asking();
        let client = p.a.connect(p.now, addr(to), None).unwrap();
        p.run(40 * SECOND);
        let request = only_request(&mut p, listener);
        assert!(p.b.counters().drops(DropReason::TcpRequestRepeated) >= 4, "1, 2, 4, 8, 16 s");
        assert_eq!(p.b.counters().tcp_requests, 1);
        answer(&mut p, listener, request.id, Answer::Accept).unwrap();
        p.run(MS);
        assert!(has(&p, A, client, Readiness::CONNECTED));
    }
}

#[test]
fn a_syn_with_another_number_replaces_the_request() {
    let (mut p, listener) = asking();
    let now = p.now;
    let first = asks(&mut p, listener, syn(5000, 1));
    arrive_at(&mut p, now + MS, syn(5000, 9000));
    let (old, new) = match events(&mut p, listener)[..] {
        [SynEvent::Cancelled(old, Cancel::Reset), SynEvent::New(new)] => (old, new),
        ref other => panic!("{other:?}"),
    };
    assert_eq!(old, first.id);
    assert_ne!(new.id, first.id);
    // A request that was never shown is replaced without an event.
    arrive_at(&mut p, now + 2 * MS, syn(5001, 1));
    arrive_at(&mut p, now + 3 * MS, syn(5001, 2));
    assert_eq!(only_request(&mut p, listener).from.port(), 5001);
}

#[test]
fn a_reset_with_the_next_number_ends_the_request_and_no_other_does() {
    let reset = |seq| segment(5000, Flags::RST, seq);
    let (mut p, listener) = asking();
    let now = p.now;
    let request = asks(&mut p, listener, syn(5000, 100));
    for seq in [100, 102, 0] {
        arrive(&mut p, reset(seq));
        assert_eq!(events(&mut p, listener), [], "{seq}");
    }
    arrive(&mut p, segment(5001, Flags::RST, 101));
    assert_eq!(events(&mut p, listener), [], "of another port");
    arrive(&mut p, reset(101));
    assert_eq!(only_end(&mut p, listener), (request.id, Cancel::Reset));
    let late = p.b.listener(listener).unwrap().answer(now, request.id, Answer::Accept);
    assert_eq!(late, Err(Error::NoSuchSocket));
    // The same with an ACK, as some systems send it.
    asks(&mut p, listener, syn(5000, 200));
    arrive(&mut p, segment(5000, Flags::RST | Flags::ACK, 201));
    assert_eq!(only_end(&mut p, listener).1, Cancel::Reset);
    assert_eq!(p.b.counters().tx_tcp, 0, "no reset is answered");
}

/// Sends SYNs after these seconds; returns after how many more the request was cancelled.
fn gave_up_after(gaps: &[u64]) -> Duration {
    let (mut p, listener) = asking();
    let mut at = p.now;
    arrive_at(&mut p, at, syn(5000, 1));
    let request = only_request(&mut p, listener);
    for gap in gaps {
        at += Duration::from_secs(*gap);
        arrive_at(&mut p, at, syn(5000, 1));
        assert_eq!(events(&mut p, listener), [], "{gap} s after the one before");
    }
    let last = p.now;
    while p.b.counters().tcp_requests_given_up == 0 {
        p.run(10 * MS);
        assert!(p.now.saturating_since(last) < 400 * SECOND, "{gaps:?}: it stays");
    }
    let waited = p.now.saturating_since(last);
    assert_eq!(only_end(&mut p, listener), (request.id, Cancel::GaveUp));
    assert_no_timer(&mut p);
    waited
}

#[test]
fn a_sender_whose_syns_stop_has_given_up() {
    // RFC 6298: the timeout doubles. Linux since 6.5 repeats four times each second first, and older
    // systems begin with 3 s.
    let doubling = [1, 2, 4, 8, 16, 32];
    let linear = [1, 1, 1, 1, 1, 2, 4, 8, 16];
    let slow = [3, 6, 12, 24];
    for (gaps, next) in
        [(&[][..], 3), (&doubling[..1], 2), (&doubling, 64), (&linear, 32), (&slow, 48)]
    {
        let waited = gave_up_after(gaps);
        assert!(waited >= Duration::from_secs(next), "{gaps:?}: the next would have come");
        assert!(waited < Duration::from_secs(next + 2), "{gaps:?}: {waited:?}");
    }
    let waited = gave_up_after(&[1, 1, 1]);
    assert!(waited > 2 * SECOND && waited < 4 * SECOND, "either doubling or not: {waited:?}");
}

#[test]
fn a_full_table_takes_no_more_until_there_is_room() {
    let (mut p, listener) = asking();
    let now = p.now;
    for port in 0..SYN_REQUESTS as u16 + 10 {
        arrive(&mut p, syn(10_000 + port, 1));
    }
    assert_eq!(p.b.counters().drops(DropReason::TcpRequestLimit), 10);
    let all = events(&mut p, listener);
    assert_eq!(all.len(), SYN_REQUESTS);
    let SynEvent::New(first) = all[0] else { panic!("{:?}", all[0]) };
    assert_eq!(first.from.port(), 10_000, "the oldest first");
    arrive(&mut p, syn(10_001, 1));
    assert_eq!(p.b.counters().drops(DropReason::TcpRequestRepeated), 1, "one that is known");
    answer(&mut p, listener, first.id, Answer::Forget);
    arrive_at(&mut p, now + SECOND, syn(20_000, 1));
    assert_eq!(only_request(&mut p, listener).from.port(), 20_000);
    p.run(10 * SECOND);
    assert_eq!(events(&mut p, listener).len(), SYN_REQUESTS, "all give up");
    assert_no_timer(&mut p);
}

#[test]
fn silent_requests_make_room_for_others() {
    let (mut p, listener) = asking();
    for port in 0..SYN_REQUESTS as u16 {
        let request = asks(&mut p, listener, syn(10_000 + port, 1));
        answer(&mut p, listener, request.id, Answer::Silence);
    }
    for port in 0..100 {
        assert_eq!(asks(&mut p, listener, syn(30_000 + port, 1)).from.port(), 30_000 + port);
    }
    assert_eq!(p.b.counters().drops(DropReason::TcpRequestLimit), 0);
    // The oldest went, and asks again.
    assert_eq!(asks(&mut p, listener, syn(10_000, 1)).from.port(), 10_000);
    arrive(&mut p, syn(10_500, 1));
    assert_eq!(events(&mut p, listener), [], "a younger one is still silent");
}

#[test]
fn a_doubled_syn_does_not_make_its_sender_give_up_earlier() {
    let (mut p, listener) = asking();
    let mut at = p.now;
    arrive_at(&mut p, at, syn(5000, 1));
    only_request(&mut p, listener);
    for gap in [1, 2, 4, 8] {
        at += Duration::from_secs(gap);
        arrive_at(&mut p, at, syn(5000, 1));
        arrive_at(&mut p, at + Duration::from_micros(10), syn(5000, 1));
        assert_eq!(events(&mut p, listener), [], "{gap}");
    }
    p.run(15 * SECOND);
    assert_eq!(events(&mut p, listener), [], "the next is due after 16 s");
    p.run(5 * SECOND);
    assert_eq!(only_end(&mut p, listener).1, Cancel::GaveUp);
}

#[test]
fn a_sender_that_waits_longer_and_longer_is_given_up_at_a_limit() {
    let gaps = [3, 6, 12, 24, 48, 96, 128];
    let waited = gave_up_after(&gaps);
    assert!(waited <= 131 * SECOND, "{waited:?}");
}

#[test]
fn requests_that_nobody_looks_at_lapse_without_a_trace() {
    let (mut p, listener) = asking();
    for round in 0..20 {
        for port in 0..500 {
            arrive(&mut p, syn(10_000 + port, round));
        }
        p.run(SECOND);
    }
    p.run(10 * SECOND);
    assert_eq!(events(&mut p, listener), []);
    assert!(!p.b.readiness(listener).unwrap().contains(Readiness::READABLE));
    assert_no_timer(&mut p);
}

#[test]
fn a_syn_that_offers_congestion_notification_or_carries_data_is_a_syn() {
    let (mut p, listener) = asking();
    asks(&mut p, listener, segment(5000, Flags::SYN | Flags::ECE | Flags::CWR, 1));
    let options = TcpOptions { mss: Some(1460), ..TcpOptions::default() };
    let header = TcpHeader { seq: Seq(1), flags: Flags::SYN, options, ..TcpHeader::default() };
    let from = crate::common::gateway::guest_at(5001);
    let early = Frag::from_static(b"early data");
    let request = asks(&mut p, listener, forge::with_payload(2, from, far_v4(), header, early));
    let server = answer(&mut p, listener, request.id, Answer::Accept).unwrap();
    assert_eq!(p.b.tcp(server).unwrap().queued(), 0, "the guest repeats it");
}

#[test]
fn segments_that_open_nothing_are_answered_as_at_a_closed_port() {
    let (mut p, listener) = asking();
    let now = p.now;
    arrive(&mut p, segment(5000, Flags::ACK, 1));
    p.run(MS);
    assert_eq!(p.b.counters().tcp_resets_sent, 1);
    arrive_at(&mut p, now + MS, segment(5000, Flags::RST, 1));
    arrive_at(&mut p, now + MS, segment(5000, Flags::FIN, 1));
    arrive_at(&mut p, now + MS, segment(5000, Flags::SYN | Flags::FIN, 1));
    p.run(MS);
    assert_eq!(p.b.counters().tcp_resets_sent, 1);
    assert_eq!(p.b.counters().drops(DropReason::TcpListenNotSyn), 4);
    assert_eq!(events(&mut p, listener), []);
}

#[test]
fn other_listeners_come_first_and_reserve_nothing_from_the_one_for_all() {
    let (mut p, listener) = asking();
    let own = p.b.listen(addr("10.0.0.2:53"), 4).unwrap();
    let everywhere = p.b.listen(addr("0.0.0.0:25"), 4).unwrap();
    for (to, shown) in
        [("10.0.0.2:53", false), ("192.0.2.1:53", true), ("192.0.2.9:25", false), (FAR[0], true)]
    {
        p.a.connect(p.now, addr(to), None).unwrap();
        p.run(MS);
        assert_eq!(events(&mut p, listener).len(), usize::from(shown), "{to}");
    }
    assert!(p.b.accept(own).is_ok());
    assert!(p.b.accept(everywhere).is_ok());
    // Also what nobody takes at the gateway's own address.
    p.a.connect(p.now, addr("10.0.0.2:99"), None).unwrap();
    p.run(MS);
    assert_eq!(only_request(&mut p, listener).to, addr("10.0.0.2:99"));
    // Every port is free.
    p.b.listen(addr("0.0.0.0:80"), 4).unwrap();
}

#[test]
fn refusals_are_not_limited_as_answers_to_strangers_are() {
    let (mut p, listener) = asking();
    for port in 0..1000 {
        arrive(&mut p, syn(10_000 + port, 1));
    }
    for (n, event) in events(&mut p, listener).into_iter().enumerate() {
        let SynEvent::New(request) = event else { panic!("{event:?}") };
        let how = [Answer::Refuse, Answer::Unreachable(Unreachable::Net)][n % 2];
        answer(&mut p, listener, request.id, how);
    }
    p.run(10 * MS);
    let counters = p.b.counters();
    assert_eq!((counters.tcp_resets_sent, counters.icmp_errors_sent), (500, 500));
}

#[test]
fn answers_have_a_limit_of_their_own() {
    let (mut p, listener) = asking();
    let (mut refused, now) = (0, p.now);
    for n in 0..5000 {
        arrive(&mut p, syn(10_000 + n % 500, n.into()));
        let Some(SynEvent::New(request)) = events(&mut p, listener).pop() else { panic!("{n}") };
        let mut listener = p.b.listener(listener).unwrap();
        match listener.answer(now, request.id, Answer::Refuse) {
            Ok(None) => {}
            Err(Error::WouldBlock) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!((2000..4000).contains(&refused), "{refused}");
    assert_eq!(p.b.counters().drops(DropReason::AnswerRateLimited), refused);
}

// However an accepted connection ends before its handshake is complete, nothing stays behind.

#[test]
fn a_reset_of_the_guest_ends_a_half_open_connection() {
    let (mut p, listener) = asking();
    p.carry = Some(Box::new(|side, _| side == A));
    let (client, server) = half_open(&mut p, listener);
    let from = p.a.local_addr(client).unwrap();
    p.run(MS);
    let info = p.b.info(server).unwrap();
    assert_eq!(info.state, State::SynReceived);
    // The guest's own stack answers a SYN,ACK for a connection that it does not know.
    p.a.abort(p.now, client);
    p.a.close(p.now, client);
    p.carry = None;
    p.run(2 * SECOND);
    let readiness = p.b.readiness(server).unwrap();
    assert!(readiness.contains(Readiness::READ_CLOSED | Readiness::WRITE_CLOSED), "{readiness:?}");
    assert!(!readiness.contains(Readiness::CONNECTED));
    assert!(p.reported(B, server, Readiness::NONE) > 0);
    p.b.close(p.now, server);
    assert_clean(&mut p, listener, from);
}

#[test]
fn a_guest_that_is_gone_ends_a_half_open_connection_in_time() {
    let (mut p, listener) = asking();
    let (client, server) = half_open(&mut p, listener);
    let from = p.a.local_addr(client).unwrap();
    p.carry = Some(Box::new(|_, _| false));
    p.run(300 * SECOND);
    let error = p.b.take_error(server);
    assert!(matches!(error, Some(Error::TimedOut | Error::HostUnreachable)), "{error:?}");
    p.b.close(p.now, server);
    p.a.close(p.now, client);
    assert_clean(&mut p, listener, from);
}

#[test]
fn a_guest_whose_station_is_gone_is_unreachable_and_nobody_else_hears_of_it() {
    let (mut p, listener) = asking();
    // From an address of the guest's network that no station has.
    let from = "10.0.0.77:5000".parse().unwrap();
    let header = TcpHeader { flags: Flags::SYN, seq: Seq(1), ..TcpHeader::default() };
    let request = asks(&mut p, listener, forge::frame(2, from, far_v4(), header));
    let server = answer(&mut p, listener, request.id, Answer::Accept).unwrap();
    p.run(10 * SECOND);
    assert_eq!(p.b.take_error(server), Some(Error::HostUnreachable));
    let counters = p.b.counters();
    let tried = counters.icmp_errors_sent + counters.drops(DropReason::NoRoute);
    assert_eq!((tried, counters.icmp_errors_withheld), (0, 0), "no error to the far host");
    p.b.close(p.now, server);
    p.run(MS);
    assert_eq!(p.b.socket_count(), 1);
}

#[test]
fn a_guest_that_never_acknowledges_ends_a_half_open_connection_in_time() {
    let (mut p, listener) = asking();
    // Neighbours answer, and nothing else does.
    p.carry = Some(Box::new(|_, frame| frame.head().get(12..14) == Some(&[8, 6])));
    let request = asks(&mut p, listener, syn(5000, 1));
    let server = answer(&mut p, listener, request.id, Answer::Accept).unwrap();
    p.run(300 * SECOND);
    assert_eq!(p.b.take_error(server), Some(Error::TimedOut));
    p.b.close(p.now, server);
    assert_clean(&mut p, listener, request.from);
}

#[test]
fn an_icmp_error_ends_a_half_open_connection() {
    let (mut p, listener) = asking();
    // The SYN,ACK is lost; a firewall in the guest says so.
    p.carry = Some(Box::new(|side, frame| side == A || forge::parse(frame).is_none()));
    let request = asks(&mut p, listener, syn(5000, 1));
    let server = answer(&mut p, listener, request.id, Answer::Accept).unwrap();
    p.run(MS);
    let iss = p.b.info(server).unwrap();
    assert_eq!(iss.state, State::SynReceived);
    let seq = lost_seq(&mut p);
    let about = pagewire_stack::Flow::tcp(request.to, request.from, seq);
    // The guest's stack sends it, from the address that the SYN,ACK went to.
    p.a.send_unreachable(p.now, &about, Unreachable::Prohibited, Some(request.from.ip())).unwrap();
    p.run(MS);
    assert_eq!(p.b.take_error(server), Some(Error::HostUnreachable));
    p.b.close(p.now, server);
    assert_clean(&mut p, listener, request.from);
}

#[test]
fn an_owner_that_aborts_resets_the_guest_and_leaves_nothing() {
    let (mut p, listener) = asking();
    let (client, server) = half_open(&mut p, listener);
    let from = p.a.local_addr(client).unwrap();
    p.b.abort(p.now, server);
    p.b.close(p.now, server);
    p.run(MS);
    let error = p.a.take_error(client);
    assert!(matches!(error, Some(Error::ConnectionRefused | Error::ConnectionReset)), "{error:?}");
    assert_clean(&mut p, listener, from);
}

#[test]
fn an_owner_that_closes_ends_the_connection_as_soon_as_it_is_open() {
    let (mut p, listener) = asking();
    let (client, server) = half_open(&mut p, listener);
    let from = p.a.local_addr(client).unwrap();
    p.b.close(p.now, server);
    p.run(MS);
    assert!(has(&p, A, client, Readiness::CONNECTED | Readiness::READ_CLOSED));
    p.a.close(p.now, client);
    p.run(300 * SECOND);
    assert_clean(&mut p, listener, from);
}

#[test]
fn a_lost_link_ends_requests_and_half_open_connections() {
    let (mut p, listener) = asking();
    let (_, server) = half_open(&mut p, listener);
    let now = p.now;
    let request = asks(&mut p, listener, syn(5000, 1));
    arrive(&mut p, syn(5001, 1));
    p.b.handle_link_lost(now, LinkId::FIRST);
    assert_eq!(only_end(&mut p, listener), (request.id, Cancel::LinkLost), "5001 was not shown");
    assert_eq!(p.b.take_error(server), Some(Error::NetworkDown));
    p.b.close(now, server);
    p.run(MS);
    assert_eq!(p.b.socket_count(), 1);
    assert_no_timer(&mut p);
    let readiness = p.b.readiness(listener).unwrap();
    assert!(readiness.contains(Readiness::ERROR | Readiness::READABLE));
    assert_eq!(p.b.accept(listener), Err(Error::NetworkDown));
    assert_eq!(p.b.listen_every(LinkId::FIRST), Err(Error::NetworkDown));
    p.b.close(now, listener);
    assert_eq!(p.b.socket_count(), 0);
}

#[test]
fn a_removed_link_takes_its_listener_along_and_its_successor_has_none() {
    let (mut p, listener) = asking();
    let request = asks(&mut p, listener, syn(5000, 1));
    assert!(p.b.remove_link(LinkId::FIRST));
    assert_eq!(only_end(&mut p, listener), (request.id, Cancel::LinkLost));
    let mut config = pagewire_stack::LinkConfig::new(crate::common::capabilities(2), Vec::new());
    config.addresses = vec!["10.0.0.2/24".parse().unwrap()];
    config.transparent = true;
    let link = p.b.add_link(p.now, &config).unwrap();
    assert!(p.b.readiness(listener).unwrap().contains(Readiness::ERROR), "it stays over");
    p.b.handle_frame_on(p.now, link, syn(5001, 1));
    assert_eq!(events(&mut p, listener), []);
    let second = p.b.listen_every(link).unwrap();
    p.b.handle_frame_on(p.now, link, syn(5002, 1));
    assert_eq!(only_request(&mut p, second).link, link);
}

#[test]
fn a_closed_listener_forgets_its_requests_and_leaves_accepted_connections_alone() {
    let (mut p, listener) = asking();
    let (client, server) = half_open(&mut p, listener);
    let now = p.now;
    arrive(&mut p, syn(5000, 1));
    p.b.close(now, listener);
    assert_eq!(p.b.listener(listener).err(), Some(Error::NoSuchSocket));
    p.transfer((A, client), (B, server), b"it lives on");
    // Nobody listens: as at a closed port.
    let refused = p.a.connect(p.now, addr(FAR[0]), None).unwrap();
    p.run(MS);
    assert_eq!(p.a.take_error(refused), Some(Error::ConnectionRefused));
    let again = p.b.listen_every(LinkId::FIRST).unwrap();
    assert_eq!(events(&mut p, again), []);
}

#[test]
fn accepted_connections_that_never_open_are_bounded_and_the_oldest_go() {
    let (mut p, listener) = asking();
    // Nothing reaches the guest, which would reset what it does not know.
    p.carry = Some(Box::new(|side, _| side == A));
    let mut all = Vec::new();
    for n in 0..3 * REQUEST_HALF_OPEN as u16 {
        let request = asks(&mut p, listener, syn(1000 + n, 1));
        all.push(answer(&mut p, listener, request.id, Answer::Accept).unwrap());
        p.flush();
        let waits = |id: &&TcpId| p.b.info(**id).is_ok_and(|i| i.state == State::SynReceived);
        if n % 500 == 0 {
            assert!(all.iter().filter(waits).count() <= REQUEST_HALF_OPEN);
        }
    }
    let waits = |id: &TcpId| p.b.info(*id).is_ok_and(|i| i.state == State::SynReceived);
    assert!(waits(all.last().unwrap()) && !waits(&all[0]));
    let evicted = p.b.counters().tcp_requests_evicted as usize;
    assert_eq!(evicted, all.iter().filter(|id| !waits(id)).count());
    assert_eq!(p.b.take_error(all[0]), Some(Error::ConnectionAborted));
}

#[test]
fn accepted_connections_that_their_owner_has_closed_count_as_long_as_they_wait() {
    let (mut p, listener) = asking();
    p.carry = Some(Box::new(|side, _| side == A));
    for n in 0..3 * REQUEST_HALF_OPEN as u16 {
        let request = asks(&mut p, listener, syn(1000 + n, 1));
        let server = answer(&mut p, listener, request.id, Answer::Accept).unwrap();
        p.b.close(p.now, server);
        p.flush();
    }
    assert!(p.b.socket_count() <= 1 + REQUEST_HALF_OPEN, "{}", p.b.socket_count());
}

#[test]
fn connections_that_open_do_not_count_as_half_open() {
    let (mut p, listener) = asking();
    for _ in 0..2 * REQUEST_HALF_OPEN {
        let (client, server) = half_open(&mut p, listener);
        p.run(MS);
        assert!(has(&p, B, server, Readiness::CONNECTED));
        p.a.abort(p.now, client);
        p.a.close(p.now, client);
        p.run(MS);
        p.b.close(p.now, server);
    }
    assert_eq!(p.b.counters().tcp_requests_evicted, 0);
    assert_eq!(p.b.socket_count(), 1);
}

#[test]
fn a_port_in_time_wait_may_be_used_again() {
    for left in [true, false] {
        let (mut p, listener) = asking();
        let local = Some(addr("10.0.0.1:5000"));
        let client = p.a.connect(p.now, addr(FAR[0]), local).unwrap();
        p.run(MS);
        let request = only_request(&mut p, listener);
        let server = answer(&mut p, listener, request.id, Answer::Accept).unwrap();
        p.run(MS);
        // The gateway ends first: TIME-WAIT is there.
        p.b.shutdown(p.now, server, Shutdown::Write).unwrap();
        p.run(MS);
        p.a.close(p.now, client);
        p.run(MS);
        assert_eq!(p.b.info(server).unwrap().state, State::TimeWait);
        if left {
            p.b.close(p.now, server);
        }
        p.run(2 * SECOND);
        let again = p.a.connect(p.now, addr(FAR[0]), local).unwrap();
        p.run(1500 * MS);
        let request = only_request(&mut p, listener);
        let second = answer(&mut p, listener, request.id, Answer::Accept).unwrap();
        p.run(MS);
        assert!(has(&p, A, again, Readiness::CONNECTED), "{left}");
        p.transfer((B, second), (A, again), &pattern(10_000));
        p.b.close(p.now, second);
        p.a.close(p.now, again);
        if !left {
            p.b.close(p.now, server);
        }
        p.run(300 * SECOND);
        assert_eq!(p.b.socket_count(), 1);
    }
}

#[test]
fn a_connection_between_the_same_ends_is_in_the_way_of_accept() {
    let (mut p, listener) = asking();
    let request = asks(&mut p, listener, syn(80, 1));
    // A published port: the gateway connects to the guest, in the name of the far host.
    p.b.connect(p.now, addr("10.0.0.1:80"), Some(addr(FAR[0]))).unwrap();
    let refused = p.b.listener(listener).unwrap().answer(p.now, request.id, Answer::Accept);
    assert_eq!(refused, Err(Error::AddressInUse));
    let again = p.b.listener(listener).unwrap().answer(p.now, request.id, Answer::Accept);
    assert_eq!(again, Err(Error::NoSuchSocket), "it is forgotten");
}

#[test]
fn only_one_listener_takes_all_of_a_link_and_only_of_a_transparent_one() {
    let mut p = Pair::with(guest(), gateway());
    assert_eq!(p.a.listen_every(LinkId::FIRST), Err(Error::InvalidInput));
    let listener = p.b.listen_every(LinkId::FIRST).unwrap();
    assert_eq!(p.b.listen_every(LinkId::FIRST), Err(Error::AddressInUse));
    assert_eq!(p.b.local_addr(listener), Ok(addr("[::]:0")));
    p.b.close(p.now, listener);
    p.b.listen_every(LinkId::FIRST).unwrap();
    let own = p.b.listen(addr("10.0.0.2:80"), 1).unwrap();
    assert_eq!(p.b.listener(own).unwrap().poll_request(), None);
    let mut p = pair();
    let own = p.b.listen(addr("10.0.0.2:80"), 1).unwrap();
    let other = p.b.listen_every(LinkId::FIRST).unwrap();
    let request = asks(&mut p, other, syn(5000, 1));
    let wrong = p.b.listener(own).unwrap().answer(p.now, request.id, Answer::Accept);
    assert_eq!(wrong, Err(Error::InvalidInput));
}
