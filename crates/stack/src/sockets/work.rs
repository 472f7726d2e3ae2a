//! What verbs and inputs leave to be done for sockets.

use std::collections::VecDeque;
use std::sync::Arc;

use pagewire_mem::{CompletionQueue, Instant, Returns};

use super::tcp::TcpSocket;
use crate::config::ZeroCopyConfig;

/// What verbs leave to be done, and what they share.
pub(crate) struct Work {
    /// Connections that may have something to send, each once; entries may be stale.
    pub(crate) dirty: VecDeque<u32>,
    /// Sockets whose readiness may have grown, each once; entries may be stale.
    pub(crate) unchecked: VecDeque<u32>,
    /// Connections whose owners wait for pages to write into.
    pub(crate) starved: Vec<u32>,
    /// When to look whether there are some.
    pub(crate) starved_until: Instant,
    pub(crate) zerocopy: ZeroCopyConfig,
    /// Zero-copy sends whose memory was let go.
    pub(crate) completions: Arc<CompletionQueue>,
    /// What applications kept and gave back.
    pub(crate) returns: Arc<Returns>,
}

impl Work {
    /// The connection at `index` may send, and nothing else has changed.
    #[inline]
    pub(super) fn queue_send(&mut self, index: u32, socket: &mut TcpSocket) {
        if !core::mem::replace(&mut socket.dirty, true) {
            self.dirty.push_back(index);
        }
    }

    /// The socket at `index` may be ready for more.
    #[inline]
    pub(super) fn queue_report(&mut self, index: u32, unchecked: &mut bool) {
        if !core::mem::replace(unchecked, true) {
            self.unchecked.push_back(index);
        }
    }
}
