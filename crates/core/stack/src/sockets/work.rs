//! Work that operations and inputs leave for later in the turn: which connections may send, which sockets have
//! an event to report, and who waits for pages.

use std::collections::VecDeque;
use std::sync::Arc;

use pagewire_mem::{CompletionQueue, Instant, Returns};

use super::pages::waiters::PageWaiters;
use crate::config::ZeroCopyConfig;
use crate::event::ReportState;
use crate::net::LinkIndex;
use crate::sockets::tcp::socket::TcpSocket;

/// Lists of sockets with work left, and settings and queues that operations share.
pub(crate) struct Work {
    /// Connections that may have something to send, each once; entries may be stale.
    pub(crate) tx_pending: VecDeque<u32>,
    /// Connections of `tx_pending` that wait for a link's device, by link; entries may be stale.
    held_up: Vec<Vec<u32>>,
    /// No timer of a connection in `tx_pending` is due earlier. The wheel may not have these timers yet.
    tx_pending_until: Instant,
    /// Sockets whose readiness may have grown, each once; entries may be stale.
    pub(crate) event_pending: VecDeque<u32>,
    /// Sockets whose owners wait for free pages.
    pub(crate) page_waiters: PageWaiters,
    pub(crate) zerocopy: ZeroCopyConfig,
    /// Zero-copy sends whose memory was released.
    pub(crate) completions: Arc<CompletionQueue>,
    /// Memory that applications kept and released.
    pub(crate) returns: Arc<Returns>,
}

impl Work {
    pub(crate) fn new(now: Instant, zerocopy: ZeroCopyConfig) -> Self {
        Self {
            tx_pending: VecDeque::new(),
            held_up: Vec::new(),
            tx_pending_until: Instant::FAR,
            event_pending: VecDeque::new(),
            page_waiters: PageWaiters::new(now),
            zerocopy,
            completions: CompletionQueue::new(),
            returns: Returns::new(),
        }
    }

    /// Marks the connection at `index`: it may send, and its timer may have changed.
    #[inline]
    pub(super) fn queue_send(&mut self, index: u32, socket: &mut TcpSocket) {
        if !core::mem::replace(&mut socket.tx_pending, true) {
            self.tx_pending.push_back(index);
        }
        self.note_timer(socket);
    }

    /// Puts a connection that was taken from `tx_pending` back to the end of the list.
    pub(super) fn queue_again(&mut self, index: u32, socket: &TcpSocket) {
        self.tx_pending.push_back(index);
        self.note_timer(socket);
    }

    #[inline]
    fn note_timer(&mut self, socket: &TcpSocket) {
        if let Some(at) = socket.conn.poll_timeout() {
            self.tx_pending_until = self.tx_pending_until.min(at);
        }
    }

    /// Takes a connection from `tx_pending`. The caller sets its timer in the wheel, or puts it back.
    #[inline]
    pub(super) fn pop_tx_pending(&mut self) -> Option<u32> {
        let next = self.tx_pending.pop_front();
        if next.is_none() {
            self.tx_pending_until = Instant::FAR;
        }
        next
    }

    /// Keeps the connection at `index` until the device of its link has room.
    pub(super) fn hold_up(&mut self, index: u32, link: LinkIndex) {
        let link = usize::from(link);
        self.held_up.resize_with(self.held_up.len().max(link + 1), Vec::new);
        if let Some(list) = self.held_up.get_mut(link) {
            list.push(index);
        }
    }

    /// Whether connections wait for a device.
    pub(super) fn holds_some(&self) -> bool {
        self.held_up.iter().any(|list| !list.is_empty())
    }

    /// The device of a link has room again. Returns whether connections waited for it.
    pub(crate) fn resume(&mut self, link: LinkIndex) -> bool {
        let held_up = self.held_up.get_mut(usize::from(link)).filter(|list| !list.is_empty());
        let Some(list) = held_up else { return false };
        self.tx_pending.extend(list.drain(..));
        true
    }

    /// When the first timer of a connection in `tx_pending` may be due.
    #[inline]
    pub(crate) fn tx_pending_timeout(&self) -> Option<Instant> {
        let none = self.tx_pending.is_empty() || self.tx_pending_until == Instant::FAR;
        (!none).then_some(self.tx_pending_until)
    }

    /// Appends the connections of `tx_pending` whose timers are due; `timer` returns the time of one.
    pub(crate) fn take_due(
        &mut self,
        now: Instant,
        timer: impl Fn(u32) -> Option<Instant>,
        into: &mut Vec<u32>,
    ) {
        if self.tx_pending_timeout().is_none_or(|at| at > now) {
            return;
        }
        self.tx_pending_until = Instant::FAR;
        for &index in &self.tx_pending {
            match timer(index) {
                Some(at) if at <= now => into.push(index),
                Some(at) => self.tx_pending_until = self.tx_pending_until.min(at),
                None => {}
            }
        }
    }

    /// Drops all work.
    pub(crate) fn clear(&mut self) {
        (self.tx_pending, self.event_pending, self.held_up) = Default::default();
        self.page_waiters = PageWaiters::new(Instant::FAR);
        self.tx_pending_until = Instant::FAR;
    }

    /// Marks the socket at `index`: its readiness may have grown.
    #[inline]
    pub(super) fn queue_report(&mut self, index: u32, reporting: &mut ReportState) {
        if !core::mem::replace(&mut reporting.event_pending, true) {
            self.event_pending.push_back(index);
        }
    }
}
