//! Completions: told once, by the last release, on whatever thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use pagewire_mem::{Completed, Completion, CompletionQueue, Frag, PAGE_SIZE, PageBudget};

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
    struct Owned(Vec<u8>, Arc<AtomicUsize>);
    impl AsRef<[u8]> for Owned {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Owned {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (queue, released) = (CompletionQueue::new(), Arc::new(AtomicUsize::new(0)));
    let completion = Completion::new(&queue, 5, 9);
    let owned = Bytes::from_owner(Owned(vec![1; 100], Arc::clone(&released)));
    let attached = completion.attach(Frag::from_bytes(owned));
    let slice = attached.slice(40..60);
    drop(completion);
    drop(attached);
    assert!(!queue.is_pending());
    assert_eq!((slice.as_slice().unwrap(), released.load(Ordering::Relaxed)), (&[1; 20][..], 0));
    drop(slice);
    assert_eq!(released.load(Ordering::Relaxed), 1);
    assert_eq!(drained(&queue), [Completed { owner: 5, lo: 9, hi: 9, copied: false }]);
    assert!(!queue.is_pending());
}

#[test]
fn a_call_that_joined_makes_a_range_which_may_wrap_and_one_that_left_does_not() {
    let queue = CompletionQueue::new();
    let completion = Completion::new(&queue, 0, u32::MAX);
    assert_eq!((completion.next_id(), completion.join(), completion.join()), (0, 0, 1));
    completion.leave();
    completion.mark_copied();
    drop(completion);
    assert_eq!(drained(&queue), [Completed { owner: 0, lo: u32::MAX, hi: 0, copied: true }]);
    let completion = Completion::new(&queue, 0, 1);
    completion.leave();
    drop(completion);
    assert_eq!(drained(&queue), [], "nothing was sent, nobody is told");
}

#[test]
fn pieces_that_happen_to_be_neighbours_stay_apart_and_parts_of_one_piece_join() {
    let queue = CompletionQueue::new();
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

#[test]
fn charges_are_given_back_with_the_memory() {
    let (queue, budget) = (CompletionQueue::new(), Arc::new(PageBudget::new(4)));
    let completion = Completion::new(&queue, 0, 0);
    completion.charge(budget.charge(PAGE_SIZE).unwrap());
    assert_eq!(budget.used(), 3, "the page, and one at either end");
    assert!(budget.charge(1).is_none());
    budget.set_limit(5);
    completion.charge(budget.charge(1).unwrap());
    let attached = completion.attach(frag(1));
    drop(completion);
    assert_eq!(budget.used(), 5);
    drop(attached);
    assert_eq!(budget.used(), 0);
}

#[test]
fn releases_on_many_threads_are_all_told_and_the_waker_is_called_when_something_waits() {
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
fn what_continues_the_last_piece_in_its_memory_becomes_part_of_it_and_nothing_else_does() {
    let queue = CompletionQueue::new();
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

#[test]
fn charges_of_one_budget_are_kept_as_one_and_all_given_back() {
    let (queue, budget) = (CompletionQueue::new(), Arc::new(PageBudget::new(100)));
    let other = Arc::new(PageBudget::new(100));
    let completion = Completion::new(&queue, 0, 0);
    for _ in 0..3 {
        completion.charge(budget.charge(PAGE_SIZE).unwrap());
    }
    completion.charge(other.charge(PAGE_SIZE).unwrap());
    assert_eq!((budget.used(), other.used()), (9, 3));
    drop(completion);
    assert_eq!((budget.used(), other.used()), (0, 0));
}
