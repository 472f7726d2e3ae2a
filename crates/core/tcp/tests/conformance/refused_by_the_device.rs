//! Segments that the device refuses (Linux's local congestion): they never left, so the path is not to
//! blame.

use crate::support::*;

/// The device refuses all that was sent; how many segments that were.
fn refuse(t: &mut Test) -> usize {
    let mut refused = t.sent_segments();
    let count = refused.len();
    while let Some(segment) = refused.pop() {
        let marks = (segment.header.flags & (Flags::SYN | Flags::FIN)).iter().count() as u32;
        let now = t.now;
        t.set(|c| c.handle_refused(now, segment.header.seq, len_of(&segment) + marks));
    }
    count
}

/// The moments, in milliseconds from now on, at which something was sent, all of it refused.
fn tries(t: &mut Test, ms: u64) -> Vec<u64> {
    (1..=ms)
        .filter(|_| {
            t.wait(1);
            refuse(t) > 0
        })
        .collect()
}

given! {
    let mut t = Test::far(plain(), 100);

    new_data_that_was_refused_is_unsent_and_tried_again_every_half_second {
        t.send(3000);
        assert_eq!(refuse(&mut t), 3);
        t.info(|i| (i.unacked, i.unsent), (0, 3000));
        t.nothing();
        assert_eq!(tries(&mut t, 2000), [300, 800, 1300, 1800]);
        let info = t.conn.info();
        assert_eq!((info.probes, info.backoff, info.timeouts, info.retransmits), (4, 0, 0, 0));
        assert_eq!(info.cwnd, 10_000, "nothing is to blame");
        // Then it is taken.
        t.wait(300).expect("P. 1:1001(1000)").expect(". 1001:2001(1000)")
            .expect("P. 2001:3001(1000)");
        t.nothing();
        t.peer(". 1:1(0) ack 3001");
        assert_eq!((t.conn.info().probes, t.conn.info().unacked), (0, 0));
        t.send(10).expect("P. 3001:3011(10) ack 1").nothing();
    }
    what_is_refused_is_tried_again_when_something_arrives {
        t.send(1000);
        refuse(&mut t);
        t.send(500).nothing();
        t.peer("P. 1:2(1) ack 1");
        t.expect(". 1:1001(1000) ack 2").expect("P. 1001:1501(500) ack 2").nothing();
    }
    only_what_nothing_was_sent_behind_is_unsent {
        // The second of three was refused: the third has left.
        t.send(3000).sent();
        let (now, seq) = (t.now, ISS + 1001);
        t.set(|conn| conn.handle_refused(now, seq, 1000));
        assert_eq!(t.conn.info().unacked, 3000, "as if it had been lost on the way");
        // The last was refused: it alone is unsent.
        t.set(|conn| conn.handle_refused(now, ISS + 2001, 1000));
        assert_eq!((t.conn.info().unacked, t.conn.info().unsent), (2000, 1000));
        t.nothing();
        // Acknowledged data had left the device: a refusal of it is ignored.
        t.peer(". 1:1(0) ack 2001").expect("P. 2001:3001(1000)").peer(". 1:1(0) ack 3001");
        t.set(|conn| conn.handle_refused(now, ISS + 2001, 1000));
        assert_eq!(t.conn.info().unacked, 0);
    }
    without_a_user_timeout_it_is_tried_for_as_long_as_data_is_sent_again {
        t.send(100);
        refuse(&mut t);
        let begun = t.now;
        for _ in 0..100_000 {
            t.wait(100);
            refuse(&mut t);
            if t.conn.state() == State::Closed {
                break;
            }
        }
        let lasted = t.now.saturating_since(begun).as_secs();
        assert!((900..950).contains(&lasted), "{lasted} s; Linux's tcp_retries2 is 924.6");
        assert_eq!(t.conn.take_error(), Some(TcpError::TimedOut));
    }
    fast_retransmission_that_was_refused_leaves_with_the_next_acknowledgement {
        t.send(5000).sent();
        t.wait(100).peer(". 1:1(0) ack 1 <sack 1001:4001>");
        assert_eq!(refuse(&mut t), 1);
        t.info(|i| (i.lost, i.retransmitting, i.retransmits), (1000, 0, 0));
        t.nothing();
        t.wait(1).peer(". 1:1(0) ack 1 <sack 1001:5001>").expect(". 1:1001(1000) ack 1").nothing();
        t.wait(100).peer(". 1:1(0) ack 5001").nothing();
        assert_eq!(t.conn.info().retransmits, 1);
    }
    fin_that_was_refused_is_sent_again {
        t.shutdown().state(State::FinWait1);
        assert_eq!(refuse(&mut t), 1);
        t.wait(299).nothing().wait(1).expect("F. 1:1(0) ack 1").nothing();
        t.peer(". 1:1(0) ack 2").state(State::FinWait2);
    }
    probes_that_are_refused_do_not_count {
        t.peer(". 1:1(0) ack 1 win 0").send(100);
        assert_eq!(tries(&mut t, 2000), [300, 800, 1300, 1800]);
        assert_eq!(t.conn.info().backoff, 0);
        let (idle, interval) = (Duration::from_secs(1), Duration::from_secs(60));
        let keepalive = Some(KeepAlive { idle, interval, probes: 2 });
        let mut t = Test::far(Config { keepalive, ..plain() }, 100);
        assert_eq!(tries(&mut t, 3000), [1000, 1500, 2000, 2500, 3000]);
        t.state(State::Established);
    }
}

#[test]
fn user_timeout_ends_a_connection_whose_device_refuses() {
    let user_timeout = Some(Duration::from_secs(3));
    let mut t = Test::far(Config { user_timeout, ..plain() }, 100);
    t.send(100);
    refuse(&mut t);
    assert_eq!(tries(&mut t, 3200).len(), 6);
    t.state(State::Established);
    // Writing more does not put it off.
    t.send(100).nothing().wait(100).state(State::Closed);
    assert_eq!(t.conn.take_error(), Some(TcpError::TimedOut));
}

#[test]
fn retransmission_that_was_refused_is_still_lost_and_backs_nothing_off() {
    let mut t = Test::far(plain(), 300);
    t.send(1000).expect("P. 1:1001(1000)");
    // The timeout is 900 ms; what it has sent is refused, and tried again after half a second.
    assert_eq!(tries(&mut t, 3000), [900, 1400, 1900, 2400, 2900]);
    let info = t.conn.info();
    assert_eq!((info.backoff, info.retransmits, info.retransmitting), (0, 0, 0));
    assert_eq!((info.lost, info.unacked), (1000, 1000));
    // Taken, and then lost: the next timeout is doubled as ever.
    t.wait(500).expect("P. 1:1001(1000)");
    assert_eq!(t.conn.info().retransmits, 1);
    t.wait(2000).expect_after(1700, "P. 1:1001(1000)");
}

#[test]
fn what_was_unsent_is_sent_once_whatever_is_refused_between() {
    // A device that refuses as it likes, and a peer that takes everything.
    let mut t = Test::far(nagle(), 10);
    let (mut taken, mut seed) = (1u32, 7u32);
    for _ in 0..2000 {
        let _ = t.try_send(700);
        let mut refused = Vec::new();
        for segment in t.sent_segments() {
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            let len = len_of(&segment);
            match (seed >> 16).is_multiple_of(3) {
                true => refused.push((segment.header.seq, len)),
                false if segment.header.seq == ISS + taken => taken += len,
                false => {}
            }
        }
        let now = t.now;
        for (seq, len) in refused.into_iter().rev() {
            t.set(|conn| conn.handle_refused(now, seq, len));
        }
        assert!(t.conn.send_next().ge(ISS + taken), "what was taken is not unsent");
        t.wait(3);
        t.peer_any(&format!(". 1:1(0) ack {taken} win 60000"));
        assert_eq!(t.conn.info().unacked, t.conn.send_next().since(ISS + taken));
    }
    assert!(taken > 100_000, "{taken} bytes");
}
