//! The queue in front of a rate: bounds in frames and bytes, who is marked, and controlled delay.

use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_mem::checksum::Checksum;

use super::config::{Aqm, FaultConfig};
use super::queue::{Queue, Verdict};
use super::{FaultLine, ecn};
use crate::limits::{CODEL_INTERVAL, CODEL_TARGET};
use pagewire_mem::link::Medium;

/// 1,000 bytes take a millisecond.
const RATE: u64 = 8_000_000;
const MS: Duration = Duration::from_millis(1);

fn ms(n: u64) -> Instant {
    Instant::from_millis(n)
}

fn config(aqm: Aqm) -> FaultConfig {
    FaultConfig { rate: Some(RATE), aqm, ..FaultConfig::default() }
}

/// Frames that were marked and lost early when two come for each that leaves, by their place.
fn overload(queue: &mut Queue, config: &FaultConfig, frames: u64, capable: bool) -> Vec<u64> {
    let told = |i: u64, queue: &mut Queue| {
        let verdict = queue.handle(Instant::from_micros(i * 500), 1000, capable, config);
        matches!(verdict, Verdict::Early | Verdict::Send { congested: true, .. })
    };
    (0..frames).filter(|&i| told(i, queue)).collect()
}

#[test]
fn bytes_that_wait_are_bounded_and_an_empty_queue_takes_any_frame() {
    let config = FaultConfig { limit_bytes: Some(2_500), ..config(Aqm::None) };
    let mut queue = Queue::new();
    let send = |left, waited| Verdict::Send { left, waited: waited * MS, congested: false };
    assert_eq!(queue.handle(ms(0), 5_000, false, &config), send(ms(5), 0), "larger than the queue");
    assert_eq!(queue.handle(ms(0), 100, false, &config), Verdict::Full);
    assert_eq!(queue.handle(ms(5), 1_000, false, &config), send(ms(6), 0), "empty again");
    assert_eq!(queue.handle(ms(5), 1_000, false, &config), send(ms(7), 1));
    assert_eq!(queue.handle(ms(5), 1_000, false, &config), Verdict::Full);
    assert_eq!(queue.handle(ms(5), 0, false, &config), send(ms(7), 2), "2,000 and 0 fit");
    assert_eq!(queue.handle(ms(6), 1_000, false, &config), send(ms(8), 1), "one has left");
}

#[test]
fn a_step_marks_what_waited_longer_and_leaves_alone_who_does_not_read_marks() {
    let config = config(Aqm::Mark { above: 2 * MS });
    let verdicts = |capable| -> Vec<bool> {
        let mut queue = Queue::new();
        let verdict = |queue: &mut Queue| queue.handle(ms(0), 1000, capable, &config);
        (0..5)
            .map(|_| verdict(&mut queue))
            .map(|v| {
                let Verdict::Send { congested, .. } = v else { panic!("{v:?}") };
                congested
            })
            .collect()
    };
    assert_eq!(verdicts(true), [false, false, false, true, true]);
    assert_eq!(verdicts(false), [false; 5]);
}

#[test]
fn rfc8289_a_burst_that_is_gone_within_an_interval_is_left_alone() {
    let mut queue = Queue::new();
    for burst in 0..20 {
        for _ in 0..90 {
            let verdict = queue.handle(ms(burst * 200), 1000, false, &config(Aqm::Codel));
            assert!(matches!(verdict, Verdict::Send { congested: false, .. }), "{verdict:?}");
        }
    }
}

#[test]
fn rfc8289_a_queue_that_stays_long_is_told_more_and_more_often() {
    let mut queue = Queue::new();
    let told = overload(&mut queue, &config(Aqm::Codel), 900, true);
    assert!(told.len() > 5, "{told:?}");
    // Frame `i` leaves at `i` ms: no frame is signalled before one interval above the target.
    let first = (CODEL_TARGET + CODEL_INTERVAL).as_millis() as u64;
    assert!((first..first + 10).contains(&told[0]), "{told:?}");
    let gaps: Vec<u64> = told.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.is_sorted_by(|a, b| a >= b), "{gaps:?}");
    // INTERVAL / sqrt(count): 100, 71, 58, 50 ms.
    for (gap, expected) in gaps.iter().zip([100, 71, 58, 50]) {
        assert!(gap.abs_diff(expected) <= 1, "{gaps:?}");
    }
}

#[test]
fn rfc8289_who_does_not_read_marks_loses_what_would_be_marked() {
    let mut line = FaultLine::new(config(Aqm::Codel));
    for i in 0..900 {
        line.handle_capable(Instant::from_micros(i * 500), i, 1000, i % 2 == 0);
    }
    let counters = line.counters();
    assert!(counters.marked > 2 && counters.lost_early > 2, "{counters:?}");
    let mut marked = 0;
    while let Some(at) = line.poll_timeout() {
        let passed = line.poll(at).expect("due");
        assert!(!passed.congested || passed.item % 2 == 0);
        marked += u64::from(passed.congested);
    }
    assert_eq!(marked, counters.marked);
}

#[test]
fn rfc8289_a_queue_that_got_short_is_not_told_any_more() {
    let mut queue = Queue::new();
    let codel = config(Aqm::Codel);
    overload(&mut queue, &codel, 900, true);
    for i in 0..500 {
        let verdict = queue.handle(ms(1000 + i), 1000, true, &codel);
        assert!(matches!(verdict, Verdict::Send { congested: false, .. }), "{i}: {verdict:?}");
    }
}

#[test]
fn rfc8289_a_link_on_which_one_frame_takes_longer_than_the_target_is_not_emptied() {
    let slow = FaultConfig { rate: Some(RATE / 20), ..config(Aqm::Codel) };
    let mut queue = Queue::new();
    // 20 ms each, and each comes when the one before begins: the wait is one frame's time at most.
    for i in 0..100 {
        let verdict = queue.handle(ms(19 * i), 1000, false, &slow);
        assert!(i > 18 || matches!(verdict, Verdict::Send { .. }), "{i}: {verdict:?}");
    }
}

fn ipv4(tos: u8) -> [u8; 20] {
    let mut header = [0x45, tos, 0, 60, 0x12, 0x34, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let mut sum = Checksum::new();
    sum.add_bytes(&header);
    header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    header
}

#[test]
fn rfc3168_a_mark_turns_both_bits_on_and_the_header_checksum_holds() {
    for tos in 0..=255 {
        let mut header = ipv4(tos);
        assert_eq!(ecn::is_capable(&header, Medium::Ip), tos & 3 != 0);
        ecn::mark(&mut header, Medium::Ip);
        assert_eq!(header[1], tos | 3);
        assert_eq!(header, ipv4(tos | 3), "as if it had been sent so: {tos:#x}");
    }
}

#[test]
fn rfc3168_a_mark_of_ipv6_is_in_the_traffic_class() {
    let mut frame = [0; 54];
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    frame[14..18].copy_from_slice(&[0x6a, 0xb5, 0xcd, 0xef]);
    assert!(!ecn::is_capable(&frame[..15], Medium::Ethernet), "cut short");
    frame[15] = 0x85;
    assert!(!ecn::is_capable(&frame, Medium::Ethernet));
    frame[15] = 0xa5;
    assert!(ecn::is_capable(&frame, Medium::Ethernet));
    ecn::mark(&mut frame, Medium::Ethernet);
    assert_eq!(frame[14..18], [0x6a, 0xb5, 0xcd, 0xef]);
}

#[test]
fn what_is_not_ip_is_never_marked() {
    let mut frame = [0xff; 60];
    frame[12..14].copy_from_slice(&[0x08, 0x06]);
    frame[14] = 0x45;
    let before = frame;
    assert!(!ecn::is_capable(&frame, Medium::Ethernet));
    ecn::mark(&mut frame, Medium::Ethernet);
    assert_eq!(frame, before);
    ecn::mark(&mut [], Medium::Ethernet);
    ecn::mark(&mut [0x45], Medium::Ip);
}
