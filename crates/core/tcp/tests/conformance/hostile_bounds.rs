//! Bounds on what a hostile peer achieves: bytes of memory, segments sent, growth of windows.

use pagewire_tcp::limits::{MAX_OUT_OF_ORDER_RANGES, REFUSE_MIN_PINNED};

use crate::support::*;

// ---- acknowledgements ----

#[test]
fn acknowledgement_of_what_was_never_sent_grows_nothing() {
    // "Optimistic ACKs" (Savage et al. 1999), before the data: dropped, and answered at a rate that
    // does not depend on how many there are.
    let mut t = Test::established(Config { initial_cwnd: 2, ..plain() });
    t.send(100_000).sent();
    let before = t.conn.info();
    for i in 0..10_000u32 {
        let ack = 2001 + 1 + i * 9;
        t.peer_dropped(DropReason::AckUnsent, &format!(". 1:1(0) ack {ack}"));
    }
    let after = t.conn.info();
    assert_eq!((after.cwnd, after.unacked), (before.cwnd, before.unacked));
    t.expect(". 2001:2001(0) ack 1").nothing();
}

#[test]
fn acknowledging_byte_by_byte_grows_the_window_by_bytes() {
    // "ACK division": RFC 3465 section 2.1 counts bytes, not acknowledgements.
    let config = Config { initial_cwnd: 2, ..plain() };
    let (mut whole, mut split) = (Test::established(config.clone()), Test::established(config));
    for t in [&mut whole, &mut split] {
        t.send(500_000).sent();
    }
    whole.peer(". 1:1(0) ack 2001");
    for ack in 2..=2001 {
        split.peer(&format!(". 1:1(0) ack {ack}"));
        split.sent();
    }
    let (whole, split) = (whole.conn.info().cwnd, split.conn.info().cwnd);
    assert!(split <= whole + 1000, "{split} bytes after 2,000 acknowledgements, {whole} after one");
}

#[test]
fn duplicate_acknowledgements_send_no_more_than_the_peers_window() {
    // "DupACK spoofing": each duplicate would inflate the window (RFC 5681 section 3.2). As in
    // Linux no more of them count than segments are under way; so the peer's window is the end.
    let mut t = Test::established(Config { initial_cwnd: 10, sack: false, ..plain() });
    t.send(1_000_000).sent();
    let mut segments = 0;
    for _ in 0..10_000 {
        t.peer_any(". 1:1(0) ack 1 win 65535");
        segments += t.sent().len();
    }
    assert!(t.conn.info().unacked <= 65_535);
    // 65 segments fit the window, and what was lost goes again.
    assert!(segments <= 75, "{segments} segments for 10,000 duplicates");
}

// ---- windows ----

#[test]
fn window_of_one_byte_draws_a_segment_per_timeout_not_per_byte() {
    // Silly windows (RFC 9293 section 3.8.6.2.1), for ten minutes, each segment acknowledged.
    let mut t = Test::established(plain());
    t.send(100_000).sent();
    t.peer(". 1:1(0) ack 10001 win 1");
    let (mut una, mut segments) = (10_001, 0);
    for _ in 0..600 {
        t.wait(1000);
        for segment in t.sent_segments() {
            segments += 1;
            una = una.max(end_of(&segment));
        }
        t.peer_any(&format!(". 1:1(0) ack {una} win 1"));
    }
    assert!(segments <= 3000, "{segments} segments in 600 seconds: five a second");
    assert!(segments >= 100, "{segments}: it does get on");
    t.state(State::Established);
}

#[test]
fn zero_window_for_a_day_costs_a_probe_every_two_minutes() {
    let mut t = Test::established(plain());
    t.send(10_000).sent();
    t.peer(". 1:1(0) ack 10001 win 0").send(50_000);
    let mut probes = 0;
    for _ in 0..24 * 60 {
        t.wait(60_000);
        let sent = t.sent().len();
        probes += sent;
        if sent > 0 {
            t.peer(". 1:1(0) ack 10001 win 0");
        }
    }
    // Doubling up to 120 s: ten to get there.
    assert!((700..=740).contains(&probes), "{probes} probes in 24 hours");
    assert_eq!(t.conn.queued_send(), 50_000);
}

#[test]
fn window_taken_back_stops_new_data_and_loses_none() {
    // RFC 9293 section 3.8.6: a sender must be robust against a window that shrinks.
    let mut t = Test::established(Config { initial_cwnd: 20, ..plain() });
    t.send(10_000).sent();
    t.peer(". 1:1(0) ack 1001 win 2000");
    t.send(20_000).nothing();
    // Data beyond the edge is sent again only as a probe, and the peer may open its window again.
    t.wait(2000);
    assert!(t.sent().len() <= 6);
    t.peer(". 1:1(0) ack 10001 win 65535");
    for _ in 0..100 {
        if let Some(last) = t.sent_segments().pop() {
            t.peer_any(&format!(". 1:1(0) ack {} win 65535", end_of(&last)));
        }
    }
    assert_eq!((t.conn.queued_send(), t.conn.info().bytes_acked), (0, 30_000));
}

// ---- what is received ----

#[test]
fn pieces_beyond_gaps_are_bounded_in_number_and_memory() {
    // Every second byte of the window, the first never. Each byte pins a page.
    let mut t = Test::established(Config { recv_buffer: 1 << 20, ..plain() });
    let (mut dropped, mut answers) = (0, 0);
    for at in (0..30_000).map(|i| 3 + 2 * i) {
        t.peer_any(&format!(". {at}:{}(1) ack 1", at + 1));
        dropped += usize::from(matches!(t.last, Disposition::Dropped(_)));
        answers += t.sent().len();
    }
    assert_eq!(dropped, 30_000 - MAX_OUT_OF_ORDER_RANGES, "the rest is refused, and counted");
    assert!(answers <= 30_000, "{answers}: one answer for each segment");
    let pinned = t.conn.pinned_receive();
    assert!(pinned <= REFUSE_MIN_PINNED, "{pinned} bytes for {MAX_OUT_OF_ORDER_RANGES} ranges");
    // Once the gap is filled, the kept bytes are there; refused bytes come again.
    t.peer(". 1:2(1) ack 1");
    assert_eq!(t.conn.queued_receive(), 1);
    t.peer(". 2:3(1) ack 1");
    assert_eq!(t.conn.queued_receive(), 3);
}

given! {
    let mut t = Test::established(plain());

    duplicates_are_answered_once_each_and_held_once {
        t.peer(". 1:1001(1000) ack 1").sent();
        let before = t.conn.pinned_receive();
        let mut answers = 0;
        for _ in 0..100_000 {
            t.peer_dropped(DropReason::Duplicate, ". 1:1001(1000) ack 1");
            answers += t.sent().len();
        }
        assert!(answers <= 100_000, "{answers}: never more than came in");
        assert_eq!(t.conn.pinned_receive(), before);
    }
    data_for_a_host_without_memory_is_refused_and_taken_when_there_is_some {
        t.shared.memory = MemoryAccount::for_received(1 << 20);
        t.shared.memory.charge(0, 1 << 20);
        t.peer_dropped(DropReason::HostMemory, ". 1:1001(1000) ack 1").sent();
        t.shared.memory.charge(1 << 20, 0);
        t.peer(". 1:1001(1000) ack 1").read(1000);
    }
    /// In the last eighth of the memory. Without any selective acknowledgement, only a timeout would tell
    /// the peer of the gap.
    two_segments_beyond_a_gap_are_taken_although_memory_is_short {
        t.shared.memory = MemoryAccount::for_received(1 << 20);
        t.shared.memory.charge(0, (1 << 20) * 15 / 16 - 10_000);
        t.peer(". 1001:2001(1000) ack 1").expect(". 1:1(0) ack 1 <sack 1001:2001>");
        // Two segments of a coalesced frame are taken.
        t.peer_dropped(DropReason::HostMemory, ". 3001:23001(20000) ack 1");
        t.expect(". 1:1(0) ack 1 <sack 3001:5001 1001:2001>");
        t.peer_dropped(DropReason::HostMemory, ". 30001:31001(1000) ack 1");
        t.expect(". 1:1(0) ack 1 <sack 3001:5001 1001:2001>");
        t.peer(". 1:1001(1000) ack 1").sent();
        t.peer(". 2001:3001(1000) ack 1").expect(". 1:1(0) ack 5001 <>").read(5000);
    }
    /// The last sixteenth is for those that hold nothing.
    nothing_beyond_a_gap_is_taken_of_what_is_left_for_others {
        t.shared.memory = MemoryAccount::for_received(1 << 20);
        t.shared.memory.charge(0, (1 << 20) * 15 / 16 - 500);
        t.peer_dropped(DropReason::HostMemory, ". 1001:2001(1000) ack 1");
        t.expect(". 1:1(0) ack 1 <>");
    }
    what_comes_next_in_order_has_precedence_over_what_waits_beyond_a_gap {
        // RFC 2018 section 8: what was SACKed may be thrown away when memory runs out.
        t.shared.memory = MemoryAccount::for_received(100_000);
        t.peer(". 2001:4001(2000) ack 1").sent();
        let held = t.conn.receive_charge();
        t.shared.memory.charge(0, 100_000);
        assert!(held >= 2000);
        t.peer(". 1:1001(1000) ack 1").read(1000);
        assert_eq!(t.conn.receive_charge(), 0);
        // The peer sends the rest again.
        t.shared.memory.charge(100_000, 0);
        t.peer(". 1001:4001(3000) ack 1").read(3000);
    }
    what_waits_beyond_a_gap_is_not_thrown_away_for_more_than_it_makes_room_for {
        t.shared.memory = MemoryAccount::for_received(100_000);
        t.peer(". 3001:3101(100) ack 1").sent();
        let held = t.conn.receive_charge();
        t.shared.memory.charge(0, 100_000);
        t.peer_dropped(DropReason::HostMemory, ". 1:2001(2000) ack 1").sent();
        assert_eq!(t.conn.receive_charge(), held);
        t.shared.memory.charge(100_000, 0);
        t.peer(". 1:3001(3000) ack 1").read(3100);
    }
}

// ---- ICMP ----

#[test]
fn forged_icmp_errors_end_nothing_and_cut_segments_to_512_bytes_at_least() {
    // RFC 5927: an error counts as a hint at most, and only if it quotes what is under way.
    let mut t = Test::established(plain());
    t.send(5000).sent();
    let before = t.conn.info();
    let hard = IcmpKind::Unreachable { hard: true, error: TcpError::ConnectionRefused };
    for i in 0..10_000u32 {
        // Not under way.
        t.icmp(50_000 + i * 400_000, IcmpKind::PacketTooBig { mss: 600 });
        t.icmp(50_000 + i * 400_000, hard);
    }
    assert_eq!(t.conn.info().send_mss, before.send_mss);
    t.state(State::Established);
    // Under way: no connection ends for it; a segment keeps 512 bytes whatever is claimed.
    for mss in [0, 1, 68, 500] {
        t.icmp(1, hard);
        t.icmp(1, IcmpKind::PacketTooBig { mss });
    }
    t.state(State::Established);
    assert_eq!(t.conn.info().send_mss, 512);
    t.sent();
    t.peer(". 1:1(0) ack 5001");
    assert_eq!(t.conn.queued_send(), 0);
}
