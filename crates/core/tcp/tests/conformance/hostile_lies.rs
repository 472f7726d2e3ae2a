//! Acknowledgements that lie about what arrived and when. A peer can always acknowledge what it
//! did not get (optimistic acknowledgements: only its own data is at stake), so the measure is that
//! no other lie gains more than that one: whatever is undone, divided, reported twice or dated
//! wrongly, the window never grows by more segments than were said to have arrived.

use std::collections::HashSet;

use crate::support::*;

const INITIAL: u32 = 10;

#[test]
fn no_lie_grows_the_window_by_more_than_what_was_said_to_have_arrived() {
    for seed in 0..400 {
        lie(seed);
    }
}

fn lie(seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let config = Config {
        initial_cwnd: INITIAL,
        timestamps: rng.below(2) == 0,
        tail_loss_probe: rng.below(2) == 0,
        slow_start_exit: rng.pick(&[
            SlowStartExit::Loss,
            SlowStartExit::HyStart,
            SlowStartExit::HyStartPlusPlus,
        ]),
        ..plain()
    };
    let options = rng.pick(&["mss 1000,sackOK,TS val 5 ecr 0,wscale 7", "mss 1000,wscale 7"]);
    let mut t = Test::connecting_over(config, link());
    let _ = t.sent();
    t.peer(&format!("S. 0:0(0) ack 1 win 65535 <{options}>"));
    let _ = t.sent();
    t.send(2_000_000);
    let (mut una, mut sacked, mut forgotten) = (1u32, HashSet::new(), 0);
    for _ in 0..300 {
        let _ = t.sent_segments();
        let before = t.conn.info();
        t.wait(rng.pick(&[0, 0, 0, 1, 10, 100, 300]));
        let info = t.conn.info();
        if info.timeouts > before.timeouts {
            // A timeout forgets the selective acknowledgements: the peer may report them again.
            forgotten += before.sacked_segments;
        }
        let nxt = una + info.unacked;
        let mss = u32::from(info.send_mss);
        let within = |rng: &mut Rng| una + rng.below(nxt - una + 1);
        let mut blocks = Vec::new();
        for _ in 0..rng.below(4) {
            // A duplicate, of what is acknowledged or not; a piece; all of it.
            let left = match rng.below(3) {
                0 => una.saturating_sub(rng.below(20) * mss).max(1),
                1 => una + (within(&mut rng) - una) / mss * mss,
                _ => within(&mut rng),
            };
            let right = left + rng.pick(&[1, mss, 3 * mss, nxt.saturating_sub(left)]);
            blocks.push(format!("{left}:{right}"));
            sacked.extend((left / mss).max(1)..=right / mss + 1);
        }
        let far = within(&mut rng);
        una = rng.pick(&[una, una, una + 1, una + mss, far]).clamp(una, nxt);
        let mut options = Vec::new();
        if info.timestamps {
            // Long ago, never, just now, in the future.
            let present = (t.now.as_micros() / 1000) as u32;
            let echo = rng.pick(&[1, u32::MAX, present, present - 200, present + 1_000_000]);
            options.push(format!("TS val 9 ecr {echo}"));
            blocks.truncate(3);
        }
        if info.sack && !blocks.is_empty() {
            options.push(format!("sack {}", blocks.join(" ")));
        }
        let options =
            if options.is_empty() { String::new() } else { format!(" <{}>", options.join(",")) };
        t.peer_any(&format!(". 1:1(0) ack {una} win 65535{options}"));
        let info = t.conn.info();
        let said = una / mss + 1 + sacked.len() as u32 + forgotten + info.retransmits;
        assert!(
            info.cwnd_segments <= INITIAL + said,
            "seed {seed}: a window of {} for {said} segments",
            info.cwnd_segments,
        );
    }
}

#[test]
fn loss_undone_again_and_again_leaves_the_window_where_it_was() {
    // The peer says of every retransmission that it was for nothing, and never gets on.
    let mut t = Test::established(Config { initial_cwnd: 20, ..plain() });
    t.send(60_000).sent();
    for i in 0..10_000u32 {
        let right = 1001 + (i % 18 + 1) * 1000;
        t.peer_any(&format!(". 1:1(0) ack 1 win 65535 <sack 1:1001 1:{right}>"));
        t.peer_any(&format!(". 1:1(0) ack 1 win 65535 <sack 1001:{right}>"));
        let info = t.conn.info();
        assert!(info.cwnd_segments <= 20 + 18 + info.retransmits, "{}", info.cwnd_segments);
    }
    let info = t.conn.info();
    assert!(info.retransmits <= 20, "{} retransmissions", info.retransmits);
}

#[test]
fn timestamps_that_were_never_sent_measure_nothing() {
    let config = Config { timestamps: true, ..plain() };
    let mut t = Test::connecting_over(config, link());
    let _ = t.sent();
    t.wait(40).peer("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,TS val 5 ecr 0,wscale 7>");
    let _ = t.sent();
    t.send(50_000).sent();
    let before = t.conn.info();
    // Sent again, so that only the timestamp could tell which transmission arrived.
    t.wait(2000).sent();
    // Weeks ago, none, in the future.
    let present = (t.now.as_micros() / 1000) as u32;
    for echo in [1 << 31, 0, present + 1, present + 1_000_000] {
        t.peer_any(&format!(". 1:1(0) ack 1001 win 65535 <TS val 6 ecr {echo}>"));
    }
    t.info(|i| (i.srtt, i.min_rtt), (before.srtt, before.min_rtt));
}
