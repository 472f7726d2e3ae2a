use core::time::Duration;

use super::*;

const NOW: Instant = Instant::from_millis(100);

#[test]
fn timer_goes_off_at_its_moment_and_once() {
    let mut timer = Timer::default();
    assert!(!timer.is_set() && !timer.pop(NOW));
    timer.set(NOW);
    assert!(!timer.pop(NOW - Duration::from_nanos(1)));
    assert!(timer.pop(NOW));
    assert!(!timer.is_set() && !timer.pop(NOW));
}

#[test]
fn set_once_keeps_the_first_moment() {
    let mut timer = Timer::default();
    timer.set_once(NOW);
    timer.set_once(NOW + Duration::from_secs(1));
    assert_eq!(timer.get(), NOW);
    timer.set(NOW + Duration::from_secs(1));
    assert_eq!(timer.get(), NOW + Duration::from_secs(1));
    timer.stop();
    assert!(!timer.is_set());
}
