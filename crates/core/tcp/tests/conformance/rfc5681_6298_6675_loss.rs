//! Retransmission timeout (RFC 6298), fast retransmit and recovery (RFC 5681, 6582, 6675), and the
//! receiver's side of SACK (RFC 2018).

use crate::support::*;

fn no_sack() -> Config {
    Config { sack: false, congestion: CongestionKind::NewReno, ..plain() }
}

fn reno() -> Config {
    Config { congestion: CongestionKind::NewReno, ..plain() }
}

/// Ten full segments are under way, over a path of 100 ms, and ten wait; answers may arrive now.
fn ten(config: Config) -> Test {
    let mut t = Test::far(config, 100);
    let sent = t.send(20_000).sent_segments();
    let sent: Vec<_> = sent.iter().map(|s| (s.header.seq - (ISS + 1), len_of(s))).collect();
    assert_eq!(sent, (0..10).map(|n| (1000 * n, 1000)).collect::<Vec<_>>());
    t.wait(100).nothing();
    t
}

// ---- RFC 6298 ----

#[test]
fn oldest_segment_is_sent_again_after_a_timeout() {
    let mut t = Test::far(plain(), 0);
    t.send(20_000).expect_bytes(1, 10_001).nothing();
    // The round trip of the handshake was measured as nothing: 200 ms is the least timeout.
    t.wait(250).expect_after(200, ". 1:1001(1000)").nothing();
    assert_eq!(t.conn.info().cwnd, 1000);
    assert_eq!(t.conn.info().lost, 10_000);
}

given! {
    let mut t = Test::established(plain());

    timeout_doubles_each_time {
        t.send(10).expect("P. 1:11(10)");
        t.wait(3_100);
        for ms in [200, 600, 1400, 3000] {
            t.expect_after(ms, "P. 1:11(10)");
        }
        t.nothing();
    }
    acknowledgement_of_everything_stops_the_timer {
        t.send(10).expect("P. 1:11(10)").peer(". 1:1(0) ack 11");
        t.wait(10_000).nothing();
    }
    acknowledgement_of_something_new_restarts_the_timer {
        t.send(10).expect("P. 1:11(10)").send(10).expect("P. 11:21(10)");
        t.wait(150).peer(". 1:1(0) ack 11");
        let rto = t.conn.info().rto.as_millis() as u64;
        t.wait(5_000).expect_after(rto, "P. 11:21(10)");
    }
    data_times_out_after_linuxs_fifteen_doublings {
        t.send(10);
        let since = t.now;
        t.wait(900_000).state(State::Established);
        t.wait(200_000).state(State::Closed);
        assert!(t.now.saturating_since(since).as_secs() <= 1100);
        assert_eq!(t.conn.error(), Some(TcpError::TimedOut));
    }
    data_of_a_closed_application_times_out_sooner {
        t.send(10).close().wait(90_000).state(State::FinWait1);
        t.wait(120_000).state(State::Closed);
    }
    retransmitted_segment_is_no_measure_of_the_round_trip {
        // Karn's algorithm (section 3).
        t.wait(1000).send(10).expect("P. 1:11(10)").wait(250).expect("P. 1:11(10)");
        let before = t.conn.info().srtt;
        t.wait(10).peer(". 1:1(0) ack 11");
        assert_eq!(t.conn.info().srtt, before);
    }
}

#[test]
fn everything_is_sent_again_in_slow_start_after_a_timeout() {
    let mut t = ten(Config { frto: false, ..plain() });
    t.wait(350).expect(". 1:1001(1000)");
    t.peer(". 1:1(0) ack 1001").expect(". 1001:2001(1000)").expect(". 2001:3001(1000)").nothing();
    // The segments in between had arrived after all.
    t.peer(". 1:1(0) ack 10001").expect(". 10001:11001(1000)");
}

#[test]
fn syn_is_sent_again_as_in_linux_and_given_up() {
    let mut t = Test::connecting(plain());
    t.expect("S 0:0(0)").wait(300_000).state(State::Closed);
    // Four at one second each, then six with doubling.
    for s in [1, 2, 3, 4, 5, 7, 11, 19, 35, 67] {
        t.expect_after(s * 1000, "S 0:0(0)");
    }
    t.nothing();
    assert_eq!(t.conn.error(), Some(TcpError::TimedOut));
}

#[test]
fn syn_ack_is_sent_again_five_times_and_given_up() {
    let mut t = Test::accepting(plain(), "S 0:0(0) win 1000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1").wait(62_999).state(State::SynReceived);
    for s in [1, 3, 7, 15, 31] {
        t.expect_after(s * 1000, "S. 0:0(0) ack 1");
    }
    t.wait(1).state(State::Closed).nothing();
}

// ---- RFC 5681 section 3.2, RFC 6582: without SACK ----

#[test]
fn third_duplicate_ack_sends_the_first_segment_again_and_two_do_not() {
    // Duplicates count after an ACK of new data as they do at first.
    let mut advanced = ten(no_sack());
    advanced.peer(". 1:1(0) ack 1001").sent();
    for _ in 0..2 {
        advanced.peer(". 1:1(0) ack 1001").sent();
    }
    assert_eq!(advanced.conn.info().retransmits, 0);
    let mut t = ten(no_sack());
    for _ in 0..2 {
        t.peer(". 1:1(0) ack 1").sent();
    }
    assert_eq!(t.conn.info().retransmits, 0);
    t.peer(". 1:1(0) ack 1").expect(". 1:1001(1000)").nothing();
    assert_eq!(t.conn.info().recoveries, 1);
    // Segments that arrived make room for the first one; the window shrinks as more arrive.
    assert_eq!(t.conn.info().ssthresh_segments, 6);
    assert_eq!(t.conn.info().cwnd_segments, 9);
}

#[test]
fn acks_that_change_the_window_or_carry_data_are_no_duplicates() {
    let mut t = ten(no_sack());
    t.peer(". 1:1(0) ack 1 win 60000").peer(". 1:1(0) ack 1 win 60001");
    t.peer(". 1:1(0) ack 1 win 60002").peer("P. 1:2(1) ack 1 win 60002").sent();
    assert_eq!(t.conn.info().retransmits, 0);
}

#[test]
fn partial_ack_sends_the_next_hole_again() {
    // RFC 6582 section 3.2 step 3.
    let mut t = ten(no_sack());
    for _ in 0..3 {
        t.peer(". 1:1(0) ack 1");
    }
    let point = 1 + t.conn.info().unacked;
    let _ = t.sent();
    t.peer(". 1:1(0) ack 4001");
    assert!(t.sent().iter().any(|s| s.starts_with(". 4001:5001")));
    assert_eq!(t.conn.info().recoveries, 1);
    // Everything up to the point: recovery is over.
    t.peer(&format!(". 1:1(0) ack {point}"));
    assert_eq!(t.conn.info().lost, 0);
}

// ---- RFC 6675: with SACK ----

given! {
    let mut t = ten(reno());

    three_sacked_segments_send_the_hole_again {
        t.peer(". 1:1(0) ack 1 <sack 1001:2001>");
        t.peer(". 1:1(0) ack 1 <sack 1001:3001>").sent();
        assert_eq!(t.conn.info().retransmits, 0);
        t.peer(". 1:1(0) ack 1 <sack 1001:4001>").expect(". 1:1001(1000)");
        assert_eq!(t.conn.info().sacked, 3000);
        assert_eq!(t.conn.info().retransmitting, 1000);
    }
    holes_only_are_sent_again {
        t.peer(". 1:1(0) ack 1 <sack 1001:2001>").peer(". 1:1(0) ack 1 <sack 3001:4001 1001:2001>");
        t.peer(". 1:1(0) ack 1 <sack 3001:10001 1001:2001>");
        let again: Vec<_> = t.sent();
        assert!(again.iter().any(|s| s.starts_with(". 1:1001")), "{again:?}");
        assert!(again.iter().any(|s| s.starts_with(". 2001:3001")), "{again:?}");
        assert!(!again.iter().any(|s| s.starts_with(". 1001:") || s.starts_with(". 3001:")));
    }
    nothing_more_is_sent_than_the_reduced_window_allows {
        for to in (2001..=10_001).step_by(1000) {
            t.peer(&format!(". 1:1(0) ack 1 <sack 1001:{to}>"));
            let info = t.conn.info();
            let pipe = info.unacked + info.retransmitting - info.sacked - info.lost;
            assert!(pipe <= info.cwnd.max(11_000), "{info:?}");
        }
        // ssthresh is half of the eleven or twelve segments that were under way.
        assert!((5000..=6000).contains(&t.conn.info().cwnd), "{:?}", t.conn.info());
    }
    recovery_ends_at_its_point {
        t.peer(". 1:1(0) ack 1 <sack 1001:4001>");
        let point = 1 + t.conn.info().unacked;
        let _ = t.sent();
        t.peer(&format!(". 1:1(0) ack {point}"));
        let info = t.conn.info();
        assert_eq!((info.lost, info.sacked, info.retransmitting), (0, 0, 0));
        // The ACK that ends recovery counts for congestion avoidance already.
        assert!(info.cwnd_segments - info.ssthresh_segments <= 1, "{info:?}");
    }
    sack_of_what_was_never_sent_is_ignored {
        t.peer(". 1:1(0) ack 1 <sack 20001:30001>").peer(". 1:1(0) ack 1 <sack 5000:4000>");
        assert_eq!(t.conn.info().sacked, 0);
    }
    sack_of_parts_of_segments_counts_for_nothing {
        t.peer(". 1:1(0) ack 1 <sack 1002:1999>");
        assert_eq!(t.conn.info().sacked, 0);
        t.peer(". 1:1(0) ack 1 <sack 1500:3500>");
        assert_eq!(t.conn.info().sacked, 1000);
    }
}

#[test]
fn sent_super_frame_is_cut_at_the_edges_of_what_is_sacked() {
    let link = LinkLimits::new(1000, 64_000);
    let mut t = Test::established_over(reno(), link);
    // As Linux: at most half of the window in one.
    t.send(10_000).expect("P. 1:5001(5000)").expect("P. 5001:10001(5000)").nothing();
    t.wait(100).peer(". 1:1(0) ack 1 <sack 2001:10001>");
    t.expect("P. 1:2001(2000)").nothing();
    assert_eq!(t.conn.info().sacked, 8000);
}

// ---- RFC 2018: receiving ----

#[test]
fn latest_block_comes_first() {
    let mut t = Test::established(plain());
    t.peer(". 101:201(100) ack 1").expect(". 1:1(0) ack 1 <sack 101:201>");
    t.peer(". 301:401(100) ack 1").expect(". 1:1(0) ack 1 <sack 301:401 101:201>");
    t.peer(". 201:251(50) ack 1").expect(". 1:1(0) ack 1 <sack 101:251 301:401>");
    t.peer(". 1:101(100) ack 1").expect(". 1:1(0) ack 251 <sack 301:401>");
}

#[test]
fn peer_without_sack_gets_one_duplicate_and_no_block_for_each_segment_beyond_a_gap() {
    // The peer counts duplicates, and sends one segment for each.
    let mut t = Test::established_with(plain(), link(), "S. 0:0(0) ack 1 win 65535 <mss 1000>");
    t.peer(". 1:101(100) ack 1").expect(". 1:1(0) ack 101");
    for from in [201, 301, 401] {
        t.peer(&format!(". {from}:{}(100) ack 1", from + 100));
        t.expect(". 1:1(0) ack 101 <>").nothing();
    }
    t.peer(". 101:201(100) ack 1").expect(". 1:1(0) ack 501").nothing();
}
