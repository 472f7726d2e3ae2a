//! Completions: reported once, by the last release, on any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use pagewire_mem::{Completed, Completion, CompletionQueue, Frag, PAGE_SIZE, PageBudget};
use pagewire_testkit::given;

fn frag(len: usize) -> Frag {
    Frag::from_bytes(Bytes::from(vec![7; len]))
}

fn drained(queue: &CompletionQueue) -> Vec<Completed> {
    let mut out = Vec::new();
    queue.drain(&mut out);
    out
}

#[test]
fn the_last_release_of_any_slice_completes_and_the_memory_is_home_by_then() {
    let (queue, memory) = (CompletionQueue::new(), Bytes::from(vec![1; 100]));
    let completion = Completion::new(&queue, 5, 9);
    let attached = completion.attach(Frag::from_bytes(memory.clone()));
    let slice = attached.slice(40..60);
    drop(completion);
    drop(attached);
    assert!(!queue.is_pending());
    assert_eq!((slice.as_slice().unwrap(), memory.is_unique()), (&[1; 20][..], false));
    drop(slice);
    assert!(memory.is_unique(), "released");
    assert_eq!(drained(&queue), [Completed { owner: 5, lo: 9, hi: 9, copied: false }]);
    assert!(!queue.is_pending());
}

/// A program that gets the report may free or reuse the memory: the memory, and the charge for it, must
/// be released by then.
#[test]
fn nothing_is_reported_before_the_memory_and_its_charge_are_given_back() {
    struct Owned(Vec<u8>, Arc<CompletionQueue>, Arc<AtomicUsize>);
    impl AsRef<[u8]> for Owned {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Owned {
        fn drop(&mut self) {
            assert!(!self.1.is_pending(), "reported while the memory was still held");
            self.2.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (queue, released) = (CompletionQueue::new(), Arc::new(AtomicUsize::new(0)));
    let budget = Arc::new(PageBudget::new(100));
    // The waker runs where it is called: it is what may act on it first.
    let (seen, charged) = (Arc::clone(&released), Arc::clone(&budget));
    let wakes = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&wakes);
    queue.set_waker(move || {
        assert_eq!((seen.load(Ordering::Relaxed), charged.used()), (3, 0));
        count.fetch_add(1, Ordering::Relaxed);
    });
    let completion = Completion::new(&queue, 5, 9);
    let pieces: Vec<Frag> = (0..3)
        .map(|_| {
            let owned = Owned(vec![1; 100], Arc::clone(&queue), Arc::clone(&released));
            completion.charge(budget.charge(100).unwrap());
            completion.attach(Frag::from_bytes(Bytes::from_owner(owned)))
        })
        .collect();
    drop(completion);
    assert!(budget.used() > 0);
    drop(pieces);
    assert_eq!(wakes.load(Ordering::Relaxed), 1);
    assert_eq!(drained(&queue).len(), 1);
}

given! {
    let queue = CompletionQueue::new();

    a_call_that_joined_makes_a_range_which_may_wrap_and_one_that_left_does_not {
        let completion = Completion::new(&queue, 0, u32::MAX);
        assert_eq!((completion.next_id(), completion.join(), completion.join()), (0, 0, 1));
        completion.leave();
        completion.mark_copied();
        drop(completion);
        assert_eq!(drained(&queue), [Completed { owner: 0, lo: u32::MAX, hi: 0, copied: true }]);
        let completion = Completion::new(&queue, 0, 1);
        completion.leave();
        drop(completion);
        assert_eq!(drained(&queue), [], "nothing was sent, nothing is reported");
    }
    pieces_that_happen_to_be_neighbours_stay_apart_and_parts_of_one_piece_join {
        let completion = Completion::new(&queue, 0, 0);
        let whole = frag(100);
        let (one, other) = (whole.slice(0..50), whole.slice(50..100));
        let mut one = completion.attach(one);
        assert!(one.try_append(completion.attach(other)).is_err(), "two pieces are two fragments");
        let back = one.slice(20..50);
        one.truncate(20);
        assert!(one.try_append(back).is_ok());
        assert_eq!(one.len(), 50);
    }
    what_continues_the_last_piece_in_its_memory_becomes_part_of_it_and_nothing_else_does {
        let completion = Completion::new(&queue, 0, 0);
        let memory = frag(100);
        let other = frag(10);
        let mut first = completion.attach(memory.slice(0..30));
        assert!(completion.is_continued_by(&memory.slice(30..50)));
        assert!(!completion.is_continued_by(&memory.slice(31..50)), "a gap");
        assert!(!completion.is_continued_by(&Frag::empty()));
        assert!(!completion.is_continued_by(&Frag::from_static(b"elsewhere")));
        let second = completion.attach_behind(memory.slice(30..50));
        assert_eq!(first.try_append(second).map_err(|f| f.len()), Ok(()));
        assert_eq!(first.len(), 50);
        // Elsewhere, and then where the piece before that ended: pieces of their own.
        let apart = completion.attach_behind(other.clone());
        assert!(!completion.is_continued_by(&memory.slice(50..60)));
        let mut again = completion.attach_behind(memory.slice(50..60));
        assert!(first.try_append(again.clone()).is_err() && again.try_append(apart).is_err());
        drop((first, again, completion));
        assert_eq!(drained(&queue).len(), 1);
    }
}

#[test]
fn charges_of_every_budget_are_given_back_with_the_memory() {
    let (queue, budget) = (CompletionQueue::new(), Arc::new(PageBudget::new(4)));
    let completion = Completion::new(&queue, 0, 0);
    completion.charge(budget.charge(PAGE_SIZE).unwrap());
    assert_eq!(budget.used(), 3, "the page, and one at either end");
    assert!(budget.charge(1).is_none());
    budget.set_limit(5);
    completion.charge(budget.charge(1).unwrap());
    // Charges of one budget are kept as one, those of another apart.
    let other = Arc::new(PageBudget::new(100));
    completion.charge(other.charge(PAGE_SIZE).unwrap());
    let attached = completion.attach(frag(1));
    drop(completion);
    assert_eq!((budget.used(), other.used()), (5, 3));
    drop(attached);
    assert_eq!((budget.used(), other.used()), (0, 0));
}

#[test]
fn releases_on_many_threads_are_all_reported_and_the_waker_is_called_when_something_waits() {
    let (queue, wakes) = (CompletionQueue::new(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&wakes);
    queue.set_waker(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let calls = if cfg!(debug_assertions) { 500 } else { 5000 };
    let mut parts: Vec<Vec<Frag>> = (0..4).map(|_| Vec::new()).collect();
    for id in 0..calls {
        let completion = Completion::new(&queue, 0, id);
        let attached = completion.attach(frag(4));
        for (n, part) in parts.iter_mut().enumerate() {
            part.push(attached.slice(n..n + 1));
        }
    }
    assert_eq!(wakes.load(Ordering::Relaxed), 0);
    let threads: Vec<_> =
        parts.into_iter().map(|part| std::thread::spawn(move || drop(part))).collect();
    let mut seen = Vec::new();
    for thread in threads {
        seen.extend(drained(&queue));
        thread.join().unwrap();
    }
    seen.extend(drained(&queue));
    let mut ids: Vec<u32> = seen.iter().map(|done| done.lo).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..calls).collect::<Vec<_>>(), "each once");
    assert!(wakes.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_call_that_goes_on_behind_what_is_queued_joins_it_and_any_other_leaves_everything_as_it_was() {
    let (queue, budget) = (CompletionQueue::new(), Arc::new(PageBudget::new(6)));
    let memory = Frag::from_bytes(Bytes::from((0..100).collect::<Vec<u8>>()));
    let completion = Completion::new(&queue, 1, u32::MAX);
    completion.charge(budget.charge(30).unwrap());
    let mut queued = completion.attach(memory.slice(0..30));
    let mut next = memory.slice(30..50);
    assert_eq!(queued.join_call(&mut next, &budget), Some(0), "the number behind the last");
    assert!(next.is_empty());
    assert_eq!(queued.as_slice(), Some(&(0..50).collect::<Vec<u8>>()[..]));
    assert_eq!((completion.count(), budget.used()), (2, 4));
    // A gap; another memory; another budget; nothing at all.
    let other = Frag::from_bytes(Bytes::from(vec![0; 100]));
    let strange = Arc::new(PageBudget::new(usize::MAX));
    let mut cases = [
        (memory.slice(60..70), &budget),
        (other.slice(50..60), &budget),
        (memory.slice(50..60), &strange),
        (Frag::empty(), &budget),
    ];
    for (next, budget) in &mut cases {
        let len = next.len();
        assert_eq!(queued.join_call(next, budget), None);
        assert_eq!((queued.len(), next.len(), completion.count()), (50, len, 2));
    }
    // A part that does not end where the last call ended.
    let mut front = queued.slice(0..10);
    assert_eq!(front.join_call(&mut memory.slice(10..20), &budget), None);
    // Static memory, which nobody keeps.
    let (wide, apart) = (Arc::new(PageBudget::new(100)), CompletionQueue::new());
    let apart = Completion::new(&apart, 1, 0);
    apart.charge(wide.charge(30).unwrap());
    let mut fixed = apart.attach(Frag::from_static(b"some"));
    assert_eq!(fixed.join_call(&mut memory.slice(0..4), &wide), None);
    assert_eq!((fixed.len(), apart.count()), (4, 1));
    // A fragment without a completion.
    assert_eq!(memory.slice(0..10).join_call(&mut memory.slice(10..20), &budget), None);
    // The pages that are left, and no more.
    assert_eq!(queued.join_call(&mut memory.slice(50..60), &budget), Some(1));
    assert_eq!(queued.join_call(&mut memory.slice(60..70), &budget), None);
    assert_eq!((queued.len(), completion.count(), budget.used()), (60, 3, 6));
    drop((completion, front, cases));
    assert!(!queue.is_pending());
    drop(queued);
    let all = Completed { owner: 1, lo: u32::MAX, hi: 1, copied: false };
    assert_eq!((drained(&queue), budget.used()), (vec![all], 0));
}
