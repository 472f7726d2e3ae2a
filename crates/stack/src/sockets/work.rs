//! Work that verbs and inputs leave for later in the turn.

use std::collections::VecDeque;
use std::sync::Arc;

use pagewire_mem::{CompletionQueue, Instant, Returns};

use super::tcp::TcpSocket;
use crate::config::ZeroCopyConfig;
use crate::event::Reporting;

/// Work that verbs leave, and what they share.
pub(crate) struct Work {
    /// Connections that may have something to send, each once; entries may be stale.
    pub(crate) dirty: VecDeque<u32>,
    /// Sockets whose readiness may have grown, each once; entries may be stale.
    pub(crate) unchecked: VecDeque<u32>,
    /// Connections whose owners wait for free pages.
    pub(crate) starved: Vec<u32>,
    /// When to look for free pages.
    pub(crate) starved_until: Instant,
    pub(crate) zerocopy: ZeroCopyConfig,
    /// Zero-copy sends whose memory was released.
    pub(crate) completions: Arc<CompletionQueue>,
    /// Memory that applications kept and released.
    pub(crate) returns: Arc<Returns>,
}

impl Work {
    /// Marks the connection at `index`: it may send.
    #[inline]
    pub(super) fn queue_send(&mut self, index: u32, socket: &mut TcpSocket) {
        if !core::mem::replace(&mut socket.dirty, true) {
            self.dirty.push_back(index);
        }
    }

    /// Marks the socket at `index`: its readiness may have grown.
    #[inline]
    pub(super) fn queue_report(&mut self, index: u32, reporting: &mut Reporting) {
        if !core::mem::replace(&mut reporting.unchecked, true) {
            self.unchecked.push_back(index);
        }
    }
}
