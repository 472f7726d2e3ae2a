//! The send queue against a string of bytes, and its limits.

use pagewire_testkit::given;
use proptest::prelude::*;

use super::*;
use crate::limits::MAX_MERGED_FRAG;

#[derive(Clone, Debug)]
enum Op {
    Push(usize),
    Ack(u32),
    Slice(u32, u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0usize..300).prop_map(Op::Push),
        (0u32..400).prop_map(Op::Ack),
        (0u32..600, 0u32..600).prop_map(|(at, len)| Op::Slice(at, len)),
    ]
}

fn bytes(frags: &FragVec) -> Vec<u8> {
    frags.iter().flat_map(|f| f.as_slice().unwrap().to_vec()).collect()
}

proptest! {
    /// The model is a string of bytes with its first sequence number.
    #[test]
    fn queue_is_a_string_of_bytes(ops in proptest::collection::vec(op(), 1..60)) {
        let mut una = Seq(u32::MAX - 300);
        let mut model: Vec<u8> = Vec::new();
        let mut queue = SendQueue::new(una);
        let mut next = 0u8;
        for op in ops {
            match op {
                Op::Push(len) => {
                    let data: Vec<u8> = (0..len).map(|i| next.wrapping_add(i as u8)).collect();
                    next = next.wrapping_add(len as u8);
                    model.extend(&data);
                    queue.push(Frag::from_bytes(data.into()), MAX_MERGED_FRAG);
                }
                Op::Ack(len) => {
                    let acked = queue.ack_to(una + len);
                    let expected = (len as usize).min(model.len());
                    prop_assert_eq!(acked as usize, expected);
                    model.drain(..expected);
                    una += acked;
                }
                Op::Slice(at, len) => {
                    let (frags, taken) = queue.slice(una + at, len);
                    prop_assert!(frags.len() <= MAX_FRAGS);
                    let got = bytes(&frags);
                    prop_assert_eq!(got.len(), taken as usize);
                    let at = at as usize;
                    let end = (at + len as usize).min(model.len());
                    let expected = model.get(at..end).unwrap_or_default();
                    prop_assert!(expected.starts_with(&got));
                    prop_assert!(got.len() == expected.len() || frags.len() == MAX_FRAGS);
                }
            }
            prop_assert_eq!(queue.len() as usize, model.len());
            let pinned: usize = queue.entries.iter().map(|e| e.frag.pinned()).sum();
            prop_assert_eq!(queue.pinned, pinned);
            prop_assert_eq!(queue.end(), una + model.len() as u32);
        }
    }
}

given! {
    let mut queue = SendQueue::new(Seq(0));

    fragment_stays_until_its_last_byte_is_acknowledged {
        queue.push(Frag::from_bytes(vec![0; 100].into()), MAX_MERGED_FRAG);
        queue.ack_to(Seq(99));
        assert_eq!(queue.entries.len(), 1);
        queue.ack_to(Seq(100));
        assert_eq!(queue.entries.len(), 0);
    }
    empty_queue_gives_back_its_memory {
        queue.push(Frag::from_static(b"x"), MAX_MERGED_FRAG);
        queue.shrink();
        assert!(queue.has_heap(), "not while something is in it");
        queue.ack_to(Seq(1));
        assert!(queue.has_heap(), "not while it is in use");
        queue.shrink();
        assert!(!queue.has_heap());
    }
    number_of_fragments_is_limited {
        for _ in 0..MAX_SEND_FRAGS {
            assert!(queue.has_room_for(1));
            queue.push(Frag::from_static(b"xy").slice(0..1), MAX_MERGED_FRAG);
        }
        assert!(!queue.has_room_for(1));
    }
}

#[test]
fn pieces_that_continue_each_other_become_one_up_to_a_limit() {
    let all = Frag::from_bytes(vec![0; 3 * MAX_MERGED_FRAG].into());
    let mut queue = SendQueue::new(Seq(0));
    for i in 0..3 * MAX_MERGED_FRAG / 1024 {
        queue.push(all.slice(i * 1024..(i + 1) * 1024), MAX_MERGED_FRAG);
    }
    assert_eq!(queue.entries.len(), 3);
}
