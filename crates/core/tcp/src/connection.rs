//! A connection: its four parts, its getters, its end. The child modules have the operations that involve
//! several parts. A driver, the stack, owns connections and calls them.

mod application;
mod coalesce;
pub(crate) mod fast_open;
pub(crate) mod forward;
mod handshake;
mod info;
mod input;
pub(crate) mod mapping;
mod output;
mod refused;
pub(crate) mod time_wait;
mod timeout;

use pagewire_mem::Instant;

pub use application::Merge;
pub use fast_open::FastOpen;
pub use mapping::{Available, MapRefusal, check_map_len};
pub use time_wait::{TimeWait, TimeWaitStep};

use crate::config::Config;
use crate::error::TcpError;
use crate::inbound::{InFlags, Inbound};
use crate::info::Readiness;
use crate::life::Life;
use crate::life::state::{Event, State};
use crate::outbound::{OutFlags, Outbound};
use crate::path::Path;
use crate::seq::Seq;

/// A TCP connection.
///
/// A connection begins with [`connect`](Self::connect), [`accept`](Self::accept) or
/// [`from_cookie`](Self::from_cookie). The other methods are of four kinds, and a driver calls them
/// in this order:
///
/// 1. **Inputs**: [`handle_segment`](Self::handle_segment), [`handle_icmp`](Self::handle_icmp), and
///    [`handle_timeout`](Self::handle_timeout) at the time that `poll_timeout` returned.
/// 2. **Calls of the application**: [`send`](Self::send), [`read`](Self::read),
///    [`close`](Self::close) and so on.
/// 3. **Outputs**, after any of those: [`poll_transmit`](Self::poll_transmit) until it returns
///    `None`, then [`poll_timeout`](Self::poll_timeout). If the device does not take a segment,
///    [`handle_refused`](Self::handle_refused).
/// 4. **Getters**, at any time: [`readiness`](Self::readiness), [`info`](Self::info) and so on.
///    A connection that [`is_closed`](Self::is_closed) can be removed, and the record that
///    [`time_wait`](Self::time_wait) returns can replace one in TIME-WAIT.
///
/// No input returns output: `poll_transmit` builds what is due. An idle connection owns no heap:
/// empty queues free their memory, and state for losses is boxed.
#[derive(Debug)]
pub struct Connection {
    pub(crate) path: Path,
    pub(crate) life: Life,
    pub(crate) out: Outbound,
    pub(crate) inbound: Inbound,
}

impl Connection {
    /// The state.
    pub fn state(&self) -> State {
        self.path.state()
    }

    /// The operations that do not block now.
    #[inline]
    pub fn readiness(&self) -> Readiness {
        let closed = self.path.state() == State::Closed;
        let fin = self.inbound.has_fin();
        let mut ready = Readiness::empty();
        ready.set(Readiness::READABLE, self.inbound.is_readable(&self.path));
        ready.set(Readiness::URGENT, self.inbound.has_urgent());
        ready.set(
            Readiness::READ_CLOSED,
            closed || fin || self.inbound.flags.contains(InFlags::READ_SHUT),
        );
        ready.set(Readiness::WRITE_CLOSED, closed || self.out.is_closing());
        ready.set(Readiness::WRITABLE, self.is_writable());
        ready.set(Readiness::ERROR, self.life.error.is_some());
        ready.set(Readiness::CONNECTED, self.life.is_connected());
        ready
    }

    /// Whether the connection is [`WRITABLE`](Readiness::WRITABLE), the only readiness that a send may end.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.takes_data() && self.out.is_writable(&self.path)
    }

    /// Whether the connection can be removed: it is closed, and no reset is due.
    pub fn is_closed(&self) -> bool {
        self.path.state() == State::Closed && !self.life.resets()
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        self.path.config()
    }

    /// Whether the peer has closed: its FIN is in order (Linux's `SOCK_DONE`).
    #[inline]
    pub fn has_fin(&self) -> bool {
        self.inbound.has_fin()
    }

    /// Whether no more bytes can arrive after the queued ones.
    pub fn has_end(&self) -> bool {
        self.inbound.flags.intersects(InFlags::FIN_RECEIVED | InFlags::READ_SHUT)
            || self.path.state() == State::Closed
    }

    /// Bytes queued that were never sent (`SIOCOUTQNSD`).
    pub fn queued_unsent(&self) -> usize {
        // A connection that has ended has no queue.
        (self.out.unsent(&self.path) as usize).min(self.queued_send())
    }

    /// Bytes that can be read now.
    pub fn queued_receive(&self) -> usize {
        self.inbound.queue.queued()
    }

    /// Bytes of memory pinned for what was received and not read.
    pub fn pinned_receive(&self) -> usize {
        self.inbound.queue.pinned()
    }

    /// Bytes to charge to the host's budget
    /// ([`MemoryAccount::charge`](crate::MemoryAccount::charge)) for received data that is unread:
    /// its memory, without pages shared with other connections. The budget counts kept memory itself.
    #[inline]
    pub fn receive_charge(&self) -> usize {
        self.inbound.queue.charge()
    }

    /// Bytes that were received and not read, those beyond gaps included.
    #[inline]
    pub fn buffered_receive(&self) -> usize {
        self.inbound.queue.buffered()
    }

    /// Bytes that the peer was promised: the announced window that it has not used
    /// ([`MemoryAccount::promise`](crate::MemoryAccount::promise)).
    #[inline]
    pub fn promise(&self) -> u32 {
        // After its FIN the peer sends nothing more.
        if self.inbound.fin().is_some() { 0 } else { self.inbound.recv_window() }
    }

    /// Bytes of memory that the send queue holds; a forwarder charges them to their receiver.
    pub fn send_charge(&self) -> usize {
        self.out.queue.charge()
    }

    /// Sets how many bytes of memory of read data still wait to be forwarded: they count as unread.
    /// Returns whether that is less than before; then call [`after_release`](Self::after_release).
    pub fn set_held(&mut self, bytes: usize) -> bool {
        self.inbound.queue.set_held(bytes)
    }

    /// The sequence number after the last byte in the send queue.
    pub fn send_end(&self) -> Seq {
        self.out.queue.end()
    }

    /// The next sequence number that has never been sent.
    pub fn send_next(&self) -> Seq {
        self.out.transfer.snd.nxt
    }

    /// Bytes in the send queue: those that the peer has not acknowledged.
    pub fn queued_send(&self) -> usize {
        self.out.queue.len() as usize
    }

    /// Why the connection failed, if the error was not taken yet.
    pub fn error(&self) -> Option<TcpError> {
        self.life.error
    }

    /// Why the connection failed, once.
    pub fn take_error(&mut self) -> Option<TcpError> {
        self.life.error.take()
    }

    /// Ends the connection, for the application with `error`. Received data stays readable.
    pub(crate) fn finish(&mut self, event: Event, error: Option<TcpError>) {
        self.path.transition(event);
        // Only a FIN beyond a gap ever arrived: the path dropped the data before it.
        if self.inbound.fin().is_some()
            && !self.inbound.has_fin()
            && self.inbound.bytes_received == 0
        {
            self.life.suspect_black_hole();
        }
        self.out.end();
        self.out.flags.remove(OutFlags::PROBE_DUE | OutFlags::FLUSH_DUE);
        self.inbound.end();
        self.life.end(event, error);
    }

    /// Has empty queues freed if they stay empty.
    pub(crate) fn consider_shrinking(&mut self, now: Instant) {
        if self.out.has_heap() || self.inbound.tuning.is_some() {
            self.life.shrink.set_once(now + self.path.config().shrink_after);
        }
    }
}

#[cfg(test)]
#[path = "tests/connection.rs"]
mod tests;
