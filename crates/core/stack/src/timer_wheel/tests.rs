use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[test]
fn a_timer_never_fires_early_and_late_by_less_than_a_tick() {
    for ns in [0, 1, 130_000, 131_072, 131_073, 5_000_000, 200_000_000, 7_200_000_000_000] {
        let at = Instant::from_nanos(ns);
        let mut wheel = TimerWheel::new(Instant::ZERO);
        wheel.schedule(3, at);
        let mut fired = None;
        while let Some(due) = wheel.poll_timeout() {
            if wheel.pop_expired(due).is_some() {
                fired = Some(due);
            }
        }
        let fired = fired.expect("it fires");
        assert!(fired >= at && fired - at < TICK, "{at:?} fired at {fired:?}");
    }
}

#[test]
fn a_host_with_few_timers_wakes_once_for_each() {
    let ends = [5_000_000, 200_000_000, 201_000_000, 7_200_000_000_000];
    let mut wheel = TimerWheel::new(Instant::ZERO);
    for (index, ns) in (0..).zip(ends) {
        wheel.schedule(index, Instant::from_nanos(ns));
    }
    let mut woken = 0;
    while let Some(due) = wheel.poll_timeout() {
        assert!(wheel.pop_expired(due).is_some(), "woken for nothing at {due:?}");
        woken += 1;
    }
    assert_eq!(woken, ends.len());
}

#[test]
fn the_far_future_can_be_waited_for() {
    let mut wheel = TimerWheel::new(Instant::from_nanos(u64::MAX / 3));
    wheel.schedule(0, Instant::FAR);
    assert_eq!(wheel.pop_expired(Instant::from_nanos(u64::MAX / 2)), None);
    assert!(wheel.is_set(0));
}

#[test]
fn a_deadline_in_the_past_is_due_at_once() {
    let mut wheel = TimerWheel::new(Instant::from_millis(700));
    wheel.schedule(9, Instant::from_millis(3));
    assert_eq!(wheel.pop_expired(Instant::from_millis(700)), Some(9));
}

#[derive(Clone, Debug)]
enum Op {
    Schedule(u32, u64),
    Cancel(u32),
    Advance(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let span = prop_oneof![0u64..200_000, 0u64..1_000_000_000, 0u64..1 << 50];
    prop_oneof![
        4 => (0u32..24, span.clone()).prop_map(|(i, d)| Op::Schedule(i, d)),
        1 => (0u32..24).prop_map(Op::Cancel),
        2 => span.prop_map(Op::Advance),
    ]
}

proptest! {
    /// The oracle: a map from socket to the tick of its deadline.
    #[test]
    fn fires_what_a_sorted_map_would(ops in prop::collection::vec(op(), 1..200), start in 0u64..1 << 60) {
        let mut now = start;
        let mut wheel = TimerWheel::new(Instant::from_nanos(now));
        let mut model = BTreeMap::new();
        for op in ops {
            match op {
                Op::Schedule(i, d) => {
                    wheel.schedule(i, Instant::from_nanos(now + d));
                    model.insert(i, (now + d).div_ceil(1 << TICK_SHIFT));
                }
                Op::Cancel(i) => {
                    wheel.cancel(i);
                    model.remove(&i);
                }
                Op::Advance(d) => {
                    now += d;
                    let tick = now >> TICK_SHIFT;
                    let mut fired = Vec::new();
                    while let Some(i) = wheel.pop_expired(Instant::from_nanos(now)) {
                        fired.push(i);
                    }
                    fired.sort_unstable();
                    let due: Vec<u32> =
                        model.iter().filter(|(_, t)| **t <= tick).map(|(i, _)| *i).collect();
                    model.retain(|_, t| *t > tick);
                    // A deadline of this very tick that was rounded up fires with the next.
                    prop_assert_eq!(fired, due);
                }
            }
            let next = model.values().min().map(|t| t << TICK_SHIFT);
            let says = wheel.poll_timeout().map(Instant::as_nanos);
            prop_assert_eq!(says.is_some(), next.is_some());
            if let (Some(says), Some(next)) = (says, next) {
                prop_assert!(says <= next.max((now >> TICK_SHIFT) << TICK_SHIFT));
            }
            for i in 0..24 {
                prop_assert_eq!(wheel.is_set(i), model.contains_key(&i));
            }
        }
    }
}

#[test]
fn timer_is_moved_at_most_once_per_level_however_many_there_are() {
    // Deadlines over two minutes of ticks of 131 us lie on four levels.
    for n in [10_u64, 1_000, 100_000] {
        let mut wheel = TimerWheel::new(Instant::ZERO);
        for i in 0..n {
            let ms = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 120_000;
            wheel.schedule(i as u32, Instant::from_millis(1 + ms));
        }
        assert_eq!(wheel.links, n, "setting one is one step");
        let mut fired = 0;
        for ms in 0..=120_001 {
            while wheel.pop_expired(Instant::from_millis(ms)).is_some() {
                fired += 1;
            }
        }
        assert_eq!(fired, n);
        assert!(wheel.links <= 4 * n, "{} steps for {n} timers", wheel.links);
    }
}
