//! The stack's pages: what a socket may take, and which of those that wait is next.
//!
//! ```text
//!   a write ---> share: a quarter of what is free, less what the connection holds
//!                 | nothing left             | but some are for data that can leave at once
//!                 v
//!   starve ---> three queues, first in, first out ---> feed_starved: as many turns as there is room for
//! ```
//!
//! Pages of data that can leave come back with its acknowledgement. Data for a peer that does not read
//! stays, so it never gets the last pages, and who sends to a peer that reads never stands still.

use std::collections::VecDeque;

use pagewire_mem::{Instant, PAGE_SIZE, PagePool};
use pagewire_tcp::leaves_at_once;

use super::ids::SocketId;
use super::table::Socket;
use super::tcp::socket::Lists;
use super::{Context, Tcp, Udp};
use crate::event::Readiness;
use crate::limits::{SEND_RESERVE, SEND_RESERVE_PAGES, STARVED_CHECK, TURN_PAGES};
use crate::net::Mem;

/// Sockets that wait for free pages.
pub(crate) struct Starving {
    /// First come, first served in each, so that nobody waits behind one that needs more.
    queues: [VecDeque<Starved>; Kind::COUNT],
    /// Turns that were given, and neither used nor passed on.
    pub(super) turns: usize,
    /// When to look for free pages, and when turns that nobody used are passed on.
    until: Instant,
}

struct Starved {
    socket: SocketId,
    /// Pages that must be free before it is woken.
    needs: usize,
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// A stream whose data can leave at once.
    Leaving,
    Datagrams,
    /// A stream whose data would wait here.
    Waiting,
}

impl Kind {
    const COUNT: usize = 3;
}

/// How a datagram socket stands to the stack's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pages {
    #[default]
    Ample,
    Waits,
    HasTurn,
}

impl Starving {
    pub(super) fn new(now: Instant) -> Self {
        Self { queues: Default::default(), turns: 0, until: now }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        (!self.is_empty()).then_some(self.until)
    }

    /// Passes on the turns of those who have not used them: they may never.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if now >= self.until {
            (self.turns, self.until) = (0, now + STARVED_CHECK);
        }
    }

    pub(super) fn end_turn(&mut self) {
        self.turns = self.turns.saturating_sub(1);
    }

    /// Looks for pages from `now` on, unless it does already.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.is_empty() {
            self.until = now + STARVED_CHECK;
        }
    }

    pub(super) fn push(&mut self, kind: Kind, socket: SocketId, needs: usize) {
        let [leaving, datagrams, waiting] = &mut self.queues;
        let queue = match kind {
            Kind::Leaving => leaving,
            Kind::Datagrams => datagrams,
            Kind::Waiting => waiting,
        };
        queue.push_back(Starved { socket, needs });
    }

    /// Whether the needs of somebody whose turn it is are met, while `free` pages are free.
    pub(crate) fn is_met(&self, free: usize) -> bool {
        let room = self.room(free);
        self.queues.iter().any(|queue| queue.front().is_some_and(|next| next.needs <= room))
    }

    /// Free pages that no turn was given for.
    fn room(&self, free: usize) -> usize {
        free.saturating_sub(self.turns * TURN_PAGES)
    }

    /// The next whose needs are met, while `free` pages are free.
    pub(super) fn pop(&mut self, free: usize) -> Option<SocketId> {
        let room = self.room(free);
        let mut queues = self.queues.iter_mut();
        queues.find_map(|queue| queue.pop_front_if(|next| next.needs <= room)).map(|s| s.socket)
    }
}

/// Pages for data that can leave at once.
pub(super) fn reserve(pool: &PagePool) -> usize {
    let total = pool.stats().total;
    (total / SEND_RESERVE).max(SEND_RESERVE_PAGES.min(total / 8))
}

/// Whether more than the reserve is free.
#[inline]
pub(super) fn is_ample(pool: &PagePool) -> bool {
    pool.stats().free > reserve(pool)
}

impl Tcp<'_> {
    /// How many of `len` bytes may be copied to pages of the stack now. If none, the connection waits
    /// for pages, or for acknowledgements of what it holds already.
    #[inline]
    pub(super) fn share(&mut self, now: Instant, len: usize) -> Option<usize> {
        self.pass_turn_on();
        let share = self.socket.share(&self.mem.pool, len);
        if share == 0 && len > 0 {
            self.starve(now);
            return None;
        }
        Some(share)
    }

    /// Its turn is over, if it had one.
    #[inline]
    fn pass_turn_on(&mut self) {
        if self.socket.lists.contains(Lists::TURN) {
            self.socket.lists.remove(Lists::TURN);
            self.work.starving.end_turn();
        }
    }

    /// There was room, but no free page for a copy: the connection waits for pages.
    pub(super) fn starve(&mut self, now: Instant) {
        self.pass_turn_on();
        self.socket.lists.insert(Lists::REFUSED);
        self.socket.reporting.reported &= !Readiness::WRITABLE;
        let pool = &self.mem.pool;
        let (kind, needs) = match leaves_at_once(&self.socket.conn) {
            // More free pages are not what it waits for: it holds its share. Its peer's next segment
            // makes it writable.
            0 if is_ample(pool) => return,
            0 => (Kind::Waiting, reserve(pool) + 1),
            _ => (Kind::Leaving, 1),
        };
        // One that waited for more, and needs less by now, gets a second place.
        let lists = &mut self.socket.lists;
        let is_late = lists.contains(Lists::PATIENT) && matches!(kind, Kind::Leaving);
        if !lists.contains(Lists::STARVED) || is_late {
            lists.insert(Lists::STARVED);
            lists.set(Lists::PATIENT, matches!(kind, Kind::Waiting));
            self.work.starving.begin(now);
            self.work.starving.push(kind, self.id, needs);
        }
    }

    /// Of `wanted` bytes, the connection has queued its share, which may be less: as of a send that did
    /// not fit, its next event says that there is room again.
    pub(super) fn after_share(&mut self, share: usize, wanted: usize) {
        if share < wanted {
            self.socket.reporting.reported &= !Readiness::WRITABLE;
        }
    }
}

impl Udp<'_> {
    /// There were fewer free pages than `len` bytes need: it waits for them.
    pub(super) fn starve(&mut self, now: Instant, len: usize) {
        self.pass_turn_on();
        self.socket.reporting.reported &= !Readiness::WRITABLE;
        if self.socket.pages != Pages::Waits {
            self.socket.pages = Pages::Waits;
            let needs = len.div_ceil(PAGE_SIZE).max(1);
            self.work.starving.begin(now);
            self.work.starving.push(Kind::Datagrams, self.id, needs);
        }
    }

    /// Its turn is over, if it had one.
    #[inline]
    pub(super) fn pass_turn_on(&mut self) {
        if self.socket.pages == Pages::HasTurn {
            self.socket.pages = Pages::Ample;
            self.work.starving.end_turn();
        }
    }
}

impl Context {
    /// Wakes sockets that wait for pages, as many as there is room for.
    pub(crate) fn feed_starved(&mut self) {
        self.mem.pool.drain();
        if self.mem.pool.stats().free == 0 {
            // What waits to be filled serves all.
            self.mem.filler.abandon();
            self.mem.pool.drain();
        }
        let Self { mem: Mem { pool, .. }, work, table, .. } = self;
        while let Some(id) = work.starving.pop(pool.stats().free) {
            match table.get_mut(id) {
                // Its second place, or it went on by its peer's segments.
                Ok(Socket::Tcp(socket)) if !socket.waits_for_pages() => {
                    socket.lists.remove(Lists::STARVED | Lists::PATIENT);
                }
                // Its peer's window has closed meanwhile.
                Ok(Socket::Tcp(socket)) if socket.share(pool, 1) == 0 && !is_ample(pool) => {
                    socket.lists.insert(Lists::PATIENT);
                    work.starving.push(Kind::Waiting, id, reserve(pool) + 1);
                }
                Ok(Socket::Tcp(socket)) => {
                    socket.lists.remove(Lists::STARVED | Lists::PATIENT);
                    // Else its peer's next segment makes it writable.
                    if socket.conn.is_writable() && socket.share(pool, 1) > 0 {
                        socket.lists.remove(Lists::REFUSED);
                        socket.lists.insert(Lists::TURN);
                        work.starving.turns += 1;
                        work.queue_report(id.index(), &mut socket.reporting);
                    }
                }
                Ok(Socket::Udp(socket)) => {
                    socket.pages = Pages::HasTurn;
                    work.starving.turns += 1;
                    work.queue_report(id.index(), &mut socket.reporting);
                }
                // One that is gone leaves its place to the next.
                _ => {}
            }
        }
    }
}
