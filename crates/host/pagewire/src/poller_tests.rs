//! The poller of a host: what each party may count on, in virtual time.

use std::time::Duration;

use pagewire_mem::Instant;

use super::{GRACE, LONGEST_WATCH, Look, Polling, SOON, Successor, WAKE_UP};

const US: Duration = Duration::from_micros(1);

/// Followers are numbers, and so are their names.
type Numbers = Polling<usize, usize>;

fn at(us: u32) -> Instant {
    Instant::ZERO + us * US
}

/// A host on which threads are away for 150 µs between two waits.
fn with_thinkers() -> Numbers {
    let mut polling = Numbers::new();
    for turn in 0..20 {
        assert!(polling.lead(0, at(200 * turn)));
        assert_eq!(polling.leave(at(200 * turn + 50)), Successor::Any);
    }
    polling
}

#[test]
fn one_thread_leads_at_a_time() {
    let mut polling = Numbers::new();
    assert!(polling.lead(1, at(0)) && !polling.lead(2, at(0)));
    polling.leave(at(1));
    assert!(polling.lead(2, at(1)) && !polling.lead(1, at(1)));
}

#[test]
fn a_leader_that_leaves_calls_the_follower_that_went_to_sleep_last() {
    let mut polling = with_thinkers();
    assert!(polling.lead(1, at(5000)));
    for (name, when) in [(2, 5010), (3, 5020), (4, 5030)] {
        polling.follow(name, name, at(when));
    }
    polling.forget(4);
    assert_eq!(polling.leave(at(5040)), Successor::Follower(3));
    assert!(polling.lead(3, at(5050)));
    assert_eq!(polling.leave(at(5060)), Successor::Follower(2));
}

#[test]
fn a_follower_that_has_slept_for_long_is_left_alone() {
    let mut polling = with_thinkers();
    assert!(polling.lead(1, at(5000)));
    polling.follow(2, 2, at(5000));
    assert_eq!(polling.leave(at(5000) + SOON), Successor::Any);
}

#[test]
fn a_follower_that_was_called_in_vain_calls_the_next() {
    let mut polling = with_thinkers();
    assert!(polling.lead(1, at(5000)));
    polling.follow(2, 2, at(5000));
    polling.follow(3, 3, at(5000));
    assert_eq!(polling.leave(at(5001)), Successor::Follower(3));
    // Its answer had come by then.
    assert_eq!(polling.successor(at(5002)), Successor::Follower(2));
}

#[test]
fn nobody_is_called_while_threads_come_back_sooner_than_one_wakes_up() {
    let mut polling = with_thinkers();
    let mut calls = 0;
    for turn in 0..100 {
        let now = at(5000 + 10 * turn);
        assert!(polling.lead(0, now));
        polling.follow(1, 1, now);
        calls += u32::from(polling.leave(now + 8 * US) != Successor::Any);
    }
    assert!(calls < 50, "{calls} calls");
    // Threads that take their time again are noticed, too.
    for turn in 0..10 {
        polling.lead(0, at(7000 + 200 * turn));
        polling.leave(at(7050 + 200 * turn));
    }
    assert!(polling.absence > WAKE_UP);
}

#[test]
fn the_driver_rests_while_one_leader_stays_and_is_called_when_that_leaves() {
    let mut polling = Numbers::new();
    assert!(polling.lead(1, at(0)));
    let Look::StayOut(wait) = polling.look(at(10), false) else { panic!("a thread leads") };
    assert_eq!(polling.look(at(10) + wait, false), Look::Rest);
    assert_eq!(polling.leave(at(9000)), Successor::Driver);
    let Look::StayOut(wait) = polling.look(at(9001), false) else { panic!("it has just left") };
    assert_eq!(polling.look(at(9001) + wait, false), Look::Poll);
}

#[test]
fn the_driver_polls_when_it_is_called_and_nobody_leads() {
    let mut polling = with_thinkers();
    assert_eq!(polling.look(at(3860), true), Look::Poll);
    assert!(polling.lead(1, at(3861)));
    assert_ne!(polling.look(at(3862), true), Look::Poll);
}

/// A model: threads wait for frames and are away in between, the driver sleeps as it is told. However they
/// take turns, somebody polls soon after a frame has come, and the driver seldom looks.
#[test]
fn no_frame_waits_for_longer_than_the_driver_watches() {
    for seed in 1..200_u64 {
        let mut random = seed;
        let mut next = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let (mut polling, mut now) = (Numbers::new(), at(0));
        // What each thread does, and when it does the next: it is away, leads, or follows.
        #[derive(Clone, Copy, PartialEq, Debug)]
        enum Does {
            Away,
            Leads,
            Follows,
        }
        let mut threads = [(Does::Away, at(0)); 3];
        let (mut driver_at, mut looks, mut unattended) = (at(0), 0, None);
        let away = [2, 10, 150, 2000][next(4) as usize];
        for _ in 0..2000 {
            let (who, when) = (0..threads.len())
                .filter(|&i| threads[i].0 != Does::Follows)
                .map(|i| (i, threads[i].1))
                .chain([(threads.len(), driver_at)])
                .min_by_key(|(_, at)| *at)
                .expect("the driver");
            now = now.max(when);
            if who == threads.len() {
                looks += 1;
                driver_at = match polling.look(now, false) {
                    Look::Poll => {
                        polling.arm();
                        unattended = None;
                        now + 1000 * US
                    }
                    Look::StayOut(wait) => now + wait,
                    Look::Rest => Instant::FAR,
                };
                continue;
            }
            let mut calls = Successor::Any;
            match threads[who].0 {
                Does::Away if polling.lead(who, now) => {
                    unattended = None;
                    threads[who] = (Does::Leads, now + next(60) as u32 * US);
                }
                Does::Away => {
                    polling.follow(who, who, now);
                    threads[who] = (Does::Follows, now);
                }
                Does::Leads => {
                    calls = polling.leave(now);
                    unattended = Some(now);
                    threads[who] = (Does::Away, now + next(away) as u32 * US);
                    // The turn that had the leader's answer may have had a follower's.
                    let other = next(3) as usize;
                    if threads[other].0 == Does::Follows && next(2) == 0 {
                        polling.forget(other);
                        threads[other] = (Does::Away, now + next(away) as u32 * US);
                    }
                }
                Does::Follows => unreachable!("it sleeps"),
            }
            match calls {
                Successor::Any => {}
                Successor::Driver => driver_at = now,
                Successor::Follower(name) if threads[name].0 == Does::Follows => {
                    threads[name] = (Does::Away, now + 5 * US);
                }
                Successor::Follower(_) => {}
            }
            let waits = unattended.map_or(Duration::ZERO, |since| now.saturating_since(since));
            assert!(waits <= GRACE + LONGEST_WATCH, "{waits:?} with seed {seed}");
        }
        let most = now.saturating_since(at(0)).as_micros() / 200 + 10;
        assert!(u128::from(looks as u32) <= most, "{looks} looks in {now:?}, seed {seed}");
    }
}
