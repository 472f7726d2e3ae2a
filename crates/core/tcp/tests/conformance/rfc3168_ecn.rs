//! Explicit congestion notification (RFC 3168).

use crate::support::*;

fn ecn(mode: EcnMode) -> Config {
    Config { ecn: mode, ..plain() }
}

/// Established over a path of 100 ms, both sides willing.
fn willing() -> Test {
    let mut t = Test::connecting(ecn(EcnMode::Request));
    t.expect("SEW 0:0(0)").wait(100);
    t.peer("SE. 0:0(0) ack 1 win 65535 <mss 65000,sackOK>").expect(". 1:1(0) ack 1");
    assert!(t.conn.info().ecn);
    t
}

// ---- section 6.1.1: negotiation ----

#[test]
fn syn_that_got_no_answer_is_repeated_without() {
    let mut t = Test::connecting(ecn(EcnMode::Request));
    t.expect("SEW 0:0(0)").wait(1000).expect("S 0:0(0)");
}

// ---- sections 5, 6.1.5: what is marked ----

#[test]
fn new_data_may_be_marked_and_nothing_else() {
    let mut t = willing();
    t.send(1000);
    assert_eq!(t.sent_segments()[0].ecn, ECT0);
    // A retransmission.
    t.wait(400);
    let again = t.sent_segments();
    assert_eq!((again.len(), again[0].ecn), (1, 0));
    // A bare acknowledgement.
    t.peer(". 1:101(100) ack 1001");
    assert_eq!(t.sent_segments()[0].ecn, 0);
}

#[test]
fn nothing_may_be_marked_without_agreement() {
    let mut t = Test::far(plain(), 10);
    t.send(1000);
    assert_eq!(t.sent_segments()[0].ecn, 0);
}

// ---- section 6.1.2: the sender ----

#[test]
fn echoed_mark_reduces_the_window_once_and_is_answered() {
    let mut t = willing();
    t.send(4000).expect_bytes(1, 4001).wait(100);
    t.peer("E. 1:1(0) ack 1001");
    let info = t.conn.info();
    assert_eq!((info.ca_state, info.ssthresh_segments), (CaState::Cwr, 7));
    // Three are in flight, one arrived.
    assert_eq!(info.cwnd_segments, 4);
    assert_eq!((info.delivered_ce, info.retransmits), (1, 0));
    t.peer("E. 1:1(0) ack 2001");
    assert_eq!(t.conn.info().ssthresh_segments, 7);
    t.send(1000);
    let new = t.sent_segments();
    assert!(new[0].header.flags.contains(Flags::CWR));
    t.send(1000);
    assert!(t.sent_segments().iter().all(|s| !s.header.flags.contains(Flags::CWR)));
    // All data in flight is acknowledged: the window is the threshold.
    t.wait(100).peer(". 1:1(0) ack 6001");
    t.info(|i| (i.ca_state, i.cwnd_segments), (CaState::Open, 7));
}

// ---- section 6.1.3: the receiver ----

#[test]
fn mark_is_echoed_until_the_sender_has_reacted() {
    let mut t = willing();
    t.peer_marked(ECT0, ". 1:1001(1000) ack 1").expect(". 1:1(0) ack 1001");
    t.peer_marked(CE, ". 1001:2001(1000) ack 1").expect("E. 1:1(0) ack 2001");
    t.peer_marked(ECT0, ". 2001:3001(1000) ack 1").expect("E. 1:1(0) ack 3001");
    t.peer_marked(ECT0, "W. 3001:4001(1000) ack 1").expect(". 1:1(0) ack 4001");
    assert!(t.conn.info().ecn_seen);
}

#[test]
fn mark_without_agreement_means_nothing() {
    let mut t = Test::established(plain());
    t.peer_marked(CE, ". 1:1001(1000) ack 1").expect(". 1:1(0) ack 1001");
    t.send(4000).sent();
    t.peer("E. 1001:1001(0) ack 1001");
    assert_eq!(t.conn.info().ca_state, CaState::Open);
}
