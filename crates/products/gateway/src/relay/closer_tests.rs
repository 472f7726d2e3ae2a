//! Who closes sockets, and that all are closed.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::Closer;
use crate::limits::{CLOSE_TOGETHER, CLOSES_AT_ONCE};

/// Closes this number of sockets; returns their far ends.
fn close(closer: &Closer, n: usize) -> Vec<UnixStream> {
    let pairs = || UnixStream::pair().expect("two sockets");
    let (near, far): (Vec<UnixStream>, Vec<_>) = std::iter::repeat_with(pairs).take(n).unzip();
    let mut near: Vec<OwnedFd> = near.into_iter().map(Into::into).collect();
    closer.close(&mut near);
    assert!(near.is_empty(), "sockets left");
    far
}

/// Whether the stream has ended now.
fn has_ended(far: &mut UnixStream) -> bool {
    far.set_nonblocking(true).expect("a mode");
    matches!(far.read(&mut [0]), Ok(0))
}

#[test]
fn a_few_sockets_are_closed_at_once() {
    for mut far in close(&Closer::start(), CLOSE_TOGETHER - 1) {
        assert!(has_ended(&mut far));
    }
}

#[test]
fn without_a_thread_any_number_is_closed_at_once() {
    for mut far in close(&Closer::without_thread(), 3 * CLOSES_AT_ONCE) {
        assert!(has_ended(&mut far));
    }
}

#[test]
fn many_sockets_are_closed_by_the_thread_and_those_beyond_its_room_at_once() {
    let mut far = close(&Closer::start(), 2 * CLOSES_AT_ONCE);
    let beyond = far.split_off(CLOSES_AT_ONCE);
    assert!(beyond.into_iter().all(|mut far| has_ended(&mut far)));
    for mut far in far {
        far.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        assert_eq!(far.read(&mut [0]).expect("the end"), 0);
    }
}

#[test]
fn the_thread_closes_what_waits_when_its_gateway_ends() {
    let closer = Closer::start();
    let far = close(&closer, CLOSES_AT_ONCE);
    drop(closer);
    for mut far in far {
        far.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        assert_eq!(far.read(&mut [0]).expect("the end"), 0);
    }
}
