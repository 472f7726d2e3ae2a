//! Settings of a connection that the application changes while it exists.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::config::KeepAlive;
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
}

impl Settings<'_> {
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
        if self.0.life.is_connected() && self.0.path.state() != State::TimeWait {
            self.0.life.start_keepalive(&self.0.path, now);
        }
    }

    /// How long data may stay unacknowledged (RFC 5482); `None`: retransmissions are counted.
    pub fn set_user_timeout(&mut self, limit: Option<Duration>) {
        self.0.path.own_config().user_timeout = limit;
    }

    /// Upper bound of the MSS that we use, and announce if the SYN has not left yet.
    pub fn set_max_mss(&mut self, mss: Option<u16>) {
        self.0.path.own_config().max_mss = mss;
    }

    /// Retransmissions of a SYN before connecting fails.
    pub fn set_syn_retries(&mut self, retries: u8) {
        let config = self.0.path.own_config();
        config.syn_retries = retries;
        config.syn_linear_retries = 0;
    }

    /// See [`Config::defer_accept`](crate::Config::defer_accept). For connections in SYN-SENT.
    pub fn set_defer_accept(&mut self, timeouts: u8) {
        if self.0.path.state() == State::SynSent {
            self.0.path.own_config().defer_accept = timeouts;
        }
    }

    /// How long a closed connection waits for the peer's FIN (`TCP_LINGER2`).
    pub fn set_fin_wait2(&mut self, limit: Duration) {
        self.0.path.own_config().fin_wait2 = limit;
    }

    /// See [`Config::linger`](crate::Config::linger).
    pub fn set_linger(&mut self, linger: Option<Duration>) {
        self.0.path.own_config().linger = linger;
    }

    /// See [`Config::notsent_lowat`](crate::Config::notsent_lowat).
    pub fn set_notsent_lowat(&mut self, bytes: u32) {
        self.0.path.own_config().notsent_lowat = bytes;
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

    /// See [`Config::oob_inline`](crate::Config::oob_inline).
    pub fn set_oob_inline(&mut self, inline: bool) {
        self.0.path.own_config().oob_inline = inline;
    }

    /// See [`Config::window_clamp`](crate::Config::window_clamp).
    pub fn set_window_clamp(&mut self, bytes: Option<u32>) {
        self.0.path.own_config().window_clamp = bytes;
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
