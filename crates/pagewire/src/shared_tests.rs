//! What the lock promises.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::Waker;
use std::thread;

use pagewire_device::Pair;
use pagewire_mem::Instant;
use pagewire_stack::{SocketId, Stack};

use super::{Interest, Shared};
use crate::Host;

/// Looks that the holder of the lock leaves to a thread that comes for it: more than that needs to
/// read a clock.
const YIELDS: usize = 10_000;

/// The time that an operation sees which comes while the lock is held, and a time before the lock was
/// let go.
fn times(op: impl FnOnce(&Shared, SocketId) -> Instant + Send + 'static) -> (Instant, Instant) {
    let (device, _peer) = Pair::new(Default::default()).expect("pair");
    let host = Host::builder().device(device).address("10.0.0.1/24").manual().start();
    let handle = host.expect("host").handle();
    let socket = handle.shared.with(|stack, _| stack.udp_bind(([10, 0, 0, 1], 9).into()));
    let socket = socket.expect("bound");
    let (says, hears) = channel();
    let inner = handle.shared.lock();
    let theirs = Arc::clone(&handle);
    let other = thread::spawn(move || {
        says.send(()).expect("it listens");
        op(&theirs.shared, socket)
    });
    hears.recv().expect("it comes");
    (0..YIELDS).for_each(|_| thread::yield_now());
    let before = handle.shared.now();
    drop(inner);
    (other.join().expect("it ends"), before)
}

#[test]
fn an_operation_that_waited_for_the_lock_sees_no_time_before_it_had_it() {
    let (seen, before) = times(|shared, _| shared.with(|_, now| now));
    assert!(seen >= before, "{seen:?} was told after {before:?}");
}

#[test]
fn a_wait_that_waited_for_the_lock_sees_no_time_before_it_had_it() {
    let (seen, before) = times(|shared, socket| {
        let op = &mut |_: &mut Stack, now| Ok(now);
        shared.try_or_register(socket, Interest::Read, Waker::noop(), op).expect("a time")
    });
    assert!(seen >= before, "{seen:?} was told after {before:?}");
}
