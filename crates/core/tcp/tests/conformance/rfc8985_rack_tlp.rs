//! Loss by time and tail loss probes (RFC 8985).

use crate::support::*;

fn probing() -> Config {
    Config { tail_loss_probe: true, ..plain() }
}

// ---- section 6: RACK ----

given! {
    let mut t = Test::ten(plain(), 100);

    reordering_window_is_a_quarter_of_the_least_round_trip {
        t.peer(". 1:1(0) ack 1 <sack 7001:8001>").nothing();
        assert_eq!(t.conn.info().ca_state, CaState::Disorder);
        // 25 ms, and the 2 ms that a clock of Linux's may be off.
        t.wait(40).expect_after(27, ". 1:1001(1000)").nothing();
        let info = t.conn.info();
        assert_eq!(info.ca_state, CaState::Recovery);
        assert_eq!((info.lost_segments, info.reordering), (7, 3));
        assert_eq!((info.cwnd_segments, info.ssthresh_segments), (3, 7));
    }
    three_segments_sacked_leave_no_window_for_reordering {
        t.peer(". 1:1(0) ack 1 <sack 2001:3001>").nothing();
        t.peer(". 1:1(0) ack 1 <sack 2001:3001 6001:7001>").nothing();
        t.peer(". 1:1(0) ack 1 <sack 2001:3001 6001:7001 8001:9001>");
        t.expect(". 1:1001(1000)").nothing();
        // Segments sent after the last one that arrived are not lost yet.
        assert_eq!(t.conn.info().lost_segments, 6);
    }
    hole_that_is_filled_by_its_first_transmission_is_reordering {
        t.peer(". 1:1(0) ack 1 <sack 8001:9001>").peer(". 1:1(0) ack 1 <sack 2001:3001 8001:9001>");
        let info = t.conn.info();
        // From 2001 to 9001.
        assert_eq!((info.reordering, info.reord_seen), (7, 1));
        t.peer(". 1:1(0) ack 10001");
        let info = t.conn.info();
        assert_eq!((info.reordering, info.reord_seen), (9, 2));
        assert_eq!((info.ca_state, info.sacked_segments), (CaState::Open, 0));
    }
    path_that_reorders_gets_its_window_even_when_three_segments_are_sacked {
        t.peer(". 1:1(0) ack 1 <sack 8001:9001>").peer(". 1:1(0) ack 1 <sack 2001:3001 8001:9001>");
        t.peer(". 1:1(0) ack 10001");
        t.send(10_000).expect_bytes(10_001, 20_001).wait(100);
        t.peer(". 1:1(0) ack 10001 <sack 11001:15001>").nothing();
        t.wait(40).expect_after(27, ". 10001:11001(1000)");
    }
    retransmission_is_lost_again_when_something_sent_later_arrives {
        t.send(20_000).peer(". 1:1(0) ack 1 <sack 1001:5001>").sent();
        let point = t.conn.info().unacked + 1;
        assert_eq!(t.conn.info().retransmitting_segments, 1);
        // A round trip later, what was sent after the retransmission arrives, and it does not.
        t.wait(100).peer(&format!(". 1:1(0) ack 1 <sack 1001:{point}>"));
        t.wait(40).expect(". 1:1001(1000)");
        assert_eq!(t.conn.info().timeouts, 0);
    }
}

// ---- section 7: tail loss probes ----

given! {
    let mut t = Test::far(probing(), 50);

    last_segment_is_sent_again_after_two_round_trips {
        t.send(4000).expect_bytes(1, 4001);
        t.wait(150).expect_after(102, "P. 3001:4001(1000)").nothing();
        let info = t.conn.info();
        // Nothing is held for lost, and nothing of it counts as more in flight.
        assert_eq!((info.lost_segments, info.retransmitting_segments, info.timeouts), (0, 0, 0));
    }
    lone_segment_waits_for_a_delayed_acknowledgement_too {
        t.send(1000).expect("P. 1:1001(1000)");
        // 2 * 50 + 200 ms; but the timeout, at 50 + 200, is earlier.
        t.wait(400).expect_after(250, "P. 1:1001(1000)");
    }
    new_data_is_the_probe_where_there_is_some {
        t.send(20_000).expect_bytes(1, 10_001);
        t.wait(110).expect(". 10001:11001(1000)").nothing();
        assert_eq!(t.conn.info().retransmits, 0);
    }
    timeout_follows_the_probe_a_timeout_later {
        t.send(4000).expect_bytes(1, 4001).wait(102).expect("P. 3001:4001(1000)");
        t.wait(300).expect_after(250, ". 1:1001(1000)");
        assert_eq!(t.conn.info().timeouts, 1);
    }
    probe_that_repaired_a_loss_reduces_the_window {
        // Section 7.4.2: the acknowledgement goes beyond the probe, and reports no duplicate.
        t.send(10_000).expect_bytes(1, 10_001).wait(102).expect("P. 9001:10001(1000)");
        t.wait(50).peer(". 1:1(0) ack 10001");
        assert_eq!(t.conn.info().ssthresh_segments, INFINITE);
        t.send(1000).expect("P. 10001:11001(1000)").wait(50).peer(". 1:1(0) ack 11001");
        t.info(|i| (i.ssthresh_segments < 20, i.ca_state), (true, CaState::Open));
    }
    probe_that_arrived_twice_is_no_loss {
        t.send(10_000).expect_bytes(1, 10_001).wait(102).expect("P. 9001:10001(1000)");
        t.peer(". 1:1(0) ack 10001").peer(". 1:1(0) ack 10001 <sack 9001:10001>");
        t.send(1000).expect("P. 10001:11001(1000)").wait(50).peer(". 1:1(0) ack 11001");
        t.info(|i| (i.ssthresh_segments, i.dsack_dups), (INFINITE, 1));
    }
}

#[test]
fn without_sack_nothing_is_probed() {
    let config = Config { sack: false, ..probing() };
    let mut t = Test::connecting(config);
    t.expect("S 0:0(0)").wait(50).peer("S. 0:0(0) ack 1 win 65535 <mss 1000>").sent();
    t.send(4000).expect_bytes(1, 4001);
    t.wait(260).expect_after(250, ". 1:1001(1000)");
}

#[test]
fn a_loss_long_after_the_last_is_found_as_soon() {
    // State noted for the first loss is then half of the sequence space away, and compares as ahead.
    let mut t = Test::ten(plain(), 100);
    t.peer(". 1:1(0) ack 1 <sack 2001:10001>").wait(40);
    assert_eq!(t.conn.info().ca_state, CaState::Recovery);
    let _ = t.sent();
    t.peer(". 1:1(0) ack 10001");
    let bytes = bytes::Bytes::from(vec![7; 30_000]);
    let mut ack = header(". 1:1(0) ack 10001 win 65535");
    let mut left = 5 << 29;
    while left > 0 || t.conn.queued_send() > 0 {
        if left > 0 {
            t.send_frags(&mut FragVec::from_iter([Frag::from_bytes(bytes.clone())])).unwrap();
            left = usize::saturating_sub(left, bytes.len());
        }
        ack.ack += (t.conn.queued_send() - t.conn.queued_unsent()) as u32;
        assert_eq!(t.peer_header(&ack, FragVec::new()), Disposition::Accepted);
        let _ = t.sent_segments();
    }
    assert_eq!(t.conn.queued_send(), 0);
    t.send(10_000);
    let _ = t.sent_segments();
    let una = ack.ack;
    ack.options.sack = [(una + 1000, una + 10_000)].into_iter().collect();
    assert_eq!(t.peer_header(&ack, FragVec::new()), Disposition::Accepted);
    t.wait(40);
    let again = t.sent_segments();
    assert_eq!(again.first().map(|s| s.header.seq), Some(una), "the hole is filled at once");
    assert_eq!(t.conn.info().timeouts, 0);
}
