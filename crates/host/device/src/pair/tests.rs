//! The promises of a pair, as seen through the `Device` trait.

use std::collections::VecDeque;
use std::time::Duration;

use pagewire_mem::{
    CopyLedger, Gso, GsoKind, Instant, PacketBuf, PagePool, PageWriter, RxChecksum, TxChecksum,
};
use pagewire_testkit::{frames::to_send, given};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ends::receive_some;
use crate::limits::PAIR_MTU;
use crate::{Device, DeviceError, Pair, PairConfig, PairEnd};

fn frame(tag: u8, payload: usize) -> PacketBuf {
    to_send(&vec![tag; 54 + payload], 54)
}

fn pair(queue_frames: usize) -> (PairEnd, PairEnd) {
    Pair::with(PairConfig { queue_frames, ..PairConfig::default() }).expect("a pair")
}

fn send(end: &mut PairEnd, frames: impl IntoIterator<Item = PacketBuf>) -> VecDeque<PacketBuf> {
    let mut frames: VecDeque<_> = frames.into_iter().collect();
    let mut ledger = CopyLedger::new();
    end.transmit(Instant::ZERO, &mut frames, &mut ledger).expect("transmit");
    assert_eq!(ledger, CopyLedger::new(), "a pair copies nothing");
    frames
}

fn receive(end: &mut PairEnd) -> Vec<PacketBuf> {
    let (mut frames, mut ledger) = (VecDeque::new(), CopyLedger::new());
    let n = end.receive(Instant::ZERO, &mut frames, usize::MAX, &mut ledger).expect("receive");
    assert_eq!(n, frames.len());
    assert_eq!(ledger, CopyLedger::new(), "a pair copies nothing");
    frames.into()
}

fn tags(frames: &[PacketBuf]) -> Vec<u8> {
    frames.iter().map(|f| f.head()[0]).collect()
}

fn is_readable(end: &PairEnd) -> bool {
    let fd = end.wait_fd().expect("a pair can be waited for");
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&none)).expect("poll") > 0
}

#[test]
fn the_default_mtu_carries_fifteen_pages_over_either_ip_version() {
    assert_eq!(PAIR_MTU, 61_512);
    assert_eq!(PAIR_MTU - 40 - 20 - 12, 15 * 4096, "IPv6");
    assert_eq!(PAIR_MTU - 20 - 20 - 12, 15 * 4096 + 20, "IPv4");
}

given! {
    let (mut left, mut right) = pair(8);

    frames_arrive_in_order_and_by_reference_both_ways {
        let out = frame(1, 5000);
        let at = out.frags()[0].addr();
        assert!(send(&mut left, [out, frame(2, 10)]).is_empty());
        let got = receive(&mut right);
        assert_eq!(tags(&got), [1, 2]);
        assert_eq!(got[0].frags()[0].addr(), at, "the same memory");
        assert!(send(&mut right, [frame(3, 0)]).is_empty());
        assert_eq!(tags(&receive(&mut left)), [3]);
        let (l, r) = (left.counters(), right.counters());
        assert_eq!((l.tx_frames, l.tx_bytes), (2, 54 + 5000 + 54 + 10));
        assert_eq!((r.rx_frames, r.rx_bytes, r.rx_payload_bytes), (2, l.tx_bytes, 5010));
    }
    receive_takes_no_more_than_asked {
        send(&mut left, (0..5).map(|i| frame(i, 1)));
        assert_eq!(receive_some(&mut right, Instant::ZERO, 2).len(), 2);
        assert!(right.arm(), "three are left");
        right.disarm();
        assert_eq!(tags(&receive(&mut right)), [2, 3, 4]);
    }
    an_unfinished_checksum_arrives_as_valid_and_a_finished_one_is_to_be_verified {
        let mut partial = frame(1, 100);
        partial.tx_checksum = TxChecksum::Partial { start: 34, offset: 16 };
        partial.gso = Some(Gso { kind: GsoKind::TcpV4, size: 10, header_len: 54 });
        send(&mut left, [partial, frame(2, 1)]);
        let got = receive(&mut right);
        assert_eq!(got[0].rx_checksum, RxChecksum::Valid);
        assert_eq!(got[0].tx_checksum, TxChecksum::Done);
        assert_eq!(got[0].gso.map(|g| g.size), Some(10), "super-frames pass uncut");
        assert_eq!(got[1].rx_checksum, RxChecksum::Unknown);
    }
    a_polling_end_costs_its_peer_no_system_call {
        for i in 0..100 {
            send(&mut left, [frame(i, 1)]);
            receive(&mut right);
            right.disarm();
        }
        assert_eq!(left.counters().syscalls + right.counters().syscalls, 0);
        assert!(!is_readable(&right));
    }
    a_sleeping_end_is_woken_once_for_a_burst {
        assert!(!right.arm(), "nothing there yet");
        send(&mut left, (0..3).map(|i| frame(i, 1)));
        send(&mut left, [frame(3, 1)]);
        assert_eq!(left.counters().syscalls, 1);
        assert!(is_readable(&right));
        right.disarm();
        assert!(!is_readable(&right), "the ring was read");
        assert_eq!(receive(&mut right).len(), 4);
        send(&mut left, [frame(4, 1)]);
        assert!(!is_readable(&right), "a polling end is not rung");
        assert!(right.arm(), "but finds the frame before it sleeps");
    }
    arming_again_and_giving_up_leave_no_ring_unread {
        assert!(!right.arm());
        assert!(!right.arm());
        right.disarm();
        right.disarm();
        send(&mut left, [frame(0, 1)]);
        assert!(!is_readable(&right));
        receive(&mut right);
        assert!(!right.arm());
        send(&mut left, [frame(1, 1)]);
        assert!(right.arm(), "armed over a ring: there is something");
        assert!(!is_readable(&right), "and the old ring was read");
    }
    what_was_sent_before_the_end_went_still_arrives {
        send(&mut left, [frame(1, 1)]);
        drop(left);
        assert!(right.is_peer_gone());
        assert_eq!(tags(&receive(&mut right)), [1]);
        assert!(is_closed(&mut right));
    }
}

#[test]
fn a_full_ring_leaves_frames_with_the_sender() {
    let (mut left, mut right) = pair(4);
    let mut rest = send(&mut left, (0..10).map(|i| frame(i, 1)));
    assert_eq!(rest.len(), 6);
    assert_eq!(tags(&receive(&mut right)), [0, 1, 2, 3]);
    rest = send(&mut left, rest);
    rest.extend([frame(10, 1)]);
    assert_eq!(tags(&receive(&mut right)), [4, 5, 6, 7]);
    assert!(send(&mut left, rest).is_empty());
    assert_eq!(tags(&receive(&mut right)), [8, 9, 10]);
    assert_eq!(left.counters().tx_frames, 11);
    assert_eq!(left.counters().tx_dropped_full, 0);
}

#[test]
fn without_offload_frames_that_need_it_are_dropped_and_counted() {
    let config = PairConfig { offload: false, mtu: 1500, ..PairConfig::default() };
    let (mut left, mut right) = Pair::with(config).expect("a pair");
    let caps = left.capabilities();
    assert!(!(caps.tx_checksum || caps.rx_checksum || caps.tso_v4 || caps.tso_v6));
    assert_eq!(caps.max_super_frame, 1500);
    let mut partial = frame(1, 100);
    partial.tx_checksum = TxChecksum::Partial { start: 34, offset: 16 };
    let mut gso = frame(2, 100);
    gso.gso = Some(Gso { kind: GsoKind::TcpV4, size: 10, header_len: 54 });
    send(&mut left, [partial, gso, frame(3, 1500 - 40), frame(4, 1501 + 18 - 54)]);
    let got = receive(&mut right);
    assert_eq!(tags(&got), [3]);
    assert_eq!(got[0].rx_checksum, RxChecksum::Unknown);
    assert_eq!(left.counters().tx_dropped_error, 3);
}

#[test]
fn super_frames_are_as_long_as_linux_has_them_or_as_is_set() {
    let longest =
        |config: PairConfig| Pair::with(config).expect("a pair").0.capabilities().max_super_frame;
    let base = PairConfig::default;
    assert_eq!(longest(base()), 2_097_120);
    assert_eq!(longest(PairConfig { mtu: 1500, ..base() }), 2_097_120);
    assert_eq!(longest(PairConfig { max_super_frame: 200_000, ..base() }), 200_000);
    let none = "no two segments fit: there are none";
    assert_eq!(longest(PairConfig { max_super_frame: 100_000, ..base() }), PAIR_MTU, "{none}");
    assert_eq!(longest(PairConfig { max_super_frame: 0, ..base() }), PAIR_MTU, "{none}");
}

#[test]
fn a_sender_that_waits_for_room_is_woken_when_half_of_it_is_there() {
    let (mut left, mut right) = pair(4);
    let rest = send(&mut left, (0..5).map(|i| frame(i, 1)));
    assert!(!left.arm(), "no room yet");
    let take = |right: &mut PairEnd| drop(receive_some(right, Instant::ZERO, 1));
    take(&mut right);
    assert!(!is_readable(&left), "a quarter is not worth it");
    take(&mut right);
    assert!(is_readable(&left));
    left.disarm();
    assert!(send(&mut left, rest).is_empty());
    assert!(!left.arm(), "nothing blocked, nothing there");
    take(&mut right);
    assert!(!is_readable(&left), "room is of no interest any more");
}

/// Room came between the check that found none and the store that announces the wait; the
/// peer woke nobody, and will not do so later.
#[test]
fn a_sender_that_waits_for_room_looks_again_before_it_sleeps() {
    let (mut left, mut right) = pair(4);
    let rest = send(&mut left, (0..5).map(|i| frame(i, 1)));
    let take = |right: &mut PairEnd| drop(receive_some(right, Instant::ZERO, 1));
    take(&mut right);
    assert!(!left.arm(), "a quarter is not worth it");
    left.disarm();
    take(&mut right);
    assert!(!is_readable(&left), "nobody slept, so nobody was rung");
    assert!(left.arm(), "half of the ring is free");
    left.disarm();
    assert!(send(&mut left, rest).is_empty());
    assert!(!left.arm(), "nothing is left to be sent, whatever the room");
}

#[test]
fn a_sender_that_waits_for_room_finds_that_its_peer_went_before_it_sleeps() {
    let (mut left, right) = pair(4);
    let rest = send(&mut left, (0..5).map(|i| frame(i, 1)));
    assert_eq!(rest.len(), 1);
    drop(right);
    assert!(!is_readable(&left), "nobody slept, so nobody was rung");
    assert!(left.arm(), "what is left can be dropped now");
    assert!(send(&mut left, rest).is_empty());
    assert_eq!(left.counters().tx_dropped_closed, 1);
}

/// The peer went between the check that found nothing and the store that asks for a wake-up.
#[test]
fn an_idle_receiver_finds_that_its_peer_went_before_it_sleeps() {
    let (mut left, right) = pair(4);
    assert!(receive(&mut left).is_empty());
    drop(right);
    assert!(!is_readable(&left), "nobody slept, so nobody was rung");
    assert!(left.arm(), "it would sleep for ever");
    left.disarm();
    assert!(is_closed(&mut left));
}

#[test]
fn a_peer_that_is_gone_is_an_error_and_what_is_sent_there_is_counted() {
    let pool = PagePool::new("pair-test", 1 << 20).expect("a pool");
    let mut pool = pool;
    let mut writer = PageWriter::new();
    let (mut left, right) = pair(8);
    assert!(writer.refill(&mut pool, 16));
    let mut held = PacketBuf::for_tx();
    held.push_frag(writer.commit(4096)).expect("room");
    send(&mut left, [held]);
    assert!(!left.arm());
    drop(right);
    assert!(left.is_peer_gone());
    assert!(is_readable(&left), "whoever waits is told");
    left.disarm();
    assert!(is_closed(&mut left));
    assert!(send(&mut left, [frame(1, 1), frame(2, 1)]).is_empty());
    assert_eq!(left.counters().tx_dropped_closed, 2);
    writer.abandon();
    pool.drain();
    assert_eq!(pool.audit().out, 0, "nothing stays in the ring of a peer that is gone");
}

/// Whether receiving says that the peer is gone for good, and nothing is received.
fn is_closed(end: &mut PairEnd) -> bool {
    let (mut frames, mut ledger) = (VecDeque::new(), CopyLedger::new());
    let received = end.receive(Instant::ZERO, &mut frames, 64, &mut ledger);
    frames.is_empty() && matches!(received, Err(DeviceError::Closed))
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let refused = |config: PairConfig, word: &str| match Pair::with(config) {
        Err(DeviceError::Config(text)) => assert!(text.contains(word), "{text}"),
        _ => panic!("{word} was accepted"),
    };
    let base = PairConfig::default;
    refused(PairConfig { mtu: 575, ..base() }, "mtu 575");
    refused(PairConfig { mtu: 65_536, ..base() }, "mtu 65536");
    refused(PairConfig { max_super_frame: 2_097_121, ..base() }, "max_super_frame 2097121");
    refused(PairConfig { queue_frames: 0, ..base() }, "queue_frames 0");
    refused(PairConfig { queue_frames: 65_537, ..base() }, "queue_frames 65537");
    refused(PairConfig { macs: [[2; 6]; 2], ..base() }, "different");
    refused(PairConfig { macs: [[1; 6], [2; 6]], ..base() }, "unicast");
}

/// Two threads that sleep whenever they can: a lost wake-up would hang, so every wait has a bound
/// far beyond what it needs.
#[test]
fn no_wake_up_is_lost_between_two_threads_that_sleep() {
    const N: u64 = 50_000;
    let (left, right) = pair(4);
    fn wait(end: &mut PairEnd) {
        if !end.arm() {
            let fd = end.wait_fd().expect("fd");
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            let bound = Timespec::try_from(Duration::from_secs(20)).expect("timespec");
            assert!(poll(&mut fds, Some(&bound)).expect("poll") > 0, "a wake-up was lost");
        }
        end.disarm();
    }
    let sender = std::thread::spawn(move || {
        let mut left = left;
        let (mut frames, mut ledger) = (VecDeque::new(), CopyLedger::new());
        for _ in 0..N {
            frames.push_back(PacketBuf::for_tx());
            left.transmit(Instant::ZERO, &mut frames, &mut ledger).expect("transmit");
            while !frames.is_empty() {
                wait(&mut left);
                left.transmit(Instant::ZERO, &mut frames, &mut ledger).expect("transmit");
            }
        }
        left
    });
    let mut right = right;
    let (mut frames, mut ledger) = (VecDeque::new(), CopyLedger::new());
    let mut got = 0;
    while got < N {
        let n = right.receive(Instant::ZERO, &mut frames, 3, &mut ledger).expect("receive");
        frames.clear();
        got += n as u64;
        if n == 0 {
            wait(&mut right);
        }
    }
    let left = sender.join().expect("sender");
    assert_eq!((left.counters().tx_frames, right.counters().rx_frames), (N, N));
}
