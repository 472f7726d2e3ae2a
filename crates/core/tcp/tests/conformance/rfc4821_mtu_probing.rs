//! RFC 4821, packetization layer path MTU discovery: probes within the stream.

use crate::support::*;

const fn link(mss: u16) -> LinkLimits {
    LinkLimits::new(mss, mss as u32)
}

fn probing(from_start: bool) -> Config {
    let mtu_probing = Some(MtuProbing { from_start, base_mss: 512, ..MtuProbing::default() });
    Config { mtu_probing, initial_cwnd: 11, ..plain() }
}

/// Established over a link that takes 1460 bytes.
fn established(from_start: bool) -> Test {
    let syn_ack = "S. 0:0(0) ack 1 win 60000 <mss 1460,sackOK>";
    Test::established_with(probing(from_start), link(1460), syn_ack)
}

given! {
    let mut t = established(true);

    s7_4_a_probe_leaves_when_there_is_enough_to_send_behind_it {
        assert_eq!(t.conn.info().send_mss, 512);
        // Half way from 512 to 1460; four segments more, in case it is lost.
        t.send(986 + 4 * 512 - 1);
        t.expect(". 1:513(512) ack 1");
        t.sent();
        t.peer(". 1:1(0) ack 3034");
        t.send(986 + 4 * 512);
        t.expect(". 3034:4020(986) ack 1").expect(". 4020:4532(512) ack 1");
        t.sent();
    }
    s7_6_1_a_probe_that_arrives_raises_the_mss {
        t.send(4000);
        t.expect(". 1:987(986) ack 1").expect(". 987:1499(512) ack 1");
        t.sent();
        t.peer(". 1:1(0) ack 4001");
        assert_eq!(t.conn.info().send_mss, 986);
        t.send(2000).expect(". 4001:4987(986) ack 1");
    }
    s7_6_2_a_probe_that_is_lost_alone_is_no_congestion {
        t.send(4000);
        t.expect(". 1:987(986) ack 1");
        t.sent();
        let cwnd = t.conn.info().cwnd_segments;
        t.wait(20);
        for right in [1499, 2011, 2523] {
            t.peer(&format!(". 1:1(0) ack 1 <sack 987:{right}>"));
        }
        t.wait(50);
        t.expect(". 1:513(512) ack 1").expect(". 513:987(474) ack 1");
        let info = t.conn.info();
        assert!(info.cwnd_segments >= cwnd, "{info:?}");
        assert_eq!(info.recoveries, 0);
        t.peer(". 1:1(0) ack 4001");
        t.sent();
        // The next one is smaller: half way from 512 to 985.
        t.send(6000).expect(". 4001:4749(748) ack 1");
    }
    s7_3_the_search_ends_and_begins_again_after_a_while {
        let mut at = 1;
        for _ in 0..20 {
            transfer(&mut t, 30_000, &mut at);
        }
        // Less than the threshold is left.
        let mss = u32::from(t.conn.info().send_mss);
        assert!((1453..1460).contains(&mss), "{mss}");
        let longest = |lengths: Vec<u32>| lengths.into_iter().max();
        assert_eq!(longest(transfer(&mut t, 100_000, &mut at)), Some(mss));
        // Ten minutes later; the bounds of the search are the connection's again, and met at once.
        t.wait(600_000);
        assert!(longest(transfer(&mut t, 100_000, &mut at)) <= Some(1460));
    }
}

#[test]
fn s7_7_repeated_timeouts_are_taken_for_a_black_hole() {
    let mut t = established(false);
    t.send(3000).expect(". 1:1461(1460) ack 1");
    t.sent();
    // The fourth timeout in a row: after 0.2, 0.6, 1.4 and 3 seconds.
    t.wait(2900);
    assert_eq!(t.conn.info().send_mss, 1460);
    t.wait(1000);
    assert_eq!(t.conn.info().send_mss, 512);
    let sent = t.sent();
    assert!(sent.iter().any(|s| s.contains(" 1:513(512)")), "{sent:?}");
    // And less, should that not help.
    t.wait(60_000);
    assert!(t.conn.info().send_mss < 512);
}

#[test]
fn without_the_setting_nothing_is_probed() {
    let syn_ack = "S. 0:0(0) ack 1 win 60000 <mss 1460,sackOK>";
    let mut t = Test::established_with(plain(), link(1460), syn_ack);
    t.send(3000);
    t.sent();
    t.wait(60_000);
    assert_eq!(t.conn.info().send_mss, 1460);
}

/// Sends so much, everything acknowledged as it comes; the lengths of all segments.
fn transfer(t: &mut Test, len: usize, at: &mut u32) -> Vec<u32> {
    t.send(len);
    let (end, mut lengths) = (*at + len as u32, Vec::new());
    while *at < end {
        let sent = t.sent_segments();
        assert!(!sent.is_empty(), "nothing leaves at {at}");
        for segment in sent {
            *at += len_of(&segment);
            lengths.push(len_of(&segment));
        }
        t.peer(&format!(". 1:1(0) ack {at}"));
    }
    lengths
}

#[test]
fn settings_beyond_the_longest_segment_are_bounded_by_it() {
    // Timestamps are added to what the settings say.
    let most = MtuProbing {
        from_start: true,
        base_mss: u16::MAX,
        floor: u16::MAX,
        retries: 0,
        ..MtuProbing::default()
    };
    let config = Config { mtu_probing: Some(most), timestamps: true, ..plain() };
    let syn_ack = "S. 0:0(0) ack 1 win 60000 <mss 1460,sackOK,TS val 1 ecr 0>";
    let mut t = Test::connecting_over(config, link(1460));
    t.peer(syn_ack);
    assert_eq!(t.conn.info().send_mss, 1448);
    t.send(5000).wait(2000);
    assert!(t.conn.info().timeouts > 0);
    assert_eq!(t.conn.info().send_mss, 1448);
}
