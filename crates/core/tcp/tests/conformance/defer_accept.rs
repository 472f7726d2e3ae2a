//! Connections that an application wants only with data (Linux's `TCP_DEFER_ACCEPT`).

use crate::support::*;

const SYN: &str = "S 0:0(0) win 1000 <mss 1000>";
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 65535 <mss 1000>";

/// A listener with this many timeouts got a SYN.
fn accepting(defer_accept: u8) -> Test {
    let mut t = Test::accepting(Config { defer_accept, ..plain() }, SYN);
    t.expect(SYN_ACK);
    t
}

fn forget(t: &mut Test) {
    t.peer_dropped(DropReason::Deferred, ". 1:1(0) ack 1 win 1000").state(State::SynReceived);
}

#[test]
fn data_completes_the_handshake_and_an_acknowledgement_alone_does_not() {
    let mut t = accepting(2);
    forget(&mut t);
    forget(&mut t);
    t.peer("P. 1:11(10) ack 1 win 1000").state(State::Established);
    assert_eq!(t.conn.queued_receive(), 10);
}

#[test]
fn data_behind_a_gap_and_a_fin_complete_the_handshake_too() {
    let mut t = accepting(2);
    t.peer("P. 11:21(10) ack 1 win 1000").state(State::Established);
    let mut t = accepting(2);
    t.peer("F. 1:1(0) ack 1 win 1000").state(State::CloseWait);
    // Lost data shows in the number of a later acknowledgement.
    let mut t = accepting(2);
    t.peer(". 11:11(0) ack 1 win 1000").state(State::Established);
}

#[test]
fn an_acknowledged_syn_ack_is_sent_again_only_when_the_time_is_nearly_over() {
    // Three timeouts are 7 s; the peer is asked once more at the last of them.
    let mut t = accepting(3);
    forget(&mut t);
    t.wait(1000).nothing();
    t.wait(2000).nothing();
    forget(&mut t);
    t.wait(4000).expect(SYN_ACK).nothing();
    t.peer(". 1:1(0) ack 1 win 1000").state(State::Established);
    assert!(t.conn.readiness().contains(Readiness::CONNECTED));
}

#[test]
fn a_peer_that_never_answers_at_all_or_what_ends_a_short_time_is_asked_as_often_as_ever() {
    let mut silent_at_the_end = accepting(1);
    forget(&mut silent_at_the_end);
    for mut t in [accepting(3), silent_at_the_end] {
        for seconds in [1, 2, 4, 8, 16] {
            t.wait(seconds * 1000).expect(SYN_ACK).nothing();
        }
        t.wait(32_000).nothing().state(State::Closed);
    }
}

#[test]
fn a_time_longer_than_a_syn_ack_is_sent_again_is_waited_for_all_the_same() {
    let mut t = accepting(7);
    forget(&mut t);
    for seconds in [1, 2, 4, 8, 16, 32] {
        t.wait(seconds * 1000).nothing().state(State::SynReceived);
    }
    t.wait(64_000).expect(SYN_ACK).nothing();
    // The last SYN,ACK gets no answer: the time is over, and the connection with it.
    t.wait(120_000).nothing().state(State::Closed);
}

#[test]
fn a_reset_ends_a_connection_that_waits_for_data() {
    let mut t = accepting(3);
    forget(&mut t);
    t.peer("R 1:1(0)").state(State::Closed).nothing();
}

#[test]
fn a_connection_that_is_opened_with_it_acknowledges_along_with_data_or_a_little_later() {
    let config = || Config { defer_accept: 1, ..plain() };
    let open = |t: &mut Test| {
        t.sent();
        t.peer("S. 0:0(0) ack 1 win 5840 <mss 1000>").nothing();
    };
    let mut t = Test::connecting(config());
    open(&mut t);
    t.send(10).expect("P. 1:11(10) ack 1").nothing();
    let mut t = Test::connecting(config());
    open(&mut t);
    t.wait(40).expect(". 1:1(0) ack 1");
}
