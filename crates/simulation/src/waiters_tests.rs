use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use pagewire_stack::{BindOptions, Stack};

use super::*;

#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn waker() -> (Arc<Counter>, Waker) {
    let counter = Arc::<Counter>::default();
    (Arc::clone(&counter), Waker::from(counter))
}

fn wait() -> Wait {
    Wait { call: Call { what: "read", at: None }, since: Instant::ZERO, task: None }
}

/// Two sockets of a stack: ids cannot be made otherwise.
fn ids() -> [SocketId; 2] {
    let capabilities = pagewire_device::Capabilities::default();
    let addresses = vec!["10.0.0.1/8".parse().unwrap()];
    let config = pagewire_stack::StackConfig::new(capabilities, addresses, [7; 32]);
    let mut stack = Stack::new(Instant::ZERO, config).unwrap();
    let local: SocketAddr = "10.0.0.1:0".parse().unwrap();
    [(); 2].map(|()| stack.bind_udp(local, BindOptions::default()).unwrap().into())
}

fn readable(socket: SocketId) -> Event {
    Event { socket, gained: Readiness::READABLE, readiness: Readiness::READABLE }
}

#[test]
fn an_event_wakes_those_of_its_socket_and_interest_only() {
    let [one, other] = ids();
    let (mut waiters, mut loose) = (Waiters::default(), Loose::default());
    let wakers: Vec<_> = (0..3).map(|_| waker()).collect();
    let mut add = |socket, mask, n: usize| {
        let slot = waiters.slot();
        waiters.register(socket, slot, mask, (wait(), &wakers[n].1), &mut loose);
    };
    add(one, Readiness::FOR_READ, 0);
    add(one, Readiness::FOR_WRITE, 1);
    add(other, Readiness::FOR_READ, 2);
    waiters.wake(&readable(one), &mut loose);
    assert_eq!(loose.to_wake.len(), 1);
    assert!(loose.to_wake[0].will_wake(&wakers[0].1));
    assert_eq!(waiters.iter().count(), 2);
}

#[test]
fn waits_are_woken_in_the_order_of_registration() {
    let [one, _] = ids();
    let (mut waiters, mut loose) = (Waiters::default(), Loose::default());
    let wakers: Vec<_> = (0..5).map(|_| waker()).collect();
    for (_, waker) in &wakers {
        let slot = waiters.slot();
        waiters.register(one, slot, Readiness::FOR_READ, (wait(), waker), &mut loose);
    }
    waiters.wake(&readable(one), &mut loose);
    assert_eq!(loose.to_wake.len(), 5);
    for (woken, (_, waker)) in loose.to_wake.iter().zip(&wakers) {
        assert!(woken.will_wake(waker));
    }
}

#[test]
fn of_calls_that_poll_the_last_waker_of_a_direction_counts() {
    let [one, _] = ids();
    let (mut waiters, mut loose) = (Waiters::default(), Loose::default());
    let ((_, first), (_, last)) = (waker(), waker());
    for waker in [&first, &last] {
        waiters.register(one, Slot::Reader, Readiness::FOR_READ, (wait(), waker), &mut loose);
    }
    assert!(loose.to_drop[0].will_wake(&first));
    waiters.wake(&readable(one), &mut loose);
    assert_eq!(loose.to_wake.len(), 1);
    assert!(loose.to_wake[0].will_wake(&last));
}

#[test]
fn a_wait_that_ends_leaves_nothing() {
    let [one, other] = ids();
    let (mut waiters, mut loose) = (Waiters::default(), Loose::default());
    let (_, waker) = waker();
    let slot = waiters.slot();
    waiters.register(one, slot, Readiness::FOR_READ, (wait(), &waker), &mut loose);
    waiters.register(other, Slot::Writer, Readiness::FOR_WRITE, (wait(), &waker), &mut loose);
    waiters.remove(one, slot, &mut loose);
    waiters.remove(one, slot, &mut loose);
    waiters.remove_all(other, &mut loose);
    assert_eq!((waiters.iter().count(), loose.to_drop.len()), (0, 2));
    waiters.wake(&readable(one), &mut loose);
    assert!(loose.to_wake.is_empty());
}
