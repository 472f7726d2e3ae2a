//! RFC 9293 section 3.10.7.4: segments that arrive in a synchronised state, step by step.

use crate::support::*;

// ---- first: sequence number ----

given! {
    let mut t = Test::established(plain());

    segment_before_the_window_elicits_ack_and_is_dropped {
        t.peer("P. 1:101(100) ack 1").expect(". 1:1(0) ack 101");
        t.peer_dropped(DropReason::OutsideWindow, "P. 1:51(50) ack 1");
        t.expect(". 1:1(0) ack 101").nothing();
    }
    segment_that_ends_where_the_window_begins_is_a_duplicate_whose_ack_counts {
        t.send(100).expect("P. 1:101(100) ack 1");
        t.peer("P. 1:101(100) ack 1").expect(". 101:101(0) ack 101");
        t.peer_dropped(DropReason::Duplicate, "P. 1:101(100) ack 101");
        t.expect(". 101:101(0) ack 101").nothing();
        assert_eq!(t.conn.info().unacked, 0);
    }
    segment_beyond_the_window_elicits_ack_and_is_dropped {
        let edge = 1 + t.conn.info().recv_window;
        t.peer_dropped(DropReason::OutsideWindow, &format!("P. {}:{}(10) ack 1", edge + 1, edge + 11));
        t.expect(". 1:1(0) ack 1").nothing();
    }
    unacceptable_rst_is_dropped_silently {
        let edge = 1 + t.conn.info().recv_window;
        t.peer_dropped(DropReason::OutsideWindow, &format!("R {0}:{0}(0)", edge + 1));
        t.state(State::Established).nothing();
    }
    answers_to_senseless_segments_without_data_are_limited_in_rate {
        // RFC 5961 section 7. A keep-alive probe of the peer's is such a segment too.
        t.peer_dropped(DropReason::OutsideWindow, ". 0:0(0) ack 1").expect(". 1:1(0) ack 1");
        t.peer_dropped(DropReason::OutsideWindow, ". 0:0(0) ack 1").nothing();
        t.wait(499);
        t.peer_dropped(DropReason::OutsideWindow, ". 0:0(0) ack 1").nothing();
        t.wait(1);
        t.peer_dropped(DropReason::OutsideWindow, ". 0:0(0) ack 1").expect(". 1:1(0) ack 1");
    }
}

#[test]
fn segment_that_reaches_beyond_the_window_is_cut_to_its_last_byte_and_not_one_more() {
    for len in [4999, 5000, 5001, 5002] {
        let config = Config { recv_buffer: 5000, ..plain() };
        let mut t = Test::established(config);
        t.peer(&format!("P. 1:{}({len})  ack 1", len + 1));
        let taken = len.min(5000);
        t.expect(&format!(". 1:1(0) ack {} win {}", taken + 1, 5000 - taken)).nothing();
        assert_eq!(t.conn.queued_receive(), taken as usize, "of {len} bytes");
    }
}

#[test]
fn ack_is_taken_while_our_window_is_closed() {
    let config = Config { recv_buffer: 3000, ..plain() };
    let mut t = Test::established(config);
    t.send(10).expect("P. 1:11(10) ack 1");
    t.peer("P. 1:3001(3000) ack 1").expect(". 11:11(0) ack 3001 win 0");
    // The segment's data has no room; its acknowledgement counts.
    t.peer_dropped(DropReason::OutsideWindow, "P. 3001:3011(10) ack 11");
    t.expect(". 11:11(0) ack 3001 win 0").nothing();
    assert_eq!(t.conn.info().unacked, 0);
}

// ---- second: RST (RFC 5961 section 3) ----

given! {
    let mut t = Test::established(plain());

    rst_at_exactly_rcv_nxt_resets {
        t.peer("R 1:1(0)").state(State::Closed).nothing();
        assert_eq!(t.conn.error(), Some(TcpError::ConnectionReset));
        assert_eq!(t.try_send(1), Err(TcpError::ConnectionReset));
        assert_eq!(t.try_send(1), Err(TcpError::BrokenPipe));
    }
    rst_in_the_window_but_not_next_elicits_a_challenge_ack {
        t.peer_dropped(DropReason::RstNotNext, "R 2:2(0)").state(State::Established);
        t.expect(". 1:1(0) ack 1").nothing();
    }
    data_received_before_a_reset_can_still_be_read {
        t.peer("P. 1:11(10) ack 1").peer("R 11:11(0)").state(State::Closed);
        t.read(10);
        assert_eq!(t.try_read(1), Err(TcpError::ConnectionReset));
        assert_eq!(t.try_read(1), Ok(vec![]));
    }
    rst_releases_what_was_queued {
        t.send(5000).peer("R 1:1(0)");
        assert_eq!(t.conn.queued_send(), 0);
        assert_eq!(t.conn.poll_timeout(), None);
    }
    rst_in_close_wait_breaks_the_pipe {
        t.peer("F. 1:1(0) ack 1").state(State::CloseWait);
        t.peer("R 2:2(0)").state(State::Closed);
        assert_eq!(t.conn.error(), Some(TcpError::BrokenPipe));
    }
}

#[test]
fn rst_in_syn_received_after_a_passive_open_ends_it_without_an_error() {
    let mut t = Test::accepting(plain(), "S 0:0(0) win 1000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1");
    t.peer("R 1:1(0)").state(State::Closed).nothing();
    assert_eq!(t.conn.error(), None);
}

#[test]
fn rst_in_syn_received_after_an_active_open_means_refused() {
    let mut t = Test::connecting(plain());
    t.expect("S 0:0(0)");
    t.peer("S 0:0(0) win 1000 <mss 1000>").expect("S. 0:0(0) ack 1");
    t.peer("R 1:1(0)").state(State::Closed);
    assert_eq!(t.conn.error(), Some(TcpError::ConnectionRefused));
}

// ---- fourth: SYN (RFC 5961 section 4) ----

#[test]
fn syn_in_the_window_elicits_a_challenge_ack_and_is_dropped() {
    let mut t = Test::established(plain());
    t.peer_dropped(DropReason::SynUnexpected, "S 100:100(0)").state(State::Established);
    t.expect(". 1:1(0) ack 1").nothing();
}

#[test]
fn syn_ack_that_comes_again_is_acknowledged_again() {
    let mut t = Test::established(plain());
    t.peer_dropped(DropReason::SynUnexpected, "S. 0:0(0) ack 1 win 65535");
    t.expect(". 1:1(0) ack 1").nothing();
}

#[test]
fn syn_that_comes_again_in_syn_received_gets_the_syn_ack_again() {
    let mut t = Test::accepting(plain(), "S 0:0(0) win 1000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1");
    t.peer_dropped(DropReason::Duplicate, "S 0:0(0) win 1000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1").nothing();
}

// ---- fifth: ACK ----

given! {
    let mut t = Test::established(plain());

    segment_without_ack_is_dropped {
        t.peer_dropped(DropReason::AckMissing, "P 1:11(10)").nothing();
        assert_eq!(t.conn.queued_receive(), 0);
    }
    ack_of_snd_nxt_is_taken_and_one_beyond_elicits_ack_and_is_dropped {
        t.send(100).expect("P. 1:101(100) ack 1");
        t.peer_dropped(DropReason::AckUnsent, ". 1:1(0) ack 102");
        t.expect(". 101:101(0) ack 1").nothing();
        assert_eq!(t.conn.info().unacked, 100);
        // Also once what is sent is acknowledged and we close.
        t.peer(". 1:1(0) ack 101").nothing();
        assert_eq!((t.conn.info().unacked, t.conn.queued_send()), (0, 0));
        t.shutdown().expect("F. 101:101(0) ack 1").wait(1000).sent();
        t.peer_dropped(DropReason::AckUnsent, ". 1:1(0) ack 103");
        t.expect(". 102:102(0) ack 1").nothing();
    }
    what_comes_with_an_ack_beyond_snd_nxt_is_dropped_with_it {
        t.peer_dropped(DropReason::AckUnsent, "FP. 1:11(10) ack 2");
        t.expect(". 1:1(0) ack 1").state(State::Established);
        assert_eq!(t.conn.queued_receive(), 0);
    }
    window_is_not_taken_from_an_older_segment {
        t.peer("P. 1:11(10) ack 1 win 1000").expect(". 1:1(0) ack 11");
        t.peer("P. 11:21(10) ack 1 win 2000").expect(". 1:1(0) ack 21");
        // Sent before the other, arrives after it.
        t.peer_any("P. 1:21(20) ack 1 win 9");
        assert_eq!(t.conn.info().send_window, 2000);
    }
}

#[test]
fn ack_older_than_a_window_elicits_ack_and_is_dropped() {
    // RFC 5961 section 5.2.
    let mut t = Test::established_with(plain(), link(), "S. 0:0(0) ack 1 win 1000 <mss 1000>");
    for i in 0..3 {
        t.send(500).expect(&format!("P. {}:{}(500)", 1 + 500 * i, 501 + 500 * i));
        t.peer(&format!(". 1:1(0) ack {} win 1000", 501 + 500 * i));
    }
    // una is 1501, the window never was larger than 1000.
    t.peer("P. 1:2(1) ack 501 win 1000").expect(". 1501:1501(0) ack 2");
    t.peer_dropped(DropReason::AckTooOld, "P. 2:3(1) ack 500 win 1000");
    t.expect(". 1501:1501(0) ack 2").nothing();
}

#[test]
fn unacceptable_ack_in_syn_received_elicits_rst_with_its_number() {
    let mut t = Test::accepting(plain(), "S 0:0(0) win 1000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1");
    t.peer_dropped(DropReason::AckUnsent, ". 1:1(0) ack 2").expect("R 2:2(0)");
    t.state(State::SynReceived);
    t.peer_dropped(DropReason::AckUnsent, ". 1:1(0) ack 0").expect("R 0:0(0)").nothing();
}

#[test]
fn ack_of_our_syn_establishes_a_passive_open() {
    let mut t = Test::accepting(plain(), "S 0:0(0) win 1000 <mss 1000,sackOK,wscale 3>");
    t.expect("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,wscale 7>");
    t.peer("P. 1:11(10) ack 1 win 500").state(State::Established).expect(". 1:1(0) ack 11");
    assert_eq!(t.conn.info().send_window, 4000);
}

// ---- seventh: text ----

given! {
    let mut t = Test::established(plain());

    text_beyond_a_gap_waits_for_it {
        t.peer("P. 101:201(100) ack 1").expect(". 1:1(0) ack 1 <sack 101:201>");
        assert_eq!(t.try_read(1), Err(TcpError::WouldBlock));
        t.peer("P. 1:101(100) ack 1").expect(". 1:1(0) ack 201 <>").nothing();
        t.read(200);
    }
    text_after_the_peers_fin_is_dropped {
        t.peer("F. 1:1(0) ack 1").expect(". 1:1(0) ack 2");
        t.peer_dropped(DropReason::AfterFin, "P. 2:12(10) ack 1").expect(". 1:1(0) ack 2");
        assert_eq!(t.conn.queued_receive(), 0);
    }
    text_beyond_a_fin_that_waits_for_a_gap_is_dropped {
        t.peer("F. 11:21(10) ack 1").expect(". 1:1(0) ack 1 <sack 11:21>");
        t.peer_dropped(DropReason::AfterFin, "P. 21:31(10) ack 1").expect(". 1:1(0) ack 1");
        t.peer("P. 1:11(10) ack 1").state(State::CloseWait).expect(". 1:1(0) ack 22");
        t.read(20);
        assert_eq!(t.try_read(1), Ok(vec![]));
    }
}

// ---- eighth: FIN ----

#[test]
fn fin_is_acknowledged_and_ends_the_stream() {
    let mut t = Test::established(plain());
    t.peer("F. 1:11(10) ack 1").state(State::CloseWait).expect(". 1:1(0) ack 12").nothing();
    t.read(10);
    assert_eq!(t.try_read(1), Ok(vec![]));
}

#[test]
fn fin_beyond_the_window_is_none_yet() {
    let config = Config { recv_buffer: 5000, ..plain() };
    // Right behind the last byte that the window takes, it counts.
    let mut t = Test::established(config.clone());
    t.peer("FP. 1:5001(5000) ack 1").state(State::CloseWait).expect(". 1:1(0) ack 5002");
    // One byte further, the segment's last byte is cut off, and the FIN with it.
    for segment in ["FP. 1:5002(5001) ack 1", "FP. 1:7001(7000) ack 1"] {
        let mut t = Test::established(config.clone());
        t.peer(segment).state(State::Established).expect(". 1:1(0) ack 5001 win 0");
        t.read(5000).sent();
        t.peer("P. 5001:9001(4000) ack 1").state(State::Established);
        t.read(4000);
        assert_eq!(t.try_read(1), Err(TcpError::WouldBlock), "no end of the stream");
    }
}

#[test]
fn of_two_fins_beyond_a_gap_the_first_to_come_counts() {
    for second in ["F. 31:41(10) ack 1", "F. 31:31(0) ack 1", "F. 15:15(0) ack 1"] {
        let mut t = Test::established(plain());
        t.peer("F. 11:21(10) ack 1").sent();
        t.peer_any(second).sent();
        t.peer("P. 1:11(10) ack 1").state(State::CloseWait).expect(". 1:1(0) ack 22");
        t.read(20);
        assert_eq!(t.try_read(1), Ok(vec![]), "after {second}");
    }
}

#[test]
fn bare_fin_is_taken_while_our_window_is_closed() {
    let config = Config { recv_buffer: 3000, ..plain() };
    let mut t = Test::established(config);
    t.peer("P. 1:3001(3000) ack 1").expect(". 1:1(0) ack 3001 win 0");
    t.peer("F. 3001:3001(0) ack 1").state(State::CloseWait).expect(". 1:1(0) ack 3002 win 0");
}

#[test]
fn data_can_be_sent_after_the_peers_fin() {
    let mut t = Test::established(plain());
    t.peer("F. 1:1(0) ack 1").expect(". 1:1(0) ack 2");
    t.send(10).expect("P. 1:11(10) ack 2").nothing();
}
