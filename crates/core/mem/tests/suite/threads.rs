//! Many threads share fragments of one pool; the model of the same is `loom.rs`.

use std::cell::RefCell;
use std::sync::mpsc;

use pagewire_mem::{
    CopyLedger, CopyReason, Deferral, Frag, GROUP_PAGES, PAGE_SIZE, PagePool, PageWriter,
};

const READERS: u64 = 3;
const ROUNDS: u64 = 6_000;

/// Small, so that pages are reused all the time.
const POOL: usize = 2 * GROUP_PAGES * PAGE_SIZE;

fn is_all(frag: &Frag, byte: u8) -> bool {
    frag.as_slice().is_some_and(|bytes| bytes.iter().all(|&b| b == byte))
}

/// Clones, cuts and joins a fragment, and checks its bytes to the end.
fn read(mut frag: Frag, byte: u8, twin_to: Option<&mpsc::SyncSender<(Frag, u8)>>) {
    let whole = frag.len();
    let mut front = frag.split_to(whole / 3);
    if let Some(to) = twin_to {
        // Full or gone: the twin is dropped here instead.
        let _ = to.try_send((frag.clone(), byte));
    }
    let middle = frag.split_to(whole / 3);
    front.try_append(middle).unwrap();
    assert!(is_all(&front, byte) && is_all(&frag, byte), "a page changed while referenced");
    drop(front);
    assert!(is_all(&frag, byte), "a page changed while referenced");
}

#[test]
fn every_page_comes_home_unchanged_from_every_thread() {
    let mut pool = PagePool::new("threads", POOL).unwrap();
    let mut writer = PageWriter::new();
    let mut ledger = CopyLedger::new();
    std::thread::scope(|scope| {
        let mut to_readers: Vec<mpsc::SyncSender<(Frag, u8)>> = Vec::new();
        for _ in 0..READERS {
            let (to, from) = mpsc::sync_channel::<(Frag, u8)>(16);
            // Each passes twins on to the one before it, so references to one page are counted
            // down on several threads at once.
            let neighbour = to_readers.last().cloned();
            to_readers.push(to);
            scope.spawn(move || {
                for (frag, byte) in from {
                    read(frag, byte, neighbour.as_ref());
                }
            });
        }
        let mut block = [0u8; 5 * PAGE_SIZE + 77];
        for round in 0..ROUNDS {
            let byte = round as u8;
            block.fill(byte);
            let len = 1 + (round as usize * 1_237) % block.len();
            let mut left = &block[..len];
            while !left.is_empty() {
                let (frags, copied) =
                    writer.write(&mut pool, left, &mut ledger, CopyReason::AppWrite);
                left = &left[copied..];
                for frag in frags {
                    for (to, n) in to_readers.iter().zip(0..) {
                        if (round + n) % 3 != 0 {
                            to.send((frag.clone(), byte)).unwrap();
                        }
                    }
                }
                if copied == 0 {
                    std::thread::yield_now();
                }
            }
            if round % 64 == 0 {
                assert_eq!(pool.audit().twice, 0);
            }
        }
    });
    writer.abandon();
    pool.drain();
    pool.debug_assert_conserved();
    assert_eq!(pool.stats().free, pool.stats().total);
}

/// Drops what it has under a deferral, at the end of its thread.
struct AtTheEnd(RefCell<Option<(Frag, mpsc::Sender<bool>)>>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        let Some((frag, report)) = self.0.take() else { return };
        let deferral = Deferral::begin();
        drop(frag);
        let _ = report.send(false);
        deferral.end();
    }
}

/// Sends `true` when it is dropped.
struct DropReport(mpsc::Sender<bool>);

impl AsRef<[u8]> for DropReport {
    fn as_ref(&self) -> &[u8] {
        b"bytes"
    }
}

impl Drop for DropReport {
    fn drop(&mut self) {
        let _ = self.0.send(true);
    }
}

#[test]
fn owners_are_deferred_at_the_very_end_of_a_thread_too() {
    thread_local!(static END: AtTheEnd = const { AtTheEnd(RefCell::new(None)) });
    let (report, reports) = mpsc::channel();
    let run = move || {
        let owned = || Frag::from_bytes(bytes::Bytes::from_owner(DropReport(report.clone())));
        END.with(|end| *end.0.borrow_mut() = Some((owned(), report.clone())));
        // The deferral makes the thread's list, which is gone before `END` is.
        let deferral = Deferral::begin();
        drop(owned());
        deferral.end();
    };
    std::thread::spawn(run).join().expect("it ends");
    // The first drop; then the end of the deferral, and only then the second drop.
    assert_eq!(reports.try_iter().collect::<Vec<_>>(), [true, false, true]);
}
