//! Memory that goes by reference through interfaces which show it as plain slices.
//!
//! `AsyncWrite` takes `&[u8]`, and whoever writes through it (hyper, h2, `tokio::io::copy_buf`) may
//! change the memory when the call has returned, so it is copied. But many of those slices lie in
//! [`Bytes`] that the program made: bodies of answers. [`by_reference`] notes such memory; a write that
//! meets a slice of it queues a reference instead of a copy.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Shorter slices are copied: that costs less than a reference.
pub(crate) const LEAST: usize = 2048;

/// Noted ranges before a slice that a search visits at most: ranges may lie in one another.
const NESTED: usize = 8;

/// The memory of a noted range, and how many live owners note it.
struct Noted {
    memory: Bytes,
    owners: usize,
}

/// By the address of the first byte. A range is in here as long as an owner lives, so its memory is
/// nobody else's meanwhile.
static NOTED: Mutex<BTreeMap<usize, Noted>> = Mutex::new(BTreeMap::new());

/// Entries of [`NOTED`]: nothing is looked up, nor locked, in a program that notes nothing.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The same bytes, which streams of this crate send by reference.
///
/// A [`TcpStream`](crate::net::TcpStream) that is given a slice of them by `AsyncWrite`, of 2 KiB or more,
/// queues a reference to the memory; as long as all of the answer's owners live, or until it is
/// acknowledged, whichever is later. Clones and slices of the result count, too. Fewer bytes than that
/// come back as they are.
///
/// ```
/// use bytes::Bytes;
/// use pagewire::by_reference;
///
/// let page = by_reference(Bytes::from(vec![7; 100_000]));
/// assert_eq!(page.len(), 100_000);
/// ```
pub fn by_reference(memory: Bytes) -> Bytes {
    if memory.len() < LEAST {
        return memory;
    }
    let owner = Owner(memory.clone());
    let (at, len) = (address(&memory), memory.len());
    let replaced = {
        let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = noted.entry(at).or_insert_with(|| Noted { memory: Bytes::new(), owners: 0 });
        entry.owners += 1;
        // The longest of those that begin here serves all.
        let longer = len > entry.memory.len();
        let replaced = longer.then(|| std::mem::replace(&mut entry.memory, memory));
        COUNT.store(noted.len(), Ordering::Relaxed);
        replaced
    };
    // Drops may run code of the program: without the lock.
    drop(replaced);
    Bytes::from_owner(owner)
}

/// Whether any memory is noted, so that a search may find some.
pub(crate) fn anything_noted() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// The memory behind a slice as an owner's, if it is noted and worth a reference.
pub(crate) fn noted(slice: &[u8]) -> Option<Bytes> {
    if slice.len() < LEAST {
        return None;
    }
    let at = address(slice);
    let noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = noted.range(..=at).rev().take(NESTED);
    before.into_iter().find_map(|(start, Noted { memory, .. })| {
        let from = at - start;
        (from + slice.len() <= memory.len()).then(|| memory.slice(from..from + slice.len()))
    })
}

fn address(slice: &[u8]) -> usize {
    slice.as_ptr().addr()
}

/// Notes its memory as long as it lives.
struct Owner(Bytes);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let forgotten = {
            let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
            let at = address(&self.0);
            let Some(entry) = noted.get_mut(&at) else { return };
            entry.owners -= 1;
            let forgotten = if entry.owners == 0 { noted.remove(&at) } else { None };
            COUNT.store(noted.len(), Ordering::Relaxed);
            forgotten
        };
        // The drop of noted memory may run code of the program.
        drop(forgotten);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the tests' own memory is noted; other tests note theirs meanwhile.
    fn is_noted(bytes: &[u8]) -> bool {
        noted(bytes).is_some()
    }

    #[test]
    fn a_slice_of_noted_memory_is_found_until_its_last_owner_is_gone() {
        let memory = Bytes::from(vec![1; 10 * LEAST]);
        let lent = by_reference(memory.clone());
        let clone = lent.slice(5 * LEAST..);
        let found = noted(&lent[LEAST..3 * LEAST]).expect("it lies inside");
        assert_eq!(address(&found), address(&memory[LEAST..]));
        assert!(is_noted(&clone) && is_noted(&memory));
        drop(lent);
        assert!(is_noted(&clone), "a clone lives");
        drop(clone);
        assert!(!is_noted(&memory) && !is_noted(&found));
    }

    #[test]
    fn slices_that_end_beyond_it_or_are_short_are_copied() {
        let memory = Bytes::from(vec![1; 4 * LEAST]);
        let lent = by_reference(memory.slice(..2 * LEAST));
        assert!(!is_noted(&memory[LEAST..2 * LEAST + 1]));
        assert!(!is_noted(&memory[..LEAST - 1]) && is_noted(&memory[..LEAST]));
        drop(lent);
        let short = by_reference(memory.slice(..LEAST - 1));
        assert_eq!(address(&short), address(&memory), "nothing is noted about it");
    }

    #[test]
    fn memory_noted_twice_is_found_as_long_as_one_of_both_lives() {
        let memory = Bytes::from(vec![1; 4 * LEAST]);
        let (short, long) = (by_reference(memory.slice(..LEAST)), by_reference(memory.clone()));
        assert!(is_noted(&memory));
        drop(short);
        assert!(is_noted(&memory[2 * LEAST..]));
        drop(long);
        assert!(!is_noted(&memory));
    }
}
