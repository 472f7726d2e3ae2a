//! Byte path, step S7: the release of memory that was sent by reference, and its report.
//!
//! ```text
//!   send_zc ---> Completion (one for each call; memory, ids lo..=hi, copied?)
//!                   ^ held by every fragment and slice of the call, on any thread
//!                   | last release: memory is dropped, then
//!                   v
//!                CompletionQueue (one for each stack) --- drained on every call of the stack ---> error queue
//! ```
//!
//! Memory of a region is reported at once. If the owner is the application's code (`Bytes`, a boxed
//! owner), its drop, and the report after it, wait until the host's lock is free
//! ([`Deferral`](crate::Deferral)). The first report after a drain wakes a driver that sleeps.
//!
//! Read [`Completion`] first. Held pages are charged to a [`PageBudget`], which many stacks share.

use std::sync::{Arc, PoisonError};

use smallvec::SmallVec;

use crate::budget::{Charge, PageBudget};
use crate::frag::{Frag, FragVec};
use crate::region::Region;
use crate::release::{Later, deferred, release};
use crate::reports::{Completed, CompletionQueue};
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering};

/// The memory of one call, or several, sent by reference: kept until the last release, reported.
///
/// Every fragment that [`attach`](Self::attach) returns, and every slice of it, holds the
/// `Completion`. The last release, on any thread, drops the memory and queues a [`Completed`].
#[derive(Debug)]
pub struct Completion {
    queue: Arc<CompletionQueue>,
    owner: u64,
    first: u32,
    /// Ids that complete together; 0: nothing was sent, no report.
    count: AtomicU32,
    copied: AtomicBool,
    lends: AtomicBool,
    sent: Mutex<Sent>,
}

/// The memory and charges that a completion releases.
#[derive(Debug, Default)]
struct Sent {
    memory: FragVec,
    /// Pieces attached so far.
    pieces: u16,
    /// The last piece is the last of `memory`.
    ends_in_memory: bool,
    charges: SmallVec<[Charge; 1]>,
}

impl Sent {
    /// The last piece, if its memory is the last of `memory`. After the last number there is none.
    fn last_piece(&self) -> Option<u16> {
        let numbered = self.ends_in_memory && self.pieces < u16::MAX;
        numbered.then(|| self.pieces.saturating_sub(1))
    }
}

impl Completion {
    /// A completion for id `first` of `owner`, nothing attached.
    #[inline]
    pub fn new(queue: &Arc<CompletionQueue>, owner: u64, first: u32) -> Arc<Self> {
        Arc::new(Self {
            queue: Arc::clone(queue),
            owner,
            first,
            count: AtomicU32::new(1),
            copied: AtomicBool::new(false),
            lends: AtomicBool::new(false),
            sent: Mutex::default(),
        })
    }

    /// Takes the memory of `frag` and returns a fragment of the same bytes, held by this
    /// completion. Each fragment is a piece of its own, also if it continues another.
    pub fn attach(self: &Arc<Self>, frag: Frag) -> Frag {
        if frag.is_empty() {
            return frag;
        }
        let mut sent = self.sent();
        let piece = sent.pieces;
        sent.pieces = sent.pieces.saturating_add(1);
        let attached = frag.held_by(self, piece);
        if frag.is_lent() {
            self.lends.store(true, Ordering::Relaxed);
        }
        sent.ends_in_memory = frag.holds_memory();
        if sent.ends_in_memory {
            sent.memory.push(frag);
        }
        attached
    }

    /// Whether `frag` continues the piece attached last in one allocation; unknown for lent memory.
    pub fn is_continued_by(&self, frag: &Frag) -> bool {
        let sent = self.sent();
        sent.last_piece().is_some() && sent.memory.last().is_some_and(|m| m.can_append(frag))
    }

    /// As [`attach`](Self::attach), but a fragment that [continues](Self::is_continued_by) the last
    /// piece becomes part of it: the two can be joined.
    pub fn attach_behind(self: &Arc<Self>, mut frag: Frag) -> Frag {
        let mut sent = self.sent();
        if let Some(piece) = sent.last_piece()
            && let Some(last) = sent.memory.last_mut()
        {
            let attached = frag.held_by(self, piece);
            match last.try_append(frag) {
                Ok(()) => return attached,
                Err(other) => frag = other,
            }
        }
        drop(sent);
        self.attach(frag)
    }

    /// Adds one more call, which sends `next`, without an allocation and without a reference: if
    /// `next` [continues](Self::is_continued_by) the last piece, which is `piece`, and `budget`, to
    /// which the earlier calls were charged, has room for it. Takes the memory and returns the id
    /// of the call; `None`, and nothing has changed, otherwise. Only the stack that made the
    /// completion calls this, between two turns of it.
    pub(crate) fn join_with(
        &self,
        piece: u16,
        next: &mut Frag,
        budget: &Arc<PageBudget>,
    ) -> Option<u32> {
        let mut sent = self.sent();
        if sent.last_piece() != Some(piece) {
            return None;
        }
        let Sent { memory, charges, .. } = &mut *sent;
        let last = memory.last_mut().filter(|last| last.can_append(next))?;
        let charge = charges.last_mut().filter(|c| c.is_of(budget))?;
        if !charge.extend(next.len()) {
            return None;
        }
        last.append(core::mem::take(next));
        // No other thread writes it, so load and store may be separate.
        let count = self.count();
        self.count.store(count + 1, Ordering::Relaxed);
        Some(self.first.wrapping_add(count))
    }

    /// Adds a charge, which the last release drops.
    #[inline]
    pub fn charge(&self, charge: Charge) {
        let mut sent = self.sent();
        let rest = match sent.charges.last_mut() {
            Some(last) => last.absorb(charge),
            None => Some(charge),
        };
        sent.charges.extend(rest);
    }

    /// Notes that the memory was copied on the way, for good.
    pub fn mark_copied(&self) {
        // Relaxed: the last drop, which reads it, has acquired every earlier release.
        self.copied.store(true, Ordering::Relaxed);
    }

    /// Whether some of the memory is lent: its owner frees it after the report ([`Frag::lent`]).
    #[inline]
    pub fn lends(&self) -> bool {
        self.lends.load(Ordering::Relaxed)
    }

    /// Adds one more call, which completes together with the others; returns its id. Only the stack
    /// that made the completion calls this, between two turns of it.
    pub fn join(&self) -> u32 {
        self.first.wrapping_add(self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// Removes the last call, which queued nothing, with its id.
    pub fn leave(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of calls that complete together.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// The id of the next call that joins.
    #[inline]
    pub fn next_id(&self) -> u32 {
        self.first.wrapping_add(self.count())
    }

    /// The region that the byte at `addr` lies in, if it is known.
    pub(crate) fn region_of(&self, addr: usize) -> Option<Region> {
        let sent = self.sent();
        let inside = |frag: &&Frag| (frag.addr()..frag.addr() + frag.len()).contains(&addr);
        sent.memory.iter().find(inside)?.region()
    }

    #[inline]
    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        // First the memory, then its report: also where the memory is released later.
        let before = deferred();
        let sent = self.sent.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(core::mem::take(sent));
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
