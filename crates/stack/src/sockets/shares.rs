//! Shares of the stack's pages, and turns of those who wait for some; the queues are in `starving.rs`.

use pagewire_mem::{Instant, PAGE_SIZE, PagePool};
use pagewire_tcp::{leaves_at_once, whole_part};

use super::Sockets;
use super::handles::{Tcp, Udp};
use super::pages::{Kind, Pages, is_ample, reserve};
use super::table::Socket;
use crate::event::Readiness;
use crate::limits::SEND_SHARE;
use crate::net::Mem;
use crate::sockets::tcp::socket::{Lists, TcpSocket};
use crate::stack::Core;

impl TcpSocket {
    /// Whether it is on the list of those who wait for pages, and has not been told that it is writable.
    fn waits_for_pages(&self) -> bool {
        self.lists.contains(Lists::STARVED)
            && !self.reporting.reported.contains(Readiness::WRITABLE)
    }

    /// How many of `len` bytes it may copy to pages of the stack, or have filled there.
    #[inline]
    fn share(&self, pool: &PagePool, len: usize) -> usize {
        let ample = pool.stats().free.saturating_sub(reserve(pool)) * PAGE_SIZE;
        let share = (ample / SEND_SHARE).saturating_sub(self.conn.send_charge());
        if share >= len {
            return len;
        }
        let leaves = leaves_at_once(&self.conn);
        if leaves < share { whole_part(&self.conn, share) } else { len.min(leaves) }
    }
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

impl Core {
    /// Wakes sockets that wait for pages, as many as there is room for.
    pub(crate) fn feed_starved(&mut self) {
        self.mem.pool.drain();
        if self.mem.pool.stats().free == 0 {
            // What waits to be filled serves all.
            self.mem.filler.abandon();
            self.mem.pool.drain();
        }
        let (Mem { pool, .. }, Sockets { work, table, .. }) = (&self.mem, &mut self.sockets);
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
