//! The spin limit, in models of one and of two cores.

use super::*;

const US: Duration = Duration::from_micros(1);

fn spin() -> Spin {
    Spin::new(DEFAULT_SPIN)
}

fn limit(spin: &Spin) -> Duration {
    spin.limit(Instant::ZERO)
}

#[test]
fn it_grows_until_it_covers_waits_that_can_be_covered() {
    let spin = spin();
    for _ in 0..3 {
        spin.adjust(130 * US);
    }
    assert_eq!(limit(&spin), 200 * US);
    spin.adjust(3 * US);
    assert_eq!(limit(&spin), 200 * US, "what it covers changes nothing");
}

#[test]
fn it_shrinks_to_nothing_when_waits_are_long_and_begins_again_when_they_are_not() {
    let spin = spin();
    spin.adjust(130 * US);
    spin.adjust(130 * US);
    let limits: Vec<_> = std::iter::repeat_with(|| {
        spin.adjust(5_000 * US);
        limit(&spin)
    })
    .take(4)
    .collect();
    assert_eq!(limits, [100 * US, 50 * US, Duration::ZERO, Duration::ZERO]);
    spin.adjust(130 * US);
    assert_eq!(limit(&spin), FIRST);
}

#[test]
fn the_setting_is_never_exceeded_and_zero_is_never() {
    for most in [Duration::ZERO, 20 * US, 70 * US] {
        let spin = Spin::new(most);
        for waited in [0, 1, 15, 60, 90, 1_000, 15, 15, 15] {
            assert!(limit(&spin) <= most, "{most:?}");
            spin.adjust(waited * US);
        }
    }
}

#[test]
fn polls_that_took_longer_than_sleeps_are_paid_back_by_rest() {
    let (spin, at) = (spin(), |us: u32| Instant::ZERO + us * US);
    spin.ended(at(50), 50 * US, Duration::ZERO);
    assert_eq!(spin.limit(at(50)), FIRST);
    spin.ended(at(60), 10 * US, 10 * US);
    assert_eq!(spin.limit(at(60)), FIRST, "it saved 40 µs");
    spin.ended(at(960), 900 * US, 900 * US);
    assert_eq!(spin.limit(at(960)), Duration::ZERO);
    let rest = (900 - 50 - 40) * REST;
    assert_eq!(spin.limit(at(960 + rest - 1)), Duration::ZERO);
    assert_ne!(spin.rest_until.load(Ordering::Relaxed), 0);
}

#[test]
fn a_wait_sleeps_now_and_then_so_that_its_time_is_known() {
    let (spin, at) = (spin(), |us: u32| Instant::ZERO + us * US);
    spin.ended(at(10), 10 * US, 10 * US);
    assert_eq!(spin.limit(at(10)), Duration::ZERO, "unknown yet");
    spin.ended(at(60), 40 * US, Duration::ZERO);
    assert_eq!(spin.limit(at(60)), FIRST);
    spin.ended(at(60) + SAMPLE, 10 * US, 10 * US);
    assert_eq!(spin.limit(at(60) + SAMPLE), Duration::ZERO);
}

/// A thread of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    /// Needs a core for some microseconds, then sends its message.
    Works(u32),
    /// Polls since the first time; polled last at the second.
    Polls(u32, u32),
    /// Sleeps since the first time; the message comes to the thread.
    Sleeps(u32),
    /// Is awake at the time, and then takes its message, for which it has waited since the other time.
    Wakes(u32, u32),
    /// Sleeps until the time, before the next message.
    Thinks(u32),
    /// Only computes.
    Computes,
}

/// How long waits poll.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Policy {
    Always,
    Never,
    Ours,
}

/// The microseconds of a message's work, of a wake-up on a core that computes and on one that is halted, and of
/// a slice of the scheduler.
const WORK: u32 = 1;
const SWITCH: u32 = 4;
const UNHALT: u32 = 40;
const SLICE: u32 = 3000;

/// Two threads pass a message to and fro, and the first sleeps for some time before each. Beside them threads
/// compute. Returns the round trips of some milliseconds. The scheduler is fair: the thread that has used least
/// runs, for a slice, and one that wakes takes the core of the thread that has used most.
fn round_trips(cores: usize, busy: usize, think: u32, policy: Policy) -> u32 {
    let spins = [spin(), spin()];
    let (mut threads, mut used) = (vec![Does::Works(WORK), Does::Sleeps(0)], vec![0_u32; 2 + busy]);
    threads.resize(2 + busy, Does::Computes);
    let mut running: Vec<Option<(usize, u32)>> = vec![None; cores];
    let mut messages = [false; 2];
    // How long a thread polled before it slept.
    let polled = [const { std::cell::Cell::new(0_u32) }; 2];
    let trips = std::cell::Cell::new(0);
    // The first thread has its answer, and thinks.
    let answered = |thread: usize, now: u32| {
        trips.set(trips.get() + u32::from(thread == 0));
        if thread == 0 && think > 0 { Does::Thinks(now + think) } else { Does::Works(WORK) }
    };
    let at = |us: u32| Instant::ZERO + us * US;
    for now in 0..300_000 {
        // Messages wake those that sleep, and times end.
        for i in 0..2 {
            if let Does::Sleeps(since) = threads[i]
                && std::mem::take(&mut messages[i])
            {
                let halted = running.iter().any(Option::is_none);
                let wake = if halted { UNHALT } else { SWITCH };
                threads[i] = Does::Wakes(now + wake, since);
            }
            let wakes = match threads[i] {
                Does::Wakes(when, since) if now >= when => {
                    spins[i].ended(at(now), (now - since) * US, polled[i].replace(0) * US);
                    threads[i] = answered(i, now);
                    true
                }
                Does::Thinks(when) if now >= when => {
                    threads[i] = Does::Works(WORK);
                    true
                }
                _ => false,
            };
            if wakes && needs_a_core(threads[i]) {
                let floor = (2..2 + busy).map(|i| used[i]).min().unwrap_or(0);
                used[i] = used[i].max(floor.saturating_sub(SLICE));
                let most =
                    (0..cores).max_by_key(|&c| running[c].map_or(u32::MAX, |(t, _)| used[t]));
                let core = most.expect("a core");
                if running[core].is_none_or(|(thread, _)| used[thread] > used[i]) {
                    running[core] = Some((i, now));
                }
            }
        }
        for core in 0..cores {
            let over = running[core].is_none_or(|(thread, since)| {
                now - since >= SLICE || !needs_a_core(threads[thread])
            });
            if over {
                let others: Vec<_> =
                    (0..cores).filter(|&c| c != core).map(|c| running[c]).collect();
                let is_free = |i: &usize| !others.iter().flatten().any(|(thread, _)| thread == i);
                let ready =
                    (0..threads.len()).filter(|&i| needs_a_core(threads[i])).filter(is_free);
                running[core] = ready.min_by_key(|&i| used[i]).map(|i| (i, now));
            }
            let Some((thread, _)) = running[core] else { continue };
            used[thread] += 1;
            threads[thread] = match threads[thread] {
                Does::Works(left) if left > 1 => Does::Works(left - 1),
                Does::Works(_) => {
                    messages[1 - thread] = true;
                    let limit = match policy {
                        Policy::Always => DEFAULT_SPIN,
                        Policy::Never => Duration::ZERO,
                        Policy::Ours => spins[thread].limit(at(now)),
                    };
                    if limit.is_zero() { Does::Sleeps(now) } else { Does::Polls(now, now) }
                }
                Does::Polls(since, _) if std::mem::take(&mut messages[thread]) => {
                    spins[thread].ended(at(now), (now - since) * US, (now - since).max(1) * US);
                    answered(thread, now)
                }
                Does::Polls(since, last) => {
                    let limit = match policy {
                        Policy::Ours => spins[thread].limit(at(since)),
                        _ => DEFAULT_SPIN,
                    };
                    let lost = policy == Policy::Ours && spins[thread].lost_core(at(last), at(now));
                    match lost || (now - since) * US >= limit {
                        true => {
                            polled[thread].set(now - since);
                            Does::Sleeps(since)
                        }
                        false => Does::Polls(since, now),
                    }
                }
                other => other,
            };
        }
    }
    trips.get()
}

fn needs_a_core(does: Does) -> bool {
    matches!(does, Does::Works(_) | Does::Polls(..) | Does::Computes)
}

#[test]
fn a_wait_takes_at_most_a_tenth_longer_than_with_the_better_of_always_and_never() {
    let mut worse = Vec::new();
    for cores in [1, 2] {
        for busy in [0, 1, 2] {
            for think in [0, 150] {
                let trips = |policy| round_trips(cores, busy, think, policy);
                let (always, never) = (trips(Policy::Always), trips(Policy::Never));
                let ours = trips(Policy::Ours);
                if ours * 11 < always.max(never) * 10 {
                    worse.push(format!(
                        "{cores} cores, {busy} busy, {think} µs of thought: \
                         {ours} round trips, {always} if all waits poll, {never} if none does"
                    ));
                }
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}
