//! Duplicates reported and understood (RFC 2883), and what was done for nothing taken back: by
//! D-SACK (RFC 3708), by timestamps (RFC 3522, 4015), by F-RTO (RFC 5682).

use crate::support::*;

// ---- RFC 2883: receiving ----

given! {
    let mut t = Test::established(plain());

    segment_that_came_before_is_reported {
        t.peer(". 1:101(100) ack 1").sent();
        t.peer_any(". 1:101(100) ack 1").expect(". 1:1(0) ack 101 <sack 1:101>").nothing();
        // Once.
        t.peer(". 201:301(100) ack 1").expect(". 1:1(0) ack 101 <sack 201:301>");
    }
    part_that_came_before_is_reported {
        t.peer(". 1:101(100) ack 1").sent();
        t.peer(". 51:151(100) ack 1").expect(". 1:1(0) ack 151 <sack 51:101>");
    }
    duplicate_beyond_a_gap_is_reported_before_the_block_that_it_lies_in {
        t.peer(". 101:301(200) ack 1").expect(". 1:1(0) ack 1 <sack 101:301>");
        t.peer_any(". 101:201(100) ack 1");
        t.expect(". 1:1(0) ack 1 <sack 101:201 101:301>").nothing();
    }
    /// As Linux: the FIN has a number, and is reported as data is.
    fin_that_came_before_is_reported {
        t.peer("P. 1:11(10) ack 1").sent();
        t.peer("F. 11:11(0) ack 1").expect(". 1:1(0) ack 12 <>");
        for _ in 0..2 {
            t.peer("F. 11:11(0) ack 1").expect(". 1:1(0) ack 12 <sack 11:12>").nothing();
            t.state(State::CloseWait);
        }
        // With the data before it, and that data alone.
        t.peer_any("FP. 1:11(10) ack 1").expect(". 1:1(0) ack 12 <sack 1:12>").nothing();
        t.peer_any("P. 1:11(10) ack 1").expect(". 1:1(0) ack 12 <sack 1:11>").nothing();
        // After our own FIN too.
        t.shutdown().expect("F. 1:1(0) ack 12");
        t.peer("F. 11:11(0) ack 1").expect(". 2:2(0) ack 12 <sack 11:12>").nothing();
    }
}

#[test]
fn fin_that_came_before_is_acknowledged_without_a_report_to_a_peer_without_sack() {
    let mut t = Test::established_with(plain(), link(), "S. 0:0(0) ack 1 win 65535 <mss 1000>");
    t.peer("F. 1:1(0) ack 1").expect(". 1:1(0) ack 2 <>");
    t.peer("F. 1:1(0) ack 1").expect(". 1:1(0) ack 2 <>").nothing();
}

#[test]
fn nothing_is_reported_where_the_setting_says_so() {
    let mut t = Test::established(Config { dsack: false, ..plain() });
    t.peer(". 1:101(100) ack 1").sent();
    t.peer_any(". 1:101(100) ack 1").expect(". 1:1(0) ack 101 <>");
}

// ---- RFC 3708: sending ----

#[test]
fn recovery_whose_retransmissions_were_all_duplicates_is_undone() {
    let mut t = Test::ten(plain(), 100);
    t.peer(". 1:1(0) ack 1 <sack 1001:4001>").expect(". 1:1001(1000)").nothing();
    assert_eq!(t.conn.info().ssthresh_segments, 7);
    // The first transmission was only late.
    t.wait(1).peer(". 1:1(0) ack 4001");
    t.wait(99).peer(". 1:1(0) ack 4001 <sack 1:1001>");
    let info = t.conn.info();
    assert_eq!((info.ca_state, info.ssthresh_segments), (CaState::Open, INFINITE));
    assert!(info.cwnd_segments >= 10, "{info:?}");
    assert_eq!(info.dsack_dups, 1);
}

/// Ten full segments are under way over a path of 100 ms that may mark; answers arrive now.
fn ten_capable() -> Test {
    let mut t = Test::connecting(Config { ecn: EcnMode::Request, ..plain() });
    t.expect("SEW 0:0(0)").wait(100).peer("SE. 0:0(0) ack 1 win 65535 <mss 65000,sackOK>");
    t.expect(". 1:1(0) ack 1").send(10_000).expect_bytes(1, 10_001).wait(100);
    t
}

given! {
    let mut t = ten_capable();

    /// > RFC 3168 section 6.1.2: the TCP source should [...] react as if a packet was dropped
    mark_within_a_recovery_keeps_the_reduction_when_nothing_was_lost {
        t.peer(". 1:1(0) ack 1 <sack 1001:4001>").expect(". 1:1001(1000)").nothing();
        assert_eq!(t.conn.info().ssthresh_segments, 7);
        t.wait(1).peer("E. 1:1(0) ack 4001");
        t.wait(99).peer(". 1:1(0) ack 4001 <sack 1:1001>");
        let info = t.conn.info();
        assert_eq!((info.dsack_dups, info.ssthresh_segments), (1, 7));
        assert!(info.cwnd_segments <= 7, "{info:?}");
    }
    mark_that_comes_with_the_loss_keeps_the_reduction_too {
        t.peer("E. 1:1(0) ack 1 <sack 1001:4001>").expect(". 1:1001(1000)");
        assert_eq!(t.conn.info().ca_state, CaState::Recovery);
        t.wait(1).peer(". 1:1(0) ack 4001").wait(99).peer(". 1:1(0) ack 4001 <sack 1:1001>");
        assert_eq!((t.conn.info().dsack_dups, t.conn.info().ssthresh_segments), (1, 7));
    }
    recovery_within_a_reduction_for_a_mark_is_not_undone_beyond_that {
        t.peer("E. 1:1(0) ack 1001");
        let reduced = t.conn.info().ssthresh_segments;
        assert_eq!((t.conn.info().ca_state, reduced), (CaState::Cwr, 7));
        t.peer(". 1:1(0) ack 1001 <sack 2001:5001>").sent();
        assert_eq!(t.conn.info().ca_state, CaState::Recovery);
        t.wait(1).peer(". 1:1(0) ack 5001").wait(99).peer(". 1:1(0) ack 5001 <sack 1001:2001>");
        assert_eq!((t.conn.info().dsack_dups, t.conn.info().ssthresh_segments), (1, reduced));
    }
}

#[test]
fn duplicates_of_what_was_never_sent_again_undo_nothing() {
    let mut t = Test::ten(plain(), 100);
    t.peer(". 1:1(0) ack 1 <sack 1001:4001>").expect(". 1:1001(1000)");
    for _ in 0..5 {
        t.wait(1).peer(". 1:1(0) ack 4001 <sack 3001:4001>");
    }
    assert_eq!(t.conn.info().ssthresh_segments, 7);
}

#[test]
fn duplicates_widen_the_reordering_window_once_in_a_round_trip() {
    // RFC 8985 section 6.2, step 4.
    let mut t = Test::ten(Config { frto: false, ..plain() }, 100);
    t.peer(". 1:1(0) ack 1 <sack 8001:9001>").peer(". 1:1(0) ack 1 <sack 2001:3001 8001:9001>");
    t.wait(30).sent();
    assert_eq!(t.conn.info().ca_state, CaState::Recovery);
    t.peer(". 1:1(0) ack 10001").wait(70).peer(". 1:1(0) ack 10001 <sack 1:1001>");
    t.send(10_000).sent();
    t.wait(100);
    t.peer(". 1:1(0) ack 10001 <sack 12001:13001>").wait(60);
    // Half of the least round trip now, which is 100 ms.
    t.expect_after(52, ". 10001:11001(1000)");
}

// ---- RFC 3522, 4015: timestamps ----

#[test]
fn acknowledgement_that_echoes_the_first_transmission_undoes_the_timeout() {
    let config = Config { timestamps: true, frto: false, ..plain() };
    let mut t = Test::connecting(config);
    let syn = t.sent_segments().remove(0);
    let (syn_at, _) = syn.header.options.timestamps.unwrap();
    t.wait(100);
    t.peer(&format!("S. 0:0(0) ack 1 win 65535 <mss 65000,sackOK,TS val 1 ecr {syn_at}>")).sent();
    t.send(9880);
    let data_at = t.sent_segments()[0].header.options.timestamps.unwrap().0;
    t.wait(320);
    assert_eq!(t.sent().len(), 1);
    assert_eq!((t.conn.info().ca_state, t.conn.info().cwnd_segments), (CaState::Loss, 1));
    t.peer(&format!(". 1:1(0) ack 989 <TS val 2 ecr {data_at}>")).nothing();
    let info = t.conn.info();
    assert_eq!((info.ca_state, info.ssthresh_segments), (CaState::Open, INFINITE));
    assert_eq!((info.lost_segments, info.cwnd_segments >= 10), (0, true));
}

// ---- RFC 5682: F-RTO ----

given! {
    let mut t = Test::far(plain(), 100);

    timeout_is_spurious_if_what_was_never_sent_again_is_acknowledged {
        t.send(30_000).expect_bytes(1, 10_001);
        t.wait(310).expect(". 1:1001(1000)").nothing();
        // Step 2b: the window moves; new data rather than old.
        t.peer(". 1:1(0) ack 1001").expect_bytes(10_001, 12_001).nothing();
        // Step 3b: the window moves again, over what was sent once.
        t.peer(". 1:1(0) ack 2001");
        let info = t.conn.info();
        assert_eq!((info.ca_state, info.ssthresh_segments), (CaState::Open, INFINITE));
        assert_eq!((info.lost_segments, info.retransmits), (0, 1));
        assert!(info.cwnd_segments >= 10, "{info:?}");
    }
    timeout_is_real_if_a_duplicate_follows_the_new_data {
        t.send(30_000).expect_bytes(1, 10_001);
        t.wait(310).expect(". 1:1001(1000)").nothing();
        t.wait(100).peer(". 1:1(0) ack 1001").expect_bytes(10_001, 12_001).nothing();
        // Step 3a.
        t.wait(100).peer(". 1:1(0) ack 1001 <sack 10001:11001>").expect(". 1001:2001(1000)");
        t.info(|i| (i.ca_state, i.ssthresh_segments), (CaState::Loss, 7));
    }
    without_new_data_what_was_lost_is_sent_again {
        t.send(4000).expect_bytes(1, 4001);
        t.wait(310).expect(". 1:1001(1000)").nothing();
        t.wait(100).peer(". 1:1(0) ack 1001").expect_bytes(1001, 3001).nothing();
        t.wait(100).peer(". 1:1(0) ack 3001").expect("P. 3001:4001(1000)").nothing();
        t.wait(100).peer(". 1:1(0) ack 4001");
        assert_eq!(t.conn.info().ca_state, CaState::Open);
    }
}

#[test]
fn receiver_that_reneges_gets_a_short_timeout() {
    // RFC 2018 section 8.
    let mut t = Test::ten(plain(), 100);
    t.peer(". 1:1(0) ack 1 <sack 2001:10001>").sent();
    t.wait(10).peer(". 1:1(0) ack 2001");
    // Half a round trip.
    let half = t.conn.info().srtt.as_millis() as u64 / 2;
    t.wait(100).expect_after(half, ". 2001:3001(1000)");
    assert_eq!((t.conn.info().sacked_segments, t.conn.info().timeouts), (0, 1));
}
