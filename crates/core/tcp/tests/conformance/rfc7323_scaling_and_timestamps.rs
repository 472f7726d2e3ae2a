//! RFC 7323: window scaling, timestamps, PAWS; and what SYNs offer.

use crate::support::*;

fn stamps() -> Config {
    Config { timestamps: true, ..plain() }
}

/// Established with timestamps; the peer's clock stands at 500, ours at 10000.
fn stamped() -> Test {
    let mut t = Test::connecting(stamps());
    t.expect("S 0:0(0) <mss 1000,sackOK,TS val 10000 ecr 0,wscale 7>");
    t.peer("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,TS val 500 ecr 10000,wscale 7>");
    t.expect(". 1:1(0) ack 1 <TS val 10000 ecr 500>");
    t
}

given! {
    let mut t = stamped();

    window_of_a_syn_is_not_scaled_and_those_after_the_handshake_are {
        assert_eq!(t.conn.info().send_window, 65_535);
        t.peer(". 1:1(0) ack 1 win 1000 <TS val 500 ecr 10000>");
        assert_eq!(t.conn.info().send_window, 128_000);
    }
    window_of_the_handshake_is_announced_in_units_of_the_scale_behind_it {
        t.peer("P. 1:2(1) ack 1 <TS val 501 ecr 10000>").expect(". 1:1(0) ack 2 win 512");
        assert_eq!(t.conn.info().recv_window, 512 << 7);
    }
    timestamps_take_twelve_bytes_of_each_segment {
        t.send(1000).expect(". 1:989(988)").expect("P. 989:1001(12)");
    }
    round_trip_is_measured_by_timestamps_when_segments_are_ambiguous {
        t.send(10).expect("P. 1:11(10)").wait(250).expect("P. 1:11(10)").wait(30);
        t.peer(". 1:1(0) ack 11 <TS val 600 ecr 10200>");
        assert!(t.conn.info().srtt >= Duration::from_millis(5));
        assert_eq!(t.conn.info().backoff, 0);
    }
    old_timestamp_elicits_ack_and_is_dropped {
        // Section 5.3 R1.
        t.peer("P. 1:11(10) ack 1 <TS val 510 ecr 10000>").expect(". 1:1(0) ack 11");
        t.peer_dropped(DropReason::Paws, "P. 11:21(10) ack 1 <TS val 509 ecr 10000>");
        t.expect(". 1:1(0) ack 11 <TS val 10000 ecr 510>").nothing();
        t.peer("P. 11:21(10) ack 1 <TS val 510 ecr 10000>").expect(". 1:1(0) ack 21");
    }
    old_timestamp_does_not_save_from_a_reset {
        t.peer("R. 1:1(0) ack 1 <TS val 1 ecr 10000>").state(State::Closed);
    }
    timestamp_counts_again_after_24_days {
        // Section 5.5.
        t.wait(25 * 24 * 3600 * 1000);
        t.peer("P. 1:11(10) ack 1 <TS val 400 ecr 10000>").state(State::Established);
    }
    timestamp_of_a_segment_beyond_a_gap_is_not_echoed {
        // Section 4.3: what is echoed is the segment that the acknowledgement number advanced for.
        t.peer("P. 11:21(10) ack 1 <TS val 520 ecr 10000>");
        t.expect(". 1:1(0) ack 1 <sack 11:21,TS val 10000 ecr 500>");
        t.peer("P. 1:11(10) ack 1 <TS val 510 ecr 10000>");
        t.expect(". 1:1(0) ack 21 <TS val 10000 ecr 510>");
    }
    segment_without_the_option_passes {
        t.peer("P. 1:11(10) ack 1").expect(". 1:1(0) ack 11").read(10);
    }
}

#[test]
fn scale_is_used_only_if_both_sides_offer_it() {
    let mut t = Test::accepting(plain(), "S 0:0(0) win 1000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    t.peer(". 1:1(0) ack 1 win 1000").state(State::Established);
    assert_eq!(t.conn.info().send_window, 1000);
    assert_eq!(t.conn.info().recv_window, 65_535);
}

#[test]
fn scale_beyond_14_counts_as_14() {
    let mut t = Test::accepting(plain(), "S 0:0(0) win 1000 <mss 1000,wscale 15>");
    t.peer(". 1:1(0) ack 1 win 1");
    assert_eq!(t.conn.info().send_window, 1 << 14);
}

#[test]
fn option_that_was_not_agreed_on_is_ignored() {
    let mut t = Test::established(plain());
    t.peer("P. 1:11(10) ack 1 <TS val 5 ecr 0>").expect(". 1:1(0) ack 11 <>");
    t.peer("P. 11:21(10) ack 1 <TS val 1 ecr 0>").expect(". 1:1(0) ack 21 <>");
}

#[test]
fn syn_offers_only_what_is_configured() {
    let config = Config { sack: false, window_scaling: false, max_mss: Some(600), ..plain() };
    let mut t = Test::connecting(config);
    t.expect("S 0:0(0) win 65535 <mss 600>");
}

#[test]
fn missing_mss_option_means_536() {
    // RFC 9293 section 3.7.1.
    let mut t = Test::established_with(plain(), link(), "S. 0:0(0) ack 1 win 65535");
    t.send(600).expect(". 1:537(536)").expect("P. 537:601(64)");
}

#[test]
fn tiny_mss_option_is_bounded() {
    let mut t = Test::established_with(plain(), link(), "S. 0:0(0) ack 1 win 65535 <mss 1>");
    t.send(36).expect("P. 1:37(36)").nothing();
}
