//! The receive queue: what it keeps, what it reports, what it copies, and what a hostile peer can
//! make it pin.

mod hostile;
mod model;

use bytes::Bytes;
use pagewire_mem::{Carver, CopyReason, Frag, FragVec, PAGE_SIZE};
use pagewire_testkit::given;

use super::*;
use crate::limits::SMALL_SEGMENT_PINNED_FACTOR;
use crate::tests::Host;

impl ReceiveQueue {
    /// Payload arrives behind the last in memory.
    fn receive(&mut self, host: &mut Host, seq: u32, bytes: &[u8]) {
        let frags = host.received(bytes);
        self.insert(&mut host.env(), Seq(seq), frags);
    }

    /// Payload arrives in a page that nothing else uses.
    fn receive_alone(&mut self, host: &mut Host, seq: u32, bytes: &[u8]) {
        let frags = host.received_alone(bytes);
        self.insert(&mut host.env(), Seq(seq), frags);
    }

    fn read_all(&mut self, host: &mut Host) -> Vec<u8> {
        let mut out = vec![0; self.queued()];
        assert_eq!(self.read(&mut host.env(), &mut out), out.len());
        out
    }

    /// Recounts everything that is kept as a running sum.
    fn check(&self) {
        self.in_order.check();
        if let Some(ranges) = &self.out_of_order {
            let all: Vec<_> = ranges.ranges().collect();
            for range in &all {
                range.run.check();
                assert!(!range.run.is_empty());
                assert!(range.start.gt(self.next), "a range that is no longer beyond a gap");
            }
            for two in all.windows(2) {
                assert!(two[0].end().lt(two[1].start), "ranges touch or overlap");
            }
            assert_eq!(ranges.len(), all.iter().map(|r| r.run.len()).sum::<usize>());
            assert_eq!(ranges.pinned(), all.iter().map(|r| r.run.pinned()).sum::<usize>());
        }
    }
}

fn kept(bytes: &'static [u8]) -> FragVec {
    FragVec::from_iter([Frag::from_bytes(Bytes::from_static(bytes))])
}

fn sack(queue: &ReceiveQueue) -> Vec<(u32, u32)> {
    let mut out = SackBlocks::default();
    queue.sack_blocks(&mut out);
    out.iter().map(|(l, r)| (l.get(), r.get())).collect()
}

#[test]
fn the_queue_takes_few_bytes_in_a_connection_and_no_heap_when_new() {
    assert!(size_of::<ReceiveQueue>() <= 120, "{}", size_of::<ReceiveQueue>());
    assert_eq!(ReceiveQueue::new(Seq(7)).in_order.capacity(), 0);
}

given! {
    let (mut host, mut queue) = (Host::new(), ReceiveQueue::new(Seq(0)));

    /// > RFC 2018 section 4: The first SACK block [...] MUST specify the contiguous block of data
    /// > containing the segment which triggered this ACK
    the_first_sack_block_holds_the_latest_segment_and_others_follow_by_age {
        for seq in [10, 30, 20, 50, 40] {
            queue.insert(&mut host.env(), Seq(seq), kept(b"abcd"));
        }
        assert_eq!(sack(&queue), [(40, 44), (50, 54), (20, 24), (30, 34)]);
        // A block grows at its end: the whole block is first.
        queue.insert(&mut host.env(), Seq(24), kept(b"ef"));
        assert_eq!(sack(&queue), [(20, 26), (40, 44), (50, 54), (30, 34)]);
        // Two become one.
        queue.insert(&mut host.env(), Seq(26), kept(b"ghij"));
        assert_eq!(sack(&queue), [(20, 34), (40, 44), (50, 54), (10, 14)]);
        // The gap before one is filled: it is acknowledged, and no longer reported.
        queue.insert(&mut host.env(), Seq(0), kept(b"0123456789"));
        assert_eq!(sack(&queue), [(20, 34), (40, 44), (50, 54)]);
    }
    /// > RFC 2883 section 4: (4) If the D-SACK block reports a duplicate contiguous sequence from a
    /// > (possibly larger) block of data in the receiver's data queue above the cumulative
    /// > acknowledgement, then the second SACK block in that SACK option should specify that (possibly
    /// > larger) block of data.
    a_duplicate_beyond_a_gap_moves_its_block_to_the_front_behind_the_callers {
        queue.insert(&mut host.env(), Seq(10), kept(b"abcd"));
        queue.insert(&mut host.env(), Seq(20), kept(b"abcd"));
        let again = queue.insert(&mut host.env(), Seq(11), kept(b"bc"));
        assert_eq!(again.duplicate, Some((Seq(11), Seq(13))));
        assert!(again.out_of_order);
        let mut out = SackBlocks::default();
        out.push(Seq(11), Seq(13));
        queue.sack_blocks(&mut out);
        let blocks = [(Seq(11), Seq(13)), (Seq(10), Seq(14)), (Seq(20), Seq(24))];
        assert_eq!(out.as_slice(), blocks);
    }
    taking_moves_fragments_and_splits_the_last {
        let page = vec![1u8; PAGE_SIZE];
        for i in 0..3 {
            queue.receive_alone(&mut host, i * PAGE_SIZE as u32, &page);
        }
        let before = host.ledger;
        let mut out = Vec::new();
        assert_eq!(queue.take(PAGE_SIZE + 100, &mut out), PAGE_SIZE + 100);
        assert_eq!(out.iter().map(Frag::len).sum::<usize>(), PAGE_SIZE + 100);
        assert_eq!(queue.queued(), 2 * PAGE_SIZE - 100);
        queue.check();
        assert_eq!(queue.take(usize::MAX, &mut out), 2 * PAGE_SIZE - 100);
        assert_eq!((queue.take(1, &mut out), queue.pinned()), (0, 0));
        assert_eq!(host.ledger, before, "nothing is copied");
    }
    reading_copies_and_counts_and_frees_pages_as_it_goes {
        let bytes: Vec<u8> = (0..2 * PAGE_SIZE).map(|i| i as u8).collect();
        queue.receive_alone(&mut host, 0, &bytes);
        let pinned = queue.pinned();
        let mut out = vec![0; PAGE_SIZE];
        assert_eq!(queue.read(&mut host.env(), &mut out), PAGE_SIZE);
        assert_eq!(out, bytes[..PAGE_SIZE]);
        assert_eq!(host.ledger.get(CopyReason::AppRead), PAGE_SIZE as u64);
        assert_eq!(queue.pinned(), pinned - PAGE_SIZE);
        queue.check();
    }
    frames_that_follow_each_other_in_memory_become_one_fragment {
        let bytes = vec![3u8; 1460];
        for i in 0..40 {
            queue.receive(&mut host, i * 1460, &bytes);
        }
        let mut out = Vec::new();
        queue.take(usize::MAX, &mut out);
        assert_eq!(out.len(), 1);
    }
    frames_that_share_pages_are_charged_for_each_page_once {
        for i in 0..28 {
            drop(host.received(&[0; 54])); // headers, that lie between the payloads
            queue.receive(&mut host, i * 1460, &[1; 1460]);
            queue.check();
        }
        let (pages, frags) = ((28 * 1514usize).div_ceil(PAGE_SIZE), 28);
        assert!(queue.pinned() <= pages * PAGE_SIZE + frags * size_of::<Frag>());
    }
    of_small_segments_in_carved_pages_the_first_waits_by_reference_and_the_next_are_copied {
        let mut carver = Carver::new();
        let mut carved = |host: &mut Host| {
            // Headers lie in front.
            let mut room = carver.room(&mut host.pool, 128).unwrap();
            room.bytes_mut().fill(5);
            FragVec::from_iter([room.commit(64..128)])
        };
        for i in 0..4 {
            let frags = carved(&mut host);
            queue.insert(&mut host.env(), Seq(64 * i), frags);
            assert_eq!(host.ledger.get(CopyReason::SmallSegment), 64 * u64::from(i));
        }
        // The page of the first, and the one that the others share.
        assert_eq!(queue.pinned(), 2 * (PAGE_SIZE + size_of::<Frag>()));
        assert_eq!(queue.read_all(&mut host), [5; 256]);
        // Read at once, none is.
        let frags = carved(&mut host);
        queue.insert(&mut host.env(), Seq(256), frags);
        assert_eq!(host.ledger.get(CopyReason::SmallSegment), 3 * 64);
        assert_eq!(queue.read_all(&mut host), [5; 64]);
    }
    /// A peer sends one small segment in each page, and the application reads none of them.
    segments_that_keep_a_port_s_page_each_are_compacted_like_all_others {
        for i in 0..100 {
            let mut room = Carver::new();
            let room = room.room(&mut host.pool, 600).unwrap();
            let frags = FragVec::from_iter([room.commit(0..600)]);
            queue.insert(&mut host.env(), Seq(600 * i), frags);
            let bound = COMPACT_MIN_PINNED.max(COMPACT_FACTOR * queue.buffered()) + PAGE_SIZE;
            assert!(queue.pinned() <= bound, "{} for {}", queue.pinned(), queue.buffered());
        }
        assert!(host.ledger.get(CopyReason::Compact) > 0);
    }
    shrinking_frees_the_heap_of_an_empty_queue_only {
        queue.insert(&mut host.env(), Seq(4), kept(b"ef"));
        queue.insert(&mut host.env(), Seq(0), kept(b"ab"));
        queue.shrink();
        assert_eq!((queue.queued(), queue.buffered()), (2, 4));
        queue.insert(&mut host.env(), Seq(2), kept(b"cd"));
        assert_eq!(queue.read_all(&mut host), b"abcdef");
        assert!(queue.in_order.capacity() > 0 && queue.out_of_order.is_some());
        queue.shrink();
        assert!(queue.in_order.capacity() == 0 && queue.out_of_order.is_none());
    }
}

#[test]
fn in_order_bulk_does_not_allocate_once_it_flows() {
    let mut host = Host::with_groups(16);
    let mut queue = ReceiveQueue::new(Seq(0));
    let frame = vec![9u8; 15 * PAGE_SIZE];
    let mut out = Vec::with_capacity(64);
    let mut capacity = None;
    let mut seq = Seq(0);
    for _ in 0..100 {
        for _ in 0..4 {
            let frags = host.received(&frame);
            queue.insert(&mut host.env(), seq, frags);
            seq += frame.len() as u32;
        }
        queue.take(usize::MAX, &mut out);
        out.clear();
        host.pool.drain();
        let now = queue.in_order.capacity();
        assert_eq!(*capacity.get_or_insert(now), now);
    }
    assert!(queue.out_of_order.is_none());
}

/// A way to get payload: into which memory it arrives.
type Memory = fn(&mut Host, &[u8]) -> FragVec;
/// The pieces of a segment, with their lengths.
type Segment<'a> = &'a [(Memory, usize)];

#[test]
fn small_segments_that_pin_far_more_than_their_bytes_are_copied_and_no_others() {
    const { assert!(PAGE_SIZE > SMALL_SEGMENT_PINNED_FACTOR * SMALL_SEGMENT) };
    let (behind, alone): (Memory, Memory) = (Host::received, Host::received_alone);
    let by_reference: Memory =
        |_, bytes| FragVec::from_iter([Frag::from_bytes(bytes.to_vec().into())]);
    // Segments, each of pieces of a length; bytes copied. One fragment is left in any case.
    let cases: [(&[Segment<'_>], usize); 6] = [
        (&[&[(alone, 64)], &[(alone, 64)]], 128),
        (&[&[(alone, SMALL_SEGMENT - 1)]], SMALL_SEGMENT - 1),
        (&[&[(alone, SMALL_SEGMENT)]], 0),
        (&[&[(behind, 1000)], &[(behind, 10)]], 0),
        (&[&[(by_reference, 10)]], 0),
        // The short end of a long segment.
        (&[&[(alone, 4096), (alone, 8)]], 0),
    ];
    for (row, (segments, copied)) in cases.into_iter().enumerate() {
        let (mut host, mut queue) = (Host::new(), ReceiveQueue::new(Seq(0)));
        for pieces in segments {
            let frags = pieces.iter().flat_map(|(get, len)| get(&mut host, &vec![5; *len]));
            let frags = frags.collect();
            queue.insert(&mut host.env(), queue.next(), frags);
        }
        assert_eq!(host.ledger.get(CopyReason::SmallSegment), copied as u64, "{row}");
        assert_eq!(
            (host.ledger.ours(), queue.in_order.frags().count()),
            (copied as u64, 1),
            "{row}"
        );
        if copied > 0 {
            assert_eq!(queue.pinned(), PAGE_SIZE + size_of::<Frag>(), "copies share a page: {row}");
        }
    }
}

#[test]
fn of_a_super_frame_no_more_is_taken_of_the_last_eighth_than_one_on_a_wire_has() {
    const FRAME: &[u8] = &[7; 200_000];
    // Bytes pinned before, and bytes of the frame that are taken.
    let (limit, reserve) = (8 << 20, 1 << 20);
    for (used, taken) in [
        (0, FRAME.len()),
        (limit - reserve - 100_000, 100_000),
        (limit - reserve, 65_536),
        (limit - 65_536 - reserve / 4, 65_536),
        (limit - 65_535 - reserve / 4, 0),
    ] {
        let mut host = Host::new();
        host.shared.memory = crate::MemoryAccount::for_received(limit);
        host.shared.memory.charge(0, used);
        let mut queue = ReceiveQueue::new(Seq(0));
        let inserted = queue.insert(&mut host.env(), Seq(0), kept(FRAME));
        assert_eq!((inserted.advanced as usize, queue.queued()), (taken, taken), "{used}");
        let dropped = (taken < FRAME.len()).then_some(DropReason::HostMemory);
        assert_eq!(inserted.dropped, dropped, "{used}");
        queue.check();
    }
}
