//! Model check of the queue and of the wake-up word of `pair`: every interleaving that the memory
//! model allows, of the very source files that the crate compiles.

#![allow(dead_code, unreachable_pub)]

mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
}

#[path = "../../src/pair/spsc.rs"]
mod spsc;

#[path = "../../src/pair/wake_word.rs"]
mod wake_word;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use wake_word::{FRAMES, GONE, ROOM, WakeWord};

/// Counts drops, so that a lost or doubled item shows. Holds an allocation as a frame does.
struct Item(usize, Arc<AtomicUsize>);

impl Drop for Item {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn items_arrive_once_in_order_over_a_ring_that_wraps() {
    loom::model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (mut tx, mut rx) = spsc::ring(2);
        let counter = Arc::clone(&dropped);
        let producer = thread::spawn(move || {
            let mut sent = 0;
            for i in 0..3 {
                if tx.push(Item(i, Arc::clone(&counter))).is_err() {
                    break;
                }
                sent += 1;
                if i == 0 {
                    tx.publish();
                }
            }
            tx.publish();
            sent
        });
        let mut got = 0;
        for _ in 0..3 {
            if let Some(item) = rx.pop() {
                assert_eq!(item.0, got, "out of order");
                got += 1;
                rx.release();
            }
        }
        let sent = producer.join().expect("producer");
        while let Some(item) = rx.pop() {
            assert_eq!(item.0, got, "out of order");
            got += 1;
        }
        assert_eq!(got, sent);
    });
}

#[test]
fn what_a_vanished_consumer_leaves_is_dropped_once() {
    loom::model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (mut tx, mut rx) = spsc::ring(2);
        let consumer = thread::spawn(move || {
            let _ = rx.pop();
            drop(rx);
        });
        assert!(tx.push(Item(0, Arc::clone(&dropped))).is_ok());
        tx.publish();
        assert!(tx.push(Item(1, Arc::clone(&dropped))).is_ok());
        tx.publish();
        tx.reclaim();
        consumer.join().expect("consumer");
        tx.reclaim();
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_waiter_that_sleeps_is_always_rung() {
    loom::model(|| {
        let wake_word = Arc::new(WakeWord::default());
        let (mut tx, mut rx) = spsc::ring(2);
        let theirs = Arc::clone(&wake_word);
        let producer = thread::spawn(move || {
            assert!(tx.push(7).is_ok());
            tx.publish();
            theirs.claim(FRAMES)
        });
        wake_word.set(FRAMES);
        let sleeps = rx.available() == 0;
        let rung = producer.join().expect("producer");
        assert!(!sleeps || rung, "asleep with a frame in the ring");
        assert_eq!(wake_word.clear(), rung, "the duty to ring is handed over once");
    });
}

#[test]
fn a_sender_that_waits_for_room_is_always_rung() {
    loom::model(|| {
        let wake_word = Arc::new(WakeWord::default());
        let (mut tx, mut rx) = spsc::ring(1);
        assert!(tx.push(7).is_ok());
        tx.publish();
        let theirs = Arc::clone(&wake_word);
        let consumer = thread::spawn(move || {
            assert_eq!(rx.pop(), Some(7));
            rx.release();
            let rung = theirs.claim(ROOM);
            drop(rx);
            rung
        });
        wake_word.set(ROOM);
        let sleeps = tx.free() == 0;
        let rung = consumer.join().expect("consumer");
        assert!(!sleeps || rung, "asleep with room in the ring");
    });
}

#[test]
fn a_receiver_that_sleeps_is_always_told_that_its_peer_went() {
    loom::model(|| {
        let wake_word = Arc::new(WakeWord::default());
        let (tx, mut theirs_rx) = spsc::ring::<usize>(1);
        let (theirs_tx, mut rx) = spsc::ring::<usize>(1);
        let theirs = Arc::clone(&wake_word);
        // An end drops its two queues, then wakes its peer.
        let peer = thread::spawn(move || {
            assert_eq!(theirs_rx.pop(), None);
            drop(theirs_tx);
            drop(theirs_rx);
            theirs.claim(GONE)
        });
        wake_word.set(FRAMES);
        let sleeps = !tx.is_closed() && rx.available() == 0;
        let rung = peer.join().expect("peer");
        assert!(!sleeps || rung, "asleep, and nobody is left to ring");
    });
}

#[test]
fn a_waiter_that_gives_up_and_a_waker_agree_who_rings() {
    loom::model(|| {
        let wake_word = Arc::new(WakeWord::default());
        let theirs = Arc::clone(&wake_word);
        let waker = thread::spawn(move || theirs.claim(FRAMES));
        wake_word.set(FRAMES);
        let was_claimed = wake_word.clear();
        assert_eq!(waker.join().expect("waker"), was_claimed);
    });
}
