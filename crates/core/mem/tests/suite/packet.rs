//! `PacketBuf` against two `Vec`s, one for the head and one for the payload.

use bytes::Bytes;
use pagewire_mem::{CopyLedger, CopyReason, Frag, HEAD_CAPACITY, MAX_FRAGS, PacketBuf, RxChecksum};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Push(Vec<u8>),
    Pull(usize),
    Append(Vec<u8>),
    TruncateHead(usize),
    PushFrag(Vec<u8>),
    Linearize(usize),
    Truncate(usize),
    TakeFrags,
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..max);
    prop_oneof![
        3 => bytes(70).prop_map(Op::Push),
        3 => (0..70usize).prop_map(Op::Pull),
        3 => bytes(70).prop_map(Op::Append),
        1 => (0..HEAD_CAPACITY).prop_map(Op::TruncateHead),
        6 => bytes(40).prop_map(Op::PushFrag),
        4 => (0..HEAD_CAPACITY + 3).prop_map(Op::Linearize),
        1 => (0..400usize).prop_map(Op::Truncate),
        1 => Just(Op::TakeFrags),
    ]
}

fn payload(packet: &PacketBuf) -> Vec<u8> {
    let (mut out, mut ledger) = (Vec::new(), CopyLedger::new());
    for frag in packet.frags() {
        frag.for_each_piece(&mut ledger, |piece| out.extend_from_slice(piece));
    }
    out
}

proptest! {
    #[test]
    fn a_packet_is_its_head_and_its_payload(
        for_tx in any::<bool>(),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut packet = if for_tx { PacketBuf::for_tx() } else { PacketBuf::for_rx() };
        let (mut head, mut rest) = (Vec::new(), Vec::new());
        for op in ops {
            let (headroom, tailroom) = (packet.headroom(), packet.tailroom());
            prop_assert_eq!(headroom + head.len() + tailroom, HEAD_CAPACITY);
            match op {
                Op::Push(bytes) => match packet.push(bytes.len()) {
                    Some(room) => {
                        prop_assert_eq!(room.len(), bytes.len());
                        room.copy_from_slice(&bytes);
                        head.splice(0..0, bytes);
                    }
                    None => prop_assert!(bytes.len() > headroom),
                },
                Op::Pull(n) => {
                    let pulled = packet.pull(n);
                    prop_assert_eq!(pulled, n <= head.len());
                    if pulled {
                        head.drain(..n);
                    }
                }
                Op::Append(bytes) => match packet.append(bytes.len()) {
                    Some(room) => {
                        prop_assert_eq!(room.len(), bytes.len());
                        room.copy_from_slice(&bytes);
                        head.extend(bytes);
                    }
                    None => prop_assert!(bytes.len() > tailroom),
                },
                Op::TruncateHead(n) => {
                    packet.truncate_head(n);
                    head.truncate(n);
                }
                Op::PushFrag(bytes) => {
                    let full = packet.frags().len() == MAX_FRAGS;
                    let pushed = packet.push_frag(Frag::from_bytes(Bytes::from(bytes.clone())));
                    prop_assert_eq!(pushed.is_ok(), !full || bytes.is_empty());
                    if pushed.is_ok() {
                        rest.extend(bytes);
                    }
                }
                Op::Linearize(n) => {
                    let fits = n <= head.len() || n <= HEAD_CAPACITY.min(head.len() + rest.len());
                    prop_assert_eq!(packet.linearize(n), fits);
                    if fits && n > head.len() {
                        let moved = n - head.len();
                        head.extend(rest.drain(..moved));
                    }
                }
                Op::Truncate(n) => {
                    packet.truncate(n);
                    rest.truncate(n.saturating_sub(head.len()));
                    head.truncate(n);
                }
                Op::TakeFrags => {
                    let taken: usize = packet.take_frags().iter().map(Frag::len).sum();
                    prop_assert_eq!(taken, rest.len());
                    rest.clear();
                }
            }
            prop_assert_eq!(packet.head(), &head[..]);
            prop_assert_eq!(packet.head_mut(), &head[..]);
            prop_assert_eq!(payload(&packet), &rest[..]);
            prop_assert_eq!(packet.frag_len(), rest.len());
            prop_assert_eq!(packet.len(), head.len() + rest.len());
            prop_assert_eq!(packet.is_empty(), head.is_empty() && rest.is_empty());
            prop_assert!(packet.frags().iter().all(|f| !f.is_empty()));
        }
    }
}

#[test]
fn headers_with_all_options_fit_after_the_outer_ones_are_pulled() {
    // Ethernet 14 + IPv4 60 + TCP 60 are more than the head.
    let frame: Vec<u8> = (0..134).collect();
    let mut packet = PacketBuf::for_rx();
    packet.push_frag(Frag::from_bytes(Bytes::from(frame.clone()))).unwrap();
    for header in [14, 60, 60] {
        assert!(packet.linearize(header));
        let at = frame.len() - packet.len();
        assert_eq!(packet.head(), &frame[at..at + header]);
        assert!(packet.pull(header));
    }
    assert!(packet.is_empty());
}

#[test]
fn header_bytes_of_any_length_that_fits_are_appended() {
    let bytes: Vec<u8> = (0..=HEAD_CAPACITY as u8).collect();
    for first in 0..=HEAD_CAPACITY {
        let mut packet = PacketBuf::for_rx();
        let (front, rest) = bytes.split_at(first);
        assert!(packet.append_bytes(front));
        assert!(!packet.append_bytes(rest), "one byte more than the head has");
        assert_eq!(packet.head(), front);
        assert!(packet.append_bytes(&rest[1..]));
        assert_eq!(packet.head(), [front, &rest[1..]].concat());
    }
}

#[test]
fn a_clone_is_a_packet_of_its_own() {
    let mut packet = PacketBuf::for_tx();
    packet.push(4).unwrap().copy_from_slice(b"head");
    packet.push_frag(Frag::from_static(b"payload")).unwrap();
    let mut twin = packet.clone();
    twin.head_mut()[0] = b'H';
    twin.truncate(6);
    assert_eq!((packet.head(), packet.len()), (&b"head"[..], 11));
    assert_eq!((twin.head(), payload(&twin)), (&b"Head"[..], b"pa".to_vec()));
    let mut ledger = CopyLedger::new();
    let mut dst = [0; 7];
    packet.frags()[0].copy_to(0, &mut dst, &mut ledger, CopyReason::AppRead);
    assert_eq!(&dst, b"payload");
}

#[test]
fn cleared_packet_is_as_a_new_one_to_send() {
    let mut packet = PacketBuf::for_rx();
    packet.append(60).unwrap().fill(1);
    packet.push_frag(Frag::from_static(b"payload")).unwrap();
    packet.pull(14);
    packet.rx_checksum = RxChecksum::Valid;
    packet.clear_for_tx();
    assert!(packet.is_empty() && packet.frags().is_empty());
    assert_eq!(packet.headroom(), PacketBuf::for_tx().headroom());
    assert_eq!(packet.rx_checksum, RxChecksum::Unknown);
    packet.push(3).unwrap().copy_from_slice(b"abc");
    assert_eq!((packet.head(), packet.len()), (&b"abc"[..], 3));
}
