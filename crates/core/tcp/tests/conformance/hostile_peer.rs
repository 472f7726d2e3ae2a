//! A peer that keeps to the letter of the protocol and means harm: what it can make us spend is
//! bounded.

use crate::support::*;

/// Headers on the wire with all the room for options used.
const OPTIONS: u32 = 40;

fn supers() -> LinkLimits {
    LinkLimits::new(1448, 64_500)
}

#[test]
fn smallest_mss_leaves_payload_beside_every_option() {
    // An MSS of 1, and a gap that keeps SACK blocks beside the timestamps in every segment.
    let config = Config { timestamps: true, initial_cwnd: 1000, ..plain() };
    let syn_ack = "S. 0:0(0) ack 1 win 65535 <mss 1,sackOK,TS val 7 ecr 0>";
    let mut t = Test::established_with(config, link(), syn_ack);
    for i in [10, 20, 30] {
        t.peer(&format!(". {i}:{}(1) ack 1 <TS val 7 ecr 0>", i + 1));
    }
    t.sent();
    t.send(1000);
    for segment in t.sent_segments() {
        assert_eq!(segment.header.options.len() as u32, OPTIONS);
        assert!(
            len_of(&segment) >= 8 || segment.header.flags.contains(Flags::PSH),
            "{}",
            show(&segment)
        );
    }
}

#[test]
fn super_frame_has_a_bounded_number_of_segments() {
    let config = Config { timestamps: true, initial_cwnd: 10_000, ..plain() };
    let syn_ack = "S. 0:0(0) ack 1 win 65535 <mss 1,sackOK,TS val 7 ecr 0>";
    let mut t = Test::established_with(config, supers(), syn_ack);
    t.send(60_000);
    let sent = t.sent_segments();
    assert!(!sent.is_empty());
    for segment in sent {
        let wire = u32::from(segment.gso_size.unwrap_or(u16::MAX));
        assert!(len_of(&segment).div_ceil(wire) <= 128, "{}", show(&segment));
    }
}

#[test]
fn send_buffer_stays_below_half_of_the_sequence_space() {
    // 2.5 GiB of references to the same 64 MiB: an acknowledgement of one segment must not be
    // taken for one of everything.
    let mut t = Test::established(Config { send_buffer: u32::MAX, ..plain() });
    let piece = Frag::from_bytes(vec![7u8; 64 << 20].into());
    let mut queued = 0u64;
    while queued < 40 * (64 << 20) {
        match t.send_frags(&mut std::iter::once(piece.clone()).collect()) {
            Ok(n) => queued += n as u64,
            Err(error) => {
                assert_eq!(error, TcpError::WouldBlock);
                break;
            }
        }
    }
    t.peer(". 1:1(0) ack 1001");
    assert_eq!(t.conn.queued_send() as u64, queued - 1000);
}

#[test]
fn zero_window_over_data_in_flight_keeps_the_connection_while_the_peer_answers() {
    // RFC 9293 section 3.8.6.1: "As long as the receiving TCP peer continues to send
    // acknowledgments in response to the probe segments, the sending TCP peer MUST allow the
    // connection to stay open".
    let mut t = Test::established(plain());
    t.send(1000).expect("P. 1:1001(1000)");
    t.peer(". 1:1(0) ack 1 win 0");
    // Two hours: five times what an unanswered segment gets.
    for _ in 0..72 {
        t.wait(100_000);
        if !t.sent().is_empty() {
            t.peer(". 1:1(0) ack 1 win 0");
        }
        t.state(State::Established);
    }
    t.peer(". 1:1(0) ack 1 win 65535").wait(200_000).expect("P. 1:1001(1000)");
}

#[test]
fn zero_window_over_data_in_flight_does_not_keep_a_peer_that_is_gone() {
    let mut t = Test::established(plain());
    t.send(1000).expect("P. 1:1001(1000)");
    t.peer(". 1:1(0) ack 1 win 0");
    t.wait(2_000_000).state(State::Closed);
    assert_eq!(t.try_send(1), Err(TcpError::TimedOut));
}

#[test]
fn what_was_too_big_is_sent_again_without_waiting_for_the_timer() {
    let config = Config { initial_cwnd: 20, ..plain() };
    let mut t = Test::established(config);
    t.send(20_000).sent();
    t.icmp(1, IcmpKind::PacketTooBig { mss: 600 });
    let mut again = t.sent_segments();
    // Each acknowledgement lets the next of them go; the timer (a second here) has no part in it.
    for _ in 0..200 {
        let Some(end) = again.iter().map(end_of).max() else { break };
        t.wait(1);
        t.peer(&format!(". 1:1(0) ack {end}"));
        again = t.sent_segments();
    }
    assert_eq!(t.conn.queued_send(), 0);
}

#[test]
fn selective_acknowledgements_of_every_other_segment_cost_bounded_memory_and_time() {
    // A window full of the smallest segments, and a peer that has us cut it to pieces: each piece
    // is a record, and each new one moves those behind it.
    let buffer = 8 << 20;
    let config =
        Config { initial_cwnd: 255, send_buffer: buffer, send_buffer_initial: buffer, ..plain() };
    let syn_ack = "S. 0:0(0) ack 1 win 65535 <mss 1,sackOK,wscale 14>";
    let mut t = Test::established_with(config, supers(), syn_ack);
    let (mut una, mut end) = (1, 1);
    while t.conn.info().unacked < 4 << 20 {
        t.peer(&format!(". 1:1(0) ack {end} win 65535"));
        una = end;
        let room = t.conn.room_for(usize::MAX);
        if room > 0 {
            t.send(room);
        }
        t.sent();
        end = una + t.conn.info().unacked;
    }
    for i in 0..40_000 {
        let at = una + 48 + i * 96;
        t.peer(&format!(". 1:1(0) ack {una} <sack {at}:{}>", at + 48));
        t.sent();
    }
    let info = t.conn.info();
    assert!(info.sacked <= 48 * 16_384, "{info:?}");
    assert!(info.sacks_ignored > 0, "and it is counted: {info:?}");
    // Data whose SACKs were ignored counts as delivered all the same, once it is acknowledged.
    t.peer(&format!(". 1:1(0) ack {end}"));
    assert_eq!(t.conn.info().bytes_acked, u64::from(end) - 1);
}
