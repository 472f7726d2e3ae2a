//! Tests of zero-copy sends that would take four billion sends from outside, or more than a send buffer.

use std::collections::VecDeque;

use bytes::Bytes;
use pagewire_mem::CompletionQueue;
use pagewire_mem::link::Capabilities;

use pagewire_tcp::RecvFlags;

use core::time::Duration;

use super::*;
use crate::config::ZeroCopyConfig;
use crate::event::ErrorEntry;
use crate::limits::{MAX_SHARED_BYTES, MAX_SHARED_SENDS};
use crate::sockets::error_queue::ErrorQueue;
use crate::sockets::zerocopy::sends::ZeroCopySends;
use crate::{Stack, StackConfig, TcpId};

/// A stack that talks to itself, and a connection's both ends.
fn looped(coalescing: Coalescing) -> (Stack, Instant, TcpId, TcpId) {
    let capabilities =
        Capabilities { by_reference: true, ..Capabilities::offloading([2, 0, 0, 0, 0, 1], 1500) };
    let mut config = StackConfig::new(capabilities, vec!["10.0.0.1/24".parse().unwrap()], [1; 32]);
    config.zerocopy.coalescing = coalescing;
    let now = Instant::from_millis(1000);
    let mut stack = Stack::new(now, config).unwrap();
    let to = "10.0.0.1:80".parse().unwrap();
    let listener = stack.listen(to, 1).unwrap();
    let client = stack.connect(now, to, None).unwrap();
    turn(&mut stack, now);
    let (server, _) = stack.listener(listener).unwrap().accept().unwrap();
    stack.set_zerocopy(client, true).unwrap();
    (stack, now, client, server)
}

fn turn(stack: &mut Stack, now: Instant) {
    // A packet that loops back is an input of the next call.
    for _ in 0..10 {
        stack.poll_transmit(now, &mut VecDeque::new());
    }
    stack.end_turn();
}

fn sends(stack: &mut Stack, id: TcpId) -> &mut ZeroCopySends {
    &mut stack
        .tcp(id)
        .unwrap()
        .socket
        .extra
        .get_or_insert_default()
        .errors
        .get_or_insert_default()
        .sends
}

#[test]
fn ids_go_on_with_zero_behind_the_largest_number() {
    for (coalescing, expected) in [
        // A range of ours ends with the numbers; Linux's goes on.
        (Coalescing::SameKind, vec![(u32::MAX - 1, u32::MAX), (0, 1)]),
        (Coalescing::Linux, vec![(u32::MAX - 1, 1)]),
    ] {
        let (mut stack, now, client, server) = looped(coalescing);
        sends(&mut stack, client).next_id = u32::MAX - 1;
        let mut ids = Vec::new();
        for _ in 0..4 {
            let frag = Frag::from_bytes(Bytes::from(vec![7; 1000]));
            let (mut frags, mut call) = (FragVec::from_iter([frag]), ZeroCopyCall::new());
            assert_eq!(
                stack.tcp(client).and_then(|mut tcp| tcp.send(
                    now,
                    (&mut frags, &mut call),
                    SendFlags::empty()
                )),
                Ok(1000)
            );
            ids.extend(call.id());
            drop(call);
            turn(&mut stack, now);
            assert_eq!(
                stack.tcp(server).and_then(|mut tcp| tcp.recv(
                    now,
                    &mut [0; 1000],
                    RecvFlags::empty()
                )),
                Ok(1000)
            );
            turn(&mut stack, now);
        }
        assert_eq!(ids, [u32::MAX - 1, u32::MAX, 0, 1]);
        // The last one's acknowledgement may be delayed.
        let later = now + Duration::from_secs(1);
        stack.handle_timeout(later);
        turn(&mut stack, later);
        let mut told = Vec::new();
        while let Some(ErrorEntry::ZeroCopy(done)) = stack.poll_error_queue(client) {
            assert!(done.copied, "the packets looped back");
            told.push((done.lo, done.hi));
        }
        assert_eq!(told, expected);
    }
}

/// A call of `bytes` bytes that may share; whether it did.
fn send(errors: &mut ErrorQueue, bytes: usize, call: &mut ZeroCopyCall) -> bool {
    let (config, queue) = (ZeroCopyConfig::default(), CompletionQueue::new());
    let begun = errors.begin_send(&config, &queue, SocketId::from_token(0), bytes, true).unwrap();
    let joined = begun.joined;
    errors.sends.commit(begun, bytes, call);
    joined
}

#[test]
fn sends_share_no_completion_where_the_ids_wrap() {
    let (mut errors, mut call) = (ErrorQueue::default(), ZeroCopyCall::new());
    errors.sends.next_id = u32::MAX - 1;
    assert!(!send(&mut errors, 1, &mut call), "there is none to share yet");
    assert!(send(&mut errors, 1, &mut call));
    assert_eq!(call.id(), Some(u32::MAX));
    assert!(!send(&mut errors, 1, &mut call), "its id is 0");
    assert!(send(&mut errors, 1, &mut call));
    assert_eq!(call.id(), Some(1));
}

#[test]
fn a_completion_is_shared_by_so_many_sends_and_by_so_many_bytes_and_no_more() {
    let (mut errors, mut call) = (ErrorQueue::default(), ZeroCopyCall::new());
    assert!(!send(&mut errors, 1, &mut call), "there is none to share yet");
    assert!((1..MAX_SHARED_SENDS).all(|_| send(&mut errors, 1, &mut call)));
    assert!(!send(&mut errors, 1, &mut call), "a new one");
    assert_eq!((call.id(), errors.sends.live), (Some(MAX_SHARED_SENDS), 2));

    let (mut errors, mut call) = (ErrorQueue::default(), ZeroCopyCall::new());
    assert!(!send(&mut errors, MAX_SHARED_BYTES - 1, &mut call));
    assert!(send(&mut errors, 1, &mut call));
    assert!(!send(&mut errors, 1, &mut call), "a new one");
}
