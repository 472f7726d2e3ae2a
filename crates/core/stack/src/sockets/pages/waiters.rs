//! [`PageWaiters`]: sockets that wait for free pages. Also the reserve of pages for data that can leave at
//! once.

use std::collections::VecDeque;

use pagewire_mem::{Instant, PagePool};

use crate::limits::{PAGE_WAIT_CHECK, SEND_RESERVE, SEND_RESERVE_PAGES, TURN_PAGES};
use crate::sockets::ids::SocketId;

/// Sockets that wait for free pages.
pub(crate) struct PageWaiters {
    /// Each queue is served first come, first served, so that nobody waits behind a socket that needs more.
    queues: [VecDeque<PageWaiter>; WaiterKind::COUNT],
    /// Turns that were given, and neither used nor passed on.
    pub(super) turns: usize,
    /// When the next check for free pages is due, which also passes unused turns on.
    until: Instant,
}

struct PageWaiter {
    socket: SocketId,
    /// Pages that must be free before the socket is woken.
    needs: usize,
}

#[derive(Clone, Copy)]
pub(super) enum WaiterKind {
    /// A stream whose data can leave at once.
    Leaving,
    Datagrams,
    /// A stream whose data would stay queued: the peer's window is closed.
    Waiting,
}

impl WaiterKind {
    const COUNT: usize = 3;
}

/// Whether a datagram socket waits for pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PageWait {
    #[default]
    No,
    Waiting,
    HasTurn,
}

impl PageWaiters {
    pub(crate) fn new(now: Instant) -> Self {
        Self { queues: Default::default(), turns: 0, until: now }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        (!self.is_empty()).then_some(self.until)
    }

    /// Passes on turns that were not used: their sockets may never use them.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if now >= self.until {
            (self.turns, self.until) = (0, now + PAGE_WAIT_CHECK);
        }
    }

    pub(crate) fn end_turn(&mut self) {
        self.turns = self.turns.saturating_sub(1);
    }

    /// Checks for pages from `now` on, unless that goes on already.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.is_empty() {
            self.until = now + PAGE_WAIT_CHECK;
        }
    }

    pub(super) fn push(&mut self, kind: WaiterKind, socket: SocketId, needs: usize) {
        let [leaving, datagrams, waiting] = &mut self.queues;
        let queue = match kind {
            WaiterKind::Leaving => leaving,
            WaiterKind::Datagrams => datagrams,
            WaiterKind::Waiting => waiting,
        };
        queue.push_back(PageWaiter { socket, needs });
    }

    /// Whether there are pages enough for the first socket of some queue.
    pub(crate) fn is_met(&self, free: FreePages) -> bool {
        let mut queues = self.queues.iter().zip(self.rooms(free));
        queues.any(|(queue, room)| queue.front().is_some_and(|next| next.needs <= room))
    }

    /// Pages for which no turn was given, that the sockets of each queue may have.
    fn rooms(&self, free: FreePages) -> [usize; WaiterKind::COUNT] {
        [free.all, free.all, free.shared].map(|n| n.saturating_sub(self.turns * TURN_PAGES))
    }

    /// Takes a socket for which there are pages enough, the first of its queue.
    pub(super) fn pop(&mut self, free: FreePages) -> Option<SocketId> {
        let rooms = self.rooms(free);
        let mut queues = self.queues.iter_mut().zip(rooms);
        queues
            .find_map(|(queue, room)| queue.pop_front_if(|next| next.needs <= room))
            .map(|waiter| waiter.socket)
    }
}

/// Pages of a stack's pool that copies may take.
#[derive(Clone, Copy)]
pub(crate) struct FreePages {
    /// Pages for data that can leave at once, and for datagrams.
    pub(crate) all: usize,
    /// The pages of these that data may take that would stay queued.
    pub(crate) shared: usize,
}

/// Pages for data that can leave at once.
pub(crate) fn reserve(pool: &PagePool) -> usize {
    let total = pool.stats().total;
    (total / SEND_RESERVE).max(SEND_RESERVE_PAGES.min(total / 8))
}

/// Whether more than the reserve is free.
#[inline]
pub(crate) fn is_ample(pool: &PagePool) -> bool {
    pool.stats().free > reserve(pool)
}
