//! RFC 9293 sections 3.6, 3.10.4 and 3.10.5: closing in every order, aborting, and TIME-WAIT.

use crate::support::*;

given! {
    let mut t = Test::established(plain());

    normal_close_goes_through_fin_wait_1_and_2_to_time_wait {
        // Figure 12.
        t.shutdown().state(State::FinWait1).expect("F. 1:1(0) ack 1").nothing();
        t.peer(". 1:1(0) ack 2").state(State::FinWait2).nothing();
        t.peer("F. 1:1(0) ack 2").state(State::TimeWait).expect(". 2:2(0) ack 2").nothing();
        t.wait(59_999).state(State::TimeWait);
        t.wait(1).state(State::Closed).nothing();
        assert!(t.conn.is_closed());
        assert_eq!(t.conn.error(), None);
    }
    simultaneous_close_goes_through_closing_to_time_wait {
        // Figure 13.
        t.shutdown().expect("F. 1:1(0) ack 1");
        t.peer("F. 1:1(0) ack 1").state(State::Closing).expect(". 2:2(0) ack 2");
        t.peer(". 2:2(0) ack 2").state(State::TimeWait).nothing();
    }
    passive_close_goes_through_close_wait_and_last_ack_to_closed {
        t.peer("F. 1:1(0) ack 1").state(State::CloseWait).expect(". 1:1(0) ack 2");
        t.shutdown().state(State::LastAck).expect("F. 1:1(0) ack 2").nothing();
        t.peer(". 2:2(0) ack 2").state(State::Closed).nothing();
    }
    ack_that_leaves_out_our_fin_does_not_leave_fin_wait_1 {
        t.send(10).expect("P. 1:11(10)").shutdown().expect("F. 11:11(0) ack 1");
        t.peer(". 1:1(0) ack 11").state(State::FinWait1);
        t.peer(". 1:1(0) ack 12").state(State::FinWait2);
    }
    ack_that_leaves_out_our_fin_does_not_leave_last_ack_or_closing {
        t.peer("F. 1:1(0) ack 1").shutdown();
        t.peer(". 2:2(0) ack 1").state(State::LastAck);
        let mut t = Test::established(plain());
        t.shutdown().peer("F. 1:1(0) ack 1").peer(". 2:2(0) ack 1").state(State::Closing);
    }
    fin_is_sent_again_until_it_is_acknowledged {
        t.shutdown().expect("F. 1:1(0) ack 1");
        t.wait(2000).expect("F. 1:1(0) ack 1");
    }
    half_closed_connection_still_receives {
        t.shutdown().expect("F. 1:1(0) ack 1").peer(". 1:1(0) ack 2").state(State::FinWait2);
        t.peer("P. 1:11(10) ack 2").expect(". 2:2(0) ack 11").read(10);
        assert_eq!(t.try_send(1), Err(TcpError::BrokenPipe));
    }
    half_closed_connection_waits_for_the_peer_as_long_as_its_application_is_there {
        t.shutdown().peer(". 1:1(0) ack 2").wait(10_000_000).state(State::FinWait2);
    }
    fin_wait_2_ends_when_the_application_is_gone {
        t.close().peer(". 1:1(0) ack 2").state(State::FinWait2);
        t.wait(59_999).state(State::FinWait2).wait(1).state(State::Closed);
    }
}

#[test]
fn fin_follows_what_is_queued() {
    let mut t = Test::established_with(plain(), link(), "S. 0:0(0) ack 1 win 1500 <mss 1000>");
    t.send(2000).expect(". 1:751(750)").expect("P. 751:1501(750)");
    t.shutdown().state(State::FinWait1).nothing();
    t.peer(". 1:1(0) ack 1501 win 1500").expect("FP. 1501:2001(500) ack 1").nothing();
}

#[test]
fn shutdown_during_the_handshake_closes_when_it_is_done() {
    let mut t = Test::accepting(plain(), "S 0:0(0) win 1000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1").shutdown().state(State::SynReceived).nothing();
    t.peer(". 1:1(0) ack 1").state(State::FinWait1).expect("F. 1:1(0) ack 1").nothing();
}

// ---- RFC 2525 section 2.17: data that nobody will read ----

given! {
    let mut t = Test::established(plain());

    close_with_unread_data_resets {
        t.peer("P. 1:11(10) ack 1").expect(". 1:1(0) ack 11");
        t.close().state(State::Closed).expect("R. 1:1(0) ack 11").nothing();
    }
    close_with_everything_read_sends_a_fin {
        t.peer("P. 1:11(10) ack 1").expect(". 1:1(0) ack 11").read(10);
        t.close().state(State::FinWait1).expect("F. 1:1(0) ack 11").nothing();
    }
    data_that_arrives_after_close_resets {
        t.close().expect("F. 1:1(0) ack 1");
        t.peer_dropped(DropReason::ReceiveClosed, "P. 1:11(10) ack 2").state(State::Closed);
        t.expect("R 2:2(0)").nothing();
    }
    data_that_arrives_after_shutdown_of_both_directions_resets {
        t.shutdown_read().shutdown().expect("F. 1:1(0) ack 1");
        t.peer_dropped(DropReason::ReceiveClosed, "P. 1:11(10) ack 2").expect("R 2:2(0)");
    }
    shutdown_read_gives_what_is_queued_and_then_the_end {
        t.peer("P. 1:11(10) ack 1").shutdown_read().read(10);
        assert_eq!(t.try_read(1), Ok(vec![]));
    }
}

// ---- a reset while our FIN is under way ----

#[test]
fn reset_in_last_ack_or_closing_is_an_error_as_in_linux() {
    // Whether data was lost or only the FIN, nobody can tell.
    for data in [0, 100] {
        let mut t = Test::established(plain());
        t.peer("F. 1:1(0) ack 1").send(data).shutdown().state(State::LastAck);
        t.peer("R 2:2(0)").state(State::Closed);
        assert_eq!(t.conn.take_error(), Some(TcpError::ConnectionReset), "{data} bytes");
        let mut t = Test::established(plain());
        t.send(data).shutdown().peer("F. 1:1(0) ack 1").state(State::Closing);
        t.peer("R 2:2(0)").state(State::Closed);
        assert_eq!(t.conn.take_error(), Some(TcpError::ConnectionReset), "{data} bytes");
    }
}

// ---- abort ----

#[test]
fn abort_resets_a_peer_that_knows_of_the_connection() {
    for state in [State::SynReceived, State::Established, State::FinWait1, State::CloseWait] {
        let mut t = Test::accepting(plain(), "S 0:0(0) win 1000 <mss 1000>");
        t.expect("S. 0:0(0) ack 1");
        if state != State::SynReceived {
            t.peer(". 1:1(0) ack 1");
        }
        match state {
            State::FinWait1 => drop(t.shutdown().sent()),
            State::CloseWait => drop(t.peer("F. 1:1(0) ack 1").sent()),
            _ => {}
        }
        let (seq, ack) = (
            if state == State::FinWait1 { 2 } else { 1 },
            if state == State::CloseWait { 2 } else { 1 },
        );
        t.state(state).abort().state(State::Closed);
        t.expect(&format!("R. {seq}:{seq}(0) ack {ack}")).nothing();
    }
}

#[test]
fn abort_in_syn_sent_says_nothing() {
    let mut t = Test::connecting(plain());
    t.expect("S 0:0(0)").abort().state(State::Closed).nothing();
}

#[test]
fn segment_to_a_closed_connection_is_dropped() {
    let mut t = Test::established(plain());
    t.peer("R 1:1(0)").peer_dropped(DropReason::Closed, ". 1:1(0) ack 1").nothing();
}

// ---- TIME-WAIT ----

/// Closed by both sides; the peer's FIN acknowledges ours and leads straight to TIME-WAIT.
fn time_wait(config: Config) -> Test {
    let mut t = Test::established(config);
    t.shutdown().peer("F. 1:1(0) ack 2").state(State::TimeWait);
    t.expect("F. 1:1(0) ack 1").expect(". 2:2(0) ack 2").nothing();
    t
}

given! {
    let mut t = time_wait(plain());

    fin_that_comes_again_in_time_wait_is_acknowledged_and_restarts_the_timer {
        t.wait(50_000).peer("F. 1:1(0) ack 2").expect(". 2:2(0) ack 2").nothing();
        t.wait(59_999).state(State::TimeWait).wait(1).state(State::Closed);
    }
    exact_rst_ends_time_wait_without_an_error {
        t.peer_dropped(DropReason::RstNotNext, "R 3:3(0)").state(State::TimeWait).nothing();
        t.peer("R 2:2(0)").state(State::Closed).nothing();
        assert_eq!(t.conn.take_error(), None);
    }
    syn_in_time_wait_opens_anew_from_one_beyond_rcv_nxt_on_and_beyond_the_old_numbers {
        // RFC 6191 section 2: "greater than the last sequence number seen". RFC 9293 section 3.6.1, MAY-2.
        t.peer_dropped(DropReason::SynUnexpected, "S 2:2(0) win 1000").expect(". 2:2(0) ack 2");
        for syn in ["S 3:3(0) win 1000", "S 1000:1000(0) win 1000"] {
            let got = t.peer_any(syn).last;
            assert_eq!(got, Disposition::SynInTimeWait { iss_above: ISS + 2 }, "{syn}");
            t.state(State::TimeWait).nothing();
        }
    }
    older_syn_in_time_wait_is_answered_with_an_ack {
        t.peer_dropped(DropReason::OutsideWindow, "S 1:1(0) win 1000").state(State::TimeWait);
        t.expect(". 2:2(0) ack 2").nothing();
    }
}

#[test]
fn segment_without_ack_in_time_wait_is_dropped_and_restarts_nothing() {
    // Section 3.10.7.4, fifth check: "if the ACK bit is off, drop the segment and return".
    for segment in ["F 1:1(0)", "F 2:2(0)", "- 2:2(0)", "P 2:12(10)", "F 1:11(10)"] {
        let mut t = time_wait(plain());
        t.wait(50_000);
        t.peer_dropped(DropReason::AckMissing, segment).nothing();
        t.wait(9_999).state(State::TimeWait).wait(1).state(State::Closed);
    }
}

#[test]
fn syn_in_time_wait_that_opens_nothing_elicits_a_challenge_ack() {
    // Section 3.10.7.4, fourth check: what may open anew is a SYN alone.
    for segment in ["SF 1000:1000(0)", "SF 2:12(10)", "S. 1000:1000(0) ack 2"] {
        let mut t = time_wait(plain());
        t.peer_dropped(DropReason::SynUnexpected, segment).state(State::TimeWait);
        t.expect(". 2:2(0) ack 2").nothing();
        // Not more often than every half second.
        t.peer_dropped(DropReason::SynUnexpected, segment).nothing();
        t.wait(500).peer_dropped(DropReason::SynUnexpected, segment).expect(". 2:2(0) ack 2");
    }
    // Nor is one that ends where the peer's FIN did that FIN.
    let mut t = time_wait(plain());
    t.peer_dropped(DropReason::OutsideWindow, "SF 0:0(0)").expect(". 2:2(0) ack 2");
    t.peer_dropped(DropReason::OutsideWindow, "SF 0:0(0)").nothing();
}

#[test]
fn newer_timestamp_in_time_wait_is_enough_to_open_anew() {
    // RFC 6191 section 2.
    let config = Config { timestamps: true, ..plain() };
    let mut t = Test::connecting(config);
    t.expect("S 0:0(0)");
    t.peer("S. 0:0(0) ack 1 win 1000 <mss 1000,TS val 50 ecr 10000>").expect(". 1:1(0) ack 1");
    t.shutdown().peer("F. 1:1(0) ack 2 <TS val 50 ecr 10000>").state(State::TimeWait);
    let older = t.peer_any("S 1:1(0) win 1000 <TS val 50 ecr 0>").last;
    assert!(matches!(older, Disposition::Dropped(_)));
    let newer = t.peer_any("S 1:1(0) win 1000 <TS val 51 ecr 0>").last;
    assert!(matches!(newer, Disposition::SynInTimeWait { .. }));
}

#[test]
fn time_wait_keeps_what_was_received() {
    let mut t = Test::established(plain());
    t.shutdown().peer("F. 1:11(10) ack 2").state(State::TimeWait).read(10);
    assert_eq!(t.try_read(1), Ok(vec![]));
}

// ---- the window of a reset ----

/// As Linux: a reset that acknowledges has the window of any segment, one that answers has none.
#[test]
fn reset_that_acknowledges_carries_the_window() {
    let mut t = Test::established(Config { recv_buffer: 4000, ..plain() });
    t.peer("P. 1:1001(1000) ack 1").expect(". 1:1(0) ack 1001 win 3000");
    // Unread data is dropped first.
    t.abort().expect("R. 1:1(0) ack 1001 win 4000");
    let mut t = Test::established(Config { recv_buffer: 4000, ..plain() });
    t.close().expect("F. 1:1(0) ack 1");
    t.peer_any("P. 1:1001(1000) ack 1").expect("R 1:1(0) win 0");
}

#[test]
fn reset_of_a_fast_open_server_carries_the_window() {
    let config = Config { recv_buffer: 4000, ..plain() };
    let mut t = Test::accepting_fast(config, "S 0:10(10) win 1000 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 11 win 4000");
    t.abort().expect("R. 1:1(0) ack 11 win 4000");
}
