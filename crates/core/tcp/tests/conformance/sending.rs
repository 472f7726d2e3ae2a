//! Super-frames, fragments, buffers and path MTU: what leaves, and by reference.

use crate::support::*;

#[test]
fn super_frame_is_whole_segments_where_more_follows() {
    let config = Config { initial_cwnd: 200, ..plain() };
    let mut t = Test::established_over(config, SUPER);
    t.send(65_100);
    let sent = t.sent_segments();
    let lens: Vec<u32> = sent.iter().map(len_of).collect();
    // As in Linux, not longer than half of the peer's largest window.
    assert_eq!(lens, [32_000, 32_000, 1100]);
    assert!(sent.iter().all(|s| s.gso_size == Some(1000)));
}

given! {
    let mut t = Test::established_over(plain(), SUPER);

    segment_of_one_mss_is_no_super_frame {
        t.send(1000);
        assert_eq!(t.sent_segments()[0].gso_size, None);
    }
    payload_is_the_applications_memory {
        let frag = Frag::from_bytes(vec![1u8; 5000].into());
        let (addr, mut frags) = (frag.addr(), FragVec::new());
        frags.push(frag);
        t.send_frags(&mut frags).unwrap();
        let sent = t.sent_segments();
        assert_eq!(sent[0].payload[0].addr(), addr);
    }
    segment_that_runs_out_of_fragments_is_pushed_and_the_next_begins {
        let mut frags: FragVec =
            (0..MAX_FRAGS + 3).map(|_| Frag::from_bytes(vec![1u8; 10].into())).collect();
        t.send_frags(&mut frags).unwrap();
        let sent = t.sent_segments();
        assert_eq!(sent[0].payload.len(), MAX_FRAGS);
        assert_eq!(sent[1].payload.len(), 3);
        assert!(sent.iter().all(|s| s.header.flags.contains(Flags::PSH)));
    }
}

#[test]
fn super_frame_waits_for_a_third_of_the_window_if_an_acknowledgement_is_due_and_not_far_away() {
    let under_way_for = |micros| {
        let mut t = Test::far_over(plain(), SUPER, 1);
        t.send(40_000).expect("P. 1:5001(5000)").expect("P. 5001:10001(5000)").nothing();
        t.wait_micros(micros);
        t
    };
    let mut t = under_way_for(900);
    t.peer(". 1:1(0) ack 1001").nothing();
    t.peer(". 1:1(0) ack 2001").expect("P. 10001:14001(4000)").nothing();
    under_way_for(100).peer(". 1:1(0) ack 1001").expect("P. 10001:12001(2000)").nothing();
}

#[test]
fn super_frame_on_a_slow_path_is_two_segments() {
    // A millisecond's worth of the window, at 100 ms for a round trip, is less than that.
    let mut t = Test::far_over(plain(), SUPER, 100);
    t.send(5500).expect("P. 1:2001(2000)").expect("P. 2001:4001(2000)");
    t.expect("P. 4001:5501(1500)").nothing();
}

#[test]
fn send_takes_a_super_frame_while_there_is_room() {
    // A window of 2000 makes a super-frame one segment. Each is charged with 1280 bytes more.
    let config = Config { send_buffer: 4608, ..plain() };
    let mut t = Test::established_with(config, link(), "S. 0:0(0) ack 1 win 2000 <mss 1000>");
    let mut frags: FragVec = (0..5).map(|_| Frag::from_bytes(vec![1u8; 900].into())).collect();
    assert_eq!(t.send_frags(&mut frags), Ok(3000));
    assert_eq!(frags.iter().map(Frag::len).collect::<Vec<_>>(), [600, 900]);
    assert_eq!(t.send_frags(&mut frags), Err(TcpError::WouldBlock));
    assert!(!t.conn.readiness().contains(Readiness::WRITABLE));
    t.peer(". 1:1(0) ack 2001 win 2000");
    assert!(t.conn.readiness().contains(Readiness::WRITABLE));
    assert_eq!(t.send_frags(&mut frags), Ok(1500));
    assert!(frags.is_empty());
}

#[test]
fn acknowledged_fragments_are_released() {
    let mut t = Test::established(plain());
    let memory = bytes::Bytes::from(vec![5; 100]);
    t.send_frags(&mut FragVec::from_iter([Frag::from_bytes(memory.clone())])).unwrap();
    drop(t.sent());
    assert!(!memory.is_unique());
    t.peer(". 1:1(0) ack 100");
    assert!(!memory.is_unique());
    t.peer(". 1:1(0) ack 101");
    assert!(memory.is_unique(), "released");
}

#[test]
fn small_writes_share_a_fragment() {
    let mut t = Test::established(nagle());
    for _ in 0..50 {
        assert_eq!(t.write(&[1; 10]), Ok(10));
    }
    t.expect("P. 1:11(10)").nothing();
    t.peer(". 1:1(0) ack 11");
    let sent = t.sent_segments();
    assert_eq!(sent[0].payload.len(), 1);
    assert_eq!(sent[0].payload[0].len(), 490);
}

// ---- path MTU ----

given! {
    let mut t = Test::established(plain());

    packet_too_big_sends_again_in_smaller_segments {
        t.send(2000).expect(". 1:1001(1000)").expect("P. 1001:2001(1000)");
        t.icmp(1, IcmpKind::PacketTooBig { mss: 600 });
        t.expect(". 1:601(600)").expect(". 601:1001(400)").expect(". 1001:1601(600)");
        t.expect("P. 1601:2001(400)").nothing();
        assert_eq!(t.conn.info().send_mss, 600);
    }
    packet_too_big_about_nothing_under_way_is_ignored {
        // RFC 5927 section 4.1.
        t.send(1000).expect("P. 1:1001(1000)");
        for seq in [0, 1001] {
            t.icmp(seq, IcmpKind::PacketTooBig { mss: 600 }).nothing();
        }
        assert_eq!(t.conn.info().send_mss, 1000);
    }
    unreachable_is_only_remembered_by_an_established_connection {
        t.send(10);
        t.icmp(1, IcmpKind::Unreachable { hard: true, error: TcpError::HostUnreachable });
        t.state(State::Established);
        assert_eq!(t.conn.error(), None);
        t.wait(2_000_000).state(State::Closed);
        assert_eq!(t.conn.error(), Some(TcpError::HostUnreachable));
    }
}

#[test]
fn unreachable_fails_an_attempt_to_connect() {
    let mut t = Test::connecting(plain());
    t.icmp(0, IcmpKind::Unreachable { hard: false, error: TcpError::HostUnreachable });
    t.state(State::Closed);
    assert_eq!(t.conn.error(), Some(TcpError::HostUnreachable));
}

// ---- no connection ----

#[test]
fn reset_for_a_stranger_is_as_in_section_3_10_7_1() {
    use {Flags, Seq, TcpHeader};
    let mut h =
        TcpHeader { src_port: 1, dst_port: 2, seq: Seq(100), ack: Seq(7), ..Default::default() };
    h.flags = Flags::SYN;
    let r = reset_for(&h, 10).unwrap();
    assert_eq!((r.seq, r.ack, r.flags), (Seq(0), Seq(111), Flags::RST | Flags::ACK));
    assert_eq!((r.src_port, r.dst_port), (2, 1));
    h.flags = Flags::ACK;
    let r = reset_for(&h, 10).unwrap();
    assert_eq!((r.seq, r.ack, r.flags), (Seq(7), Seq(0), Flags::RST));
    h.flags = Flags::RST;
    assert_eq!(reset_for(&h, 0), None);
}
