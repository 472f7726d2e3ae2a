//! A socket's error queue: errors, timestamps and notifications of zero-copy sends.
//!
//! Notifications do not count for the limit on errors: they have a budget of bytes of their own, to
//! which incomplete sends are charged too (see `zerocopy.rs`).

use std::collections::VecDeque;
use std::sync::Arc;

use pagewire_mem::{Completion, CompletionQueue};

use super::ids::SocketId;
use crate::config::{Coalescing, ZeroCopyConfig};
use crate::error::Error;
use crate::event::{ErrorEntry, ErrorOrigin, Notification, QueuedError, TxTimestamp};
use crate::limits::{ERROR_QUEUE, NOTIFICATION_CHARGE};
use crate::sockets::zerocopy::sends::{BegunSend, ZeroCopySends};

#[derive(Default)]
pub(crate) struct ErrorQueue {
    entries: VecDeque<ErrorEntry>,
    /// Entries that are notifications.
    notifications: usize,
    keeps_errors: bool,
    /// Whether there was a new entry since the last report.
    news: bool,
    /// Zero-copy sends whose notifications come here.
    pub(crate) sends: ZeroCopySends,
}

impl ErrorQueue {
    /// An empty queue with the settings of another.
    pub(super) fn with_settings_of(other: &Self) -> Self {
        let sends =
            ZeroCopySends { coalescing: other.sends.coalescing, ..ZeroCopySends::default() };
        Self { keeps_errors: other.keeps_errors, sends, ..Self::default() }
    }

    pub(super) fn keeps_errors(&self) -> bool {
        self.keeps_errors
    }

    /// Whether errors are kept from now on; off drops those in the queue.
    pub(crate) fn keep_errors(&mut self, keep: bool) {
        self.keeps_errors = keep;
        if !keep {
            self.entries.retain(|entry| !matches!(entry, ErrorEntry::Network(_)));
        }
    }

    /// Adds an error of a stream.
    pub(crate) fn push(&mut self, error: Error, origin: ErrorOrigin) {
        self.push_entry(QueuedError { error, origin, mtu: 0, to: None, about: None });
    }

    pub(super) fn push_entry(&mut self, entry: QueuedError) {
        self.push_within(entry, ERROR_QUEUE);
    }

    /// As [`push_entry`](Self::push_entry), with another limit.
    pub(super) fn push_within(&mut self, entry: QueuedError, most: usize) {
        if self.keeps_errors && self.entries.len() - self.notifications < most {
            self.news = true;
            self.entries.push_back(ErrorEntry::Network(entry));
        }
    }

    /// Adds a notification, or merges it with the last entry.
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

    pub(super) fn timestamp(&mut self, found: TxTimestamp) {
        if self.entries.len() - self.notifications < ERROR_QUEUE {
            self.news = true;
            self.entries.push_back(ErrorEntry::Timestamp(found));
        }
    }

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

    /// Whether there was a new entry, or a merged one, since the last report.
    pub(super) fn has_new_entry(&self) -> bool {
        self.news
    }

    /// As [`has_new_entry`](Self::has_new_entry), and notes a report.
    pub(super) fn take_new_entry(&mut self) -> bool {
        core::mem::take(&mut self.news)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn unread(&self) -> usize {
        self.notifications
    }

    /// Begins a call: charges the budgets, takes an id, and makes or (`shared`) joins a completion.
    pub(super) fn begin_send(
        &mut self,
        config: &ZeroCopyConfig,
        queue: &Arc<CompletionQueue>,
        owner: SocketId,
        bytes: usize,
        shared: bool,
    ) -> Result<BegunSend, Error> {
        let unread = self.unread();
        let sends = &mut self.sends;
        let charge = || config.pages.charge(bytes).ok_or(Error::TooManyPagesHeld);
        if shared
            && let Some(last) = sends.last.upgrade()
            && sends.may_share(&last, bytes)
        {
            let charge = charge()?;
            let id = last.join();
            return Ok(BegunSend { completion: last, charge, id, joined: true });
        }
        let taken = (sends.live + unread + 1).saturating_mul(NOTIFICATION_CHARGE);
        if taken > config.notification_bytes {
            return Err(Error::TooManyNotifications);
        }
        let (charge, id) = (charge()?, sends.next_id);
        let completion = Completion::new(queue, owner.token(), id);
        Ok(BegunSend { completion, charge, id, joined: false })
    }

    pub(super) fn lends(&self) -> bool {
        self.sends.lends
    }

    pub(super) fn coalescing(&self, config: &ZeroCopyConfig) -> Coalescing {
        self.sends.coalescing.unwrap_or(config.coalescing)
    }
}
