use core::time::Duration;

use super::*;

const NOW: Instant = Instant::from_millis(100);

#[test]
fn next_timeout_is_the_earliest() {
    let mut timers = Timers::new();
    assert_eq!(timers.next_timeout(), None);
    timers.set(Timer::Retransmit, NOW + Duration::from_millis(5));
    timers.set(Timer::DelayedAck, NOW + Duration::from_millis(3));
    assert_eq!(timers.next_timeout(), Some(NOW + Duration::from_millis(3)));
    timers.stop(Timer::DelayedAck);
    assert_eq!(timers.next_timeout(), Some(NOW + Duration::from_millis(5)));
    timers.stop_all();
    assert_eq!(timers.next_timeout(), None);
}

#[test]
fn timer_goes_off_at_its_moment_and_once() {
    for timer in Timer::ALL {
        let mut timers = Timers::new();
        timers.set(timer, NOW);
        assert_eq!(timers.pop(NOW - Duration::from_nanos(1)), None);
        assert_eq!(timers.pop(NOW), Some(timer));
        assert_eq!(timers.pop(NOW), None);
    }
}

#[test]
fn set_once_keeps_the_first_moment() {
    let mut timers = Timers::new();
    timers.set_once(Timer::Persist, NOW);
    timers.set_once(Timer::Persist, NOW + Duration::from_secs(1));
    assert_eq!(timers.get(Timer::Persist), NOW);
    timers.set(Timer::Persist, NOW + Duration::from_secs(1));
    assert_eq!(timers.get(Timer::Persist), NOW + Duration::from_secs(1));
}

#[test]
fn every_timer_has_its_own_slot() {
    for (i, a) in Timer::ALL.into_iter().enumerate() {
        for b in Timer::ALL.into_iter().skip(i + 1) {
            assert_ne!(a as usize, b as usize);
        }
        assert!((a as usize) < Timer::ALL.len());
    }
}
