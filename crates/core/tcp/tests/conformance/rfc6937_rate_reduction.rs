//! Proportional rate reduction (RFC 6937), and limited transmit (RFC 3042) before it.

use crate::support::*;

#[test]
fn each_of_the_first_two_duplicates_sends_a_new_segment() {
    // RFC 3042 section 2.
    let mut t = Test::far(plain(), 100);
    t.send(15_000).expect_bytes(1, 10_001).wait(110);
    t.peer(". 1:1(0) ack 1 <sack 1001:2001>").expect(". 10001:11001(1000)").nothing();
    t.wait(10).peer(". 1:1(0) ack 1 <sack 1001:3001>").expect(". 11001:12001(1000)").nothing();
    // The cause was reordering: one segment arrived beside the known ones, and the window grows by it.
    t.wait(10).peer(". 1:1(0) ack 3001").expect_bytes(12_001, 14_001).nothing();
    assert_eq!((t.conn.info().cwnd_segments, t.conn.info().retransmits), (11, 0));
}

#[test]
fn without_sack_duplicates_stand_for_what_arrived() {
    let mut t = Test::connecting(plain());
    t.expect("S 0:0(0)").wait(100).peer("S. 0:0(0) ack 1 win 65535 <mss 65000>").sent();
    t.send(15_000).expect_bytes(1, 10_001).wait(110);
    t.peer(". 1:1(0) ack 1").expect(". 10001:11001(1000)").nothing();
    t.wait(10).peer(". 1:1(0) ack 1").expect(". 11001:12001(1000)").nothing();
    t.wait(10).peer(". 1:1(0) ack 3001").expect_bytes(12_001, 14_001).nothing();
}

#[test]
fn in_balance_each_segment_that_arrives_sends_one() {
    let mut t = Test::ten(plain(), 100);
    for to in [2001, 3001, 4001] {
        t.wait(10).peer(&format!(". 1:1(0) ack 1 <sack 1001:{to}>"));
    }
    t.expect(". 1:1001(1000)").nothing();
    let info = t.conn.info();
    assert_eq!(info.ca_state, CaState::Recovery);
    assert_eq!((info.cwnd_segments, info.ssthresh_segments), (7, 7));
    t.send(7000).nothing();
    for to in (5001..=10_001).step_by(1000) {
        t.wait(10).peer(&format!(". 1:1(0) ack 1 <sack 1001:{to}>"));
        let at = to + 5000;
        t.expect(&format!(". {at}:{}(1000)", at + 1000)).nothing();
    }
    t.wait(20).peer(". 1:1(0) ack 10001").expect_bytes(16_001, 17_001);
    t.info(|i| (i.ca_state, i.cwnd_segments), (CaState::Open, 7));
}

#[test]
fn after_heavy_loss_the_window_grows_as_in_slow_start_up_to_the_threshold() {
    let mut t = Test::ten(plain(), 10);
    for to in [5001, 6001] {
        t.peer(&format!(". 1:1(0) ack 1 <sack 4001:{to}>")).nothing();
    }
    for (to, again) in [(7001, 1), (8001, 1001), (9001, 2001), (10_001, 3001)] {
        t.peer(&format!(". 1:1(0) ack 1 <sack 4001:{to}>"));
        t.expect(&format!(". {again}:{}(1000)", again + 1000)).nothing();
    }
    for ack in [1001, 2001, 3001, 10_001] {
        t.wait(3).peer(&format!(". 1:1(0) ack {ack} <sack 4001:10001>")).nothing();
    }
    // Recovery has ended at the threshold of seven.
    t.wait(10).send(10_000).expect_bytes(10_001, 17_001).nothing();
}

#[test]
fn sacks_beside_an_acknowledgement_that_was_overtaken_count() {
    let mut t = Test::ten(plain(), 10);
    t.peer(". 1:1(0) ack 1 <sack 1001:2001>").peer(". 1:1(0) ack 1 <sack 1001:3001>");
    t.peer(". 1:1(0) ack 1 <sack 1001:3001 8001:9001>").expect(". 1:1001(1000)").nothing();
    t.wait(12).peer(". 1:1(0) ack 4001 <sack 8001:9001>").expect_bytes(4001, 7001).nothing();
    t.send(10_000).nothing();
    t.wait(2).peer(". 1:1(0) ack 3001 <sack 5001:7001>");
    t.expect(". 7001:8001(1000)").expect(". 10001:11001(1000)").nothing();
}
