//! [`Closer`]: a thread that closes kernel sockets. A close sends the stream's end, which over a virtual link is
//! the far side's work, too: a sixth of the time that a relay spends on a short connection. The thread has little
//! room, so that waiting sockets stay within the reserved descriptors: a guest that fills it leaves the others to
//! close their own.

use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, available_parallelism};

use crate::limits::{CLOSE_TOGETHER, CLOSES_AT_ONCE, CLOSES_WAITING};

/// The closing thread of a gateway, for all its guests.
#[derive(Clone, Debug)]
pub(crate) struct Closer(Option<SyncSender<Vec<OwnedFd>>>);

impl Closer {
    /// Starts the thread, which ends with the last relay. On one processor there is none.
    pub(crate) fn start() -> Self {
        if available_parallelism().is_ok_and(|n| n == NonZero::<usize>::MIN) {
            return Self::without_thread();
        }
        let (closer, closing) = sync_channel(CLOSES_WAITING);
        let run = move || closing.into_iter().for_each(drop::<Vec<OwnedFd>>);
        let thread = Builder::new().name("pagewire-close".into()).spawn(run);
        Self(thread.is_ok().then_some(closer))
    }

    /// The caller's thread closes all sockets.
    pub(crate) fn without_thread() -> Self {
        Self(None)
    }

    /// Closes these sockets: many by the thread, unless it has many already; a few here, which costs less than to
    /// wake the thread.
    pub(crate) fn close(&self, sockets: &mut Vec<OwnedFd>) {
        if sockets.len() >= CLOSE_TOGETHER
            && let Some(thread) = &self.0
        {
            let batch = sockets.drain(..sockets.len().min(CLOSES_AT_ONCE)).collect();
            // Sockets that find no room are closed here, by their drop.
            let _ = thread.try_send(batch);
        }
        sockets.clear();
    }
}

#[cfg(test)]
#[path = "closer_tests.rs"]
mod tests;
