//! RFC 9293 sections 3.7.4 and 3.8: Nagle, windows, probes, keep-alive, delayed acknowledgements.

use crate::support::*;

// ---- 3.7.4: Nagle, in Minshall's variant ----

given! {
    let mut t = Test::established(nagle());

    small_segments_that_waited_leave_as_one {
        t.send(10).expect("P. 1:11(10)").send(10).send(20).send(30).nothing();
        t.peer(". 1:1(0) ack 11").expect("P. 11:71(60)").nothing();
    }
    small_tail_does_not_wait_for_full_segments {
        // Minshall: only small segments hold back small ones.
        t.send(2500).expect(". 1:1001(1000)").expect(". 1001:2001(1000)")
            .expect("P. 2001:2501(500)");
        t.send(10).nothing();
    }
    full_segment_does_not_wait {
        t.send(10).expect("P. 1:11(10)").send(1500);
        t.expect(". 11:1011(1000)").nothing();
        t.peer(". 1:1(0) ack 11").expect("P. 1011:1511(500)").nothing();
    }
    fin_does_not_let_the_tail_wait {
        t.send(10).expect("P. 1:11(10)").send(10).nothing();
        t.shutdown().expect("FP. 11:21(10)").nothing();
    }
    nodelay_sends_small_segments_at_once {
        t.conn.settings().set_nodelay(true);
        t.send(10).expect("P. 1:11(10)").send(10).expect("P. 11:21(10)").nothing();
    }
}

#[test]
fn small_segments_are_not_taken_for_those_of_another_wrap_of_the_numbers() {
    // Beyond half of the sequence space, state noted at the start compares as ahead. It must neither hold
    // back a segment with nothing in flight before it, nor release one that is to wait.
    let wide = LinkLimits::new(60_000, 60_000);
    let syn_ack = "S. 0:0(0) ack 1 win 65535 <mss 60000>";
    let mut t = Test::established_with(nagle(), wide, syn_ack);
    let mss = 32_767;
    let bytes = bytes::Bytes::from(vec![0; mss as usize]);
    let mut ack = header(". 1:1(0) ack 1 win 65535");
    let mut at = 0_u64;
    for turns in [5, 10] {
        while at < turns << 29 {
            t.send_frags(&mut FragVec::from_iter([Frag::from_bytes(bytes.clone())])).unwrap();
            assert_eq!(t.sent_segments().len(), 1, "a full segment leaves");
            ack.ack += mss;
            at += u64::from(mss);
            assert_eq!(t.peer_header(&ack, FragVec::new()), Disposition::Accepted);
        }
        t.send(10);
        assert_eq!(t.sent_segments().len(), 1, "nothing is under way");
        t.send(10).send(10).nothing();
        assert_eq!((t.conn.queued_send(), t.conn.queued_unsent()), (30, 20));
        ack.ack += 10;
        assert_eq!(t.peer_header(&ack, FragVec::new()), Disposition::Accepted);
        assert_eq!(t.sent_segments().len(), 1, "what waited leaves as one");
        ack.ack += 20;
        assert_eq!(t.peer_header(&ack, FragVec::new()), Disposition::Accepted);
        t.nothing();
        at += 30;
    }
}

#[test]
fn corked_tail_leaves_after_200_ms() {
    let mut t = Test::established(plain());
    t.conn.settings().set_cork(true);
    t.send(1500).expect(". 1:1001(1000)").nothing().peer(". 1:1(0) ack 1001").nothing();
    t.wait(300).expect_after(200, "P. 1001:1501(500)").nothing();
}

// ---- 3.8.6.2.1: silly windows, sending ----

#[test]
fn segment_is_not_cut_to_fit_a_window() {
    let mut t = Test::established_with(plain(), link(), "S. 0:0(0) ack 1 win 2500 <mss 1000>");
    t.send(5000).expect(". 1:1001(1000)").expect("P. 1001:2001(1000)").nothing();
    t.peer(". 1:1(0) ack 1001 win 1900").nothing();
    t.peer(". 1:1(0) ack 2001 win 1900").expect(". 2001:3001(1000)").nothing();
}

#[test]
fn segment_is_at_most_half_of_the_largest_window() {
    let mut t = Test::established_with(plain(), link(), "S. 0:0(0) ack 1 win 800 <mss 1000>");
    t.send(1000).expect(". 1:401(400)").expect("P. 401:801(400)").nothing();
}

#[test]
fn window_smaller_than_a_segment_is_used_after_a_while() {
    let mut t = Test::established(plain());
    t.send(10).expect("P. 1:11(10)").peer(". 1:1(0) ack 11 win 300");
    t.send(1000).nothing();
    t.wait(250).expect("P. 11:311(300)").nothing();
}

// ---- 3.8.6.2.2: silly windows, receiving ----

#[test]
fn window_opens_in_segments_only() {
    let config = Config { recv_buffer: 4000, ..plain() };
    let mut t = Test::established(config);
    t.peer("P. 1:4001(4000) ack 1").expect(". 1:1(0) ack 4001 win 0").nothing();
    t.read(999).nothing();
    t.read(1).expect(". 1:1(0) ack 4001 win 1000").nothing();
    t.read(999).nothing();
    t.read(1).expect(". 1:1(0) ack 4001 win 2000").nothing();
}

#[test]
fn window_update_is_sent_once_it_has_doubled() {
    let config = Config { recv_buffer: 40_000, ..plain() };
    let mut t = Test::established(config);
    t.peer("P. 1:30001(30000) ack 1").expect(". 1:1(0) ack 30001 win 10000").nothing();
    t.read(9_000).nothing();
    t.read(1_000).expect(". 1:1(0) ack 30001 win 20000").nothing();
    t.read(20_000).expect(". 1:1(0) ack 30001 win 40000").nothing();
}

/// Linux's numbers for its smallest buffers, and for one of the usual size.
#[test]
fn first_window_is_a_multiple_of_what_a_segment_carries() {
    let link = LinkLimits::new(1460, 1460);
    for (buffer, plain_window, with_timestamps) in [
        (5000, 4380, 4344),
        (20_000, 18_980, 18_824),
        (40_000, 39_420, 39_096),
        (65_536, 64_240, 65_160),
    ] {
        let config = Config { recv_buffer_initial: buffer, timestamps: true, ..plain() };
        for (options, window) in [("", plain_window), (",TS val 1 ecr 0", with_timestamps)] {
            let syn = format!("S 0:0(0) win 65535 <mss 1460{options}>");
            let mut t = Test::accepting_over(config.clone(), link, &syn);
            t.expect(&format!("S. 0:0(0) ack 1 win {window}"));
        }
        // Our own SYN does not know yet whether timestamps will take room.
        let mut t = Test::connecting_over(config, link);
        t.expect(&format!("S 0:0(0) win {plain_window}")).peer("S. 0:0(0) ack 1 <mss 1460>");
        assert_eq!(t.conn.info().recv_window, plain_window);
    }
    // More than the field can hold is the most that it can.
    let mut t = Test::connecting_over(plain(), link);
    t.expect("S 0:0(0) win 65535");
}

// ---- section 3.8.6: a window that shrinks, by setting ----

fn shrinking(shrink_window: bool) -> Config {
    Config { shrink_window, recv_buffer: 128 << 10, recv_buffer_initial: 64 << 10, ..plain() }
}

/// The SYN offers up to 65001, by a scale of 2; then the buffer becomes smaller.
fn scaled(config: Config) -> Test {
    let mut t = Test::connecting(config);
    t.expect("S 0:0(0) win 65000").peer("S. 0:0(0) ack 1 win 65535 <mss 65000,sackOK,wscale 0>");
    t.sent();
    assert_eq!(t.conn.info().recv_scale, 2);
    t.conn.settings().set_recv_buffer(40_000);
    t
}

#[test]
fn window_shrinks_with_the_free_buffer_by_setting_only() {
    for (setting, window) in [(true, 10_000), (false, 35_000)] {
        let mut t = scaled(shrinking(setting));
        t.peer("P. 1:30001(30000) ack 1");
        t.expect(&format!(". 1:1(0) ack 30001 win {}", window / 4));
    }
}

/// Less than a sixteenth of the buffer is free.
#[test]
fn data_within_what_was_ever_offered_is_taken_after_the_window_has_shrunk() {
    let mut t = scaled(shrinking(true));
    t.peer("P. 1:39001(39000) ack 1").expect(". 1:1(0) ack 39001 win 0");
    // Beyond a gap it is taken too, and reported.
    t.peer(". 63001:64001(1000) ack 1").expect(". 1:1(0) ack 39001 win 0 <sack 63001:64001>");
    t.peer(". 39001:63001(24000) ack 1").expect(". 1:1(0) ack 64001 win 0 <>");
    t.peer_dropped(DropReason::OutsideWindow, ". 65001:65101(100) ack 1").sent();
    t.read(64_000).expect(". 1:1(0) ack 64001 win 10000");
}

/// The peer does not know that the buffer has room again, unless an update of the window says so.
#[test]
fn window_that_has_shrunk_is_announced_when_it_opens() {
    let mut t = scaled(shrinking(true));
    t.peer("P. 1:39001(39000) ack 1").expect(". 1:1(0) ack 39001 win 0");
    t.read(1000).nothing();
    t.read(10_000).expect(". 1:1(0) ack 39001 win 3000");
}

/// The host's memory counts as the buffer does: less than a segment of it opens nothing.
#[test]
fn memory_for_less_than_a_segment_opens_no_window() {
    let mut t = Test::established(Config { recv_buffer: 4000, ..plain() });
    t.peer("P. 1:4001(4000) ack 1").expect(". 1:1(0) ack 4001 win 0").nothing();
    let all = 1 << 20;
    t.shared.memory = MemoryAccount::for_received(all);
    t.shared.memory.charge(0, all);
    t.read(1500).nothing();
    // Memory is freed little by little. The first window that it opens is a whole segment.
    let mut opened = Vec::new();
    while opened.is_empty() && t.shared.memory.used() > 0 {
        t.shared.memory.charge(100, 0);
        opened = t.after_return().sent_segments();
    }
    assert_eq!(opened.iter().map(|s| s.header.window).collect::<Vec<_>>(), [1000]);
}

#[test]
fn connection_that_holds_nothing_is_offered_four_segments_without_memory() {
    let mut t = Test::established(Config { recv_buffer: 40_000, ..plain() });
    t.peer("P. 1:40001(40000) ack 1").expect(". 1:1(0) ack 40001 win 0").nothing();
    t.shared.memory = MemoryAccount::for_received(1 << 20);
    t.shared.memory.charge(0, 1 << 20);
    t.read(39_999).nothing();
    t.read(1).expect(". 1:1(0) ack 40001 win 4000").nothing();
}

#[test]
fn right_edge_never_moves_back() {
    let config = Config { recv_buffer: 4000, ..plain() };
    let mut t = Test::established(config);
    let mut edge = 4001;
    for i in 0..30u32 {
        let (from, to) = (1 + i * 100, 101 + i * 100);
        t.peer(&format!("P. {from}:{to}(100) ack 1"));
        for s in t.sent_segments() {
            let now = s.header.ack.since(IRS) + u32::from(s.header.window);
            assert!(now >= edge, "edge moved from {edge} to {now}");
            edge = now;
        }
    }
}

// ---- 3.8.6.1: zero-window probes ----

given! {
    let mut t = Test::established(plain());

    zero_window_is_probed_with_growing_intervals {
        t.send(10).expect("P. 1:11(10)").peer(". 1:1(0) ack 11 win 0");
        t.send(100).nothing();
        t.wait(2000);
        t.expect_after(200, ". 10:10(0) ack 1");
        t.expect_after(600, ". 10:10(0) ack 1");
        t.expect_after(1400, ". 10:10(0) ack 1").nothing();
        t.peer(". 1:1(0) ack 11 win 1000").expect("P. 11:111(100)").nothing();
    }
    zero_window_times_out_when_nobody_answers_the_probes {
        t.send(10).peer(". 1:1(0) ack 11 win 0").send(100).wait(3_000_000).state(State::Closed);
        assert_eq!(t.conn.error(), Some(TcpError::TimedOut));
    }
    fin_waits_for_a_zero_window_too {
        t.send(10).expect("P. 1:11(10)").peer(". 1:1(0) ack 11 win 0").shutdown().nothing();
        t.wait(300).expect(". 10:10(0)");
        t.peer(". 1:1(0) ack 11 win 10").expect("F. 11:11(0)").nothing();
    }
}

#[test]
fn zero_window_of_an_orphan_is_probed_so_often_and_no_more_although_the_peer_answers() {
    // Section 3.8.6.1 has a connection stay open for as long as the peer answers; but of one whose
    // application is gone nobody would ever notice, and memory is held for it.
    for retries in [1, 3, 8] {
        let mut t = Test::established(Config { orphan_retries: retries, ..plain() });
        t.peer(". 1:1(0) ack 1 win 0").send(1000).close().nothing();
        let mut probes = 0;
        for _ in 0..100_000 {
            t.wait(100);
            for sent in t.sent() {
                if sent.starts_with('R') {
                    continue;
                }
                assert!(sent.starts_with(". 0:0(0) ack 1"), "a probe: {sent}");
                probes += 1;
                t.peer(". 1:1(0) ack 1 win 0");
            }
            if t.conn.state() == State::Closed {
                break;
            }
        }
        t.state(State::Closed);
        assert_eq!(probes, retries, "probes");
        assert_eq!(t.conn.queued_send(), 0);
    }
}

// ---- 3.8.6.3: delayed acknowledgements ----

given! {
    let (mut t, next) = Test::settled(plain());

    acknowledgement_is_delayed_by_40_ms {
        t.peer(&format!("P. {next}:{}(1) ack 1", next + 1)).nothing();
        t.wait(1000).expect_after(40, &format!(". 1:1(0) ack {}", next + 1)).nothing();
    }
    second_full_segment_is_acknowledged_at_once {
        t.peer(&format!(". {next}:{}(1000) ack 1", next + 1000)).nothing();
        t.peer(&format!(". {}:{}(1000) ack 1", next + 1000, next + 2000));
        t.expect(&format!(". 1:1(0) ack {}", next + 2000)).nothing();
    }
    super_frame_counts_as_its_segments {
        t.peer(&format!(". {next}:{}(2000) ack 1", next + 2000));
        t.expect(&format!(". 1:1(0) ack {}", next + 2000)).nothing();
    }
    acknowledgement_rides_on_data {
        t.peer(&format!("P. {next}:{}(1) ack 1", next + 1)).nothing();
        t.send(10).expect(&format!("P. 1:11(10) ack {}", next + 1));
        t.wait(100).nothing();
    }
    segment_beyond_a_gap_is_acknowledged_at_once {
        t.peer(&format!("P. {}:{}(1) ack 1", next + 1, next + 2));
        t.expect(&format!(". 1:1(0) ack {next} <sack {}:{}>", next + 1, next + 2)).nothing();
    }
    segment_that_fills_a_gap_is_acknowledged_at_once {
        t.peer(&format!("P. {}:{}(1) ack 1", next + 1, next + 2)).sent();
        t.peer(&format!("P. {next}:{}(1) ack 1", next + 1));
        t.expect(&format!(". 1:1(0) ack {}", next + 2)).nothing();
    }
}

#[test]
fn whoever_answers_delays_its_acknowledgements() {
    let mut t = Test::established(plain());
    t.peer("P. 1:11(10) ack 1").expect(". 1:1(0) ack 11").read(10);
    t.send(10).expect("P. 1:11(10) ack 11");
    t.peer("P. 11:21(10) ack 11").nothing();
    t.send(10).expect("P. 11:21(10) ack 21");
}

// ---- 3.8.4: keep-alive ----

fn keepalive() -> Config {
    let keepalive =
        KeepAlive { idle: Duration::from_secs(10), interval: Duration::from_secs(2), probes: 3 };
    Config { keepalive: Some(keepalive), ..plain() }
}

#[test]
fn idle_connection_is_probed() {
    let mut t = Test::established(keepalive());
    t.wait(9_999).nothing();
    t.wait(1).expect(". 0:0(0) ack 1").nothing();
    t.peer(". 1:1(0) ack 1").nothing().wait(9_999).nothing().wait(2_001).expect(". 0:0(0) ack 1");
}

#[test]
fn peer_that_answers_no_probe_is_given_up_with_a_reset() {
    let mut t = Test::established(keepalive());
    t.wait(100_000).state(State::Closed);
    t.expect_after(10_000, ". 0:0(0)").expect_after(12_000, ". 0:0(0)");
    t.expect_after(14_000, ". 0:0(0)").expect_after(16_000, "R. 1:1(0)").nothing();
    assert_eq!(t.conn.error(), Some(TcpError::TimedOut));
}

#[test]
fn linux_does_not_probe_a_peer_whose_fin_is_all_that_a_closed_connection_waits_for() {
    let mut t = Test::established(keepalive());
    t.close().expect("F. 1:1(0) ack 1").peer(". 1:1(0) ack 2").state(State::FinWait2);
    t.wait(59_999).nothing().state(State::FinWait2).wait(1).state(State::Closed);
}

#[test]
fn keepalive_of_no_time_is_due_a_millisecond_later_at_the_earliest() {
    let nothing = KeepAlive { idle: Duration::ZERO, interval: Duration::ZERO, probes: 3 };
    let mut t = Test::established(Config { keepalive: Some(nothing), ..plain() });
    t.send(10).expect("P. 1:11(10) ack 1");
    for _ in 0..20 {
        t.wait(1).nothing();
        assert!(t.conn.poll_timeout() > Some(t.now), "a timer that is due again and again");
    }
    t.peer(". 1:1(0) ack 11").wait(10).state(State::Closed);
}

#[test]
fn keepalive_is_off_by_default() {
    let mut t = Test::established(plain());
    t.wait(2_000).nothing();
    assert_eq!(t.conn.poll_timeout(), None);
}

// ---- 3.8.6: what was offered is not taken back ----

/// The right edge that a segment announces, from the peer's first number on.
fn edges(t: &mut Test) -> Vec<u32> {
    let edge = |s: &SegmentOut| s.header.ack.since(IRS) + u32::from(s.header.window);
    t.sent_segments().iter().map(edge).collect()
}

#[test]
fn window_of_a_syn_ack_that_was_sent_again_is_not_taken_back() {
    let config = Config { window_scaling: false, recv_buffer: 10_000, ..plain() };
    let mut t = Test::accepting(config, "S 0:0(0) win 1000 <mss 1000>");
    assert_eq!(edges(&mut t), [10_001]);
    t.conn.settings().set_recv_buffer(20_500);
    t.wait(1_500);
    assert_eq!(edges(&mut t), [20_001]);
    t.peer(". 1:1(0) ack 1").peer("F. 1:1(0) ack 1");
    let last = edges(&mut t).pop().unwrap();
    assert!(last >= 20_001, "the window shrinks to {last}");
}

#[test]
fn window_of_a_syn_is_not_taken_back() {
    let mut t = Test::connecting(Config { window_scaling: false, ..plain() });
    let syn = u32::from(t.sent_segments()[0].header.window);
    t.conn.settings().set_recv_buffer(10_000);
    t.peer("S. 0:0(0) ack 1 win 1000 <mss 1000>");
    assert!(edges(&mut t)[0] > syn, "the window shrinks");
}

#[test]
fn window_below_the_peers_segments_opens_again_when_it_was_read() {
    // A buffer that may grow, and a peer that could send more at once than it holds now.
    let config = Config { window_scaling: false, recv_buffer_initial: 2_500, ..plain() };
    let link = LinkLimits::new(8_940, 8_940);
    let mut t = Test::established_with(config, link, "S. 0:0(0) ack 1 win 1000 <mss 8940>");
    let window = t.conn.info().recv_window;
    for (from, to) in [(0, window / 2), (window / 2, window)] {
        t.peer(&format!(". {}:{}({}) ack 1", from + 1, to + 1, to - from));
        t.read((to - from) as usize);
        t.wait(300);
        t.sent_segments();
    }
    assert!(t.conn.info().recv_window > 0, "closed for good: {:?}", t.conn.info());
}
