//! Shares of the stack's pages: how many a socket may take, and which waiting socket is next.
//!
//! ```text
//!   a write ---> share: a quarter of the free memory, less what the connection holds
//!                 | nothing left             | but some are for data that can leave at once
//!                 v
//!   wait_for_pages ---> three queues, first in, first out ---> wake_page_waiters: as many turns as there is room for
//! ```
//!
//! Pages of data that can leave come back with its acknowledgement. Data for a peer that does not read
//! stays, so it never gets the last pages, and who sends to a peer that reads never stands still.

pub(crate) mod waiters;

use pagewire_mem::{Instant, PAGE_SIZE};
use pagewire_tcp::TcpError;

use super::errors::error_from;
use super::table::Socket;
use super::tcp::socket::SocketFlags;
use super::{Context, Tcp, Udp};
use crate::error::Error;
use crate::event::Readiness;
use waiters::{PageWait, WaiterKind};

impl Tcp<'_> {
    /// How many of `len` bytes may be copied to pages of the stack now. If none, the connection waits
    /// for pages, or for acknowledgements of what it holds already.
    #[inline]
    pub(super) fn share(&mut self, now: Instant, len: usize) -> Option<usize> {
        self.pass_turn_on();
        self.mem.note_pages();
        let share = self.socket.share(self.mem, len);
        if share == 0 && len > 0 {
            self.wait_for_pages(now);
            return None;
        }
        Some(share)
    }

    /// Ends the socket's turn, if it had one.
    #[inline]
    fn pass_turn_on(&mut self) {
        if self.socket.flags.contains(SocketFlags::PAGE_TURN) {
            self.socket.flags.remove(SocketFlags::PAGE_TURN);
            self.work.page_waiters.end_turn();
        }
    }

    /// There was room, but no free page for a copy: the connection waits for pages.
    pub(super) fn wait_for_pages(&mut self, now: Instant) {
        self.pass_turn_on();
        self.socket.flags.insert(SocketFlags::WRITE_REFUSED);
        self.socket.reporting.reported &= !Readiness::WRITABLE;
        let kind = match self.socket.conn.leaves_at_once() {
            // More free pages are not what it waits for: it holds its share. Its peer's next segment
            // makes it writable.
            0 if self.mem.free_pages().shared > 0 => return,
            0 => WaiterKind::Waiting,
            _ => WaiterKind::Leaving,
        };
        // A connection that waited for more pages, and needs fewer by now, gets a second entry.
        let flags = &mut self.socket.flags;
        let is_late =
            flags.contains(SocketFlags::WAITS_FOR_RESERVE) && matches!(kind, WaiterKind::Leaving);
        if !flags.contains(SocketFlags::WAITS_FOR_PAGES) || is_late {
            flags.insert(SocketFlags::WAITS_FOR_PAGES);
            flags.set(SocketFlags::WAITS_FOR_RESERVE, matches!(kind, WaiterKind::Waiting));
            self.work.page_waiters.begin(now);
            self.work.page_waiters.push(kind, self.id, 1);
        }
    }

    /// Free pages were asked for and refused: the connection waits for what it lacked, or reports its end.
    pub(super) fn refused(&mut self, now: Instant, error: TcpError) -> Error {
        self.note_used_up();
        match error {
            TcpError::NoBuffers => self.wait_for_pages(now),
            TcpError::WouldBlock => {}
            _ => self.touch(),
        }
        error_from(error)
    }

    /// The connection has queued its share of `wanted` bytes. If that was less, its next event reports that there is
    /// room again, as after a send that did not fit.
    pub(super) fn after_share(&mut self, share: usize, wanted: usize) {
        if share < wanted {
            self.socket.reporting.reported &= !Readiness::WRITABLE;
        }
    }
}

impl Udp<'_> {
    /// There were fewer free pages than `len` bytes need: the socket waits for them.
    pub(super) fn wait_for_pages(&mut self, now: Instant, len: usize) {
        self.pass_turn_on();
        self.socket.reporting.reported &= !Readiness::WRITABLE;
        if self.socket.pages != PageWait::Waiting {
            self.socket.pages = PageWait::Waiting;
            let needs = len.div_ceil(PAGE_SIZE).max(1);
            self.work.page_waiters.begin(now);
            self.work.page_waiters.push(WaiterKind::Datagrams, self.id, needs);
        }
    }

    /// Ends the socket's turn, if it had one.
    #[inline]
    pub(super) fn pass_turn_on(&mut self) {
        if self.socket.pages == PageWait::HasTurn {
            self.socket.pages = PageWait::No;
            self.work.page_waiters.end_turn();
        }
    }
}

impl Context {
    /// Wakes sockets that wait for pages, as many as there is room for.
    pub(crate) fn wake_page_waiters(&mut self) {
        self.net.mem.pool.drain();
        if self.net.mem.pool.stats().free == 0 {
            // Pages of the filler serve all.
            self.net.mem.filler.abandon();
            self.net.mem.pool.drain();
        }
        let Self { net, work, table, .. } = self;
        net.mem.note_pages();
        let mem = &net.mem;
        while let Some(id) = work.page_waiters.pop(mem.free_pages()) {
            match table.get_mut(id) {
                // This is the second entry, or segments of the peer let the connection go on.
                Ok(Socket::Tcp(socket)) if !socket.waits_for_pages() => {
                    socket
                        .flags
                        .remove(SocketFlags::WAITS_FOR_PAGES | SocketFlags::WAITS_FOR_RESERVE);
                }
                // The peer's window has closed meanwhile.
                Ok(Socket::Tcp(socket))
                    if socket.share(mem, 1) == 0 && mem.free_pages().shared == 0 =>
                {
                    socket.flags.insert(SocketFlags::WAITS_FOR_RESERVE);
                    work.page_waiters.push(WaiterKind::Waiting, id, 1);
                }
                Ok(Socket::Tcp(socket)) => {
                    socket
                        .flags
                        .remove(SocketFlags::WAITS_FOR_PAGES | SocketFlags::WAITS_FOR_RESERVE);
                    // Otherwise the peer's next segment makes it writable.
                    if socket.conn.is_writable() && socket.share(mem, 1) > 0 {
                        socket.flags.remove(SocketFlags::WRITE_REFUSED);
                        socket.flags.insert(SocketFlags::PAGE_TURN);
                        work.page_waiters.turns += 1;
                        work.queue_report(id.index(), &mut socket.reporting);
                    }
                }
                Ok(Socket::Udp(socket)) => {
                    socket.pages = PageWait::HasTurn;
                    work.page_waiters.turns += 1;
                    work.queue_report(id.index(), &mut socket.reporting);
                }
                // A socket that is gone gives its turn to the next.
                _ => {}
            }
        }
    }
}
