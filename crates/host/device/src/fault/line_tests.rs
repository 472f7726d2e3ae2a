//! A bad line, seen from both of its ends, in virtual time; and the text of its settings.

use std::time::Duration;

use pagewire_mem::Instant;
use proptest::prelude::*;

use super::config::{Aqm, Chance, FaultConfig, FaultDirection};
use super::line::{FaultLine, FaultRng};
use crate::limits::{FAULT_HOLD, FAULT_MAX_FRAMES};

fn ms(n: u64) -> Instant {
    Instant::from_millis(n)
}

/// The frames that come out until a time, each with the time it came.
fn drain(line: &mut FaultLine<u64>, until: Instant) -> Vec<(Instant, u64)> {
    let mut out = Vec::new();
    while let Some(at) = line.poll_timeout().filter(|&at| at <= until) {
        let passed = line.poll(at).expect("poll_timeout said so");
        out.push((at, passed.item));
    }
    out
}

fn order(out: &[(Instant, u64)]) -> Vec<u64> {
    out.iter().map(|&(_, n)| n).collect()
}

fn run(config: FaultConfig, n: u64) -> (Vec<u64>, FaultLine<u64>) {
    let mut line = FaultLine::new(config);
    for i in 0..n {
        line.handle(Instant::from_micros(i), i, 1000);
    }
    let out = order(&drain(&mut line, Instant::FAR));
    (out, line)
}

#[test]
fn without_faults_frames_pass_at_once_and_in_order() {
    let mut line = FaultLine::new(FaultConfig::default());
    for i in 0..10 {
        line.handle(ms(3), i, 1000);
    }
    assert_eq!(line.poll_timeout(), Some(ms(3)));
    assert_eq!(order(&drain(&mut line, ms(3))), (0..10).collect::<Vec<_>>());
    assert_eq!(line.poll_timeout(), None);
}

#[test]
fn loss_is_about_what_was_asked_and_every_loss_is_counted() {
    let config = FaultConfig { loss: Chance::percent(10), seed: 3, ..Default::default() };
    let (out, line) = run(config, 20_000);
    let counters = line.counters();
    assert_eq!(out.len() as u64 + counters.lost, 20_000);
    assert_eq!(counters.delivered, out.len() as u64);
    assert!((1_850..2_150).contains(&counters.lost), "{counters:?}");
    assert!(out.is_sorted());
}

#[test]
fn never_is_never_and_always_is_always() {
    let (out, _) = run(FaultConfig::default(), 1_000);
    assert_eq!(out.len(), 1_000);
    let (out, _) = run(FaultConfig { loss: Chance::ALWAYS, ..Default::default() }, 1_000);
    assert_eq!(out.len(), 0);
}

#[test]
fn one_seed_does_the_same_again_and_another_does_not() {
    let config = |seed| FaultConfig {
        loss: Chance::percent(5),
        reorder: Chance::percent(5),
        duplicate: Chance::percent(5),
        jitter: Duration::from_millis(1),
        seed,
        ..Default::default()
    };
    assert_eq!(run(config(1), 1000).0, run(config(1), 1000).0);
    assert_ne!(run(config(1), 1000).0, run(config(2), 1000).0);
}

#[test]
fn the_numbers_of_a_seed_never_change() {
    // Reference values of SplitMix64 for the seed 1234567.
    let mut random = FaultRng::new(1_234_567);
    assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
    assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    assert!((0..1000).all(|_| random.below(7) < 7));
}

#[test]
fn turning_one_fault_up_leaves_the_others_where_they_were() {
    let lossy = FaultConfig { loss: Chance::percent(10), seed: 9, ..Default::default() };
    let both = FaultConfig { corrupt: Chance::percent(50), ..lossy };
    assert_eq!(run(lossy, 1000).0, run(both, 1000).0);
}

#[test]
fn a_duplicate_arrives_next_to_the_original() {
    let (out, line) = run(FaultConfig { duplicate: Chance::ALWAYS, ..Default::default() }, 3);
    assert_eq!(out, [0, 0, 1, 1, 2, 2]);
    assert_eq!(line.counters().duplicated, 3);
}

#[test]
fn a_frame_held_back_is_overtaken_by_at_most_four() {
    let config = FaultConfig { reorder: Chance::percent(5), seed: 1, ..Default::default() };
    let (out, line) = run(config, 10_000);
    assert_eq!(out.len(), 10_000, "reordering loses nothing");
    assert!(!out.is_sorted());
    assert!((400..600).contains(&line.counters().reordered));
    for (place, n) in out.iter().enumerate() {
        let overtakers = out[..place].iter().filter(|&m| m > n).count();
        assert!(overtakers <= 8, "{n} was overtaken by {overtakers}");
    }
}

#[test]
fn a_frame_that_nobody_overtakes_is_not_held_for_ever() {
    let config = FaultConfig { reorder: Chance::ALWAYS, ..Default::default() };
    let mut line = FaultLine::new(config);
    line.handle(ms(1), 7, 100);
    assert_eq!(line.poll(ms(1)), None);
    assert_eq!(line.poll_timeout(), Some(ms(1) + FAULT_HOLD));
    assert_eq!(drain(&mut line, Instant::FAR), [(ms(1) + FAULT_HOLD, 7)]);
}

#[test]
fn delay_and_jitter_stay_within_their_bounds_and_keep_the_order() {
    let config = FaultConfig {
        delay: Duration::from_millis(10),
        jitter: Duration::from_millis(2),
        ..Default::default()
    };
    let mut line = FaultLine::new(config);
    for i in 0..100 {
        line.handle(ms(i), i, 100);
    }
    let out = drain(&mut line, Instant::FAR);
    assert!(order(&out).is_sorted());
    let (mut least, mut most) = (u64::MAX, 0);
    for (at, n) in out {
        let took = at.as_micros() - n * 1000;
        (least, most) = (least.min(took), most.max(took));
    }
    assert!((8_000..9_000).contains(&least), "{least}");
    // Pushed on by the one before, which may have taken longest.
    assert!((11_000..=12_000).contains(&most), "{most}");
}

#[test]
fn rate_spaces_frames_and_its_queue_is_bounded() {
    // 1,000 bytes take a millisecond.
    let config = FaultConfig { rate: Some(8_000_000), limit: 5, ..Default::default() };
    let mut line = FaultLine::new(config);
    for i in 0..7 {
        line.handle(ms(100), i, 1000);
    }
    assert_eq!(line.counters().lost_queue_full, 2);
    let out = drain(&mut line, ms(102));
    assert_eq!(out, [(ms(101), 0), (ms(102), 1)]);
    line.handle(ms(102), 9, 1000);
    assert_eq!(line.counters().lost_queue_full, 2, "two have left, there is room again");
    let out = drain(&mut line, Instant::FAR);
    assert_eq!(out.last(), Some(&(ms(106), 9)));
    line.handle(ms(500), 10, 1000);
    assert_eq!(drain(&mut line, Instant::FAR), [(ms(501), 10)], "an idle line owes nothing");
}

#[test]
fn a_line_holds_a_bounded_number_of_frames() {
    let config = FaultConfig { delay: Duration::from_secs(1), ..Default::default() };
    let mut line = FaultLine::new(config);
    for i in 0..FAULT_MAX_FRAMES as u64 + 3 {
        line.handle(ms(0), i, 100);
    }
    assert_eq!((line.in_flight(), line.counters().lost_line_full), (FAULT_MAX_FRAMES, 3));
    assert_eq!(line.iter().count(), FAULT_MAX_FRAMES);
}

#[test]
fn settings_are_read_from_text() {
    let text = "loss=1%,reorder=0.5%, dup=1%,corrupt=0.1%,delay=10ms,jitter=1.5ms,rate=1gbit,\
                seed=7,limit=500,bytes=64000,aqm=2ms,on=tx,cut=no";
    let config: FaultConfig = text.parse().expect("a configuration");
    assert_eq!(
        config,
        FaultConfig {
            loss: Chance::percent(1),
            duplicate: Chance::percent(1),
            reorder: Chance::per_million(5_000),
            corrupt: Chance::per_million(1_000),
            delay: Duration::from_millis(10),
            jitter: Duration::from_micros(1_500),
            rate: Some(1_000_000_000),
            limit: 500,
            limit_bytes: Some(64_000),
            aqm: Aqm::Mark { above: Duration::from_millis(2) },
            seed: 7,
            on: FaultDirection::Transmit,
            cut: false,
        }
    );
    assert_eq!(
        config.to_string(),
        "loss=1%,dup=1%,reorder=0.5%,corrupt=0.1%,delay=10ms,jitter=1500us,rate=1gbit,limit=500,\
         bytes=64000,aqm=2ms,seed=7,on=tx,cut=no"
    );
    assert_eq!(FaultConfig::default().to_string(), "loss=0%");
}

#[test]
fn a_bad_setting_is_named_with_what_would_be_right() {
    for (text, part, word) in [
        ("", "fault ``", "name=value"),
        ("loss=1%,", "fault ``", "name=value"),
        ("loss=1%,los=2%", "fault `los=2%`", "no such name"),
        ("loss", "fault `loss`", "name=value"),
        ("loss=1", "fault `loss=1`", "percentage"),
        ("loss=101%", "fault `loss=101%`", "100%"),
        ("loss=-1%", "fault `loss=-1%`", "percentage"),
        ("loss=0.00001%", "fault `loss=0.00001%`", "0.0001%"),
        ("dup=.5%", "fault `dup=.5%`", "percentage"),
        ("loss=1%,loss=2%", "fault `loss=2%`", "twice"),
        ("delay=10", "fault `delay=10`", "ms"),
        ("delay=61s", "fault `delay=61s`", "60s"),
        ("jitter=1h", "fault `jitter=1h`", "us"),
        ("rate=0gbit", "fault `rate=0gbit`", "above 0"),
        ("rate=99999999999gbit", "fault `rate=99999999999gbit`", "gbit"),
        ("limit=0", "fault `limit=0`", "65536"),
        ("limit=65537", "fault `limit=65537`", "65536"),
        ("bytes=0", "fault `bytes=0`", "above 0"),
        ("aqm=red", "fault `aqm=red`", "none, codel or a time"),
        ("seed=-1", "fault `seed=-1`", "whole number"),
        ("on=up", "fault `on=up`", "both, tx or rx"),
        ("cut=1", "fault `cut=1`", "yes or no"),
    ] {
        let error = text.parse::<FaultConfig>().expect_err(text).to_string();
        assert!(error.starts_with(part) && error.contains(word), "{text}: {error}");
    }
}

fn chance() -> impl Strategy<Value = Chance> {
    prop_oneof![Just(0), Just(1_000_000), 0u32..=1_000_000].prop_map(Chance::per_million)
}

fn time() -> impl Strategy<Value = Duration> {
    let any = 0u64..60_000_000_000;
    prop_oneof![Just(0), any, (0u64..60_000).prop_map(|ms| ms * 1_000_000)]
        .prop_map(Duration::from_nanos)
}

prop_compose! {
    fn any_config()(
        (loss, duplicate, reorder, corrupt) in (chance(), chance(), chance(), chance()),
        (delay, jitter) in (time(), time()),
        rate in proptest::option::of(1u64..),
        limit in 1usize..=FAULT_MAX_FRAMES,
        limit_bytes in proptest::option::of(1usize..),
        aqm in prop_oneof![
            Just(Aqm::None), Just(Aqm::Codel), time().prop_map(|above| Aqm::Mark { above })
        ],
        seed: u64,
        on in prop_oneof![
            Just(FaultDirection::Both), Just(FaultDirection::Transmit), Just(FaultDirection::Receive)
        ],
        cut: bool,
    ) -> FaultConfig {
        FaultConfig {
            loss, duplicate, reorder, corrupt, delay, jitter, rate, limit, limit_bytes, aqm, seed,
            on, cut,
        }
    }
}

proptest! {
    #[test]
    fn text_and_settings_round_trip(config in any_config()) {
        prop_assert_eq!(config.to_string().parse::<FaultConfig>(), Ok(config));
    }

    #[test]
    fn any_text_is_settings_or_an_error(text in "\\PC{0,40}") {
        let _ = text.parse::<FaultConfig>();
    }

    #[test]
    fn every_frame_is_delivered_or_counted_as_lost(
        config in any_config(),
        gaps in proptest::collection::vec(0u64..3_000_000, 1..80),
    ) {
        let mut line = FaultLine::new(config);
        let mut now = Instant::ZERO;
        for (i, gap) in gaps.iter().enumerate() {
            now += Duration::from_nanos(*gap);
            line.handle(now, i as u64, 1500);
            while line.poll(now).is_some() {}
        }
        drain(&mut line, Instant::FAR);
        let c = line.counters();
        prop_assert_eq!(
            c.offered + c.duplicated,
            c.delivered + c.lost + c.lost_queue_full + c.lost_early + c.lost_line_full
        );
        prop_assert_eq!((line.in_flight(), line.poll_timeout()), (0, None));
    }
}

#[test]
fn a_reconfigured_line_keeps_its_frames_their_order_and_its_random_numbers() {
    let half = FaultConfig { loss: Chance::percent(50), seed: 7, ..Default::default() };
    let lost = |line: &mut FaultLine<u64>| {
        let before = line.counters().lost;
        line.handle(ms(50), 9, 100);
        line.counters().lost > before
    };
    let (mut changed, mut plain) = (FaultLine::new(half), FaultLine::new(half));
    for line in [&mut changed, &mut plain] {
        lost(line);
    }
    changed.reconfigure(FaultConfig { seed: 99, ..half });
    let both: Vec<_> = (0..64).map(|_| (lost(&mut changed), lost(&mut plain))).collect();
    assert!(both.iter().all(|(changed, plain)| changed == plain), "the numbers go on");

    let slow = FaultConfig { delay: Duration::from_millis(30), ..Default::default() };
    let mut line = FaultLine::new(slow);
    line.handle(ms(0), 1, 100);
    line.reconfigure(FaultConfig { delay: Duration::from_millis(5), ..slow });
    line.handle(ms(10), 2, 100);
    assert_eq!(drain(&mut line, Instant::FAR), [(ms(30), 1), (ms(30), 2)], "the order stays");
    line.handle(ms(40), 3, 100);
    assert_eq!(drain(&mut line, Instant::FAR), [(ms(45), 3)]);
}
