//! The wake sources of a host's task.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pagewire_mem::Instant;
use rustix::time::timerfd_gettime;

use super::WakeSources;
use crate::{Host, Pair};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// Runs `test` with the sources of a host that takes no turns.
fn with_bells(test: impl FnOnce(&Host, &mut WakeSources)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("runtime").block_on(async {
        let (device, _far) = Pair::new().expect("pair");
        let host = Host::builder().device(device).address("10.0.0.1/24").manual().start();
        let host = host.expect("host");
        let mut sources = WakeSources::new(host.shared()).expect("descriptors");
        test(&host, &mut sources);
    });
}

/// How long the timer still runs, as the kernel says; zero: it does not.
fn left(sources: &WakeSources) -> Duration {
    let left = timerfd_gettime(&sources.timer).expect("a timer").it_value;
    Duration::new(left.tv_sec as u64, left.tv_nsec as u32)
}

#[test]
fn a_timer_is_brought_forward_when_an_earlier_deadline_comes_and_never_put_back() {
    with_bells(|_, sources| {
        sources.set_timer(Instant::ZERO, SECOND);
        assert!(left(sources) > 500 * MS);
        sources.set_timer(Instant::ZERO + MS, 5 * MS);
        assert!(left(sources) <= 5 * MS, "{:?}", left(sources));
        assert_eq!(sources.expires_at, Some(Instant::ZERO + 6 * MS));
        sources.set_timer(Instant::ZERO + 2 * MS, SECOND);
        assert_eq!(
            sources.expires_at,
            Some(Instant::ZERO + 6 * MS),
            "a deadline that moved away is free"
        );
    });
}

#[test]
fn a_timer_that_expired_is_set_anew() {
    with_bells(|_, sources| {
        sources.set_timer(Instant::ZERO, Duration::ZERO);
        // The timer expires at once; the wait after that sees the level.
        let readable = loop {
            let readable = sources.levels(false);
            if readable.timer {
                break readable;
            }
        };
        sources.forget(readable);
        assert_eq!((sources.expires_at, sources.levels(false).timer), (None, false));
        sources.set_timer(Instant::ZERO + MS, SECOND);
        assert!(left(sources) > 500 * MS);
    });
}

#[test]
fn a_wake_up_before_the_wait_ends_it_and_is_forgotten_after_it() {
    with_bells(|host, sources| {
        host.shared().wake_driver();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pin!(sources.wait(Instant::ZERO, None, SECOND)).poll(&mut cx).is_ready());
        assert!(!sources.levels(false).wake);
        let waits = pin!(sources.wait(Instant::ZERO, None, SECOND)).poll(&mut cx);
        assert_eq!(waits, Poll::Pending);
    });
}
