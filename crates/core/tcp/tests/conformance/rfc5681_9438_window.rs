//! When the congestion window grows, and by how much (RFC 5681, 7661, 9438), in numbers that Linux
//! shows too.

use crate::support::*;

fn info(t: &Test) -> (u32, u32) {
    let info = t.conn.info();
    (info.cwnd_segments, info.ssthresh_segments)
}

given! {
    let mut t = Test::far(plain(), 100);

    window_grows_by_what_is_acknowledged {
        t.send(30_000).expect_bytes(1, 10_001).wait(105);
        for i in 1..=5 {
            t.peer(&format!(". 1:1(0) ack {}", 1 + 2000 * i));
            t.expect_bytes(6001 + 4000 * i, 10_001 + 4000 * i).nothing();
            t.wait(5);
        }
        assert_eq!(info(&t), (20, INFINITE));
    }
    window_halves_with_every_timeout_of_idling {
        t.send(26_000).wait(100).peer(". 1:1(0) ack 10001").wait(100).peer(". 1:1(0) ack 26001")
            .sent();
        assert_eq!(info(&t).0, 36);
        t.wait(2000).send(20_000).expect_bytes(26_001, 36_001).nothing();
        assert_eq!(info(&t).0, 10);
    }
    window_that_the_peer_has_shut_halves_ours_when_it_opens_again {
        t.send(26_000).wait(100).peer(". 1:1(0) ack 10001").wait(100);
        t.peer(". 1:1(0) ack 26001 win 0").sent();
        t.send(20_000).wait(2900);
        assert_eq!((t.sent().len(), info(&t).0), (3, 36));
        t.peer(". 1:1(0) ack 26001").expect_bytes(26_001, 36_001).nothing();
        assert_eq!(info(&t).0, 10);
    }
    reordering_alone_does_not_moderate_the_window {
        t.send(4000).wait(100).peer(". 1:1(0) ack 1 <sack 1001:2001>");
        assert_eq!(info(&t).0, 10);
    }
}

#[test]
fn slow_start_leads_to_twice_what_was_in_flight() {
    // Half of the window does not make it grow.
    for (segments, after) in [(5, 10), (6, 12), (9, 18), (10, 20)] {
        let mut t = Test::far(plain(), 100);
        t.send(segments * 1000).wait(100);
        let last = 1 + 1000 * segments as u32;
        for ack in (2001..=last).step_by(2000).chain([last]) {
            t.peer(&format!(". 1:1(0) ack {ack}"));
        }
        assert_eq!(info(&t).0, after, "{segments}");
    }
}

#[test]
fn idling_leaves_the_window_where_the_setting_says_so() {
    let mut t = Test::far(Config { slow_start_after_idle: false, ..plain() }, 100);
    t.send(26_000).wait(100).peer(". 1:1(0) ack 10001").wait(100).peer(". 1:1(0) ack 26001").sent();
    t.wait(2000).send(20_000).expect_bytes(26_001, 46_001).nothing();
    assert_eq!(info(&t).0, 36);
}

/// A segment every hundred milliseconds, two at a time: the path has a queue, and slow start ends
/// when eight round trips in one window say so.
#[test]
fn slow_start_ends_when_the_queue_grows_and_cubic_goes_on() {
    let config = Config { slow_start_after_idle: false, ecn: EcnMode::Off, ..plain() };
    let mut t = Test::far(config, 100);
    t.send(400_000).sent();
    let mut windows = Vec::new();
    for i in 1..=60 {
        t.wait(100).peer(&format!(". 1:1(0) ack {}", 1 + 2000 * i)).sent();
        windows.push(info(&t).0);
    }
    // After 10,000 bytes, 20,000, ...
    let at = |bytes: usize| windows[bytes / 2000 - 1];
    assert_eq!([at(10_000), at(20_000), at(30_000), at(38_000)], [20, 30, 40, 48]);
    assert_eq!([at(40_000), at(60_000), at(80_000)], [48, 49, 50]);
    assert_eq!([at(100_000), at(120_000)], [52, 58]);
}

#[test]
fn after_a_timeout_slow_start_leads_to_the_threshold_and_cubic_on() {
    let config = Config { tail_loss_probe: true, ..plain() };
    let mut t = Test::far(config, 100);
    t.send(1000).wait(100).peer(". 1:1(0) ack 1001");
    t.send(1000).sent();
    t.wait(700);
    t.expect_after(300, "P. 1001:2001(1000)");
    t.expect_after(600, "P. 1001:2001(1000)").nothing();
    t.peer(". 1:1(0) ack 2001");
    assert_eq!(info(&t), (2, 7));
    t.send(60_000).expect_bytes(2001, 4001).nothing();
    let mut nxt = 4001;
    for i in 0..20 {
        let ack = 3001 + 1000 * i;
        t.wait(if i % 7 == 0 { 98 } else { 2 }).peer(&format!(". 1:1(0) ack {ack}"));
        let more = if i < 5 { 2000 } else { 1000 };
        t.expect_bytes(nxt, nxt + more).nothing();
        nxt += more;
        assert_eq!(info(&t).0, (3 + i).min(7));
    }
    // CUBIC grows the window here by one segment for every twenty acknowledged.
    t.wait(98).peer(". 1:1(0) ack 23001").wait(2).peer(". 1:1(0) ack 24001");
    assert_eq!(info(&t).0, 8);
}
