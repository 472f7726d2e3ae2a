//! The rate of challenge ACKs that connections share.

use std::collections::HashSet;

use super::*;

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
