//! The registry of waiters: who is woken by which event, and what a removal leaves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Wake;

use pagewire_stack::{BindOptions, Stack, StackConfig};

use super::*;

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

/// Each call gives another one.
fn waker() -> Waker {
    Waker::from(Arc::new(Nobody))
}

/// Two sockets of a stack: ids cannot be made otherwise.
fn ids() -> [SocketId; 2] {
    let capabilities = pagewire_device::Capabilities::offloading([2; 6], 1500);
    let addresses = vec!["10.0.0.1/8".parse().unwrap()];
    let mut stack = Stack::new(Instant::ZERO, StackConfig::new(capabilities, addresses, [7; 32]));
    let local: SocketAddr = "10.0.0.1:0".parse().unwrap();
    let stack = stack.as_mut().unwrap();
    [(); 2].map(|()| stack.bind_udp(local, BindOptions::default()).unwrap().into())
}

struct World {
    waiters: Waiters,
    time: u64,
}

impl World {
    fn new() -> Self {
        Self { waiters: Waiters::default(), time: 0 }
    }

    fn add(&mut self, socket: SocketId, interest: Readiness, id: WaiterId, waker: &Waker) {
        self.time += 1;
        let (waker, since) = (waker.clone(), Some(Instant::from_nanos(self.time)));
        let waiter = Waiter { id, call: Call::new("to read"), since, waker };
        self.waiters.add(socket, interest, waiter);
    }

    fn take(&mut self, socket: SocketId, gained: Readiness) -> Vec<Waker> {
        let mut wakes = Vec::new();
        self.waiters.take(socket, gained, &mut wakes);
        wakes
    }
}

#[test]
fn an_event_wakes_those_of_its_socket_and_interest_only() {
    let ([one, other], mut world) = (ids(), World::new());
    let wakers = [waker(), waker(), waker()];
    for (socket, interest, waker) in [
        (one, Readiness::FOR_READ, &wakers[0]),
        (one, Readiness::FOR_WRITE, &wakers[1]),
        (other, Readiness::FOR_READ, &wakers[2]),
    ] {
        let id = WaiterId::new();
        world.add(socket, interest, id, waker);
    }
    let woken = world.take(one, Readiness::READABLE);
    assert!(woken.len() == 1 && woken[0].will_wake(&wakers[0]));
    assert_eq!(world.waiters.sorted().len(), 2);
}

#[test]
fn waits_are_woken_in_the_order_of_registration() {
    let ([one, _], mut world) = (ids(), World::new());
    let wakers: Vec<_> = (0..5).map(|_| waker()).collect();
    for waker in &wakers {
        let id = WaiterId::new();
        world.add(one, Readiness::FOR_READ, id, waker);
    }
    let woken = world.take(one, Readiness::READABLE);
    assert!(woken.iter().zip(&wakers).all(|(woken, waker)| woken.will_wake(waker)));
    assert_eq!(woken.len(), 5);
}

#[test]
fn the_last_waker_of_a_waiter_counts_and_its_wait_goes_on() {
    let ([one, _], mut world) = (ids(), World::new());
    let (id, first, last) = (WaiterId::new(), waker(), waker());
    world.add(one, Readiness::FOR_READ, id, &first);
    world.add(one, Readiness::FOR_READ, id, &last);
    assert_eq!(world.waiters.sorted()[0].1.since, Some(Instant::from_nanos(1)));
    let woken = world.take(one, Readiness::READABLE);
    assert!(woken.len() == 1 && woken[0].will_wake(&last));
}

#[test]
fn a_wait_that_ends_leaves_nothing() {
    let ([one, _], mut world) = (ids(), World::new());
    let (id, waker) = (WaiterId::new(), waker());
    world.add(one, Readiness::FOR_READ, id, &waker);
    assert!(world.waiters.remove(one, id).is_some());
    assert!(world.waiters.remove(one, id).is_none());
    assert!(world.take(one, Readiness::READABLE).is_empty());
    assert!(world.waiters.sorted().is_empty());
}

#[test]
fn a_lasting_waiter_is_woken_every_time_and_no_call_that_waits() {
    let ([one, _], mut world) = (ids(), World::new());
    let (id, waker) = (WaiterId::new(), waker());
    let waiter = Waiter { id, call: Call::new("in epoll"), since: None, waker: waker.clone() };
    world.waiters.add_lasting(one, Readiness::FOR_READ, waiter);
    for _ in 0..2 {
        let woken = world.take(one, Readiness::READABLE);
        assert!(woken.len() == 1 && woken[0].will_wake(&waker));
    }
    assert!(world.take(one, Readiness::WRITABLE).is_empty());
    assert!(!world.waiters.is_awaited(one, Readiness::FOR_READ));
    assert!(world.waiters.remove(one, id).is_some());
    assert!(world.take(one, Readiness::READABLE).is_empty());
}

#[test]
fn timers_are_due_in_the_order_of_time_and_those_removed_never() {
    let mut waiters = Waiters::default();
    let at = [3, 1, 2].map(|nanos| (Instant::from_nanos(nanos), WaiterId::new(), waker()));
    for (at, id, waker) in &at {
        assert!(waiters.add_timer(*at, *id, waker.clone()).is_none());
    }
    assert!(waiters.remove_timer(at[2].0, at[2].1).is_some());
    assert_eq!(waiters.next_timer(), Some(at[1].0));
    let mut due = Vec::new();
    waiters.take_timers(Instant::from_nanos(2), &mut due);
    assert!(due.len() == 1 && due[0].will_wake(&at[1].2));
    waiters.take_timers(Instant::from_nanos(3), &mut due);
    assert!(due.len() == 2 && due[1].will_wake(&at[0].2));
    assert_eq!(waiters.next_timer(), None);
}
