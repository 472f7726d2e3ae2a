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

use crate::budget::{Charge, PageBudget};
use crate::completions::{Completed, CompletionQueue};
use crate::frag::{Frag, FragVec};
use crate::region::Region;
use crate::release::{Later, deferred, release};
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering};

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
    sent: Mutex<Sent>,
}

/// What a completion gives back.
#[derive(Debug, Default)]
struct Sent {
    memory: FragVec,
    /// Pieces attached so far.
    pieces: u16,
    /// The last of them is the last of `memory`.
    ends_in_memory: bool,
    charges: SmallVec<[Charge; 1]>,
}

impl Sent {
    /// The piece whose memory is the last, if that is the piece attached last. The numbers end, and
    /// then none is that of one piece only.
    fn last_piece(&self) -> Option<u16> {
        let numbered = self.ends_in_memory && self.pieces < u16::MAX;
        numbered.then(|| self.pieces.saturating_sub(1))
    }
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
            sent: Mutex::default(),
        })
    }

    /// Takes the memory of `frag` and returns a fragment of the same bytes, held by this
    /// completion. What continues it in memory stays apart: a piece is a fragment.
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

    /// Whether `frag` continues the piece attached last: the next bytes of one allocation. Of lent
    /// memory nobody knows that.
    pub fn is_continued_by(&self, frag: &Frag) -> bool {
        let sent = self.sent();
        sent.last_piece().is_some() && sent.memory.last().is_some_and(|m| m.can_append(frag))
    }

    /// As [`attach`](Self::attach), but what [continues](Self::is_continued_by) the last piece
    /// becomes part of it: the two are joined wherever they meet.
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
        // No other thread writes it, so this need not be one step.
        let count = self.count();
        self.count.store(count + 1, Ordering::Relaxed);
        Some(self.first.wrapping_add(count))
    }

    /// Has the completion give `charge` back when it is over.
    pub fn charge(&self, charge: Charge) {
        let mut sent = self.sent();
        let rest = match sent.charges.last_mut() {
            Some(last) => last.absorb(charge),
            None => Some(charge),
        };
        sent.charges.extend(rest);
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
        let sent = self.sent();
        let inside = |frag: &&Frag| (frag.addr()..frag.addr() + frag.len()).contains(&addr);
        sent.memory.iter().find(inside)?.region()
    }

    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        // First the memory, then the news of it: also where the memory is let go of later.
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
