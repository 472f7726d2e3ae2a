//! A bounded queue in memory that both sides reach, with the layout of [`crate::layout`].
//!
//! Each side keeps its own index in private memory and only writes it to the ring, so the other
//! side cannot change it. The other side's index is used only if it is possible: a tail at most one
//! ring ahead of the head, a head between the last one seen and the tail. Any other value is
//! counted ([`jumps`](Consumer::jumps)) and ignored.
//!
//! Entries are atomic words, so a side that writes where it must not causes invalid entries, never
//! a data race. `sync` names the atomics, for `tests/rings/loom_ring.rs` to replace.

use core::marker::PhantomData;

use super::layout::{self, BELL_WORD, ENTRY_WORD, HEAD_WORD, TAIL_WORD};
use super::sync::{Ordering, Words, fence};

/// The part that both sides of a ring have.
struct Memory<E> {
    words: Words,
    /// The number of entries, less 1.
    mask: u32,
    /// The other side's last possible index.
    seen: u32,
    /// The other side's last impossible index.
    impossible: Option<u64>,
    jumps: u64,
    entry: PhantomData<fn(E) -> E>,
}

/// The side that adds entries. For one thread at a time.
pub struct Producer<E> {
    memory: Memory<E>,
    /// Index of the next entry; `published..tail` is written but not published yet.
    tail: u32,
    published: u32,
}

/// The side that takes entries. For one thread at a time.
pub struct Consumer<E> {
    memory: Memory<E>,
    /// Index of the next entry; `released..head` is taken but not released yet.
    head: u32,
    released: u32,
}

/// Words that a ring of `entries` entries takes.
pub(crate) const fn words_for<E: layout::Words>(entries: u32) -> usize {
    ENTRY_WORD + entries as usize * (size_of::<E::Array>() / 8)
}

/// Makes both sides of a ring of `entries` entries, a power of two, in `words`, all zero.
pub(crate) fn ring<E: layout::Words>(words: Words, entries: u32) -> (Producer<E>, Consumer<E>) {
    if let Some(first) = words.first() {
        let shape = layout::MAGIC
            | u64::from(entries.trailing_zeros()) << 8
            | (size_of::<E::Array>() / 8) as u64;
        first.store(shape, Ordering::Release);
    }
    let (consumer, producer) = (Memory::new(words.clone(), entries), Memory::new(words, entries));
    let producer = Producer { memory: producer, tail: 0, published: 0 };
    (producer, Consumer { memory: consumer, head: 0, released: 0 })
}

impl<E: layout::Words> Memory<E> {
    fn new(words: Words, entries: u32) -> Self {
        let mask = entries.next_power_of_two() - 1;
        Self { words, mask, seen: 0, impossible: None, jumps: 0, entry: PhantomData }
    }

    /// The other side's index, if it is possible: at most `span` beyond `from`.
    fn read_index(&mut self, word: usize, from: u32, span: u32) -> u32 {
        // Acquire pairs with the Release of the other side: entries are written, or read.
        let raw = self.words.get(word).map_or(0, |word| word.load(Ordering::Acquire));
        match u32::try_from(raw) {
            Ok(index) if index.wrapping_sub(from) <= span => {
                self.seen = index;
                self.impossible = None;
            }
            _ if self.impossible != Some(raw) => {
                self.impossible = Some(raw);
                self.jumps += 1;
            }
            _ => {}
        }
        self.seen
    }

    fn store(&self, word: usize, value: u32, ordering: Ordering) {
        if let Some(word) = self.words.get(word) {
            word.store(value.into(), ordering);
        }
    }

    /// First word of the entry at `index`.
    fn at(&self, index: u32) -> usize {
        ENTRY_WORD + (index & self.mask) as usize * (size_of::<E::Array>() / 8)
    }
}

impl<E: layout::Words> Producer<E> {
    /// Adds an entry without publishing it; returns it if the ring is full.
    pub fn push(&mut self, entry: E) -> Result<(), E> {
        if self.tail.wrapping_sub(self.memory.seen) > self.memory.mask && self.free() == 0 {
            return Err(entry);
        }
        let words = entry.to_words();
        let at = self.memory.at(self.tail);
        for (to, from) in self.memory.words.iter().skip(at).zip(words.as_ref()) {
            // Relaxed: the tail's Release publishes it, and the head's Acquire came before.
            to.store(*from, Ordering::Relaxed);
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Publishes the added entries. `true`: the consumer sleeps, and the caller must wake it.
    pub fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        // Release pairs with the consumer's Acquire in `read_index`: the entries are visible with the tail.
        self.memory.store(TAIL_WORD, self.tail, Ordering::Release);
        self.published = self.tail;
        // Pairs with the fence in `Consumer::arm`: either that sees this tail, or this sees its bell.
        fence(Ordering::SeqCst);
        let Some(bell) = self.memory.words.get(BELL_WORD) else { return false };
        // The load alone keeps the line shared while the consumer polls.
        bell.load(Ordering::Relaxed) != 0 && bell.swap(0, Ordering::AcqRel) != 0
    }

    /// Entries that can be added now.
    pub fn free(&mut self) -> usize {
        // Heads from the last one seen to the published tail are possible.
        let from = self.memory.seen;
        let head = self.memory.read_index(HEAD_WORD, from, self.published.wrapping_sub(from));
        (self.memory.mask + 1 - self.tail.wrapping_sub(head)) as usize
    }

    /// Entries that the consumer has not released, as far as is known.
    pub fn waiting(&mut self) -> usize {
        self.capacity() - self.free()
    }

    /// The number of entries of the ring.
    pub fn capacity(&self) -> usize {
        self.memory.mask as usize + 1
    }

    /// Times that the consumer's index was impossible.
    pub fn jumps(&self) -> u64 {
        self.memory.jumps
    }

    /// The ring's memory, for an application that writes there itself: tests, other processes.
    pub fn words(&self) -> &Words {
        &self.memory.words
    }
}

impl<E: layout::Words> Consumer<E> {
    /// Takes the oldest entry. Its place stays taken until [`release`](Self::release).
    pub fn pop(&mut self) -> Option<E> {
        if self.head == self.memory.seen && self.available() == 0 {
            return None;
        }
        let mut words = E::Array::default();
        let at = self.memory.at(self.head);
        for (from, to) in self.memory.words.iter().skip(at).zip(words.as_mut()) {
            // Relaxed: ordered by the Acquire of the tail.
            *to = from.load(Ordering::Relaxed);
        }
        self.head = self.head.wrapping_add(1);
        Some(E::from_words(words))
    }

    /// Releases the places of all taken entries to the producer.
    pub fn release(&mut self) {
        if self.released != self.head {
            // Release pairs with the producer's Acquire in `read_index`: the entries have been read.
            self.memory.store(HEAD_WORD, self.head, Ordering::Release);
            self.released = self.head;
        }
    }

    /// Entries that can be taken now.
    pub fn available(&mut self) -> usize {
        // Tails up to one ring ahead of the released head are possible.
        let entries = self.memory.mask + 1;
        let from = self.memory.seen;
        let ahead = from.wrapping_sub(self.released);
        let tail = self.memory.read_index(TAIL_WORD, from, entries - ahead.min(entries));
        tail.wrapping_sub(self.head) as usize
    }

    /// Arms the bell before a sleep. `false`: there are entries, do not sleep.
    pub fn arm(&mut self) -> bool {
        self.memory.store(BELL_WORD, 1, Ordering::Relaxed);
        // Pairs with the fence in `Producer::publish`.
        fence(Ordering::SeqCst);
        if self.available() == 0 {
            return true;
        }
        self.disarm();
        false
    }

    /// Ends [`arm`](Self::arm): the consumer polls again.
    pub fn disarm(&mut self) {
        self.memory.store(BELL_WORD, 0, Ordering::Relaxed);
    }

    /// The number of entries of the ring.
    pub fn capacity(&self) -> usize {
        self.memory.mask as usize + 1
    }

    /// Times that the producer's index was impossible.
    pub fn jumps(&self) -> u64 {
        self.memory.jumps
    }

    /// The ring's memory, for an application that writes there itself: tests, other processes.
    pub fn words(&self) -> &Words {
        &self.memory.words
    }
}

impl<E> core::fmt::Debug for Producer<E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Producer({}..{})", self.memory.seen, self.tail)
    }
}

impl<E> core::fmt::Debug for Consumer<E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Consumer({}..{})", self.head, self.memory.seen)
    }
}
