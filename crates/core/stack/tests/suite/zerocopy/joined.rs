//! Zero-copy sends that continue each other in memory: they share segments, and complete together.

use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::{Frag, FragVec, PAGE_SIZE, Region};
use pagewire_stack::{Payload, TcpId, ZeroCopyCall};

use crate::common::zerocopy::{connected, done, opted_in, settle, try_send};
use crate::common::{Pair, Verbs, pattern};

fn send(p: &mut Pair, id: TcpId, frag: Frag) -> Option<u32> {
    try_send(p, id, [frag]).unwrap()
}

#[test]
fn sends_that_continue_each_other_in_memory_share_a_completion_while_the_earlier_is_unsent() {
    let (mut p, client, server) = connected();
    let memory = Frag::from_bytes(Bytes::from(pattern(30_000)));
    for id in 0..3 {
        let at = id as usize * 1000;
        assert_eq!(send(&mut p, client, memory.slice(at..at + 1000)), Some(id));
    }
    assert_eq!(p.a.sends_outstanding(client), Ok(1));
    // Sent: what follows completes by itself, in the same memory or not.
    p.run(Duration::from_millis(100));
    assert_eq!(send(&mut p, client, memory.slice(3000..30_000)), Some(3));
    assert_eq!(p.a.sends_outstanding(client), Ok(2));
    assert_eq!(settle(&mut p, server), pattern(30_000));
    assert_eq!(p.a.poll_error_queue(client), done(0, 3));
    assert_eq!(p.a.sends_outstanding(client), Ok(0));
}

#[test]
fn sends_of_different_memories_complete_each_by_itself() {
    let (mut p, client, server) = connected();
    let memory = Frag::from_bytes(Bytes::from(pattern(3000)));
    let other = Frag::from_bytes(Bytes::from(pattern(1000)));
    let expected = [pattern(1000), pattern(1000), memory.as_slice().unwrap()[1000..].to_vec()];
    send(&mut p, client, memory.slice(0..1000));
    send(&mut p, client, other);
    send(&mut p, client, memory.slice(1000..3000));
    assert_eq!(p.a.sends_outstanding(client), Ok(3));
    assert_eq!(settle(&mut p, server), expected.concat());
    assert_eq!(p.a.poll_error_queue(client), done(0, 2));
}

#[test]
fn no_more_than_512_kib_wait_for_each_other() {
    let (mut p, client, server) = connected();
    let memory = Frag::from_bytes(Bytes::from(pattern(600_000)));
    let mut at = 0;
    let mut sent = 0;
    while at < memory.len() {
        let end = (at + 4096).min(memory.len());
        let (mut frags, mut call) =
            (FragVec::from_iter([memory.slice(at..end)]), ZeroCopyCall::new());
        match p.a.send(p.now, client, (&mut frags, &mut call)) {
            Ok(n) => {
                at += n;
                assert_eq!(call.id(), Some(sent));
                sent += 1;
            }
            Err(_) => break,
        }
    }
    let groups = at.div_ceil(1 << 19);
    assert_eq!(p.a.sends_outstanding(client), Ok(groups.max(1)));
    let mut all = settle(&mut p, server);
    all.truncate(at);
    assert_eq!(all, pattern(600_000)[..at]);
    assert_eq!(p.a.poll_error_queue(client), done(0, sent - 1));
}

#[test]
fn small_sends_behind_a_small_segment_wait_for_its_acknowledgement_and_leave_together() {
    let (mut p, client, server) = connected();
    let memory = Frag::from_bytes(Bytes::from(pattern(1000)));
    let mut frames = std::collections::VecDeque::new();
    for at in (0..1000).step_by(100) {
        send(&mut p, client, memory.slice(at..at + 100));
        // As after every call of an application; at rest is whoever has nothing for that.
        let rest = p.a.is_at_rest();
        let before = frames.len();
        p.a.poll_transmit(p.now, &mut frames);
        while p.a.poll_event().is_some() {}
        assert_eq!((rest, frames.len() - before), if at == 0 { (false, 1) } else { (true, 0) });
    }
    assert_eq!(
        p.a.tcp(client).map(|tcp| tcp.queued_send()),
        Ok((1000, 900)),
        "Nagle's algorithm holds them back"
    );
    assert_eq!(p.a.sends_outstanding(client), Ok(2));
    for frame in frames {
        p.b.handle_frame(p.now, frame);
    }
    assert_eq!(settle(&mut p, server), pattern(1000));
    assert_eq!(p.a.poll_error_queue(client), done(0, 9));
}

/// Sends without a clock.
fn behind(p: &mut Pair, id: TcpId, frag: Frag) -> Option<u32> {
    let (mut frags, mut call) = (FragVec::from_iter([frag]), ZeroCopyCall::new());
    let sent = (&mut frags, &mut call).coalesce(&mut p.a.tcp(id).unwrap());
    assert_eq!((sent.is_some(), call.id().is_some()), (frags.is_empty(), frags.is_empty()));
    call.id()
}

#[test]
fn a_send_that_only_adds_to_what_waits_needs_no_clock_and_leaves_nothing_to_do() {
    let (mut p, client, server) = connected();
    let memory = Frag::from_bytes(Bytes::from(pattern(4000)));
    assert_eq!(behind(&mut p, client, memory.slice(0..100)), None, "nothing waits yet");
    send(&mut p, client, memory.slice(0..100));
    let mut frames = std::collections::VecDeque::new();
    p.a.poll_transmit(p.now, &mut frames);
    while p.a.poll_event().is_some() {}
    assert_eq!(behind(&mut p, client, memory.slice(100..200)), None, "the first has left");
    send(&mut p, client, memory.slice(100..200));
    for (id, at) in (2..).zip((200..1400).step_by(100)) {
        assert_eq!(behind(&mut p, client, memory.slice(at..at + 100)), Some(id));
        assert!(p.a.is_at_rest(), "nothing leaves, nobody is told");
    }
    assert_eq!(p.a.sends_outstanding(client), Ok(2));
    assert_eq!(behind(&mut p, client, memory.slice(1400..1600)), None, "a segment is full");
    assert_eq!(behind(&mut p, client, memory.slice(1500..1510)), None, "not where the last ended");
    let other = Frag::from_bytes(Bytes::from(pattern(10)));
    assert_eq!(behind(&mut p, client, other), None, "another memory");
    assert_eq!(behind(&mut p, client, Frag::empty()), None, "nothing");
    for frame in frames {
        p.b.handle_frame(p.now, frame);
    }
    assert_eq!(settle(&mut p, server), pattern(4000)[..1400]);
    assert_eq!(p.a.poll_error_queue(client), done(0, 13));
    assert_eq!(p.a.sends_outstanding(client), Ok(0));
    p.a.shutdown(p.now, client, std::net::Shutdown::Write).unwrap();
    assert_eq!(behind(&mut p, client, memory.slice(1400..1500)), None, "nothing may follow");
}

#[test]
fn sends_that_complete_together_are_each_charged_and_the_limit_is_met_by_each() {
    let budget = std::sync::Arc::new(pagewire_mem::PageBudget::new(7));
    let mut p = Pair::changed(|a, _| a.zerocopy.pages = std::sync::Arc::clone(&budget));
    p.meet();
    let (client, server) = opted_in(&mut p);
    let memory = Frag::from_bytes(Bytes::from(pattern(1000)));
    send(&mut p, client, memory.slice(0..100));
    p.a.poll_transmit(p.now, &mut Default::default());
    send(&mut p, client, memory.slice(100..200));
    assert_eq!(behind(&mut p, client, memory.slice(200..300)), Some(2));
    // Two pages for each call of less than one.
    assert_eq!(budget.used(), 6);
    assert_eq!(behind(&mut p, client, memory.slice(300..400)), None);
    let (mut frags, mut call) = (FragVec::from_iter([memory.slice(300..400)]), ZeroCopyCall::new());
    let refused = p.a.send(p.now, client, (&mut frags, &mut call));
    assert_eq!((refused, call.id()), (Err(pagewire_stack::Error::TooManyPagesHeld), None));
    assert_eq!((frags.len(), budget.used()), (1, 6));
    assert_eq!(settle(&mut p, server), pattern(1000)[..300]);
    assert_eq!(p.a.poll_error_queue(client), done(0, 2));
    assert_eq!(budget.used(), 0);
}

#[test]
fn ranges_of_one_region_go_on_in_memory_and_slices_of_bytes_do_not() {
    let (mut p, client, server) = connected();
    let region = Region::memfd("ranges", PAGE_SIZE).unwrap();
    let bytes = Bytes::from(pattern(500));
    send(&mut p, client, region.frag(0, 100).unwrap());
    p.a.poll_transmit(p.now, &mut Default::default());
    send(&mut p, client, region.frag(100, 100).unwrap());
    assert_eq!(behind(&mut p, client, region.frag(200, 100).unwrap()), Some(2));
    for (id, at) in [(3, 0), (4, 100)] {
        let part = Frag::from_bytes(bytes.slice(at..at + 100));
        assert_eq!(behind(&mut p, client, part.clone()), None);
        assert_eq!(send(&mut p, client, part), Some(id));
    }
    assert_eq!(p.a.sends_outstanding(client), Ok(4));
    assert_eq!(settle(&mut p, server), [vec![0; 300], pattern(500)[..200].to_vec()].concat());
    assert_eq!(p.a.poll_error_queue(client), done(0, 4));
}
