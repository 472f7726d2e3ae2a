//! The queue against a `VecDeque`, and between two threads.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use super::spsc::ring;

#[derive(Clone, Debug)]
enum Op {
    Push,
    Publish,
    Pop,
    Release,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![3 => Just(Op::Push), 1 => Just(Op::Publish), 3 => Just(Op::Pop), 1 => Just(Op::Release)]
}

proptest! {
    #[test]
    fn behaves_like_a_bounded_vecdeque(
        capacity in 1usize..9,
        ops in proptest::collection::vec(op(), 0..200),
    ) {
        let alive = Arc::new(());
        let (mut tx, mut rx) = ring(capacity);
        let slots = capacity.next_power_of_two();
        prop_assert_eq!((tx.capacity(), rx.capacity()), (slots, slots));
        let mut shown: VecDeque<usize> = VecDeque::new();
        let (mut hidden, mut unreleased, mut next) = (VecDeque::new(), 0, 0);
        for op in ops {
            match op {
                Op::Push => {
                    let full = shown.len() + hidden.len() + unreleased == slots;
                    let pushed = tx.push((next, Arc::clone(&alive))).is_ok();
                    prop_assert_eq!(pushed, !full);
                    if pushed {
                        hidden.push_back(next);
                    }
                    next += 1;
                }
                Op::Publish => {
                    prop_assert_eq!(tx.publish(), !hidden.is_empty());
                    shown.append(&mut hidden);
                }
                Op::Pop => {
                    let got = rx.pop().map(|(n, _)| n);
                    prop_assert_eq!(got, shown.pop_front());
                    unreleased += usize::from(got.is_some());
                }
                Op::Release => {
                    prop_assert_eq!(rx.release(), unreleased > 0);
                    unreleased = 0;
                }
            }
            prop_assert_eq!(rx.available(), shown.len());
            prop_assert_eq!(tx.free(), slots - shown.len() - hidden.len() - unreleased);
            prop_assert_eq!(Arc::strong_count(&alive), 1 + shown.len() + hidden.len());
        }
        drop((tx, rx));
        prop_assert_eq!(Arc::strong_count(&alive), 1);
    }
}

#[test]
fn what_the_consumer_leaves_the_producer_can_drop() {
    let alive = Arc::new(());
    let (mut tx, rx) = ring(4);
    assert!(tx.push(Arc::clone(&alive)).is_ok());
    assert_eq!(tx.reclaim(), 0, "the consumer is still there");
    drop(rx);
    assert!(tx.is_closed());
    assert_eq!(tx.reclaim(), 1);
    assert_eq!(Arc::strong_count(&alive), 1);
    assert_eq!(tx.free(), 4);
}

#[test]
fn a_producer_that_goes_publishes_what_it_had() {
    let (mut tx, mut rx) = ring(4);
    assert!(tx.push(1).is_ok());
    drop(tx);
    assert_eq!(rx.pop(), Some(1));
    assert_eq!(rx.pop(), None);
}

#[test]
fn a_million_items_cross_between_threads_in_order() {
    const N: u64 = 1_000_000;
    let (mut tx, mut rx) = ring(64);
    let producer = std::thread::spawn(move || {
        let mut n = 0;
        while n < N {
            while n < N && tx.push(n).is_ok() {
                n += 1;
            }
            if !tx.publish() {
                std::thread::yield_now();
            }
        }
    });
    let mut next = 0;
    while next < N {
        while let Some(n) = rx.pop() {
            assert_eq!(n, next);
            next += 1;
        }
        if !rx.release() {
            std::thread::yield_now();
        }
    }
    producer.join().expect("producer");
}
