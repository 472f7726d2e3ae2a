//! Bounds on the memory that a hostile peer makes the queue pin, and on the copies that prevent it.

use pagewire_mem::GROUP_PAGES;
use pagewire_testkit::given;

use super::*;
use crate::limits::MAX_OUT_OF_ORDER_RANGES;

/// Bytes that `n` segments of `len` bytes, each in a page of its own, leave pinned when the
/// application does not read. `order` maps the index of arrival to the place in the stream.
fn flood(host: &mut Host, n: u32, len: u32, order: impl Fn(u32) -> u32) -> ReceiveQueue {
    let mut queue = ReceiveQueue::new(Seq(0));
    for i in 0..n {
        queue.receive_alone(host, order(i) * len, &vec![i as u8; len as usize]);
        host.pool.drain();
        let limit = COMPACT_MIN_PINNED.max(COMPACT_FACTOR * queue.buffered());
        assert!(
            queue.pinned() <= 2 * limit + PAGE_SIZE,
            "segment {i}: {} pinned for {} buffered",
            queue.pinned(),
            queue.buffered()
        );
    }
    queue.check();
    queue
}

fn pages_out(host: &Host) -> usize {
    host.pool.audit().out
}

given! {
    let mut host = Host::new();

    segments_of_one_byte_pin_one_page_for_thousands {
        let queue = flood(&mut host, 10_000, 1, |i| i);
        assert_eq!(queue.queued(), 10_000);
        assert_eq!(queue.in_order.frags().count(), 1);
        // Three pages for the bytes; the writer's own run is there anyhow.
        assert!(queue.pinned() <= 4 * PAGE_SIZE);
        assert_eq!(host.ledger.get(CopyReason::SmallSegment), 10_000);
    }
    segments_of_one_byte_in_reverse_cost_bookkeeping_only_until_the_queue_compacts {
        let queue = flood(&mut host, 20_000, 1, |i| 20_000 - i);
        assert_eq!(queue.buffered(), 20_000);
        // Each byte was a fragment; packing copied each byte a few times at most.
        assert!(host.ledger.get(CopyReason::Compact) <= 3 * 20_000);
        assert!(host.ledger.get(CopyReason::Compact) > 0);
        assert!(pages_out(&host) <= 3 * GROUP_PAGES);
    }
    separate_ranges_are_limited_and_what_comes_next_is_still_accepted {
        let mut queue = ReceiveQueue::new(Seq(0));
        let ranges = MAX_OUT_OF_ORDER_RANGES as u32;
        for i in 1..=ranges {
            let inserted = queue.insert(&mut host.env(), Seq(2 * i), kept(b"x"));
            assert_eq!(inserted.dropped, None);
        }
        let one_more = queue.insert(&mut host.env(), Seq(2 * ranges + 2), kept(b"x"));
        assert_eq!(one_more.dropped, Some(DropReason::OutOfOrderLimit));
        // A segment that touches a range makes no new one.
        let adjacent = queue.insert(&mut host.env(), Seq(2 * ranges + 1), kept(b"x"));
        assert_eq!(adjacent.dropped, None);
        assert_eq!(queue.insert(&mut host.env(), Seq(0), kept(b"ab")).advanced, 3);
        queue.check();
    }
}

#[test]
fn segments_just_above_the_small_limit_are_packed_once_they_pin_too_much() {
    let mut host = Host::with_groups(16);
    let len = SMALL_SEGMENT as u32;
    let queue = flood(&mut host, 2000, len, |i| i);
    let bytes = u64::from(2000 * len);
    assert_eq!(queue.queued() as u64, bytes);
    assert!(host.ledger.get(CopyReason::Compact) > 0);
    assert!(host.ledger.get(CopyReason::Compact) <= 3 * bytes);
    assert!(queue.pinned() <= COMPACT_MIN_PINNED.max(COMPACT_FACTOR * queue.buffered()));
}

#[test]
fn full_segments_each_in_a_page_of_its_own_are_never_copied() {
    let mut host = Host::with_groups(16);
    let queue = flood(&mut host, 500, 1460, |i| i);
    assert_eq!(host.ledger.ours(), 0);
    assert_eq!(queue.in_order.frags().count(), 500);
}

#[test]
fn many_ranges_of_one_byte_pin_a_bounded_amount() {
    let mut host = Host::with_groups(32);
    let mut queue = ReceiveQueue::new(Seq(0));
    let mut dropped = 0;
    for i in 1..=5000 {
        let frags = host.received_alone(b"x");
        let inserted = queue.insert(&mut host.env(), Seq(2 * i), frags);
        dropped += u32::from(inserted.dropped.is_some());
        host.pool.drain();
    }
    assert!(dropped > 0);
    assert!(queue.pinned() <= REFUSE_MIN_PINNED + 2 * PAGE_SIZE);
    // The queue recovers: the gaps are filled from the front.
    for i in 0..20 {
        let frags = host.received_alone(b"y");
        assert_eq!(queue.insert(&mut host.env(), queue.next(), frags).dropped, None, "{i}");
        queue.read_all(&mut host);
    }
    queue.check();
}

#[test]
fn without_free_pages_the_queue_refuses_what_pins_too_much_but_never_the_next_byte_to_read() {
    let mut host = Host::with_groups(8);
    let mut queue = ReceiveQueue::new(Seq(1));
    // A device that puts each byte in a page of its own, until it has all pages.
    let mut frames = Vec::new();
    while host.device.refill(&mut host.pool, 1) {
        frames.push(host.device.commit(1));
        host.device.align();
    }
    assert_eq!(host.pool.stats().free, 0);
    let mut accepted = 0;
    let refused = loop {
        let frags = FragVec::from_iter(frames.pop());
        match queue.insert(&mut host.env(), Seq(2 + accepted), frags).dropped {
            None => accepted += 1,
            Some(reason) => break reason,
        }
    };
    assert_eq!(refused, DropReason::ReceiveMemory);
    assert!(
        queue.pinned() <= REFUSE_MIN_PINNED + REFUSE_FACTOR * accepted as usize + 2 * PAGE_SIZE
    );

    // The gap is filled although nothing may be pinned any more: the application has nothing yet.
    let inserted = queue.insert(&mut host.env(), Seq(1), FragVec::from_iter(frames.pop()));
    assert_eq!((inserted.dropped, inserted.advanced), (None, accepted + 1));

    // Now it has, and must read first.
    let frags = FragVec::from_iter(frames.pop());
    let inserted = queue.insert(&mut host.env(), queue.next(), frags);
    assert_eq!(inserted.dropped, Some(DropReason::ReceiveMemory));

    // Pages come back, and the queue packs itself.
    frames.clear();
    host.pool.drain();
    let frags = FragVec::from_iter([Frag::from_static(b"x")]);
    assert_eq!(queue.insert(&mut host.env(), queue.next(), frags).advanced, 1);
    assert!(queue.pinned() <= 3 * PAGE_SIZE);
    queue.check();
}
