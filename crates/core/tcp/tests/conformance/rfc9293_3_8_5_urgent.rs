//! RFC 9293 section 3.8.5 and RFC 6093: urgent data, one byte of it, as Linux has it.

use crate::support::*;

given! {
    let mut t = Test::established(plain());

    urgent_byte_is_the_one_before_the_pointer_and_out_of_line {
        t.peer("U. 1:101(100) ack 1 urg 50").sent();
        assert!(t.conn.readiness().contains(Readiness::URGENT));
        assert_eq!(t.conn.read_urgent(RecvFlags::PEEK), Ok(byte(50)));
        assert_eq!(t.conn.read_urgent(RecvFlags::empty()), Ok(byte(50)));
        assert_eq!(t.conn.read_urgent(RecvFlags::empty()), Err(TcpError::InvalidInput));
        assert!(!t.conn.readiness().contains(Readiness::URGENT));
    }
    read_stops_at_the_mark_and_the_next_one_steps_over_the_byte {
        t.peer("U. 1:101(100) ack 1 urg 50").sent();
        assert_eq!(t.conn.queued_to_mark(), 49);
        assert!(!t.conn.at_urgent_mark());
        assert_eq!(t.try_read(1000).unwrap(), (1..50).map(byte).collect::<Vec<_>>());
        assert!(t.conn.at_urgent_mark());
        assert_eq!(t.try_read(1000).unwrap(), (51..101).map(byte).collect::<Vec<_>>());
        assert!(!t.conn.at_urgent_mark());
        // Whoever reads past it has lost it.
        assert_eq!(t.conn.read_urgent(RecvFlags::empty()), Err(TcpError::InvalidInput));
    }
    urgent_byte_may_be_announced_before_it_comes {
        t.peer("U. 1:11(10) ack 1 urg 20").sent();
        assert_eq!(t.conn.read_urgent(RecvFlags::empty()), Err(TcpError::WouldBlock));
        assert!(!t.conn.readiness().contains(Readiness::URGENT));
        t.read(10);
        t.peer(". 11:31(20) ack 1").sent();
        assert_eq!(t.conn.read_urgent(RecvFlags::empty()), Ok(byte(20)));
    }
    nothing_but_an_urgent_byte_is_nothing_to_read {
        t.peer("U. 1:2(1) ack 1 urg 1").sent();
        assert!(!t.conn.readiness().contains(Readiness::READABLE));
        assert_eq!(t.try_read(10), Err(TcpError::WouldBlock));
    }
    old_urgent_pointer_is_ignored {
        t.peer("P. 1:101(100) ack 1").sent();
        t.read(100);
        t.peer("U. 101:111(10) ack 1 urg 0").sent();
        // 101 is the pointer's byte here; 50 would be behind us.
        assert!(t.conn.at_urgent_mark());
        t.peer_any("U. 50:111(61) ack 1 urg 1");
        assert!(t.conn.at_urgent_mark());
    }
}

#[test]
fn urgent_byte_in_line_is_read_in_its_place() {
    let mut t = Test::established(Config { oob_inline: true, ..plain() });
    t.peer("U. 1:101(100) ack 1 urg 50").expect(". 1:1(0) ack 101");
    assert_eq!(t.conn.read_urgent(RecvFlags::empty()), Err(TcpError::InvalidInput));
    assert_eq!(t.try_read(1000).unwrap(), (1..50).map(byte).collect::<Vec<_>>());
    assert!(t.conn.at_urgent_mark());
    assert_eq!(t.try_read(1000).unwrap(), (50..101).map(byte).collect::<Vec<_>>());
    t.peer("PU. 101:111(10) ack 1").expect(". 1:1(0) ack 111").read(10);
}

#[test]
fn urgent_byte_leaves_at_once_and_nagle_holds_back_again_when_it_is_acknowledged_and_not_before() {
    for (ack, urgent) in [(15, true), (16, false)] {
        let mut t = Test::established(nagle());
        t.send(10).expect("P. 1:11(10)");
        // The pointer is behind the byte.
        t.send_with(5, SendFlags::URGENT).expect("PU. 11:16(5) ack 1 urg 5").nothing();
        t.peer(&format!(". 1:1(0) ack {ack}")).send(10).expect("P. 16:26(10)");
        // One small segment is under way.
        t.send(10);
        if urgent {
            t.expect("P. 26:36(10)");
        }
        t.nothing();
    }
}
