//! Limits that connections share: the receive budget and the rate of challenges.

use std::collections::HashSet;

use pagewire_testkit::given;

use super::*;

#[test]
fn lone_connection_may_pin_a_fifth_of_the_budget() {
    let mut budget = ReceiveBudget::new(1 << 20);
    let mut pinned = 0;
    while pinned < budget.allowance() {
        budget.charge(pinned, pinned + 1);
        pinned += 1;
    }
    assert_eq!(pinned, (1 << 20) / 5);
}

#[test]
fn many_connections_that_nobody_reads_leave_a_share_to_the_next() {
    // Each takes what it may, again and again, until nothing moves.
    let mut budget = ReceiveBudget::new(64 << 20);
    let mut pinned = [0_usize; 100];
    for _ in 0..1000 {
        for held in &mut pinned {
            let more = budget.allowance().saturating_sub(*held).min(1 << 12);
            budget.charge(*held, *held + more);
            *held += more;
        }
    }
    let next = budget.allowance();
    let fair = (64 << 20) / (4 + 100);
    assert!(next >= fair * 9 / 10, "{next} bytes for the next, of {fair}");
}

given! {
    let mut budget = ReceiveBudget::new(3200);

    last_eighth_is_kept_for_those_who_hold_nothing_and_for_those_who_read {
        budget.charge(0, 2700);
        assert!(budget.is_ample(100) && !budget.is_ample(101));
        assert!(budget.has_room(300, false, true) && !budget.has_room(301, false, true));
        assert!(budget.has_room(400, false, false) && !budget.has_room(401, false, false));
        assert!(budget.has_room(500, true, true) && budget.has_room(500, true, false));
        for holds in [true, false] {
            assert!(!budget.has_room(501, true, holds), "nothing is let in beyond the budget");
        }
    }
    query_gets_through_beside_streams_as_long_as_they_left_anything {
        budget.charge(0, 3150);
        assert!(!budget.has_room(1, false, false), "others get nothing any more");
        assert!(budget.takes_datagram(0, 50) && !budget.takes_datagram(0, 51));
        budget.set_room(0);
        assert!(budget.takes_datagram(0, 50), "also if the device has little left");
        budget.charge_datagrams(0, 50);
        assert!(!budget.takes_datagram(0, 1));
    }
    device_with_little_memory_left_bounds_what_is_taken_and_promised {
        budget.charge(0, 800);
        budget.set_room(usize::MAX);
        assert_eq!((budget.limit(), budget.allowance()), (3200, 600));
        // Pinned memory is not promised again: a fourth of the rest is.
        budget.set_room(800);
        assert_eq!((budget.limit(), budget.allowance()), (1600, 200));
        assert!(budget.is_ample(600) && !budget.is_ample(601));
        assert!(budget.has_room(750, false, false) && !budget.has_room(751, false, false));
        // The device has nothing left: nothing is taken.
        budget.set_room(0);
        assert_eq!(budget.allowance(), 0);
        assert!(!budget.is_ample(1) && !budget.has_room(1, true, false));
        assert!(!budget.takes_datagram(1, 1));
        // Data was read: there is room at once, before the device reports it.
        budget.charge(800, 400);
        assert!(budget.has_room(300, true, true));
        budget.set_room(10_000);
        assert_eq!(budget.limit(), 3200);
    }
    socket_without_a_datagram_takes_one_beside_streams_that_took_their_all {
        budget.charge(0, 2800);
        assert!(!budget.takes_datagram(1, 1), "the last eighth is begun");
        assert!(budget.takes_datagram(0, 300) && !budget.takes_datagram(0, 301));
        budget.charge(2800, 0);
        budget.charge_datagrams(0, 1500);
        assert!(budget.takes_datagram(0, 100) && !budget.takes_datagram(0, 101), "half is for streams");
    }
}

#[test]
fn challenge_limit_holds_on_average_and_varies_between_seconds() {
    let mut limit = ChallengeLimit::new([7; 16], Some(1000));
    let mut taken =
        |s: u64| (0..10_000).filter(|_| limit.take(Instant::from_millis(s * 1000))).count();
    let counts: Vec<usize> = (1..=200).map(&mut taken).collect();
    assert!(counts.iter().all(|n| (500..1500).contains(n)), "{counts:?}");
    let mean = counts.iter().sum::<usize>() / counts.len();
    assert!((900..1100).contains(&mean), "{mean}");
    let distinct: HashSet<_> = counts.iter().collect();
    assert!(distinct.len() > 150, "a stranger cannot count on a number");
    assert_eq!(taken(200), 0);
}

#[test]
fn without_a_limit_every_challenge_is_answered() {
    let mut limit = ChallengeLimit::default();
    assert!((0..100_000).all(|_| limit.take(Instant::ZERO)));
    assert_eq!(limit.refused(), 0);
}

#[test]
fn datagrams_that_nobody_reads_leave_half_of_the_budget_and_a_share_to_the_next_socket() {
    let mut budget = ReceiveBudget::new(64 << 20);
    let mut pinned = [0_usize; 64];
    for _ in 0..10_000 {
        for held in &mut pinned {
            if budget.takes_datagram(*held, 4 << 10) {
                budget.charge_datagrams(0, 4 << 10);
                *held += 4 << 10;
            }
        }
    }
    assert_eq!((budget.used(), budget.datagrams()), (pinned.iter().sum(), budget.used()));
    assert!(budget.used() <= 32 << 20, "{}", budget.used());
    let fair = (32 << 20) / (4 + 64);
    assert!(pinned.iter().all(|held| held.abs_diff(fair) < fair / 10), "{fair}: {pinned:?}");
    assert!(budget.takes_datagram(fair / 2, 4 << 10), "the next has a share too");
    for held in pinned {
        budget.charge_datagrams(held, 0);
    }
    assert_eq!((budget.used(), budget.datagrams()), (0, 0));
}
