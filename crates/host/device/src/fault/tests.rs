//! A bad link as a stack sees it: on a pair, in virtual time.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::checksum::Checksum;
use pagewire_mem::{
    CopyLedger, CopyReason, Frag, Gso, GsoKind, Instant, PacketBuf, RxChecksum, TxChecksum,
};

use super::{Chance, Fault, FaultConfig, FaultCounters, FaultDirection, FaultWatch};
use crate::ends::{receive, receive_some, send};
use crate::{Device, Pair, PairConfig, PairEnd};
use pagewire_testkit::built;
use pagewire_testkit::frames::{bytes_of, ip};

const HEADERS: usize = 14 + 20 + 20;

/// A TCP segment as a stack hands it to a device with offload.
fn segment(seq: u32, payload: &[u8], gso_size: Option<u16>) -> PacketBuf {
    let ends = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
    let mut bytes = built!(ip([[0; 6]; 2], ends, 64).tcp(80, 90, seq, 0).ack(0), payload);
    let pseudo = pseudo_sum(&bytes[26..34], 20 + payload.len() as u16).sum();
    bytes[50..52].copy_from_slice(&pseudo.to_be_bytes());
    let mut frame = PacketBuf::for_tx();
    frame.push(HEADERS).expect("room").copy_from_slice(&bytes[..HEADERS]);
    // In two pieces, so that damage can hit either.
    let (front, back) = payload.split_at(payload.len() / 2);
    for part in [front, back] {
        frame.push_frag(Frag::from_bytes(Bytes::copy_from_slice(part))).expect("room");
    }
    frame.tx_checksum = TxChecksum::Partial { start: 34, offset: 16 };
    frame.gso = gso_size.map(|size| Gso { kind: GsoKind::TcpV4, size, header_len: HEADERS as u16 });
    frame
}

fn pseudo_sum(addresses: &[u8], tcp_len: u16) -> Checksum {
    let mut sum = Checksum::new();
    sum.add_bytes(addresses);
    sum.add_u16(6);
    sum.add_u16(tcp_len);
    sum
}

/// Whether IP header and TCP checksum both fit, as a receiver without offload would look.
fn verifies(frame: &PacketBuf) -> bool {
    let all = bytes_of(frame);
    let (Some(ip), Some(tcp)) = (all.get(14..34), all.get(34..)) else { return false };
    let mut header = Checksum::new();
    header.add_bytes(ip);
    let mut sum = pseudo_sum(&ip[12..20], tcp.len() as u16);
    sum.add_bytes(tcp);
    header.finish() == 0 && sum.finish() == 0
}

fn seq(frame: &PacketBuf) -> u32 {
    u32::from_be_bytes(frame.head()[38..42].try_into().expect("four bytes"))
}

fn link(text: &str) -> (Fault<PairEnd>, PairEnd) {
    link_over(text, PairConfig::default())
}

fn link_over(text: &str, pair: PairConfig) -> (Fault<PairEnd>, PairEnd) {
    let (left, right) = Pair::with(pair).expect("a pair");
    (Fault::new(left, text.parse().expect(text)), right)
}

/// Passes a frame over a line that is faulty in this direction (`tx`, `rx`); what arrives.
fn pass(
    on: &str,
    (left, right): (&mut Fault<PairEnd>, &mut PairEnd),
    frame: PacketBuf,
) -> Vec<PacketBuf> {
    if on == "tx" {
        send(left, Instant::ZERO, [frame]);
        receive(right, Instant::ZERO)
    } else {
        send(right, Instant::ZERO, [frame]);
        receive(left, Instant::ZERO)
    }
}

#[test]
fn a_link_without_faults_is_the_device_itself() {
    let (mut left, mut right) = link("loss=0%");
    let frame = segment(1, &[7; 1000], None);
    let at = frame.frags()[0].addr();
    send(&mut left, Instant::ZERO, [frame]);
    let got = receive(&mut right, Instant::ZERO);
    assert_eq!(got[0].rx_checksum, RxChecksum::Valid);
    assert_eq!(got[0].frags()[0].addr(), at, "still by reference");
    assert_eq!((left.poll_timeout(), left.wait_fd().is_some()), (None, true));
    assert_eq!(left.capabilities().mtu, right.capabilities().mtu);
}

#[test]
fn losses_in_both_directions_are_counted_apart() {
    let (mut left, mut right) = link("loss=20%,seed=5");
    let mut got = (0, 0);
    for i in 0..100 {
        send(&mut left, Instant::ZERO, [segment(i, b"x", None)]);
        send(&mut right, Instant::ZERO, [segment(i, b"x", None)]);
        got.0 += receive(&mut right, Instant::ZERO).len() as u64;
        got.1 += receive(&mut left, Instant::ZERO).len() as u64;
    }
    let (tx, rx) = (left.transmit_faults(), left.receive_faults());
    assert_eq!((got.0 + tx.lost, got.1 + rx.lost), (100, 100));
    assert!(tx.lost > 5 && rx.lost > 5, "{tx:?} {rx:?}");
    assert_ne!(tx, rx, "each direction has luck of its own");
}

#[test]
fn one_direction_can_be_left_alone() {
    for (on, tx, rx) in [("tx", 0, 1), ("rx", 1, 0)] {
        let (mut left, mut right) = link(&format!("loss=100%,on={on}"));
        send(&mut left, Instant::ZERO, [segment(1, b"x", None)]);
        send(&mut right, Instant::ZERO, [segment(1, b"x", None)]);
        assert_eq!(receive(&mut right, Instant::ZERO).len(), tx, "on={on}");
        assert_eq!(receive(&mut left, Instant::ZERO).len(), rx, "on={on}");
    }
}

#[test]
fn delayed_frames_ask_to_be_called_and_leave_on_time() {
    let (mut left, mut right) = link("delay=10ms");
    send(&mut left, Instant::from_millis(1), [segment(1, b"x", None)]);
    assert_eq!(left.poll_timeout(), Some(Instant::from_millis(11)));
    assert!(receive(&mut right, Instant::from_millis(10)).is_empty());
    send(&mut left, Instant::from_millis(11), []);
    assert_eq!(receive(&mut right, Instant::from_millis(11)).len(), 1);
    send(&mut right, Instant::from_millis(20), [segment(1, b"x", None)]);
    assert!(receive(&mut left, Instant::from_millis(20)).is_empty());
    assert_eq!(left.poll_timeout(), Some(Instant::from_millis(30)));
    assert_eq!(receive(&mut left, Instant::from_millis(30)).len(), 1);
    assert_eq!(left.poll_timeout(), None);
}

#[test]
fn receiving_sends_what_is_due_too() {
    let (mut left, mut right) = link("delay=10ms");
    send(&mut left, Instant::ZERO, [segment(1, b"x", None)]);
    receive(&mut left, Instant::from_millis(10));
    assert_eq!(receive(&mut right, Instant::from_millis(10)).len(), 1);
}

#[test]
fn a_full_device_pushes_back_and_nothing_is_lost() {
    let pair = PairConfig { queue_frames: 4, ..PairConfig::default() };
    let (mut left, mut right) = link_over("dup=100%", pair);
    let frames = (0..6).map(|i| segment(i, b"x", None));
    assert!(send(&mut left, Instant::ZERO, frames).is_empty(), "taken, four of twelve sent");
    let rest = send(&mut left, Instant::ZERO, [segment(6, b"x", None)]);
    assert_eq!(rest.len(), 1, "no more is taken before those are gone");
    let mut got = Vec::new();
    for _ in 0..3 {
        got.extend(receive(&mut right, Instant::ZERO).iter().map(seq));
        receive(&mut left, Instant::ZERO);
    }
    assert_eq!(got, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
    assert!(send(&mut left, Instant::ZERO, rest).is_empty());
    assert_eq!(receive(&mut right, Instant::ZERO).len(), 2);
}

#[test]
fn frames_beyond_what_was_asked_for_are_kept_and_announced() {
    let (mut left, mut right) = link("dup=100%");
    send(&mut right, Instant::ZERO, [segment(1, b"x", None), segment(2, b"x", None)]);
    assert_eq!(receive_some(&mut left, Instant::ZERO, 3).len(), 3);
    assert!(left.arm(), "there is one more");
    left.disarm();
    assert_eq!(receive(&mut left, Instant::ZERO).len(), 1);
    assert!(!left.arm());
}

#[test]
fn damage_hits_one_bit_of_a_private_copy_and_the_checksum_tells() {
    let payload: Vec<u8> = (0..2000u32).map(|i| i as u8).collect();
    for (tx, text) in [(true, "corrupt=100%,on=tx"), (false, "corrupt=100%,on=rx")] {
        for seed in 0..200 {
            let (mut left, mut right) = link(&format!("{text},seed={seed}"));
            let mut ledger = CopyLedger::new();
            let frame = segment(1, &payload, None);
            let pieces = frame.frags().to_vec();
            let mut frames = VecDeque::from([frame]);
            let mut got = VecDeque::new();
            if tx {
                left.transmit(Instant::ZERO, &mut frames, &mut ledger).expect("transmit");
                right.receive(Instant::ZERO, &mut got, 9, &mut ledger).expect("receive");
            } else {
                right.transmit(Instant::ZERO, &mut frames, &mut ledger).expect("transmit");
                left.receive(Instant::ZERO, &mut got, 9, &mut ledger).expect("receive");
            }
            assert_eq!(got.len(), 1);
            assert_eq!(got[0].rx_checksum, RxChecksum::Unknown, "the receiver must look");
            assert!(!verifies(&got[0]), "seed {seed}: the damage went unseen");
            let clean: Vec<u8> =
                pieces.iter().flat_map(|f| f.as_slice().expect("private")).copied().collect();
            assert_eq!(clean, payload, "the sender's memory is as it was");
            let damaged = bytes_of(&got[0])[HEADERS..] != payload[..];
            let copied = if damaged { 1000 } else { 0 };
            assert_eq!(ledger.get(CopyReason::Fault), copied, "one piece, if in the payload");
        }
    }
}

#[test]
fn an_undamaged_frame_beside_a_damaged_one_is_whole() {
    let (mut left, mut right) = link("corrupt=50%,seed=2");
    let frames = (0..100).map(|i| segment(i, &[3; 500], None));
    send(&mut left, Instant::ZERO, frames);
    let got = receive(&mut right, Instant::ZERO);
    let damaged = got.iter().filter(|f| f.rx_checksum == RxChecksum::Unknown).count();
    assert_eq!(damaged as u64, left.transmit_faults().corrupted);
    assert!((30..70).contains(&damaged));
}

#[test]
fn super_frames_are_those_of_a_wire() {
    let longest = |config| link_over("seed=1", config).0.capabilities().max_super_frame;
    let base = PairConfig::default;
    assert_eq!(longest(PairConfig { mtu: 1500, ..base() }), 65_535);
    assert_eq!(longest(base()), base().mtu, "two segments do not fit");
}

#[test]
fn a_damaged_super_frame_becomes_wire_frames_of_which_one_is_damaged() {
    let pair = PairConfig { mtu: 1500, ..PairConfig::default() };
    for on in ["tx", "rx"] {
        let (mut left, mut right) =
            link_over(&format!("corrupt=100%,cut=no,on={on}"), pair.clone());
        let frame = segment(100, &[5; 5000], Some(1000));
        let got = pass(on, (&mut left, &mut right), frame);
        assert_eq!(got.len(), 5, "on={on}");
        assert!(got.iter().all(|f| f.gso.is_none() && f.rx_checksum == RxChecksum::Unknown));
        assert_eq!(got.iter().filter(|f| verifies(f)).count(), 4, "on={on}");
    }
}

#[test]
fn chances_are_those_of_packets_on_the_wire() {
    let pair = PairConfig { mtu: 1500, ..PairConfig::default() };
    for on in ["tx", "rx"] {
        let text = format!("loss=10%,seed=4,on={on}");
        let (mut left, mut right) = link_over(&text, pair.clone());
        let mut got = Vec::new();
        for i in 0..10 {
            let frame = segment(i * 50_000, &[5; 50_000], Some(1000));
            got.extend(pass(on, (&mut left, &mut right), frame));
        }
        let lost = left.transmit_faults().lost + left.receive_faults().lost;
        assert_eq!(got.len() as u64 + lost, 500, "on={on}");
        assert!((30..70).contains(&lost), "on={on}: {lost}");
        assert!(got.iter().all(verifies), "on={on}: every wire frame is complete");
    }
}

/// Whether every packet that went in was delivered or counted as lost.
fn adds_up(counts: FaultCounters) -> bool {
    let lost = counts.lost + counts.lost_queue_full + counts.lost_early + counts.lost_line_full;
    counts.offered + counts.duplicated == counts.delivered + lost
}

#[test]
fn a_watch_counts_packets_of_all_lines_that_follow_each_other() {
    let watch = FaultWatch::default();
    for (n, on) in [(1, "both"), (2, "tx"), (3, "rx")] {
        let (left, mut right) =
            Pair::with(PairConfig { mtu: 1500, ..PairConfig::default() }).expect("a pair");
        let text = format!("loss=10%,dup=5%,corrupt=5%,reorder=5%,delay=1ms,seed={n},on={on}");
        let mut left = Fault::new(left, text.parse().expect("faults")).watched_by(&watch);
        for i in 0..10 {
            let frame = || segment(i * 50_000, &[5; 50_000], Some(1000));
            send(&mut left, Instant::ZERO, [frame()]);
            send(&mut right, Instant::ZERO, [frame()]);
            receive(&mut left, Instant::ZERO);
        }
        receive(&mut left, Instant::from_millis(100));
        receive(&mut right, Instant::from_millis(100));
    }
    let (tx, rx) = (watch.transmitted(), watch.received());
    assert_eq!((tx.offered, rx.offered), (1000, 1000), "two lines each, 500 packets");
    assert!(adds_up(tx) && adds_up(rx), "{tx:?} {rx:?}");
    for (counts, way) in [(tx, "tx"), (rx, "rx")] {
        assert!((60..140).contains(&counts.lost), "{way}: {counts:?}");
        for n in [counts.duplicated, counts.corrupted, counts.reordered] {
            assert!((20..80).contains(&n), "{way}: {counts:?}");
        }
    }
    let named = |name| watch.iter().find(|(is, _)| *is == name).map(|(_, n)| n);
    assert_eq!((named("tx_lost"), named("rx_lost")), (Some(tx.lost), Some(rx.lost)));
}

#[test]
fn what_is_no_ip_is_damaged_all_the_same_and_never_panics() {
    for len in [0usize, 1, 13, 14, 15, 42, 60] {
        for seed in 0..20 {
            let (mut left, mut right) = link(&format!("corrupt=100%,seed={seed}"));
            let mut frame = PacketBuf::for_tx();
            frame.push(len).expect("room").fill(0xa5);
            send(&mut left, Instant::ZERO, [frame]);
            let got = receive(&mut right, Instant::ZERO);
            let clean = vec![0xa5; len];
            assert_eq!(bytes_of(&got[0]) == clean, len <= 14, "only behind the link header");
        }
    }
}

#[test]
fn frames_of_a_peer_that_went_arrive_on_time_and_nobody_is_kept_awake_for_them() {
    let (mut near, mut far) = link("delay=10ms");
    send(&mut far, Instant::ZERO, [segment(1, b"x", None)]);
    assert!(receive(&mut near, Instant::ZERO).is_empty());
    drop(far);
    assert!(receive(&mut near, Instant::ZERO).is_empty());
    assert!(!near.arm(), "the line says when to look");
    near.disarm();
    assert_eq!(near.poll_timeout(), Some(Instant::from_millis(10)));
    assert_eq!(receive(&mut near, Instant::from_millis(10)).len(), 1);
    let (mut none, mut ledger) = (VecDeque::new(), CopyLedger::new());
    let end = near.receive(Instant::from_millis(10), &mut none, 1, &mut ledger);
    assert!(matches!(end, Err(crate::DeviceError::Closed)), "{end:?}");
}

#[test]
fn wrappers_wrap_boxes_and_each_other() {
    let (left, mut right) = Pair::new().expect("a pair");
    let inner: Box<dyn Device> = Box::new(left);
    let lossless = FaultConfig { delay: Duration::from_millis(1), ..FaultConfig::default() };
    let lossy =
        FaultConfig { loss: Chance::ALWAYS, on: FaultDirection::Receive, ..FaultConfig::default() };
    let mut outer: Box<dyn Device> =
        Box::new(Fault::new(Box::new(Fault::new(inner, lossless)) as Box<dyn Device>, lossy));
    send(&mut outer, Instant::ZERO, [segment(1, b"x", None)]);
    assert_eq!(outer.poll_timeout(), Some(Instant::from_millis(1)));
    send(&mut outer, Instant::from_millis(1), []);
    // The inner wrapper sends what is due when it is asked to receive.
    receive(&mut outer, Instant::from_millis(1));
    assert_eq!(receive(&mut right, Instant::ZERO).len(), 1);
}
