//! A socket's error queue: what the network reported, and memory that was let go.
//!
//! Notifications of zero-copy sends take no part in the limit on errors; they have a budget of
//! bytes of their own, which sends that are not complete are charged to as well (see `zerocopy.rs`).

use std::collections::VecDeque;
use std::sync::Arc;

use pagewire_mem::{Completion, CompletionQueue};

use super::ids::SocketId;
use super::sends::{Begun, Sends};
use crate::config::{Coalescing, ZeroCopyConfig};
use crate::error::Error;
use crate::event::{ErrorEntry, ErrorOrigin, Notification, QueuedError, TxTimestamp};
use crate::limits::{ERROR_QUEUE, NOTIFICATION_CHARGE};

/// A bounded queue of errors and notifications.
#[derive(Default)]
pub(crate) struct ErrorQueue {
    entries: VecDeque<ErrorEntry>,
    /// Entries that are notifications.
    notifications: usize,
    /// Whether what the network reports is kept.
    keeps_errors: bool,
    /// Something came since the owner was last told.
    news: bool,
    /// Zero-copy sends that will end up here.
    pub(super) sends: Sends,
}

impl ErrorQueue {
    /// Whether what the network reports is kept from now on; off drops what there is.
    pub(crate) fn keep_errors(&mut self, keep: bool) {
        self.keeps_errors = keep;
        if !keep {
            self.entries.retain(|entry| !matches!(entry, ErrorEntry::Network(_)));
        }
    }

    /// The network reports something.
    pub(crate) fn push(&mut self, error: Error, origin: ErrorOrigin) {
        self.push_entry(QueuedError { error, origin, mtu: 0, to: None });
    }

    /// The network, or the stack, reports something about a datagram.
    pub(super) fn push_entry(&mut self, entry: QueuedError) {
        if self.keeps_errors && self.entries.len() - self.notifications < ERROR_QUEUE {
            self.news = true;
            self.entries.push_back(ErrorEntry::Network(entry));
        }
    }

    /// Memory was let go. Extends the last entry where it may.
    pub(super) fn notify(&mut self, done: Notification, coalescing: Coalescing) {
        self.news = true;
        if let Some(ErrorEntry::ZeroCopy(last)) = self.entries.back_mut()
            && last.extend(done, coalescing)
        {
            return;
        }
        self.notifications += 1;
        self.entries.push_back(ErrorEntry::ZeroCopy(done));
    }

    /// A moment that was asked for has come.
    pub(super) fn timestamp(&mut self, found: TxTimestamp) {
        if self.entries.len() - self.notifications < ERROR_QUEUE {
            self.news = true;
            self.entries.push_back(ErrorEntry::Timestamp(found));
        }
    }

    /// Takes the oldest entry.
    pub(crate) fn pop(&mut self) -> Option<ErrorEntry> {
        let entry = self.entries.pop_front()?;
        self.notifications -= usize::from(matches!(entry, ErrorEntry::ZeroCopy(_)));
        Some(entry)
    }

    /// Takes the oldest notification, whatever else is queued.
    pub(crate) fn pop_notification(&mut self) -> Option<Notification> {
        let is_one = |entry: &ErrorEntry| matches!(entry, ErrorEntry::ZeroCopy(_));
        let at = self.entries.iter().position(is_one)?;
        match self.entries.remove(at)? {
            ErrorEntry::ZeroCopy(done) => {
                self.notifications -= 1;
                Some(done)
            }
            ErrorEntry::Network(_) | ErrorEntry::Timestamp(_) => None,
        }
    }

    /// Whether something came since the owner was last told, an entry or the extension of one.
    pub(super) fn has_news(&self) -> bool {
        self.news
    }

    /// The owner is told.
    pub(super) fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.news)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Notifications that nobody has read.
    pub(super) fn unread(&self) -> usize {
        self.notifications
    }
}

impl ErrorQueue {
    /// Prepares a call of `bytes` bytes. With `shared`, it may complete together with the last one.
    pub(super) fn begin_send(
        &mut self,
        config: &ZeroCopyConfig,
        queue: &Arc<CompletionQueue>,
        owner: SocketId,
        bytes: usize,
        shared: bool,
    ) -> Result<Begun, Error> {
        let unread = self.unread();
        let sends = &mut self.sends;
        let charge = || config.pages.charge(bytes).ok_or(Error::TooManyPagesHeld);
        if shared
            && let Some(last) = sends.last.upgrade()
            && sends.may_share(&last, bytes)
        {
            let charge = charge()?;
            let id = last.join();
            return Ok(Begun { completion: last, charge, id, joined: true });
        }
        let taken = (sends.live + unread + 1).saturating_mul(NOTIFICATION_CHARGE);
        if taken > config.notification_bytes {
            return Err(Error::TooManyNotifications);
        }
        let (charge, id) = (charge()?, sends.next_id);
        let completion = Completion::new(queue, owner.token(), id);
        Ok(Begun { completion, charge, id, joined: false })
    }

    /// Whether memory of the caller's was sent.
    pub(super) fn lends(&self) -> bool {
        self.sends.lends
    }

    /// What of its socket becomes one.
    pub(super) fn coalescing(&self, config: &ZeroCopyConfig) -> Coalescing {
        self.sends.coalescing.unwrap_or(config.coalescing)
    }
}

impl Notification {
    /// Takes in `next` if it continues this one.
    fn extend(&mut self, next: Self, coalescing: Coalescing) -> bool {
        let same_kind = match coalescing {
            // And a range is one of Rust's: it does not go on behind the last number.
            Coalescing::SameKind => self.copied == next.copied && self.hi < u32::MAX,
            // Linux does not look: the older entry's flag wins.
            Coalescing::Linux => true,
        };
        let ids = |n: &Self| u64::from(n.hi.wrapping_sub(n.lo)) + 1;
        let fits = ids(self) + ids(&next) < 1 << 32;
        if !same_kind || !fits || next.lo != self.hi.wrapping_add(1) {
            return false;
        }
        self.hi = next.hi;
        true
    }
}
