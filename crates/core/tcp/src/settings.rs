//! [`Settings`]: the settings of a connection that the application changes while it exists, each with its
//! effect on what is under way.

use pagewire_mem::Instant;

use crate::config::{Config, KeepAlive};
use crate::connection::Connection;
use crate::life::state::State;
use crate::outbound::congestion::CongestionKind;

/// The settings of a connection. A change has effect from the next event on.
pub struct Settings<'a>(&'a mut Connection);

impl Connection {
    /// To change settings.
    pub fn settings(&mut self) -> Settings<'_> {
        Settings(self)
    }

    /// Whether segments that are not full are held back (`TCP_CORK`).
    pub fn is_corked(&self) -> bool {
        self.out.is_corked()
    }

    /// When the peer's last segment came, or the connection began.
    pub fn last_received(&self) -> Instant {
        self.path.last_received
    }
}

impl Settings<'_> {
    /// Changes settings without an effect of their own on what is under way: all that have no method here.
    pub fn change(&mut self, change: impl FnOnce(&mut Config)) {
        change(self.0.path.own_config());
    }

    /// Turns Nagle's algorithm off (`true`, which flushes the queue even with cork) or on.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.0.out.set_nodelay(nodelay);
    }

    /// Holds back segments that are not full, for at most 200 ms with nothing in flight (`true`).
    pub fn set_cork(&mut self, cork: bool) {
        self.0.out.set_cork(cork);
    }

    /// Turns keep-alive on or off.
    pub fn set_keepalive(&mut self, now: Instant, keepalive: Option<KeepAlive>) {
        self.0.path.own_config().keepalive = keepalive;
        if self.0.life.is_connected() && !self.0.path.lingers() {
            self.0.life.start_keepalive(&self.0.path, now);
        }
    }

    /// See [`Config::defer_accept`](crate::Config::defer_accept). For connections in SYN-SENT.
    pub fn set_defer_accept(&mut self, timeouts: u8) {
        if self.0.path.state() == State::SynSent {
            self.0.path.own_config().defer_accept = timeouts;
        }
    }

    /// See [`Config::recv_lowat`](crate::Config::recv_lowat). The receive buffer grows to fit.
    pub fn set_recv_lowat(&mut self, bytes: u32) {
        self.0.path.own_config().recv_lowat = bytes.max(1);
        self.make_room(bytes);
    }

    /// Grows the receive buffer, within its limit, to queue `bytes`: twice as much for pages.
    pub fn make_room(&mut self, bytes: u32) {
        let buffer = bytes.saturating_mul(2).min(self.0.path.config().recv_buffer);
        self.0.inbound.widen_buffer(buffer);
        // A closed window may open.
        self.0.inbound.on_data_taken(&self.0.path, self.0.out.transfer.rtt());
    }

    /// Changes the congestion control: only the window and its threshold stay, as in Linux.
    pub fn set_congestion(&mut self, kind: CongestionKind) {
        self.0.path.own_config().congestion = kind;
        self.0.out.transfer.set_congestion(kind);
    }

    /// Fixes the size of the send buffer.
    pub fn set_send_buffer(&mut self, bytes: u32) {
        let config = self.0.path.own_config();
        (config.send_buffer, config.send_buffer_initial) = (bytes, bytes);
    }

    /// Fixes the size of the receive buffer.
    pub fn set_recv_buffer(&mut self, bytes: u32) {
        let config = self.0.path.own_config();
        (config.recv_buffer, config.recv_buffer_initial) = (bytes, bytes);
    }

    /// Acknowledges at once (`true`), or delays acknowledgements again, until later events.
    pub fn set_quick_ack(&mut self, quick: bool) {
        self.0.inbound.ack.set_quick_ack(&self.0.path, quick);
    }
}
