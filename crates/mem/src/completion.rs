//! Byte path, step S7: who is told when memory that was sent by reference is let go.
//!
//! ```text
//!   send_zc ---> Completion (one for each call; memory, ids lo..=hi, copied?)
//!                   ^ held by every fragment and slice of the call, on any thread
//!                   | last release: memory goes home, then
//!                   v
//!                CompletionQueue (one for each stack) --- drained once per turn ---> error queue
//! ```
//!
//! Read [`Completion`] first. Pages held are charged to a [`PageBudget`], which many stacks share.

use std::sync::{Arc, PoisonError};

use smallvec::SmallVec;

use crate::frag::{Frag, FragVec};
use crate::limits::PAGE_SIZE;
use crate::region::Region;
use crate::release::{Later, deferred, release};
use crate::sync::{AtomicBool, AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering};

/// What one call (or several that share) sent by reference: keeps the memory while anybody refers
/// to it, and says so when nobody does any more.
///
/// Every fragment that [`attach`](Self::attach) returns, and every slice of it, holds the
/// `Completion`. The last release, on any thread, gives the memory back and queues a [`Completed`].
#[derive(Debug)]
pub struct Completion {
    queue: Arc<CompletionQueue>,
    owner: u64,
    first: u32,
    /// Ids that complete together; 0: nothing was sent, nobody is told.
    count: AtomicU32,
    copied: AtomicBool,
    lends: AtomicBool,
    held: Mutex<Held>,
}

/// What a completion gives back.
#[derive(Debug, Default)]
struct Held {
    memory: FragVec,
    /// Pieces attached so far.
    pieces: u16,
    /// The last of them is the last of `memory`.
    ends_in_memory: bool,
    charges: SmallVec<[Charge; 1]>,
}

impl Held {
    /// The piece whose memory is the last, if that is the piece attached last. The numbers end, and
    /// then none is that of one piece only.
    fn last_piece(&self) -> Option<u16> {
        let numbered = self.ends_in_memory && self.pieces < u16::MAX;
        numbered.then(|| self.pieces.saturating_sub(1))
    }
}

/// Ids that nobody refers to any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Whose they are: what [`Completion::new`] was given.
    pub owner: u64,
    /// The first id.
    pub lo: u32,
    /// The last id; smaller than `lo` if the numbers wrapped between them.
    pub hi: u32,
    /// Whether any of the memory was copied on the way after all.
    pub copied: bool,
}

impl Completion {
    /// The hold of id `first` of `owner`, nothing attached.
    pub fn new(queue: &Arc<CompletionQueue>, owner: u64, first: u32) -> Arc<Self> {
        Arc::new(Self {
            queue: Arc::clone(queue),
            owner,
            first,
            count: AtomicU32::new(1),
            copied: AtomicBool::new(false),
            lends: AtomicBool::new(false),
            held: Mutex::default(),
        })
    }

    /// Takes the memory of `frag` and returns a fragment of the same bytes, held by this
    /// completion. What continues it in memory stays apart: a piece is a fragment.
    pub fn attach(self: &Arc<Self>, frag: Frag) -> Frag {
        if frag.is_empty() {
            return frag;
        }
        let mut held = self.held();
        let piece = held.pieces;
        held.pieces = held.pieces.saturating_add(1);
        let attached = frag.held_by(self, piece);
        if frag.is_lent() {
            self.lends.store(true, Ordering::Relaxed);
        }
        held.ends_in_memory = frag.holds_memory();
        if held.ends_in_memory {
            held.memory.push(frag);
        }
        attached
    }

    /// Whether `frag` continues the piece attached last: the next bytes of one allocation. Of lent
    /// memory nobody knows that.
    pub fn is_continued_by(&self, frag: &Frag) -> bool {
        let held = self.held();
        held.last_piece().is_some() && held.memory.last().is_some_and(|m| m.can_append(frag))
    }

    /// As [`attach`](Self::attach), but what [continues](Self::is_continued_by) the last piece
    /// becomes part of it: the two are joined wherever they meet.
    pub fn attach_behind(self: &Arc<Self>, mut frag: Frag) -> Frag {
        let mut held = self.held();
        if let Some(piece) = held.last_piece()
            && let Some(last) = held.memory.last_mut()
        {
            let attached = frag.held_by(self, piece);
            match last.try_append(frag) {
                Ok(()) => return attached,
                Err(other) => frag = other,
            }
        }
        drop(held);
        self.attach(frag)
    }

    /// One more call, which sends `next`, completes together with the others, without an allocation
    /// and without a reference: if `next` [continues](Self::is_continued_by) the last piece, which is
    /// `piece`, and `budget`, which the calls before were charged to, has room for it. Takes the memory
    /// and returns the id of the call; `None`, and everything is as before, if it has to be sent as any
    /// other. Only the stack that made the completion calls this, between two turns of it.
    pub(crate) fn join_with(
        &self,
        piece: u16,
        next: &mut Frag,
        budget: &Arc<PageBudget>,
    ) -> Option<u32> {
        let mut held = self.held();
        if held.last_piece() != Some(piece) {
            return None;
        }
        let Held { memory, charges, .. } = &mut *held;
        let last = memory.last_mut().filter(|last| last.can_append(next))?;
        let charge = charges.last_mut().filter(|c| Arc::ptr_eq(&c.budget, budget))?;
        if !charge.extend(next.len()) {
            return None;
        }
        last.append(core::mem::take(next));
        // No other thread writes it, so this need not be one step.
        let count = self.count();
        self.count.store(count + 1, Ordering::Relaxed);
        Some(self.first.wrapping_add(count))
    }

    /// Has the completion give `charge` back when it is over.
    pub fn charge(&self, charge: Charge) {
        let mut held = self.held();
        let rest = match held.charges.last_mut() {
            Some(last) => last.absorb(charge),
            None => Some(charge),
        };
        held.charges.extend(rest);
    }

    /// Notes that the memory was copied on the way. Never taken back.
    pub fn mark_copied(&self) {
        // Relaxed: whoever reads it in the last drop has acquired every earlier release.
        self.copied.store(true, Ordering::Relaxed);
    }

    /// Whether some of the memory is the caller's, who frees it when this is over
    /// ([`Frag::lent`]).
    pub fn lends(&self) -> bool {
        self.lends.load(Ordering::Relaxed)
    }

    /// One more call completes together with the others; returns its id. Only the stack that made
    /// the completion calls this, between two turns of it.
    pub fn join(&self) -> u32 {
        self.first.wrapping_add(self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// The last call queued nothing after all and takes its id back.
    pub fn leave(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Calls that complete together.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// The id that would be the next to join.
    pub fn next_id(&self) -> u32 {
        self.first.wrapping_add(self.count())
    }

    /// The region that holds the byte at `addr`, if it is known.
    pub(crate) fn region_of(&self, addr: usize) -> Option<Region> {
        let held = self.held();
        let inside = |frag: &&Frag| (frag.addr()..frag.addr() + frag.len()).contains(&addr);
        held.memory.iter().find(inside)?.region()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        // First the memory, then the news of it: also where the memory is let go of later.
        let before = deferred();
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(core::mem::take(held));
        // Relaxed: the last release of an `Arc` has acquired those before it.
        let count = self.count.load(Ordering::Relaxed);
        if count > 0 {
            let completed = Completed {
                owner: self.owner,
                lo: self.first,
                hi: self.first.wrapping_add(count - 1),
                copied: self.copied.load(Ordering::Relaxed),
            };
            match deferred() > before {
                true => release(Later::News(Arc::clone(&self.queue), completed)),
                false => self.queue.push(completed),
            }
        }
    }
}

/// Called when a completion waits that nobody knows of yet; see [`CompletionQueue::set_waker`].
type Waker = Box<dyn Fn() + Send + Sync>;

/// Completions on their way home to one stack, in the order of the releases.
#[derive(Default)]
pub struct CompletionQueue {
    done: Mutex<Vec<Completed>>,
    /// Whether there are some: a look that costs no lock.
    pending: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl CompletionQueue {
    /// An empty queue.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Whether there is anything to drain.
    pub fn is_pending(&self) -> bool {
        // SeqCst: pairs with the store in `push`, so that whoever says that it goes to sleep and
        // then looks here does not miss what was queued by somebody who did not see it asleep.
        self.pending.load(Ordering::SeqCst)
    }

    /// Moves everything queued behind what `out` has.
    pub fn drain(&self, out: &mut Vec<Completed>) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending.store(false, Ordering::SeqCst);
        out.append(&mut done);
    }

    /// Has `waker` called by whoever queues the first completion since the last drain. It runs on
    /// the releasing thread, possibly inside the stack's own work: it must not wait for a lock that
    /// is held around such work.
    pub fn set_waker(&self, waker: impl Fn() + Send + Sync + 'static) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(waker));
    }

    pub(crate) fn push(&self, completed: Completed) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.push(completed);
        let first = !self.pending.swap(true, Ordering::SeqCst);
        drop(done);
        if first && let Some(wake) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }
}

impl core::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CompletionQueue").field("pending", &self.is_pending()).finish()
    }
}

/// Pages that may be held for zero-copy sends, of one user: shared by all stacks that count
/// together.
#[derive(Debug)]
pub struct PageBudget {
    limit: AtomicUsize,
    used: AtomicUsize,
}

impl PageBudget {
    /// A budget of `limit` pages of [`PAGE_SIZE`]; `usize::MAX`: no limit.
    pub fn new(limit: usize) -> Self {
        Self { limit: AtomicUsize::new(limit), used: AtomicUsize::new(0) }
    }

    /// Changes the limit, in pages. What is held beyond a smaller one stays.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// The limit, in pages.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Pages charged now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Charges a call that sends `bytes`; `None` if that is more than is left. Linux's measure:
    /// the pages that the bytes fill, and one at either end.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let pages = pages_of(bytes);
        self.take(pages).then(|| Charge { budget: Arc::clone(self), pages })
    }

    fn take(&self, pages: usize) -> bool {
        let limit = self.limit();
        // Relaxed: a count, nothing is published by it.
        let take = |used: usize| used.checked_add(pages).filter(|&sum| sum <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

/// What a call that sends `bytes` is charged.
const fn pages_of(bytes: usize) -> usize {
    bytes / PAGE_SIZE + 2
}

/// Pages charged to a budget until this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<PageBudget>,
    pages: usize,
}

impl Charge {
    /// Pages charged.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Charges one more call, of `bytes`; `false` if the budget has too little left.
    fn extend(&mut self, bytes: usize) -> bool {
        let pages = pages_of(bytes);
        let taken = self.budget.take(pages);
        self.pages += if taken { pages } else { 0 };
        taken
    }

    /// Takes in another of the same budget, or gives it back.
    fn absorb(&mut self, mut other: Self) -> Option<Self> {
        if !Arc::ptr_eq(&self.budget, &other.budget) {
            return Some(other);
        }
        self.pages += core::mem::take(&mut other.pages);
        None
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.pages == 0 {
            return;
        }
        self.budget.used.fetch_sub(self.pages, Ordering::Relaxed);
    }
}
