//! Model check of the rings: every interleaving that the memory model allows, of the very source
//! files that the crate compiles.

#![allow(dead_code, unreachable_pub, unused_imports)]

mod sync {
    use core::ops::Deref;

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    pub(crate) use loom::sync::atomic::{Ordering, fence};

    #[derive(Clone)]
    pub struct Words(Arc<Vec<AtomicU64>>);

    impl Words {
        pub(crate) fn new(words: usize) -> Self {
            Self(Arc::new((0..words).map(|_| AtomicU64::new(0)).collect()))
        }
    }

    impl Deref for Words {
        type Target = [AtomicU64];

        fn deref(&self) -> &[AtomicU64] {
            &self.0
        }
    }
}

/// The layout with everything close together: loom tracks a bounded number of objects.
mod layout {
    pub const MAGIC: u64 = 0;
    pub const TAIL_WORD: usize = 1;
    pub const HEAD_WORD: usize = 2;
    pub const BELL_WORD: usize = 3;
    pub const ENTRY_WORD: usize = 4;

    pub trait Words: Copy {
        type Array: AsRef<[u64]> + AsMut<[u64]> + Default + Copy;
        fn to_words(self) -> Self::Array;
        fn from_words(words: Self::Array) -> Self;
    }

    impl Words for (u64, u64) {
        type Array = [u64; 2];
        fn to_words(self) -> [u64; 2] {
            [self.0, self.1]
        }
        fn from_words(words: [u64; 2]) -> Self {
            (words[0], words[1])
        }
    }

    impl Words for u64 {
        type Array = [u64; 1];
        fn to_words(self) -> [u64; 1] {
            [self]
        }
        fn from_words(words: [u64; 1]) -> Self {
            words[0]
        }
    }
}

#[path = "../../src/ring.rs"]
mod ring;

use loom::thread;

use layout::{BELL_WORD, HEAD_WORD, TAIL_WORD};
use ring::{Consumer, Producer, words_for};
use sync::{Ordering, Words};

fn small<E: layout::Words>(entries: u32) -> (Producer<E>, Consumer<E>) {
    ring::ring(Words::new(words_for::<E>(entries)), entries)
}

/// Entries of two words: both words of an entry are of the same push (the rings of entries).
#[test]
fn entries_arrive_whole_once_and_in_order_over_a_ring_that_wraps() {
    loom::model(|| {
        let (mut tx, mut rx) = small::<(u64, u64)>(2);
        let producer = thread::spawn(move || {
            let mut sent = 0;
            for i in 1..=3 {
                if tx.push((i, i)).is_err() {
                    break;
                }
                sent = i;
                if i != 2 {
                    tx.publish();
                }
            }
            tx.publish();
            sent
        });
        let mut got = 0;
        for _ in 0..3 {
            if let Some((a, b)) = rx.pop() {
                assert_eq!((a, b), (got + 1, got + 1), "torn, lost or doubled");
                got += 1;
                rx.release();
            }
        }
        let sent = producer.join().unwrap();
        while let Some((a, b)) = rx.pop() {
            assert_eq!((a, b), (got + 1, got + 1), "torn, lost or doubled");
            got += 1;
        }
        assert_eq!((got, rx.jumps()), (sent, 0));
    });
}

/// Entries of one word (the fill rings): a place is not written again before it was given back.
#[test]
fn a_full_ring_is_written_over_only_where_it_was_read() {
    loom::model(|| {
        let (mut tx, mut rx) = small::<u64>(1);
        tx.push(7).unwrap();
        tx.publish();
        let producer = thread::spawn(move || {
            let pushed = tx.push(8).is_ok();
            tx.publish();
            (pushed, tx.jumps())
        });
        assert_eq!(rx.pop(), Some(7));
        rx.release();
        let (pushed, jumps) = producer.join().unwrap();
        assert_eq!(rx.pop(), pushed.then_some(8));
        assert_eq!(jumps, 0);
    });
}

/// Submissions and fill entries: the stack sleeps, the application rings.
#[test]
fn a_consumer_that_sleeps_is_always_woken() {
    loom::model(|| {
        let (mut tx, mut rx) = small::<u64>(2);
        let producer = thread::spawn(move || {
            tx.push(7).unwrap();
            tx.publish()
        });
        let sleeps = rx.arm();
        let woken = producer.join().unwrap();
        assert!(!sleeps || woken, "asleep with an entry in the ring");
    });
}

/// Completions: the stack writes entries in another ring first.
#[test]
fn who_sees_a_completion_sees_its_entries() {
    loom::model(|| {
        let (mut entries_tx, mut entries) = small::<u64>(1);
        let (mut completions_tx, mut completions) = small::<u64>(1);
        let stack = thread::spawn(move || {
            entries_tx.push(7).unwrap();
            completions_tx.push(1).unwrap();
            entries_tx.publish();
            completions_tx.publish();
        });
        if completions.pop().is_some() {
            assert_eq!(entries.pop(), Some(7));
        }
        stack.join().unwrap();
    });
}

/// A side that scribbles while the other works: no index is followed where it cannot be.
#[test]
fn indices_that_jump_are_not_followed() {
    loom::model(|| {
        let (mut tx, mut rx) = small::<u64>(2);
        let words = tx.words().clone();
        let liar = thread::spawn(move || {
            words[TAIL_WORD].store(77, Ordering::Release);
            words[HEAD_WORD].store(u64::MAX, Ordering::Release);
            words[BELL_WORD].store(u64::MAX, Ordering::Relaxed);
        });
        let got = rx.pop();
        let _ = tx.push(1);
        liar.join().unwrap();
        assert_eq!(got, None);
        assert_eq!((rx.available(), tx.free()), (0, 1));
        assert_eq!((rx.jumps() > 0, tx.jumps() > 0), (true, true));
    });
}
